"""Where volumes are made: places that are full, nodes that go; and what a stock binder beside us asks for."""

from __future__ import annotations

import asyncio

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.laboratory import Json, Laboratory
from scenarios.provisioning import PROVISIONING, ask, create_class, slow_provisioning
from scenarios.stories import DRIVER, claim, reference, storage_class, volume
from volplane import (
    ResourceExhausted,
)

SELECTED = "volume.kubernetes.io/selected-node"
ZONE = "topology.kubernetes.io/zone"


def _zoned_node(name: str, zone: str) -> Json:
    return {"metadata": {"name": name, "labels": {ZONE: zone}}}


# --- places ------------------------------------------------------------------------------------------------------


async def test_a_full_place_gives_the_claim_back_to_the_scheduler() -> None:
    full = ResourceExhausted("zone a is full", reschedule=True)
    backend = SearchableBackend(DRIVER, {"provision": [full, OK]}, info={"topology_keys": (ZONE,)})

    async with Laboratory(backend) as lab:
        await create_class(lab, volumeBindingMode="WaitForFirstConsumer")
        await lab.create("nodes", _zoned_node("n-a", "a"))
        await lab.create("nodes", _zoned_node("n-b", "b"))
        await lab.start()
        await ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await lab.settle()
        given_back = (await lab.claim("c"))["metadata"]
        assert SELECTED not in given_back["annotations"]
        assert PROVISIONING in given_back["finalizers"]
        assert "zone a is full" in lab.messages("ProvisioningFailed")[0]
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-b"}}})
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        asked = [dict(r.segment) for r in backend.requests if hasattr(r, "allowed_segments")]
        assert asked == [{ZONE: "a"}, {ZONE: "b"}]


async def test_a_full_place_is_kept_while_an_asset_may_be_there() -> None:
    full = ResourceExhausted("zone a is full", reschedule=True)
    backend = ScriptedBackend(DRIVER, {"provision": [full, OK]}, info={"topology_keys": (ZONE,)})

    async with Laboratory(backend) as lab:
        await create_class(lab, volumeBindingMode="WaitForFirstConsumer")
        await lab.create("nodes", _zoned_node("n-a", "a"))
        await lab.start()
        await ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await lab.settle()
        assert (await lab.claim("c"))["metadata"]["annotations"][SELECTED] == "n-a"
        assert await lab.claims() == {"c": "Bound"}
        asked = [dict(request.segment) for request in backend.requests]
        assert asked == [{ZONE: "a"}, {ZONE: "a"}]


async def test_an_in_tree_name_gives_the_claim_back_after_any_failure() -> None:
    backend = ScriptedBackend("kubernetes.io/disk", {"provision": ["broken", OK]})

    async with Laboratory(backend) as lab:
        await lab.create(
            "classes", storage_class(provisioner="kubernetes.io/disk", volumeBindingMode="WaitForFirstConsumer")
        )
        await lab.create("nodes", _zoned_node("n", "a"))
        await lab.start()
        await ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert SELECTED not in (await lab.claim("c"))["metadata"]["annotations"]
        assert lab.events["Normal WaitForFirstConsumer"] >= 1
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}


async def test_a_selected_node_that_is_not_there_is_given_back_and_one_that_gets_its_label_later_is_noticed() -> None:
    backend = ScriptedBackend(DRIVER, info={"topology_keys": (ZONE,)})

    async with Laboratory(backend) as lab:
        await create_class(lab, volumeBindingMode="WaitForFirstConsumer")
        await lab.start()
        await ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert 'selected node "n" does not exist; another one is asked for' in lab.messages("ProvisioningFailed")
        assert "annotations" not in (await lab.see("claims", "c"))["metadata"]
        await lab.create("nodes", {"metadata": {"name": "n"}})
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert any("lacks the label" in message for message in lab.messages("ProvisioningFailed"))
        await lab.patch("nodes", "n", {"metadata": {"labels": {ZONE: "z"}}})
        await asyncio.sleep(1.0)
        assert await lab.claims() == {"c": "Bound"}


async def test_an_immediate_claim_goes_where_the_class_allows_and_stays_there() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": ["not yet", "not yet", OK]}, info={"topology_keys": (ZONE,)})
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]

    async with Laboratory(backend) as lab:
        await create_class(lab, allowedTopologies=terms)
        await ask(lab)
        await lab.start()
        await asyncio.sleep(0.3)
        await lab.restart()
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        places = {request.segment[ZONE] for request in backend.requests}
        assert len(places) == 1
        assert places <= {"a", "b"}


# --- beside a stock binder ---------------------------------------------------------------------------------------


async def test_beside_a_binder_only_what_it_asks_for_is_made() -> None:
    """The protocol of external provisioners: annotations in, a reserved volume out, no binding."""
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend, settings={"binder": False}) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await lab.settle()
        assert lab.rules.writes() == []
        await lab.patch(
            "claims", "c", {"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER}}}
        )
        await lab.settle()
        made = await lab.volume(f"pvc-{uid}")
        assert made["spec"]["claimRef"]["uid"] == uid
        assert made["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == DRIVER
        assert made["metadata"]["finalizers"] == ["volplane.dev/reclaim"]
        waiting = await lab.claim("c")
        assert waiting["spec"].get("volumeName") is None
        assert waiting["metadata"].get("finalizers") is None, "the volume is there: the claim is held no more"


async def test_beside_a_binder_a_claim_bound_to_another_volume_leaves_no_asset() -> None:
    backend = SearchableBackend(DRIVER)

    async with Laboratory(backend, settings={"binder": False}, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {"volume.kubernetes.io/storage-provisioner": DRIVER}
        await lab.create("claims", body)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume("other", storageClassName="fast"))
        await lab.patch("claims", "c", {"spec": {"volumeName": "other"}})
        await lab.settle()
        assert not backend.assets
        assert list(await lab.volumes()) == ["other"]
        assert (await lab.claim("c"))["metadata"].get("finalizers") is None


async def test_beside_a_binder_what_it_released_is_deleted_and_nothing_else_touched() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend, settings={"binder": False}) as lab:
        ref = reference("gone", uid="00000000-0000-0000-0000-000000000001")
        ours = volume("ours", persistentVolumeReclaimPolicy="Delete", claimRef=ref)
        ours["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER}
        static = volume("static", persistentVolumeReclaimPolicy="Recycle", claimRef=ref)
        for body in (ours, static):
            await lab.create("volumes", {**body, "status": {"phase": "Bound"}})
        await lab.start()
        await lab.settle()
        assert await lab.volumes() == {"ours": "Bound", "static": "Bound"}
        for name in ("ours", "static"):
            await lab.patch("volumes", name, {"status": {"phase": "Released"}}, subresource="status")
        await lab.settle()
        assert await lab.volumes() == {"static": "Released"}
        assert backend.calls["delete"] == 1
