"""What a claim and its class ask for, and what happens to classes and drivers meanwhile, beside a stock binder."""

from __future__ import annotations

from typing import Any

import pytest

from integration.beside import LATE, Beside, asked, fast, ours, pod
from scenarios.backends import ScriptedBackend
from scenarios.stories import DRIVER, storage_class
from volplane import AccessMode, Asset, VolumeMode, VolumeSource
from volplane.drivers.driver import BrokenDriver

GIB = 2**30


async def served(harness: Beside, body: dict[str, Any], *classes: dict[str, Any]) -> dict[str, Any]:
    """Its volume, once all is quiet."""
    for item in classes or (fast(),):
        await harness.create("classes", item)
    await harness.create("claims", body)
    await harness.start_both()
    await harness.settle()
    return await harness.bound_volume(body["metadata"]["name"])


# --- demands ------------------------------------------------------------------------------------------------------


async def test_mode_access_modes_and_mount_options_reach_the_hook_and_the_volume() -> None:
    async with Beside(ScriptedBackend(DRIVER, info={"supports_mount_options": True})) as harness:
        demand = ours(volumeMode="Block", accessModes=["ReadWriteOnce", "ReadOnlyMany"])
        found = await served(harness, demand, fast(mountOptions=["noatime"]))
        request = harness.backend.requests[0]
        assert request.volume_mode is VolumeMode.BLOCK
        assert request.access_modes == (AccessMode.READ_WRITE_ONCE, AccessMode.READ_ONLY_MANY)
        assert (request.mount_options, request.class_name) == (("noatime",), "fast")
        assert found["spec"]["volumeMode"] == "Block"
        assert found["spec"]["accessModes"] == ["ReadWriteOnce", "ReadOnlyMany"]
        assert found["spec"]["mountOptions"] == ["noatime"]
        assert found["spec"]["storageClassName"] == "fast"
        assert found["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


@pytest.mark.parametrize(
    ("info", "demand", "more", "words"),
    [
        ({"volume_modes": frozenset({VolumeMode.FILESYSTEM})}, {"volumeMode": "Block"}, {}, ("volumeMode Block",)),
        (
            {"access_modes": frozenset({AccessMode.READ_WRITE_ONCE})},
            {"accessModes": ["ReadWriteMany"]},
            {},
            ("access mode ReadWriteMany", "ReadWriteOnce"),
        ),
        ({}, {}, {"mountOptions": ["noatime"]}, ('class "fast"', "mountOptions")),
        ({}, {"volumeAttributesClassName": "gold"}, {}, ("VolumeAttributesClass", "spec.volumeAttributesClassName")),
        ({}, {}, {"parameters": {"typ": "x"}}, ('class "fast"', "'typ'", "type")),
        ({}, {}, {"parameters": {"type": "x", "TYPE": "y"}}, ("given twice", "case does not matter")),
        ({}, {"selector": {"matchLabels": {"a": "b"}}}, {}, ("spec.selector",)),
    ],
    ids=("block", "access", "mount options", "attributes", "unknown parameter", "twice by case", "selector"),
)
async def test_what_the_driver_cannot_do_is_said_on_the_claim_and_nothing_is_begun(
    info: dict[str, Any], demand: dict[str, Any], more: dict[str, Any], words: tuple[str, ...]
) -> None:
    async with Beside(ScriptedBackend(DRIVER, info=info, parameters=("type",))) as harness:
        await harness.create("classes", fast(**more))
        await harness.create("claims", asked(ours(**demand)))
        await harness.start()
        await harness.settle()
        assert not harness.backend.calls["provision"]
        assert harness.our_writes() == []
        (message,) = set(harness.messages("ProvisioningFailed"))
        assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("asked_for", "made", "shown"),
    [("0.5", 1, "1"), ("1e3", 4096, "4Ki"), ("1500M", 2 * GIB, "2Gi"), ("1Gi", GIB, "1Gi"), ("100Ei", 2**63 - 1, "")],
)
async def test_the_capacity_that_was_made_is_recorded(asked_for: str, made: int, shown: str) -> None:
    async with Beside() as harness:
        source = VolumeSource(kind="hostPath", fields={"path": "/assets/a"})
        harness.backend.script("provision", Asset(handle="/assets/a", source=source, capacity_bytes=made))
        found = await served(harness, ours(size=asked_for))
        assert 0 < harness.backend.requests[0].capacity_bytes <= made
        assert not shown or found["spec"]["capacity"]["storage"] == shown
        theirs = await harness.see("claims", "c")
        assert theirs["status"]["capacity"] == found["spec"]["capacity"]


