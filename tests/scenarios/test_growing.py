"""Claims that ask for more, and for other attributes, after they were bound."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from scenarios.backends import OK, GrowingBackend, ScriptedBackend
from scenarios.harness import Harness, Json, Refused
from scenarios.single import hold
from scenarios.stories import DRIVER, claim, storage_class, volume
from volplane import (
    Absent,
    Asset,
    BackendError,
    ExpandRequest,
    FindRequest,
    InProgress,
    InvalidArgument,
    ProvisionRequest,
    ResourceExhausted,
    Unavailable,
    VolumeInUse,
    VolumeSource,
    hookimpl,
)
from volplane.kube import names
from volplane_embedded.apiserver.claim_quota import measured

GROWS = storage_class(allowVolumeExpansion=True)
TWO_GIB = 2 * 2**30
NOTED = "volume.alpha.kubernetes.io/pre-resize-capacity"


async def bound(harness: Harness, size: str = "1Gi", **spec: Any) -> None:
    """A claim c of class fast, which was provisioned and bound."""
    await harness.create("classes", GROWS)
    await harness.create("claims", claim("c", size, storageClassName="fast", **spec))
    await harness.start()
    await harness.settle()
    assert (await harness.claim("c"))["status"]["phase"] == "Bound"


async def ask(harness: Harness, size: str) -> None:
    await harness.patch("claims", "c", {"spec": {"resources": {"requests": {"storage": size}}}})


async def its_volume(harness: Harness) -> Json:
    return await harness.volume((await harness.claim("c"))["spec"]["volumeName"])


async def capacities(harness: Harness) -> tuple[str, str]:
    """Of the volume, and of the claim as its status shows it."""
    volume, item = await its_volume(harness), await harness.claim("c")
    return volume["spec"]["capacity"]["storage"], item["status"]["capacity"]["storage"]


async def size_before(harness: Harness) -> str | None:
    """The size of the file system before the asset grew, as the volume notes it."""
    noted: str | None = (await its_volume(harness))["metadata"]["annotations"].get(NOTED)
    return noted


async def nothing_for_nodes(harness: Harness) -> str | None:
    """What the claim tells kubelets of its last growth."""
    annotations: dict[str, str] = (await harness.claim("c"))["metadata"]["annotations"]
    return annotations.get("volume.kubernetes.io/node-expansion-not-required")


def types(item: Json) -> list[str]:
    """Of the conditions."""
    return [each["type"] for each in item["status"].get("conditions", ())]


# --- growing -----------------------------------------------------------------------------------------------------


async def test_a_claim_that_asks_for_more_gets_it() -> None:
    backend = GrowingBackend(DRIVER)
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")
        item = await harness.claim("c")
        assert types(item) == []
        assert "allocatedResourceStatuses" not in item["status"]
        assert item["status"]["allocatedResources"] == {"storage": "2Gi"}
        assert next(iter(backend.assets.values())).capacity_bytes == TWO_GIB
        assert harness.messages("VolumeResizeSuccessful") == ["Resize volume succeeded"]
        assert backend.calls["expand"] == 1


@pytest.mark.parametrize("going", ["the object is deleted", "the object is gone"])
async def test_a_volume_that_goes_before_its_turn_comes_grows_no_more(going: str) -> None:
    backend = GrowingBackend(DRIVER)
    async with Harness(backend) as harness:
        await bound(harness)
        name = (await harness.claim("c"))["spec"]["volumeName"]

        async def change(operation: str) -> None:
            if operation.startswith("expand-"):
                await harness.delete("volumes", name)
                if going == "the object is gone":
                    await harness.patch("volumes", name, {"metadata": {"finalizers": None}})

        hold(harness.plane.operations, change)
        await ask(harness, "2Gi")
        await asyncio.sleep(5.0)
        assert backend.calls["expand"] == 0
        assert harness.messages("VolumeResizeFailed") == []


async def test_a_backend_that_gives_less_than_was_asked_for_is_asked_again() -> None:
    less = Asset(
        handle="/assets/x", source=VolumeSource(kind="hostPath", fields={"path": "/assets/x"}), capacity_bytes=1
    )
    backend = GrowingBackend(DRIVER, {"expand": [less, OK]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")
        [told] = harness.messages("VolumeResizeFailed")
        assert told.startswith("the asset has 1 where 2Gi were asked for")


async def test_the_asset_of_a_static_volume_is_of_the_first_generation() -> None:
    backend = GrowingBackend(DRIVER, {"expand": [InProgress(retry_after=60.0)]})
    async with Harness(backend) as harness:
        await harness.create("classes", GROWS)
        await harness.create("volumes", volume("static", storageClassName="fast"))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start()
        await harness.settle()
        await ask(harness, "2Gi")
        await asyncio.sleep(1.0)
        [request] = [each for each in backend.requests if isinstance(each, ExpandRequest)]
        assert (request.volume.owner, request.context.generation) == (None, 1)


async def test_what_is_tried_stands_in_the_claim_before_the_backend_is_called() -> None:
    backend = GrowingBackend(DRIVER, {"expand": [InProgress(retry_after=60.0), OK]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await asyncio.sleep(1.0)
        status = (await harness.claim("c"))["status"]
        assert status["allocatedResourceStatuses"] == {"storage": "ControllerResizeInProgress"}
        assert status["allocatedResources"] == {"storage": "2Gi"}
        assert status["conditions"][0]["type"] == "Resizing"
        assert await capacities(harness) == ("1Gi", "1Gi")
        assert "growing the asset to 2Gi" in harness.reasons()["resizer"]["default/c"]
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")


async def test_the_state_of_a_long_growth_survives_a_restart() -> None:
    backend = GrowingBackend(DRIVER, {"expand": [InProgress(retry_after=600.0, state={"job": "7"}), OK]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await asyncio.sleep(1.0)
        await harness.restart()
        await harness.settle()
        assert backend.requests[-1].context.state == {"job": "7"}
        assert await capacities(harness) == ("2Gi", "2Gi")
        assert "volplane.dev/expansion" not in (await its_volume(harness))["metadata"]["annotations"]


async def test_a_node_grows_the_file_system_where_the_driver_says_so() -> None:
    backend = GrowingBackend(DRIVER)
    backend._info = {"node_expansion_required": True}
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await harness.settle()
        item = await harness.claim("c")
        assert types(item) == ["FileSystemResizePending"]
        assert item["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
        assert await capacities(harness) == ("2Gi", "1Gi")
        assert harness.messages("FileSystemResizeRequired") == ["Require file system resize of volume on node"]
        assert await size_before(harness) == "1Gi", "another claim would not take the file system for larger than it is"
        calls = backend.calls["expand"]
        await ask(harness, "3Gi")
        await harness.settle()
        assert backend.calls["expand"] == calls, "what was begun is finished first"
        done = {"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": None, "conditions": None}
        await harness.patch("claims", "c", {"status": done}, subresource="status")
        await harness.settle()
        assert (await its_volume(harness))["spec"]["capacity"]["storage"] == "3Gi"
        assert await size_before(harness) == "2Gi"
        done["capacity"] = {"storage": "3Gi"}
        await harness.patch("claims", "c", {"status": done}, subresource="status")
        await harness.settle()
        assert await size_before(harness) is None


async def test_a_volume_may_need_its_node_where_the_driver_in_general_does_not_and_the_reverse() -> None:
    for usual, of_this_one in ((True, False), (False, True)):
        backend = GrowingBackend(DRIVER)
        backend._info = {"node_expansion_required": usual}
        memory = backend.memory
        grow: Any = memory.expand
        memory.expand = lambda asked, grow=grow, on_node=of_this_one: dataclasses.replace(  # type: ignore[method-assign,misc]
            grow(asked), node_expansion_required=on_node
        )
        async with Harness(backend) as harness:
            await bound(harness)
            await ask(harness, "2Gi")
            await harness.settle()
            assert types(await harness.claim("c")) == (["FileSystemResizePending"] if of_this_one else [])


async def test_kubelets_are_told_of_a_claim_whose_file_system_they_need_not_grow_and_only_while_that_is_so() -> None:
    backend = with_csi()
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await harness.settle()
        assert await nothing_for_nodes(harness) == "true"
        backend._info = {**backend._info, "node_expansion_required": True}
        await harness.restart()
        await ask(harness, "3Gi")
        await harness.settle()
        assert types(await harness.claim("c")) == ["FileSystemResizePending"]
        assert await nothing_for_nodes(harness) is None


async def kubelet_grows(harness: Harness) -> None:
    """What a stock kubelet writes: the size that the claim's status names, however large the asset is."""
    size = (await harness.claim("c"))["status"]["allocatedResources"]
    done = {"capacity": size, "allocatedResourceStatuses": None, "conditions": None}
    await harness.patch("claims", "c", {"status": done}, subresource="status")
    await harness.settle()


