"""Where volumes are made: places that are full, nodes that go; and what a stock binder beside us asks for."""

from __future__ import annotations

import asyncio

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.harness import Harness, Json
from scenarios.provisioning import PROVISIONING, ask, create_class, slow_provisioning
from scenarios.stories import DRIVER, claim, reference, storage_class, volume
from volplane import Declined, ResourceExhausted, Unavailable

SELECTED = "volume.kubernetes.io/selected-node"
ZONE = "topology.kubernetes.io/zone"


def _zoned_node(name: str, zone: str) -> Json:
    return {"metadata": {"name": name, "labels": {ZONE: zone}}}


# --- places ------------------------------------------------------------------------------------------------------


async def test_a_full_place_gives_the_claim_back_to_the_scheduler() -> None:
    full = ResourceExhausted("zone a is full", reschedule=True)
    backend = SearchableBackend(DRIVER, {"provision": [full, OK]}, info={"topology_keys": (ZONE,)})

    async with Harness(backend) as harness:
        await create_class(harness, volumeBindingMode="WaitForFirstConsumer")
        await harness.create("nodes", _zoned_node("n-a", "a"))
        await harness.create("nodes", _zoned_node("n-b", "b"))
        await harness.start()
        await ask(harness)
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await harness.settle()
        given_back = (await harness.claim("c"))["metadata"]
        assert SELECTED not in given_back["annotations"]
        assert PROVISIONING in given_back["finalizers"]
        assert "zone a is full" in harness.messages("ProvisioningFailed")[0]
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-b"}}})
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        asked = [dict(r.segment) for r in backend.requests if hasattr(r, "allowed_segments")]
        assert asked == [{ZONE: "a"}, {ZONE: "b"}]


async def test_a_full_place_is_kept_while_an_asset_may_be_there() -> None:
    full = ResourceExhausted("zone a is full", reschedule=True)
    backend = ScriptedBackend(DRIVER, {"provision": [full, OK]}, info={"topology_keys": (ZONE,)})

    async with Harness(backend) as harness:
        await create_class(harness, volumeBindingMode="WaitForFirstConsumer")
        await harness.create("nodes", _zoned_node("n-a", "a"))
        await harness.start()
        await ask(harness)
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await harness.settle()
        assert (await harness.claim("c"))["metadata"]["annotations"][SELECTED] == "n-a"
        assert await harness.claims() == {"c": "Bound"}
        asked = [dict(request.segment) for request in backend.requests]
        assert asked == [{ZONE: "a"}, {ZONE: "a"}]


async def test_an_in_tree_name_gives_the_claim_back_after_any_failure() -> None:
    backend = ScriptedBackend("kubernetes.io/disk", {"provision": ["broken", OK]})

    async with Harness(backend) as harness:
        await harness.create(
            "classes", storage_class(provisioner="kubernetes.io/disk", volumeBindingMode="WaitForFirstConsumer")
        )
        await harness.create("nodes", _zoned_node("n", "a"))
        await harness.start()
        await ask(harness)
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await harness.settle()
        assert SELECTED not in (await harness.claim("c"))["metadata"]["annotations"]
        assert harness.events["Normal WaitForFirstConsumer"] >= 1
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}


@pytest.mark.parametrize(("kind", "kept"), [(ScriptedBackend, True), (SearchableBackend, False)])
async def test_what_one_call_did_not_do_says_nothing_of_the_call_before_it(
    kind: type[ScriptedBackend], *, kept: bool
) -> None:
    """The first call makes the asset and its answer is lost, an extension declines the second: a third one in another
    place would make a second asset. Only `find` shows that nothing is here.
    """
    name = "kubernetes.io/disk"
    script = {"provision": [Unavailable("its answer is lost"), Declined("the quota is used up for a moment"), OK]}
    async with Harness(kind(name, script, info={"topology_keys": (ZONE,)})) as harness:
        await create_class(harness, provisioner=name, volumeBindingMode="WaitForFirstConsumer")
        await harness.create("nodes", _zoned_node("n-a", "a"))
        await harness.start()
        await ask(harness)
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await harness.settle(30.0)
        chosen = (await harness.claim("c"))["metadata"]["annotations"].get(SELECTED)
        assert chosen == ("n-a" if kept else None)