async def test_an_asset_smaller_than_asked_for_never_becomes_a_volume() -> None:
    async with Beside() as harness:
        source = VolumeSource(kind="hostPath", fields={"path": "/assets/a"})
        harness.backend.script("provision", Asset(handle="/assets/a", source=source, capacity_bytes=GIB - 1), "ok")
        found = await served(harness, ours())
        assert found["spec"]["hostPath"]["path"].startswith("/assets/pvc-")
        assert "1073741823 bytes where 1073741824 were asked for" in harness.messages("ProvisioningFailed")[0]


async def test_allowed_topologies_choose_the_segment_of_an_immediate_class() -> None:
    zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]

    async with Beside(ScriptedBackend(DRIVER, info={"topology_keys": ("zone",)})) as harness:
        await served(harness, ours(), fast(allowedTopologies=zones))
        (request,) = harness.backend.requests
        assert request.segment in request.allowed_segments == ({"zone": "a"}, {"zone": "b"})


async def test_a_selected_node_outside_the_allowed_topologies_is_refused_with_both_named() -> None:
    zones = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]

    async with Beside(ScriptedBackend(DRIVER, info={"topology_keys": ("zone",)})) as harness:
        await harness.create("nodes", {"metadata": {"name": "node-1", "labels": {"zone": "b"}}})
        await harness.create("classes", fast(allowedTopologies=zones, **LATE))
        await harness.create("claims", ours())
        await harness.create("pods", pod("p", "c"))
        await harness.start_both()
        await harness.settle()
        assert not harness.backend.calls["provision"]
        assert "node-1" in harness.messages("ProvisioningFailed")[0]
        assert "allowedTopologies" in harness.messages("ProvisioningFailed")[0]


async def test_a_claim_whose_selected_node_is_gone_goes_back_to_the_scheduler() -> None:
    async with Beside(ScriptedBackend(DRIVER, info={"topology_keys": ("zone",)})) as harness:
        for name in ("node-1", "node-2"):
            await harness.create("nodes", {"metadata": {"name": name, "labels": {"zone": name}}})
        await harness.create("classes", fast(**LATE))
        await harness.create("claims", ours())
        await harness.create("pods", pod("p", "c"))
        await harness.stock.start()
        await harness.settle()
        assert harness.stock.scheduler.selected == ["node-1"]
        await harness.request("DELETE", harness.path("nodes", "node-1"))
        await harness.start()
        await harness.settle()
        await harness.bound_volume("c")
        assert harness.backend.requests[0].segment == {"zone": "node-2"}
        (message,) = harness.messages("ProvisioningFailed")
        assert message == 'selected node "node-1" does not exist; another one is asked for'


# --- classes ------------------------------------------------------------------------------------------------------


async def test_of_two_default_classes_the_binders_choice_is_served() -> None:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}

    async with Beside() as harness:
        await harness.create(
            "claims", {**ours(), "spec": {k: v for k, v in ours()["spec"].items() if "Class" not in k}}
        )
        await harness.start_both()
        await harness.settle()
        assert not harness.backend.calls["provision"]
        for name in ("fast", "quick"):
            made = storage_class(name)
            made["metadata"]["annotations"] = default
            await harness.create("classes", made)
        await harness.settle()
        found = await harness.bound_volume("c")
        assert found["spec"]["storageClassName"] == (await harness.see("claims", "c"))["spec"]["storageClassName"]
        assert harness.backend.calls["provision"] == 1


async def _in_the_making(harness: Beside) -> None:
    """A claim whose asset exists although its volume does not: the answer of the hook was lost."""
    harness.backend.script("provision", *["the answer was lost"] * 3, "ok")
    await harness.create("classes", fast())
    await harness.create("claims", ours())
    await harness.start_both()
    await harness.until(lambda: _tried(harness), what="the first call")
    harness.backend.memory.provision(harness.backend.requests[-1])


async def _tried(harness: Beside) -> bool:
    return harness.backend.calls["provision"] >= 1


def _about_objects(harness: Beside) -> list[str]:
    """The calls so far, but for the look by which a reflector without news sees that the server was not restored."""
    return [call.what for call in harness.rules.calls if call.what != "list events"]


async def test_a_class_deleted_meanwhile_stops_the_claim_in_words_and_its_return_finishes_it() -> None:
    async with Beside() as harness:
        await _in_the_making(harness)
        await harness.request("DELETE", harness.path("classes", "fast"))
        await harness.settle()
        asked_before = _about_objects(harness)
        await harness.settle()
        assert _about_objects(harness) == asked_before, "it asks the server again and again"
        assert any("is gone while a volume is made by it" in text for text in harness.messages("ProvisioningFailed"))
        await harness.create("classes", fast())
        await harness.settle()
        await harness.bound_volume("c")


