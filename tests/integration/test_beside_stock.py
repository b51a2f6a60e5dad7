"""Beside a stock kube-controller-manager: who begins, what we make, whose writes are whose."""

from __future__ import annotations

import pytest

from integration.beside import (
    LATE,
    PROVISIONER,
    PROVISIONER_BETA,
    SELECTED_NODE,
    Beside,
    asked,
    fast,
    ours,
    pod,
)
from scenarios.backends import ScriptedBackend
from scenarios.stories import DRIVER
from volplane import InProgress, InvalidArgument, ResourceExhausted

NODE = {"metadata": {"name": "node-1"}}


# --- when we start ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("storage_class", "body"),
    [
        (fast(), ours()),
        (fast(), asked(ours(), "other.example.com")),
        (fast(), asked(ours(), "")),
        (fast(provisioner="other.example.com"), asked(ours())),
        (fast(provisioner="other.example.com"), asked(ours(), "other.example.com")),
        (fast(provisioner="other.example.com"), asked(ours(), "other.example.com", key=PROVISIONER_BETA)),
        (fast(provisioner="kubernetes.io/portworx-volume"), asked(ours(), "pxd.portworx.com")),
        (fast(provisioner="kubernetes.io/no-provisioner"), asked(ours(), "kubernetes.io/no-provisioner")),
        (fast(**LATE), asked(ours())),
        (fast(), asked(ours(storageClassName="slow"))),
        (fast(), asked(ours(volumeName="v"))),
    ],
    ids=(
        "not asked",
        "another is asked",
        "nobody is asked",
        "the class is another's",
        "all is another's",
        "all is another's, beta",
        "migrated",
        "no provisioner",
        "no node selected",
        "no such class",
        "it names a volume",
    ),
)
async def test_nothing_is_made_written_or_said_for_a_claim_that_is_not_ours_to_serve(
    storage_class: dict, body: dict
) -> None:
    async with Beside() as harness:
        await harness.create("classes", storage_class)
        await harness.create("claims", body)
        await harness.start()
        await harness.settle()
        assert harness.our_writes() == []
        assert harness.recorded == []
        assert not harness.backend.calls["provision"]