async def kubelet_gives_up(harness: Harness) -> None:
    """Its clock is years ahead."""
    refused = {"type": "NodeResizeError", "status": "True", "lastTransitionTime": "2040-01-01T00:00:00Z"}
    status = {"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}, "conditions": [refused]}
    await harness.patch("claims", "c", {"status": status}, subresource="status")


@asynccontextmanager
async def refused_by_its_node() -> AsyncIterator[tuple[GrowingBackend, Harness]]:
    """A claim whose asset has 9Gi, and whose node gave up to grow its file system to that."""
    backend = GrowingBackend(DRIVER)
    backend._info = {"node_expansion_required": True}
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "9Gi")
        await harness.settle()
        await kubelet_gives_up(harness)
        yield backend, harness


async def test_a_size_that_a_node_refused_can_be_lowered_and_the_node_is_asked_for_that_at_once() -> None:
    async with refused_by_its_node() as (_, harness):
        await ask(harness, "3Gi")
        await asyncio.sleep(1.0)
        status = (await harness.claim("c"))["status"]
        assert status["allocatedResources"] == {"storage": "3Gi"}
        assert status["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
        await kubelet_grows(harness)
        assert await capacities(harness) == ("9Gi", "3Gi")
        await ask(harness, "5Gi")
        await harness.settle()
        await kubelet_grows(harness)
        assert await capacities(harness) == ("9Gi", "5Gi")


async def test_a_node_whose_clock_is_ahead_is_asked_again_after_five_minutes_too() -> None:
    async with refused_by_its_node() as (_, harness):
        await asyncio.sleep(290.0)
        assert (await harness.claim("c"))["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
        await asyncio.sleep(12.0)
        assert (await harness.claim("c"))["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}


async def test_a_size_that_is_asked_for_again_after_a_smaller_one_is_what_the_node_grows_to() -> None:
    async with refused_by_its_node() as (backend, harness):
        for size in ("3Gi", "9Gi"):
            await ask(harness, size)
            await asyncio.sleep(1.0)
        await kubelet_grows(harness)
        assert await capacities(harness) == ("9Gi", "3Gi")
        await kubelet_grows(harness)
        assert await capacities(harness) == ("9Gi", "9Gi")
        assert backend.calls["expand"] == 1, "the asset has that size already"


class Rounding(GrowingBackend):
    """Makes assets of 4 GiB, whatever smaller size is asked for."""

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        return super().expand(dataclasses.replace(request, capacity_bytes=max(request.capacity_bytes, 4 << 30)))


async def test_a_claim_grows_on_into_what_the_backend_gave_beyond_what_was_asked_for() -> None:
    backend = Rounding(DRIVER)
    backend._info = {"node_expansion_required": True}
    async with Harness(backend) as harness:
        await bound(harness)
        for size in ("2Gi", "3Gi"):
            await ask(harness, size)
            await harness.settle()
            await kubelet_grows(harness)
            assert await capacities(harness) == ("4Gi", size)
            assert await size_before(harness) == size, "another claim is told what the file system has"
        assert types(await harness.claim("c")) == []


async def test_what_only_the_asset_has_grown_a_new_claim_of_a_kept_volume_grows_on() -> None:
    backend = GrowingBackend(DRIVER)
    backend._info = {"node_expansion_required": True}
    async with Harness(backend) as harness:
        await bound(harness)
        name = (await harness.claim("c"))["spec"]["volumeName"]
        await ask(harness, "2Gi")
        await harness.settle()
        await harness.patch("volumes", name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.patch("volumes", name, {"spec": {"claimRef": None}})
        await harness.create("claims", claim("again", "2Gi", volumeName=name, storageClassName="fast"))
        await harness.settle()
        again = await harness.claim("again")
        assert again["status"]["capacity"] == {"storage": "1Gi"}
        assert again["status"]["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}


async def test_a_size_that_the_backend_refuses_can_be_lowered_again() -> None:
    """KEP-1790."""
    backend = GrowingBackend(DRIVER, {"expand": [InvalidArgument("at most 4Gi")]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "9Gi")
        await asyncio.sleep(5.0)
        item = await harness.claim("c")
        assert item["status"]["allocatedResourceStatuses"] == {"storage": "ControllerResizeInfeasible"}
        assert types(item) == ["ControllerResizeError"]
        assert item["status"]["conditions"][0]["message"] == "at most 4Gi"
        assert harness.messages("VolumeResizeFailed")[0].startswith("at most 4Gi; next attempt in ")
        backend.script("expand", OK)
        await ask(harness, "3Gi")
        await asyncio.sleep(5.0)
        assert await capacities(harness) == ("3Gi", "3Gi"), "at once, not after the back-off of the refused size"
        assert types(await harness.claim("c")) == []


@pytest.mark.parametrize("error", [VolumeInUse("it is in use"), Unavailable("not now", nothing_done=True)])
async def test_a_size_that_was_not_begun_can_be_lowered_again(error: Exception) -> None:
    backend = GrowingBackend(DRIVER, {"expand": [error]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "9Gi")
        await asyncio.sleep(5.0)
        await ask(harness, "3Gi")
        await asyncio.sleep(5.0)
        status = (await harness.claim("c"))["status"]
        assert status["allocatedResources"] == {"storage": "3Gi"}
        backend.script("expand", OK)
        await harness.settle()
        assert await capacities(harness) == ("3Gi", "3Gi")


async def test_a_size_that_may_have_been_begun_goes_on() -> None:
    backend = GrowingBackend(DRIVER, {"expand": [Unavailable("no answer")]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "9Gi")
        await asyncio.sleep(5.0)
        await ask(harness, "3Gi")
        await asyncio.sleep(5.0)
        assert (await harness.claim("c"))["status"]["allocatedResources"] == {"storage": "9Gi"}


async def test_a_full_backend_is_asked_again_with_the_same_size() -> None:
    backend = GrowingBackend(DRIVER, {"expand": [ResourceExhausted("no room", scope="pool"), OK]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")
        assert harness.messages("VolumeResizeFailed")[0].startswith("no room; next attempt in ")


async def test_a_driver_that_cannot_grow_says_so_on_the_claim() -> None:
    async with Harness(ScriptedBackend(DRIVER)) as harness:
        await bound(harness)
        await ask(harness, "2Gi")
        await harness.settle()
        (message,) = set(harness.messages("VolumeResizeFailed"))
        assert message == f'driver "{DRIVER}" cannot grow volumes, so the claim keeps its size'


@pytest.mark.parametrize("size", [str(2**63), "9300P", "1e30", "1e5000"])
async def test_a_size_that_no_volume_can_have_is_refused_on_the_claim_and_nothing_is_written(size: str) -> None:
    backend = GrowingBackend(DRIVER)
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, size)
        before = harness.server.store.version
        await harness.settle(600.0)
        assert harness.server.store.version == before
        (message,) = set(harness.messages("VolumeResizeFailed"))
        assert message == f"the claim asks for more than {2**63 - 1} bytes, which no volume can have; ask for less"
        assert not backend.calls["expand"]
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")


async def test_a_claim_of_a_size_that_no_volume_can_have_is_refused_and_can_be_deleted() -> None:
    backend = ScriptedBackend(DRIVER)
    async with Harness(backend) as harness:
        await harness.create("classes", GROWS)
        await harness.create("claims", claim("c", "1e5000", storageClassName="fast"))
        await harness.create("claims", claim("other", storageClassName="fast"))
        await harness.start()
        await harness.settle(600.0)
        assert await harness.claims() == {"c": "Pending", "other": "Bound"}
        (message,) = set(harness.messages("ProvisioningFailed"))
        assert "which no volume can have; ask for less" in message
        assert backend.calls["provision"] == 1
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.claims() == {"other": "Bound"}


async def test_a_class_that_does_not_allow_it_is_refused_by_the_server() -> None:
    async with Harness(GrowingBackend(DRIVER)) as harness:
        await harness.create("classes", storage_class("fixed"))
        await harness.create("claims", claim("c", storageClassName="fixed"))
        await harness.start()
        await harness.settle()
        with pytest.raises(Refused, match="storageclass that provisions the pvc must support resize"):
            await ask(harness, "2Gi")


@pytest.mark.parametrize("write", range(1, 5))
async def test_a_crash_after_any_write_of_a_growth_changes_nothing_of_its_end(write: int) -> None:
    backend = GrowingBackend(DRIVER)
    async with Harness(backend) as harness:
        await bound(harness)
        harness.crash_at_write(write)
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")
        assert types(await harness.claim("c")) == []


async def test_beside_a_stock_binder_our_volumes_grow_too() -> None:
    backend = GrowingBackend(DRIVER)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.kill()
        harness.change_role(binder=False, protection=False)
        await harness.start()
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")


# --- other attributes --------------------------------------------------------------------------------------------


def attributes(name: str, colour: str, driver: str = DRIVER) -> Json:
    return {"metadata": {"name": name}, "driverName": driver, "parameters": {"colour": colour}}


async def choose(harness: Harness, name: str | None) -> None:
    await harness.patch("claims", "c", {"spec": {"volumeAttributesClassName": name}})


def modified(backend: ScriptedBackend) -> dict[str, str]:
    return dict(next(iter(backend.assets.values())).modified)


async def test_a_claim_gets_the_attributes_of_the_class_that_it_names() -> None:
    backend = GrowingBackend(DRIVER, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow"))
        await choose(harness, "gold")
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}
        item = await harness.claim("c")
        assert item["status"]["currentVolumeAttributesClassName"] == "gold"
        assert "modifyVolumeStatus" not in item["status"]
        assert types(item) == []
        assert (await its_volume(harness))["spec"]["volumeAttributesClassName"] == "gold"
        assert len(harness.messages("VolumeModifySuccessful")) == 1


async def test_a_class_that_does_not_exist_yet_is_waited_for() -> None:
    backend = GrowingBackend(DRIVER, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await choose(harness, "gold")
        await asyncio.sleep(5.0)
        shown = (await harness.claim("c"))["status"]["modifyVolumeStatus"]
        assert shown == {"targetVolumeAttributesClassName": "gold", "status": "Pending"}
        assert harness.messages("VolumeModifyFailed")[0] == 'volumeattributesclass.storage.k8s.io "gold" not found'
        await harness.create("attributes", attributes("gold", "yellow"))
        await asyncio.sleep(60.0)
        assert modified(backend) == {"colour": "yellow"}


async def test_a_class_that_the_backend_refuses_can_be_taken_back() -> None:
    backend = GrowingBackend(DRIVER, {"modify": [OK, InvalidArgument("no such colour"), OK]}, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow"))
        await harness.create("attributes", attributes("plaid", "plaid"))
        await choose(harness, "gold")
        await harness.settle()
        await choose(harness, "plaid")
        await asyncio.sleep(5.0)
        item = await harness.claim("c")
        shown = {"targetVolumeAttributesClassName": "plaid", "status": "Infeasible"}
        assert item["status"]["modifyVolumeStatus"] == shown
        assert types(item) == ["ModifyVolumeError"]
        await choose(harness, "gold")
        await harness.settle()
        item = await harness.claim("c")
        assert "modifyVolumeStatus" not in item["status"]
        assert types(item) == []
        assert item["status"]["currentVolumeAttributesClassName"] == "gold"
        assert modified(backend) == {"colour": "yellow"}


async def test_what_was_begun_before_a_class_that_is_refused_is_undone_too() -> None:
    backend = GrowingBackend(DRIVER, {"modify": [OK, OK, InvalidArgument("no such colour"), OK]}, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        for name, colour in (("silver", "grey"), ("gold", "yellow"), ("plaid", "plaid")):
            await harness.create("attributes", attributes(name, colour))
        await choose(harness, "silver")
        await harness.settle()
        await choose(harness, "gold")
        while backend.calls["modify"] < 2:
            await asyncio.sleep(0.0)
        await choose(harness, "plaid")
        await asyncio.sleep(5.0)
        assert (await harness.claim("c"))["status"]["modifyVolumeStatus"]["status"] == "Infeasible"
        await choose(harness, "silver")
        await harness.settle()
        assert modified(backend) == {"colour": "grey"}


async def test_a_class_of_another_driver_changes_nothing() -> None:
    backend = GrowingBackend(DRIVER, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow", "other.example.com"))
        await choose(harness, "gold")
        await harness.settle()
        assert backend.calls["modify"] == 0
        assert 'is of driver "other.example.com"' in harness.messages("VolumeModifyFailed")[0]


async def test_a_class_of_another_driver_that_is_made_anew_for_this_one_is_applied() -> None:
    backend = GrowingBackend(DRIVER, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow", "other.example.com"))
        await choose(harness, "gold")
        await asyncio.sleep(5.0)
        await harness.patch("attributes", "gold", {"metadata": {"finalizers": None}})
        await harness.delete("attributes", "gold")
        await harness.create("attributes", attributes("gold", "yellow"))
        await asyncio.sleep(60.0)
        assert modified(backend) == {"colour": "yellow"}


async def test_a_change_that_may_have_begun_is_undone_by_applying_the_former_class_again() -> None:
    backend = GrowingBackend(DRIVER, {"modify": [OK, InProgress(retry_after=3600.0), OK]}, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow"))
        await harness.create("attributes", attributes("silver", "grey"))
        await choose(harness, "gold")
        await harness.settle()
        await choose(harness, "silver")
        await asyncio.sleep(5.0)
        await choose(harness, "gold")
        await harness.settle()
        assert backend.requests[-1].parameters == {"colour": "yellow"}
        assert backend.calls["modify"] == 3
        item = await harness.claim("c")
        assert item["status"]["currentVolumeAttributesClassName"] == "gold"
        assert "modifyVolumeStatus" not in item["status"]


async def test_a_change_that_may_have_begun_goes_to_its_end_where_no_former_class_is_named() -> None:
    backend = GrowingBackend(DRIVER, {"modify": [InProgress(retry_after=600.0, state={"job": "7"}), OK]}, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow"))
        await choose(harness, "gold")
        await asyncio.sleep(5.0)
        await choose(harness, None)
        await asyncio.sleep(5.0)
        shown = (await harness.claim("c"))["status"]["modifyVolumeStatus"]
        assert shown == {"targetVolumeAttributesClassName": "gold", "status": "InProgress"}
        await harness.restart()
        await harness.settle()
        assert backend.requests[-1].context.state == {"job": "7"}
        assert modified(backend) == {"colour": "yellow"}
        item = await harness.claim("c")
        assert item["status"]["currentVolumeAttributesClassName"] == "gold", "nobody is told less than there is"
        assert "modifyVolumeStatus" not in item["status"]


async def test_a_first_class_that_is_refused_can_be_given_up() -> None:
    backend = GrowingBackend(DRIVER, {"modify": [InvalidArgument("no such colour")]}, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("plaid", "plaid"))
        await choose(harness, "plaid")
        await asyncio.sleep(5.0)
        assert (await harness.claim("c"))["status"]["modifyVolumeStatus"]["status"] == "Infeasible"
        calls = backend.calls["modify"]
        await choose(harness, None)
        await harness.settle()
        item = await harness.claim("c")
        assert "modifyVolumeStatus" not in item["status"]
        assert types(item) == []
        assert harness.messages("VolumeModifyCancelled") == ["no change to plaid any more"]
        assert backend.calls["modify"] == calls


async def first_class_then_one_that_is_refused(harness: Harness) -> None:
    await bound(harness)
    await harness.create("attributes", attributes("gold", "yellow"))
    await harness.create("attributes", attributes("plaid", "plaid"))
    await choose(harness, "gold")
    await asyncio.sleep(5.0)
    await choose(harness, "plaid")
    await asyncio.sleep(5.0)
    shown = (await harness.claim("c"))["status"]["modifyVolumeStatus"]
    assert shown == {"targetVolumeAttributesClassName": "plaid", "status": "Infeasible"}


@pytest.mark.parametrize("restart", [False, True])
async def test_a_first_class_of_unknown_outcome_is_brought_to_its_end_after_a_second_one_is_given_up(
    restart: bool,
) -> None:
    script = [BackendError("timed out", retry_after=3600.0), InvalidArgument("no such colour"), OK]
    backend = GrowingBackend(DRIVER, {"modify": script}, csi=True)
    async with Harness(backend) as harness:
        await first_class_then_one_that_is_refused(harness)
        await choose(harness, None)
        if restart:
            await harness.restart()
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}
        item, volume = await harness.claim("c"), await its_volume(harness)
        assert item["status"]["currentVolumeAttributesClassName"] == "gold", "nobody is told less than there is"
        assert "modifyVolumeStatus" not in item["status"]
        assert types(item) == []
        assert volume["spec"]["volumeAttributesClassName"] == "gold"
        assert names.MODIFICATION not in volume["metadata"]["annotations"]


async def test_a_first_class_of_unknown_outcome_that_is_refused_after_all_is_given_up_with_the_second() -> None:
    script = [BackendError("timed out", retry_after=3600.0), *[InvalidArgument("no such colour")] * 2]
    backend = GrowingBackend(DRIVER, {"modify": script}, csi=True)
    async with Harness(backend) as harness:
        await first_class_then_one_that_is_refused(harness)
        await choose(harness, None)
        await harness.settle()
        item = await harness.claim("c")
        assert "modifyVolumeStatus" not in item["status"]
        assert "currentVolumeAttributesClassName" not in item["status"]
        assert modified(backend) == {}
        assert names.MODIFICATION not in (await its_volume(harness))["metadata"]["annotations"]


async def first_class_then_jobs_that_are_refused(harness: Harness, *others: str) -> None:
    """Each other class is a job first, and is refused 30 s after it was begun."""
    await bound(harness)
    for name in ("gold", *others):
        await harness.create("attributes", attributes(name, "yellow" if name == "gold" else "plaid"))
        await choose(harness, name)
        await asyncio.sleep(5.0)
    await asyncio.sleep(60.0)
    shown = (await harness.claim("c"))["status"]["modifyVolumeStatus"]
    assert shown == {"targetVolumeAttributesClassName": others[-1], "status": "Infeasible"}


@pytest.mark.parametrize("others", [("plaid",), ("plaid", "tartan")])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_first_class_of_unknown_outcome_is_brought_to_its_end_after_further_ones_were_begun_and_refused(
    others: tuple[str, ...], *, restart: bool
) -> None:
    jobs = [InProgress(retry_after=30.0, state={"job": name}) for name in others]
    refusals = [InvalidArgument("no such colour")] * len(others)
    script = [BackendError("timed out", retry_after=3600.0), *jobs, *refusals, OK]
    backend = GrowingBackend(DRIVER, {"modify": script}, csi=True)
    async with Harness(backend) as harness:
        await first_class_then_jobs_that_are_refused(harness, *others)
        await choose(harness, None)
        if restart:
            await harness.restart()
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}
        item, volume = await harness.claim("c"), await its_volume(harness)
        assert item["status"]["currentVolumeAttributesClassName"] == "gold", "nobody is told less than there is"
        assert "modifyVolumeStatus" not in item["status"]
        assert volume["spec"]["volumeAttributesClassName"] == "gold"
        assert names.MODIFICATION not in volume["metadata"]["annotations"]


async def test_classes_of_unknown_outcome_that_are_all_refused_in_the_end_are_given_up() -> None:
    refusals = [InvalidArgument("no such colour")] * 2
    script = [BackendError("timed out", retry_after=3600.0), InProgress(retry_after=30.0, state={"job": 1}), *refusals]
    backend = GrowingBackend(DRIVER, {"modify": script}, csi=True)
    async with Harness(backend) as harness:
        await first_class_then_jobs_that_are_refused(harness, "plaid")
        await choose(harness, None)
        await harness.settle()
        item = await harness.claim("c")
        assert "modifyVolumeStatus" not in item["status"]
        assert "currentVolumeAttributesClassName" not in item["status"]
        assert names.MODIFICATION not in (await its_volume(harness))["metadata"]["annotations"]


@pytest.mark.parametrize("write", range(1, 5))
async def test_a_crash_after_any_write_of_a_change_changes_nothing_of_its_end(write: int) -> None:
    backend = GrowingBackend(DRIVER, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        await harness.create("attributes", attributes("gold", "yellow"))
        harness.crash_at_write(write)
        await choose(harness, "gold")
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}
        item = await harness.claim("c")
        assert item["status"]["currentVolumeAttributesClassName"] == "gold"
        assert "modifyVolumeStatus" not in item["status"]


# --- from the beginning ------------------------------------------------------------------------------------------


async def born_with(harness: Harness, *classes: Json) -> None:
    """A claim c that names the class gold before it is provisioned."""
    await harness.create("classes", GROWS)
    for each in classes:
        await harness.create("attributes", each)
    await harness.create("claims", claim("c", storageClassName="fast", volumeAttributesClassName="gold"))
    await harness.start()


def with_csi(script: dict[str, Any] | None = None) -> GrowingBackend:
    backend = GrowingBackend(DRIVER, script, csi=True)
    backend._info = {"csi_driver_name": "memory.volplane.dev"}
    return backend


async def test_a_volume_is_made_with_the_attributes_of_the_class_that_its_claim_names() -> None:
    backend, asked = with_csi(), []
    backend.memory.provision = lambda request, real=backend.memory.provision: asked.append(request) or real(request)
    async with Harness(backend) as harness:
        await born_with(harness, attributes("gold", "yellow"))
        await harness.settle()
        assert [each.mutable_parameters for each in asked] == [{"colour": "yellow"}]
        assert modified(backend) == {"colour": "yellow"}
        item = await harness.claim("c")
        assert item["status"]["phase"] == "Bound"
        assert item["status"]["currentVolumeAttributesClassName"] == "gold"
        assert backend.calls["modify"] == 1


async def test_nothing_is_made_before_the_class_exists() -> None:
    backend = with_csi()
    async with Harness(backend) as harness:
        await born_with(harness)
        await asyncio.sleep(10.0)
        assert backend.calls["provision"] == 0
        assert 'volumeattributesclass.storage.k8s.io "gold" not found' in harness.messages("ProvisioningFailed")[0]
        await harness.create("attributes", attributes("gold", "yellow"))
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}


async def test_a_volume_whose_attributes_are_refused_is_not_bound_and_goes_with_its_claim() -> None:
    backend = with_csi({"modify": [InvalidArgument("no such colour")]})
    async with Harness(backend) as harness:
        await born_with(harness, attributes("gold", "plaid"))
        await asyncio.sleep(10.0)
        assert (await harness.claim("c"))["status"]["phase"] == "Pending"
        assert "no such colour" in harness.messages("ProvisioningFailed")[0]
        await harness.delete("claims", "c")
        await harness.settle()
        assert backend.assets == {}
        assert await harness.claims() == {}


async def test_for_a_class_of_another_driver_nothing_is_made() -> None:
    backend = with_csi()
    async with Harness(backend) as harness:
        await born_with(harness, attributes("gold", "yellow", "other.example.com"))
        await asyncio.sleep(60.0)
        assert not backend.calls
        words = 'is of driver "other.example.com", the storage class of "memory.volplane.dev"'
        assert words in harness.messages("ProvisioningFailed")[-1]


async def test_a_class_may_name_the_csi_driver() -> None:
    backend = with_csi()
    async with Harness(backend) as harness:
        await born_with(harness, attributes("gold", "yellow", "memory.volplane.dev"))
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}


async def test_attributes_that_take_long_are_waited_for_with_what_the_making_of_the_volume_remembers() -> None:
    backend = with_csi(
        {
            "provision": [InProgress(retry_after=1.0, state={"job": 7}), OK],
            "modify": [InProgress(retry_after=20.0), OK],
        }
    )
    async with Harness(backend) as harness:
        await born_with(harness, attributes("gold", "yellow"))
        await asyncio.sleep(15.0)
        assert await harness.claims() == {"c": "Pending"}
        assert (backend.calls["provision"], backend.calls["modify"]) == (2, 1)
        await asyncio.sleep(15.0)
        assert await harness.claims() == {"c": "Bound"}
        assert [dict(each.context.state) for each in backend.requests] == [{}, *[{"job": 7}] * 4]


async def test_attributes_that_cannot_be_had_yet_are_tried_again_when_the_backend_says() -> None:
    backend = with_csi({"modify": [BackendError("too many changes", code="Busy", retry_after=77.0), OK]})
    async with Harness(backend) as harness:
        await born_with(harness, attributes("gold", "yellow"))
        await harness.settle()
        assert modified(backend) == {"colour": "yellow"}
        said = harness.messages("ProvisioningFailed")[0]
        words = 'the asset is made, and is not changed to VolumeAttributesClass "gold": too many changes (Busy)'
        assert said.endswith(f": {words}; next attempt in 77 s")


class MadeByAJob(GrowingBackend):
    """Makes assets of a colour only, by a job of 20 s that goes on whoever asks for it."""

    begun = False

    def __init__(self) -> None:
        super().__init__(DRIVER, csi=True)
        self._info = {"csi_driver_name": "memory.volplane.dev"}

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if "colour" not in request.mutable_parameters:
            raise InvalidArgument("which colour?")
        if not self.begun:
            self.begun = True
            asyncio.get_running_loop().call_later(20.0, self.memory.provision, request)
        return self.memory.provision(request) if self.assets else InProgress(retry_after=5.0, state={"job": "1"})


class FindsWhatAJobMade(MadeByAJob):
    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return self.memory.find(request)


@pytest.mark.parametrize("backend", [MadeByAJob, FindsWhatAJobMade])
async def test_the_job_of_a_claim_that_goes_is_followed_with_the_attributes_that_it_was_begun_with(
    backend: type[MadeByAJob],
) -> None:
    made = backend()
    async with Harness(made) as h:
        await born_with(h, attributes("gold", "yellow"))
        await asyncio.sleep(7.0)
        assert made.begun
        await h.delete("claims", "c")
        await asyncio.sleep(60.0)
        assert not made.assets
        assert await h.claims() == {}


async def test_no_refusal_of_another_demand_proves_that_a_job_will_make_nothing() -> None:
    made = FindsWhatAJobMade()
    async with Harness(made) as h:
        await born_with(h, attributes("gold", "yellow"))
        await asyncio.sleep(7.0)
        await h.delete("attributes", "gold")
        await h.delete("claims", "c")
        await asyncio.sleep(12.0)
        assert await h.claims() == {"c": "Pending"}
        await asyncio.sleep(600.0)
        assert not made.assets, "once the job is done its asset is found"
        assert await h.claims() == {}


# --- under quotas --------------------------------------------------------------------------------------------------


async def limit(harness: Harness, name: str, storage: str, **spec: Any) -> None:
    """A quota that is measured, as by its controller."""
    path, hard = "/api/v1/namespaces/default/resourcequotas", {"requests.storage": storage}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": hard, **spec}}
    await harness.request("POST", path, quota)
    claims = await harness.everything("claims")
    status = {"status": measured(quota, claims, {})}
    await harness.request("PATCH", f"{path}/{name}/status", status, "application/merge-patch+json")


async def test_a_growth_beyond_the_quota_is_refused_and_what_fits_is_done() -> None:
    async with Harness(GrowingBackend(DRIVER)) as harness:
        await bound(harness)
        await limit(harness, "team", "2Gi")
        with pytest.raises(Refused, match="exceeded quota: team, requested"):
            await ask(harness, "3Gi")
        await ask(harness, "2Gi")
        await harness.settle()
        assert await capacities(harness) == ("2Gi", "2Gi")


async def test_a_quota_that_is_lowered_holds_up_neither_a_growth_that_was_allowed_nor_its_end() -> None:
    backend = GrowingBackend(DRIVER, {"expand": [ResourceExhausted("full"), OK]})
    async with Harness(backend) as harness:
        await bound(harness)
        await ask(harness, "3Gi")
        await limit(harness, "team", "1Mi")
        await harness.settle()
        assert await capacities(harness) == ("3Gi", "3Gi")
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.everything("claims") == []
        assert not backend.assets


async def test_a_class_without_room_is_refused_and_the_way_back_to_the_former_one_is_open() -> None:
    backend = GrowingBackend(DRIVER, {"modify": [OK, InvalidArgument("no such colour"), OK]}, csi=True)
    async with Harness(backend) as harness:
        await bound(harness)
        for name, colour in (("silver", "grey"), ("gold", "yellow"), ("plaid", "plaid")):
            await harness.create("attributes", attributes(name, colour))
        await choose(harness, "silver")
        await harness.settle()
        for name in ("silver", "gold"):
            scope = {"scopeName": "VolumeAttributesClass", "operator": "In", "values": [name]}
            room = "1Gi" if name == "silver" else "1Mi"
            await limit(harness, name, room, scopeSelector={"matchExpressions": [scope]})
        with pytest.raises(Refused, match="exceeded quota: gold"):
            await choose(harness, "gold")
        await choose(harness, "plaid")
        await asyncio.sleep(5.0)
        assert (await harness.claim("c"))["status"]["modifyVolumeStatus"]["status"] == "Infeasible"
        await choose(harness, "silver")
        await harness.settle()
        assert modified(backend) == {"colour": "grey"}
        assert "modifyVolumeStatus" not in (await harness.claim("c"))["status"]
