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
    async with Beside() as harness:
        from volplane import InProgress

        harness.backend.script("provision", *[InProgress(retry_after=5.0, state={"job": "1"})] * 3, "ok")
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.until(lambda: _called(harness, 2), what="the second call")
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def _called(harness: Beside, times: int) -> bool:
    return harness.backend.calls["provision"] >= times


async def test_our_asset_goes_when_the_binder_gives_the_claim_another_volume_before_ours_exists() -> None:
    async with Beside() as harness:
        harness.backend.script("provision", *["not now"] * 8, "ok")
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.until(lambda: _called(harness, 1), what="the first call")
        await harness.create("volumes", volume("v", storageClassName="fast"))
        await harness.settle()
        assert (await harness.see("claims", "c"))["spec"]["volumeName"] == "v"
        assert not harness.backend.assets
        assert (await harness.see("claims", "c"))["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        assert [item["metadata"]["name"] for item in await harness.everything("volumes")] == ["v"]


async def test_our_volume_goes_when_the_binder_gives_the_claim_another_one_although_ours_exists() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", asked(ours()))
        await harness.start()
        await harness.settle()
        assert len(await harness.everything("volumes")) == 1
        # A person points the claim at a volume that is reserved for it; the binder starts only now.
        await harness.create("volumes", volume("v", storageClassName="fast", claimRef=reference("c")))
        await harness.patch("claims", "c", {"spec": {"volumeName": "v"}})
        await harness.stock.start()
        await harness.settle()
        assert (await harness.see("claims", "c"))["status"]["phase"] == "Bound"
        assert [item["metadata"]["name"] for item in await harness.everything("volumes")] == ["v"]
        assert not harness.backend.assets


async def test_a_terminating_claim_that_the_binder_binds_to_another_volume_leaves_nothing_of_ours() -> None:
    async with Beside() as harness:
        from volplane import InProgress

        harness.backend.script("provision", *[InProgress(retry_after=30.0, state={"job": "1"})] * 2, "ok")
        await harness.create("classes", fast())
        body = ours()
        body["metadata"]["finalizers"] = ["example.com/keep", "kubernetes.io/pvc-protection"]
        await harness.create("claims", body)
        await harness.start_both()
        await harness.until(lambda: _called(harness, 1), what="the first call")
        await harness.delete("claims", "c")
        await harness.create("volumes", volume("v", storageClassName="fast"))
        await harness.settle()
        assert (await harness.see("claims", "c"))["spec"]["volumeName"] == "v"
        assert not harness.backend.assets
        assert (await harness.see("claims", "c"))["metadata"]["finalizers"] == ["example.com/keep"]
        assert [item["metadata"]["name"] for item in await harness.everything("volumes")] == ["v"]


async def test_an_asset_is_deleted_only_after_the_binder_released_its_volume() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        await harness.stock.stop()
        await harness.patch("claims", "c", {"metadata": {"finalizers": None}})
        await harness.delete("claims", "c")
        await harness.settle()
        assert harness.backend.assets
        assert not harness.backend.calls["delete"]
        await harness.stock.start()
        await harness.settle()
        await harness.nothing_left()


@pytest.mark.parametrize("policy", ["Retain", "Recycle"])
async def test_a_policy_changed_by_hand_keeps_the_asset_and_frees_the_object(policy: str) -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        name = (await harness.bound_volume("c"))["metadata"]["name"]
        await harness.patch("volumes", name, {"spec": {"persistentVolumeReclaimPolicy": policy}})
        await harness.settle()
        assert (await harness.see("volumes", name))["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
        await harness.delete("claims", "c")
        await harness.settle()
        assert (await harness.see("volumes", name))["status"]["phase"] == "Released"
        assert harness.backend.assets
        assert not harness.backend.calls["recycle"]
        assert harness.stock.binder.recycles == ({name} if policy == "Recycle" else set())


async def test_a_volume_deleted_before_its_claim_goes_with_its_asset_when_the_claim_does() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        await harness.delete("volumes", (await harness.bound_volume("c"))["metadata"]["name"])
        await harness.settle()
        await harness.bound_volume("c")
        assert harness.backend.assets
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def test_a_claim_made_again_under_its_name_gets_an_asset_of_its_own() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        first = await harness.bound_volume("c")
        await harness.patch("claims", "c", {"metadata": {"finalizers": None}})
        await harness.delete("claims", "c")
        await harness.create("claims", ours())
        await harness.settle()
        second = await harness.bound_volume("c")
        assert first["metadata"]["name"] != second["metadata"]["name"]
        assert list(harness.backend.assets) == [second["metadata"]["name"]]


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
    async with Beside() as harness:
        await harness.create("volumes", body)
        await harness.create("claims", claim("c"))
        await harness.start_both()
        await harness.settle()
        await harness.bound_volume("c")
        await harness.delete("claims", "c")
        await harness.settle()
        assert harness.our_writes() == []
        assert harness.recorded == []
        assert not harness.backend.calls["delete"] + harness.backend.calls["recycle"]


@pytest.mark.parametrize("terminating", [False, True])
@pytest.mark.parametrize(
    "marks", [{"pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"}, {"pv.kubernetes.io/provisioned-by": "x.example.com"}]
)
async def test_volumes_that_another_serves_are_never_touched(marks: dict, terminating: bool) -> None:
    async with Beside() as harness:
        body = volume("v", persistentVolumeReclaimPolicy="Delete", claimRef=reference("c", uid="gone"))
        body["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER, **marks}
        body["metadata"]["finalizers"] = ["external-provisioner.volume.kubernetes.io/finalizer"]
        body["status"] = {"phase": "Released"}
        if terminating:
            body["metadata"]["deletionTimestamp"] = "now"
        await harness.create("volumes", body)
        await harness.start()
        await harness.settle()
        assert harness.our_writes() == []
        assert harness.recorded == []
        assert not harness.backend.calls["delete"]


async def test_a_claim_that_is_marked_as_migrated_to_another_driver_is_left_to_it() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", asked(ours(), **{"pv.kubernetes.io/migrated-to": "ebs.csi.aws.com"}))
        await harness.start()
        await harness.settle()
        assert harness.our_writes() == []
        assert not harness.backend.calls["provision"]


async def test_a_volume_deleted_before_it_was_bound_makes_room_for_another() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", asked(ours()))
        await harness.start()
        await harness.settle()
        (made,) = await harness.everything("volumes")
        await harness.delete("volumes", made["metadata"]["name"])
        await harness.stock.start()
        await harness.settle()
        found = await harness.bound_volume("c")
        assert found["metadata"]["uid"] != made["metadata"]["uid"]
        assert harness.backend.calls["delete"] == 1
        assert list(harness.backend.assets) == [found["metadata"]["name"]]


async def test_so_it_does_where_we_are_the_binder() -> None:
    from scenarios.backends import ScriptedBackend
    from scenarios.harness import Harness

    async with Harness(ScriptedBackend(DRIVER)) as harness:
        harness.fail("update persistentvolumes/status", "down", times=12)
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start()

        async def made() -> bool:
            return bool(await harness.everything("volumes"))

        await harness.until(made)
        (first,) = await harness.everything("volumes")
        await harness.delete("volumes", first["metadata"]["name"])
        await harness.settle()
        (second,) = await harness.everything("volumes")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]
        assert (await harness.see("claims", "c"))["status"]["phase"] == "Bound"
        assert harness.backends[DRIVER].calls["delete"] == 1