async def test_a_selected_node_that_is_not_there_is_given_back_and_one_that_gets_its_label_later_is_noticed() -> None:
    backend = ScriptedBackend(DRIVER, info={"topology_keys": (ZONE,)})

    async with Harness(backend) as harness:
        await create_class(harness, volumeBindingMode="WaitForFirstConsumer")
        await harness.start()
        await ask(harness)
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await harness.settle()
        assert 'selected node "n" does not exist; another one is asked for' in harness.messages("ProvisioningFailed")
        assert "annotations" not in (await harness.see("claims", "c"))["metadata"]
        await harness.create("nodes", {"metadata": {"name": "n"}})
        await harness.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await harness.settle()
        assert any("lacks the label" in message for message in harness.messages("ProvisioningFailed"))
        await harness.patch("nodes", "n", {"metadata": {"labels": {ZONE: "z"}}})
        await asyncio.sleep(1.0)
        assert await harness.claims() == {"c": "Bound"}


async def test_a_backend_hears_where_nodes_are_when_nobody_chose_a_place() -> None:
    backend = ScriptedBackend(DRIVER, info={"topology_keys": (ZONE,)})

    async with Harness(backend) as harness:
        await create_class(harness)
        for name, zone in (("n-1", "b"), ("n-2", "a"), ("n-3", "b")):
            await harness.create("nodes", _zoned_node(name, zone))
        await harness.create("nodes", {"metadata": {"name": "elsewhere"}})
        await harness.start()
        await ask(harness)
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        [request] = backend.requests
        assert (request.segment, request.node_segments) == (None, ({ZONE: "a"}, {ZONE: "b"}))


async def test_an_immediate_claim_goes_where_the_class_allows_and_stays_there() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": ["not yet", "not yet", OK]}, info={"topology_keys": (ZONE,)})
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]

    async with Harness(backend) as harness:
        await create_class(harness, allowedTopologies=terms)
        await ask(harness)
        await harness.start()
        await asyncio.sleep(0.3)
        await harness.restart()
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        places = {request.segment[ZONE] for request in backend.requests}
        assert len(places) == 1
        assert places <= {"a", "b"}


# --- beside a stock binder ---------------------------------------------------------------------------------------


async def test_beside_a_binder_only_what_it_asks_for_is_made() -> None:
    """The protocol of external provisioners: annotations in, a reserved volume out, no binding."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, settings={"binder": False}) as harness:
        await create_class(harness)
        await harness.start()
        uid = await ask(harness)
        await harness.settle()
        assert harness.rules.writes() == []
        await harness.patch(
            "claims", "c", {"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER}}}
        )
        await harness.settle()
        made = await harness.volume(f"pvc-{uid}")
        assert made["spec"]["claimRef"]["uid"] == uid
        assert made["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == DRIVER
        assert made["metadata"]["finalizers"] == ["volplane.dev/reclaim"]
        waiting = await harness.claim("c")
        assert waiting["spec"].get("volumeName") is None
        assert waiting["metadata"].get("finalizers") is None, "the volume is there: the claim is held no more"


async def test_beside_a_binder_a_claim_bound_to_another_volume_leaves_no_asset() -> None:
    backend = SearchableBackend(DRIVER)

    async with Harness(backend, settings={"binder": False}, latency=slow_provisioning) as harness:
        await create_class(harness)
        await harness.start()
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {"volume.kubernetes.io/storage-provisioner": DRIVER}
        await harness.create("claims", body)
        await asyncio.sleep(1.0)
        await harness.create("volumes", volume("other", storageClassName="fast"))
        await harness.patch("claims", "c", {"spec": {"volumeName": "other"}})
        await harness.settle()
        assert not backend.assets
        assert list(await harness.volumes()) == ["other"]
        assert (await harness.claim("c"))["metadata"].get("finalizers") is None


async def test_beside_a_binder_what_it_released_is_deleted_and_nothing_else_touched() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, settings={"binder": False}) as harness:
        ref = reference("gone", uid="00000000-0000-0000-0000-000000000001")
        ours = volume("ours", persistentVolumeReclaimPolicy="Delete", claimRef=ref)
        ours["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER}
        static = volume("static", persistentVolumeReclaimPolicy="Recycle", claimRef=ref)
        for body in (ours, static):
            await harness.create("volumes", {**body, "status": {"phase": "Bound"}})
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"ours": "Bound", "static": "Bound"}
        for name in ("ours", "static"):
            await harness.patch("volumes", name, {"status": {"phase": "Released"}}, subresource="status")
        await harness.settle()
        assert await harness.volumes() == {"static": "Released"}
        assert backend.calls["delete"] == 1