async def test_a_claim_deleted_after_its_class_leaves_nothing_once_the_class_is_back() -> None:
    async with Beside() as harness:
        await _in_the_making(harness)
        await harness.request("DELETE", harness.path("classes", "fast"))
        await harness.delete("claims", "c")
        await harness.settle()
        assert "create the class again" in harness.messages("ProvisioningCleanupFailed")[0]
        await harness.create("classes", fast())
        await harness.settle()
        await harness.nothing_left()


async def test_a_class_that_turns_to_another_of_our_drivers_frees_what_the_first_made() -> None:
    async with Beside(ScriptedBackend(DRIVER), ScriptedBackend("second.example.com")) as harness:
        await _in_the_making(harness)
        await harness.request("DELETE", harness.path("classes", "fast"))
        await harness.create("classes", fast(provisioner="second.example.com"))
        await harness.settle()
        found = await harness.bound_volume("c")
        assert found["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "second.example.com"
        assert not harness.backend.assets
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def test_a_class_that_turns_to_somebody_elses_driver_frees_what_ours_made_and_lets_the_claim_go() -> None:
    async with Beside() as harness:
        await _in_the_making(harness)
        await harness.request("DELETE", harness.path("classes", "fast"))
        await harness.create("classes", fast(provisioner="other.example.com"))
        await harness.settle()
        assert not harness.backend.assets
        found = await harness.see("claims", "c")
        assert found["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        assert not [name for name in found["metadata"]["annotations"] if name.startswith("volplane.dev/")]


# --- drivers ------------------------------------------------------------------------------------------------------


async def test_a_driver_that_appears_serves_the_claims_that_waited_for_it() -> None:
    async with Beside() as harness:
        backend = harness.backends.pop(DRIVER)
        harness.broken = (BrokenDriver(name=DRIVER, backend="scripted", error="the backend is not installed"),)
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        assert "the backend is not installed" in harness.messages("ProvisioningFailed")[0]
        assert harness.our_writes() == []
        await harness.kill()
        harness.backends[DRIVER], harness.broken = backend, ()
        await harness.start()
        await harness.settle()
        await harness.bound_volume("c")


@pytest.mark.parametrize("known", ["as a broken one", "not at all"])
async def test_a_released_volume_waits_in_words_for_its_driver_and_goes_when_it_appears(known: str) -> None:
    async with Beside() as harness:
        backend = harness.backend
        await served(harness, ours())
        await harness.kill()
        del harness.backends[DRIVER]
        if known == "as a broken one":
            harness.broken = (BrokenDriver(name=DRIVER, backend="scripted", error="the backend is not installed"),)
        await harness.start()
        await harness.delete("claims", "c")
        await harness.settle()
        (volume,) = await harness.everything("volumes")
        assert volume["status"]["phase"] == "Released"
        (message,) = set(harness.messages("VolumeFailedDelete"))
        assert DRIVER in message
        assert ("not installed" if harness.broken else "is not configured here") in message
        await harness.kill()
        harness.backends[DRIVER], harness.broken = backend, ()
        await harness.start()
        await harness.settle()
        await harness.nothing_left()


async def test_a_renamed_driver_is_another_driver_until_its_former_name_is_configured_too() -> None:
    async with Beside() as harness:
        await served(harness, ours())
        former = harness.backends.pop(DRIVER)
        await harness.kill()
        harness.backends["new.example.com"] = ScriptedBackend("new.example.com")
        harness.backends["new.example.com"].memory = former.memory
        await harness.start()
        await harness.delete("claims", "c")
        await harness.settle()
        assert former.assets
        assert f'driver "{DRIVER}"' in harness.messages("VolumeFailedDelete")[0]
        await harness.kill()
        harness.backends[DRIVER] = former
        await harness.start()
        await harness.settle()
        await harness.nothing_left()


async def test_a_claim_that_another_process_serves_is_left_in_peace() -> None:
    """Two deployments with a driver each: the second sees finalizer and intent of the first and holds its tongue."""

    async with Beside() as harness:
        harness.backend.script("provision", *["not yet"] * 3, "ok")
        second = Beside(ScriptedBackend("second.example.com"))
        second.server, second._people = harness.server, harness._people
        try:
            await harness.create("classes", fast())
            await harness.create("claims", ours())
            await harness.start_both()
            await second.start()
            await harness.until(lambda: _tried(harness), what="the first call")
            await harness.settle()
            await harness.bound_volume("c")
            await harness.delete("claims", "c")
            await harness.settle()
            await harness.nothing_left()
            assert second.our_writes() == []
            assert second.recorded == []
        finally:
            await second.close()
