"""Beside a stock kube-controller-manager: what people and the binder do meanwhile, and what is not ours."""

from __future__ import annotations

import pytest

from integration.beside import (
    Beside,
    asked,
    fast,
    ours,
)
from scenarios.stories import DRIVER, claim, reference, volume

# --- what people and the binder do meanwhile ----------------------------------------------------------------------


async def test_a_claim_deleted_while_its_asset_is_made_leaves_nothing() -> None:
    async with Beside() as lab:
        from volplane import InProgress

        lab.backend.script("provision", *[InProgress(retry_after=5.0, state={"job": "1"})] * 3, "ok")
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start_both()
        await lab.until(lambda: _called(lab, 2), what="the second call")
        await lab.delete("claims", "c")
        await lab.settle()
        await lab.nothing_left()


async def _called(lab: Beside, times: int) -> bool:
    return lab.backend.calls["provision"] >= times


async def test_our_asset_goes_when_the_binder_gives_the_claim_another_volume_before_ours_exists() -> None:
    async with Beside() as lab:
        lab.backend.script("provision", *["not now"] * 8, "ok")
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start_both()
        await lab.until(lambda: _called(lab, 1), what="the first call")
        await lab.create("volumes", volume("v", storageClassName="fast"))
        await lab.settle()
        assert (await lab.see("claims", "c"))["spec"]["volumeName"] == "v"
        assert not lab.backend.assets
        assert (await lab.see("claims", "c"))["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        assert [item["metadata"]["name"] for item in await lab.everything("volumes")] == ["v"]


async def test_our_volume_goes_when_the_binder_gives_the_claim_another_one_although_ours_exists() -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", asked(ours()))
        await lab.start()
        await lab.settle()
        assert len(await lab.everything("volumes")) == 1
        # A person points the claim at a volume that is reserved for it; the binder starts only now.
        await lab.create("volumes", volume("v", storageClassName="fast", claimRef=reference("c")))
        await lab.patch("claims", "c", {"spec": {"volumeName": "v"}})
        await lab.stock.start()
        await lab.settle()
        assert (await lab.see("claims", "c"))["status"]["phase"] == "Bound"
        assert [item["metadata"]["name"] for item in await lab.everything("volumes")] == ["v"]
        assert not lab.backend.assets


async def test_a_terminating_claim_that_the_binder_binds_to_another_volume_leaves_nothing_of_ours() -> None:
    async with Beside() as lab:
        from volplane import InProgress

        lab.backend.script("provision", *[InProgress(retry_after=30.0, state={"job": "1"})] * 2, "ok")
        await lab.create("classes", fast())
        body = ours()
        body["metadata"]["finalizers"] = ["example.com/keep", "kubernetes.io/pvc-protection"]
        await lab.create("claims", body)
        await lab.start_both()
        await lab.until(lambda: _called(lab, 1), what="the first call")
        await lab.delete("claims", "c")
        await lab.create("volumes", volume("v", storageClassName="fast"))
        await lab.settle()
        assert (await lab.see("claims", "c"))["spec"]["volumeName"] == "v"
        assert not lab.backend.assets
        assert (await lab.see("claims", "c"))["metadata"]["finalizers"] == ["example.com/keep"]
        assert [item["metadata"]["name"] for item in await lab.everything("volumes")] == ["v"]


async def test_an_asset_is_deleted_only_after_the_binder_released_its_volume() -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start_both()
        await lab.settle()
        await lab.stock.stop()
        await lab.patch("claims", "c", {"metadata": {"finalizers": None}})
        await lab.delete("claims", "c")
        await lab.settle()
        assert lab.backend.assets
        assert not lab.backend.calls["delete"]
        await lab.stock.start()
        await lab.settle()
        await lab.nothing_left()


@pytest.mark.parametrize("policy", ["Retain", "Recycle"])
async def test_a_policy_changed_by_hand_keeps_the_asset_and_frees_the_object(policy: str) -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start_both()
        await lab.settle()
        name = (await lab.bound_volume("c"))["metadata"]["name"]
        await lab.patch("volumes", name, {"spec": {"persistentVolumeReclaimPolicy": policy}})
        await lab.settle()
        assert (await lab.see("volumes", name))["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
        await lab.delete("claims", "c")
        await lab.settle()
        assert (await lab.see("volumes", name))["status"]["phase"] == "Released"
        assert lab.backend.assets
        assert not lab.backend.calls["recycle"]
        assert lab.stock.binder.recycles == ({name} if policy == "Recycle" else set())


async def test_a_volume_deleted_before_its_claim_goes_with_its_asset_when_the_claim_does() -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start_both()
        await lab.settle()
        await lab.delete("volumes", (await lab.bound_volume("c"))["metadata"]["name"])
        await lab.settle()
        await lab.bound_volume("c")
        assert lab.backend.assets
        await lab.delete("claims", "c")
        await lab.settle()
        await lab.nothing_left()


async def test_a_claim_made_again_under_its_name_gets_an_asset_of_its_own() -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start_both()
        await lab.settle()
        first = await lab.bound_volume("c")
        await lab.patch("claims", "c", {"metadata": {"finalizers": None}})
        await lab.delete("claims", "c")
        await lab.create("claims", ours())
        await lab.settle()
        second = await lab.bound_volume("c")
        assert first["metadata"]["name"] != second["metadata"]["name"]
        assert list(lab.backend.assets) == [second["metadata"]["name"]]


# --- what is not ours ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        volume("v", persistentVolumeReclaimPolicy="Recycle"),
        volume("v", persistentVolumeReclaimPolicy="Delete"),
        volume("v", persistentVolumeReclaimPolicy="Retain"),
    ],
    ids=lambda body: body["spec"]["persistentVolumeReclaimPolicy"],
)
async def test_static_volumes_are_never_touched(body: dict) -> None:
    async with Beside() as lab:
        await lab.create("volumes", body)
        await lab.create("claims", claim("c"))
        await lab.start_both()
        await lab.settle()
        await lab.bound_volume("c")
        await lab.delete("claims", "c")
        await lab.settle()
        assert lab.our_writes() == []
        assert lab.recorded == []
        assert not lab.backend.calls["delete"] + lab.backend.calls["recycle"]