@pytest.mark.parametrize("key", [PROVISIONER, PROVISIONER_BETA])
async def test_either_annotation_starts_us_and_we_do_not_touch_it(key: str) -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", asked(ours(), key=key))
        await harness.start()
        await harness.settle()
        found = await harness.see("claims", "c")
        assert list(harness.backend.assets) == [f"pvc-{found['metadata']['uid']}"]
        assert found["metadata"]["annotations"] == {key: DRIVER}
        assert found["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


async def test_a_selected_node_starts_us_where_the_class_waits_for_the_first_consumer() -> None:
    async with Beside() as harness:
        await harness.create("nodes", NODE)
        await harness.create("classes", fast(**LATE))
        await harness.create("claims", asked(ours(), **{SELECTED_NODE: "node-1"}))
        await harness.start()
        await harness.settle()
        assert harness.backend.calls["provision"] == 1


# --- what we make -------------------------------------------------------------------------------------------------


async def test_the_volume_carries_what_an_external_provisioner_writes_and_our_marks_only() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        made = await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        found = await harness.bound_volume("c")
        uid = made["metadata"]["uid"]
        assert found["metadata"]["name"] == f"pvc-{uid}"
        assert sorted(found["metadata"]["finalizers"]) == ["kubernetes.io/pv-protection", "volplane.dev/reclaim"]
        annotations = found["metadata"]["annotations"]
        assert annotations["pv.kubernetes.io/provisioned-by"] == DRIVER
        assert [name for name in annotations if not name.startswith("volplane.dev/")] == [
            "pv.kubernetes.io/provisioned-by"
        ]
        wanted = {"namespace": "default", "name": "c", "uid": uid, "kind": "PersistentVolumeClaim", "apiVersion": "v1"}
        assert wanted.items() <= found["spec"]["claimRef"].items()
        theirs = await harness.see("claims", "c")
        assert theirs["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
        assert not [name for name in theirs["metadata"]["annotations"] if name.startswith("volplane.dev/")]


async def test_three_writes_serve_a_claim() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        assert [call.what for call in harness.our_writes() if call.status < 300] == [
            "update persistentvolumeclaims",
            "create persistentvolumes",
            "update persistentvolumeclaims",
        ]


PLANNED = {
    "info": {"plans_first": True},
    "script": {"provision": [InProgress(retry_after=0.0, state={"send": "it"}), "ok"]},
}


async def test_three_writes_serve_a_claim_whose_driver_keeps_its_request_first() -> None:
    async with Beside(ScriptedBackend(DRIVER, **PLANNED)) as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        await harness.bound_volume("c")
        assert [each.context.state for each in harness.backend.requests] == [{}, {"send": "it"}]
        assert [call.what for call in harness.our_writes() if call.status < 300] == [
            "update persistentvolumeclaims",
            "create persistentvolumes",
            "update persistentvolumeclaims",
        ]


async def test_a_claim_that_its_driver_refuses_to_plan_gets_no_record_and_goes_at_once() -> None:
    script = {"provision": [InvalidArgument("no such tier", nothing_done=True)]}
    async with Beside(ScriptedBackend(DRIVER, script, info=PLANNED["info"])) as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        assert "no such tier" in harness.messages("ProvisioningFailed")[0]
        assert harness.our_writes() == []
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()


async def test_a_driver_that_makes_something_where_it_should_plan_is_told_and_its_asset_becomes_no_volume() -> None:
    async with Beside(ScriptedBackend(DRIVER, info=PLANNED["info"])) as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        assert "was made before it was recorded (DriverInfo.plans_first)" in harness.messages("ProvisioningFailed")[0]
        assert await harness.everything("volumes") == []


async def test_status_is_left_to_the_binder_even_when_deleting_fails() -> None:
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        harness.backend.script("delete", *["the filer is away"] * 4, "ok")
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()
        assert not [call.what for call in harness.our_writes() if call.resource.endswith("/status")]
        assert harness.events["Warning VolumeFailedDelete"] >= 4
        assert "the filer is away; next attempt in" in harness.messages("VolumeFailedDelete")[0]


async def test_a_claim_and_its_volume_go_through_their_whole_life() -> None:
    async with Beside() as harness:
        await harness.create("nodes", NODE)
        await harness.create("classes", fast(**LATE))
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        assert not harness.backend.assets
        await harness.create("pods", pod("p", "c"))
        await harness.settle()
        await harness.bound_volume("c")
        assert (await harness.see("pods", "p"))["spec"]["nodeName"] == "node-1"
        await harness.delete("claims", "c")
        await harness.settle()
        assert harness.backend.assets, "the pod still uses it"
        await harness.delete("pods", "p", grace=0)
        await harness.settle()
        await harness.nothing_left()


async def test_a_full_segment_gives_the_claim_back_to_the_scheduler() -> None:
    full = ResourceExhausted("node-1 is full", reschedule=True, nothing_done=True)

    async with Beside(ScriptedBackend(DRIVER, info={"topology_keys": ("kubernetes.io/hostname",)})) as harness:
        for name in ("node-1", "node-2"):
            await harness.create("nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        harness.backend.script("provision", full, "ok")
        await harness.create("classes", fast(**LATE))
        await harness.create("claims", ours())
        await harness.create("pods", pod("p", "c"))
        await harness.start_both()
        await harness.settle()
        await harness.bound_volume("c")
        assert harness.stock.scheduler.selected == ["node-1", "node-2"]
        segments = [request.segment["kubernetes.io/hostname"] for request in harness.backend.requests]
        assert segments == ["node-1", "node-2"]


async def test_of_a_whole_life_nothing_is_read_live() -> None:
    """That the claim is gone the watch has told: whatever has its name now is another claim. What became of the volume
    the answer to its own deletion has told.
    """
    async with Beside() as harness:
        await harness.create("classes", fast())
        await harness.create("claims", ours())
        await harness.start_both()
        await harness.settle()
        await harness.bound_volume("c")
        seen = len(harness.rules.calls)
        await harness.delete("claims", "c")
        await harness.settle()
        await harness.nothing_left()
        assert [call.resource for call in harness.rules.calls[seen:] if call.verb == "get"] == []