@pytest.mark.parametrize("terminating", [False, True])
@pytest.mark.parametrize(
    "marks", [{"pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"}, {"pv.kubernetes.io/provisioned-by": "x.example.com"}]
)
async def test_volumes_that_another_serves_are_never_touched(marks: dict, terminating: bool) -> None:
    async with Beside() as lab:
        body = volume("v", persistentVolumeReclaimPolicy="Delete", claimRef=reference("c", uid="gone"))
        body["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER, **marks}
        body["metadata"]["finalizers"] = ["external-provisioner.volume.kubernetes.io/finalizer"]
        body["status"] = {"phase": "Released"}
        if terminating:
            body["metadata"]["deletionTimestamp"] = "now"
        await lab.create("volumes", body)
        await lab.start()
        await lab.settle()
        assert lab.our_writes() == []
        assert lab.recorded == []
        assert not lab.backend.calls["delete"]


async def test_a_claim_that_is_marked_as_migrated_to_another_driver_is_left_to_it() -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", asked(ours(), **{"pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"}))
        await lab.start()
        await lab.settle()
        assert lab.our_writes() == []
        assert not lab.backend.calls["provision"]


async def test_a_volume_deleted_before_it_was_bound_makes_room_for_another() -> None:
    async with Beside() as lab:
        await lab.create("classes", fast())
        await lab.create("claims", asked(ours()))
        await lab.start()
        await lab.settle()
        (made,) = await lab.everything("volumes")
        await lab.delete("volumes", made["metadata"]["name"])
        await lab.stock.start()
        await lab.settle()
        found = await lab.bound_volume("c")
        assert found["metadata"]["uid"] != made["metadata"]["uid"]
        assert lab.backend.calls["delete"] == 1
        assert list(lab.backend.assets) == [found["metadata"]["name"]]


async def test_so_it_does_where_we_are_the_binder() -> None:
    from scenarios.backends import ScriptedBackend
    from scenarios.laboratory import Laboratory

    async with Laboratory(ScriptedBackend(DRIVER)) as lab:
        lab.fail("update persistentvolumes/status", "down", times=12)
        await lab.create("classes", fast())
        await lab.create("claims", ours())
        await lab.start()

        async def made() -> bool:
            return bool(await lab.everything("volumes"))

        await lab.until(made)
        (first,) = await lab.everything("volumes")
        await lab.delete("volumes", first["metadata"]["name"])
        await lab.settle()
        (second,) = await lab.everything("volumes")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        assert (await lab.see("claims", "c"))["status"]["phase"] == "Bound"
        assert lab.backends[DRIVER].calls["delete"] == 1
