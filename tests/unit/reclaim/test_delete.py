"""What stands in the way of a deletion, and how a long one goes on."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import decide_delete, decide_recycle, disk, put, state_with
from volplane.controller.actions import Delete, LiveReads, Patch, Run, Settled, Wait, warning
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Volume, VolumeAttachment
from volplane.state.cluster_state import ClusterState
from volplane.state.progress import Deleted, Deleting

GONE = claim("gone")
DISK = disk()
HELD = ["volplane.dev/reclaim"]
PROTECTED = "kubernetes.io/pv-protection"
DYING = "2026-01-01T00:00:00Z"
STATELESS = {"volplane.dev/intent": '{"deleteState":{},"v":1}'}
"""The record of a deletion that goes on, and needs no state."""


def released(**fields: Any) -> Volume:
    """A volume that nothing holds but us, and that is being deleted."""
    fields = {"finalizers": HELD, "deletionTimestamp": DYING, **fields}
    return volume(claim=GONE, **{"status": {"phase": "Released"}, "persistentVolumeReclaimPolicy": "Delete", **fields})


def attachment(item: Volume, node: str) -> VolumeAttachment:
    spec = {"attacher": DISK.name, "nodeName": node, "source": {"persistentVolumeName": item.name}}
    meta = {"name": f"csi-{node}", "uid": f"uid-{node}", "resourceVersion": "1"}
    return msgspec.convert({"metadata": meta, "spec": spec}, VolumeAttachment)


def decided(item: Volume, made: ClusterState) -> Any:
    put(made, item)
    return decide_delete(item, made)


def test_nothing_is_deleted_while_an_attachment_of_it_exists() -> None:
    item = released()
    attached = state_with(attachment(item, "node-b"), attachment(item, "node-a"), drivers=(DISK,))
    assert decided(item, attached) == Wait(reason="attachments of it exist, to node-a, node-b")
    assert isinstance(decided(item, state_with(drivers=(DISK,))), Run)


def test_no_scrub_is_begun_while_an_attachment_of_it_exists() -> None:
    item = released(persistentVolumeReclaimPolicy="Recycle", finalizers=None, deletionTimestamp=None)
    attached = state_with(item, attachment(item, "node-a"), drivers=(DISK,))
    assert decide_recycle(item, attached, LiveReads()) == Wait(reason="attachments of it exist, to node-a")
    assert isinstance(decide_recycle(item, state_with(item, drivers=(DISK,)), LiveReads()), Patch)


def test_nothing_is_deleted_or_scrubbed_while_the_disk_is_attached_through_another_volume_that_is_gone() -> None:
    csi = {"driver": DISK.name, "volumeHandle": "h-1"}
    fields = {"driver": DISK.name, "volumeHandle": "h-1", "fsType": "ext4"}
    record = {"v": 1, "driver": DISK.name, "asset": "csi:h-1", "volume": "twin", "uid": "uid-twin", "handle": "h-1"}
    record |= {"source": "csi", "fields": fields, "capacity": 1}
    twin = attachment(volume("twin"), "node-a")
    meta = {"name": twin.name, "uid": twin.uid, "annotations": {"volplane.dev/intent": json.dumps(record)}}
    held = msgspec.convert({"metadata": meta, "spec": msgspec.to_builtins(twin.spec)}, VolumeAttachment)
    dying = released(csi=csi, hostPath=None)
    assert decided(dying, state_with(held, drivers=(DISK,))) == Wait(reason="attachments of it exist, to node-a")
    kept = released(
        csi=csi, hostPath=None, persistentVolumeReclaimPolicy="Recycle", finalizers=None, deletionTimestamp=None
    )
    waiting = decide_recycle(kept, state_with(kept, held, drivers=(DISK,)), LiveReads())
    assert waiting == Wait(reason="attachments of it exist, to node-a")


def test_the_finalizers_of_others_stay_when_ours_comes() -> None:
    fresh = released(finalizers=["example.com/theirs"], deletionTimestamp=None)
    action = decided(fresh, state_with(drivers=(DISK,)))
    assert action == Patch(
        kind=VOLUMES,
        target=fresh,
        body={"metadata": {"finalizers": ["example.com/theirs", "volplane.dev/reclaim"]}},
        why="the asset goes before the object",
    )


def test_the_object_that_was_decided_on_is_deleted_and_no_newer_one() -> None:
    fresh = released(deletionTimestamp=None)
    action = decided(fresh, state_with(drivers=(DISK,)))
    assert isinstance(action, Delete)
    assert (action.kind, action.target, action.exact) == (VOLUMES, fresh, True)


def test_a_long_deletion_is_written_down_waited_for_and_gone_on_with() -> None:
    item = released()
    made = state_with(drivers=(DISK,))
    made.progress.volumes.track(item.uid).succeeded(Deleting({"job": "j-1"}, 1030.0))
    kept = decided(item, made)
    assert isinstance(kept, Patch)
    assert kept.target is item
    [(name, intent)] = kept.body["metadata"]["annotations"].items()
    assert (name, "j-1" in intent) == ("volplane.dev/intent", True)
    recorded = released(annotations={name: intent})
    assert decided(recorded, made) == Wait(reason='driver "disk.example.com" is deleting the asset', seconds=30.0)
    made.progress.volumes.track(item.uid).succeeded(Deleting({"job": "j-2"}, 1030.0, {"job": "j-1"}))
    assert isinstance(decided(recorded, made), Patch)
    made.progress.volumes.track(item.uid).succeeded(Deleting({"job": "j-1"}, 1000.0))
    again = decided(recorded, made)
    assert isinstance(again, Run)
    assert again.verb == "delete"


def test_a_state_that_the_driver_gives_up_is_taken_off_the_volume() -> None:
    made = state_with(drivers=(DISK,))
    recorded = released(annotations={"volplane.dev/intent": '{"v":1,"deleteState":{"job":"j-1"}}'})
    made.progress.volumes.track(recorded.uid).succeeded(Deleting({}, 1030.0, {"job": "j-1"}))
    action = decided(recorded, made)
    assert isinstance(action, Patch)
    assert "j-1" not in action.body["metadata"]["annotations"]["volplane.dev/intent"]


def test_a_long_deletion_without_a_state_is_recorded_too_and_waited_for_to_the_end() -> None:
    made = state_with(drivers=(DISK,))
    made.progress.volumes.track(released().uid).succeeded(Deleting({}, 1000.5))
    action = decided(released(), made)
    assert isinstance(action, Patch)
    assert action.body["metadata"]["annotations"] == STATELESS
    recorded = decided(released(annotations=STATELESS), made)
    assert recorded == Wait(reason='driver "disk.example.com" is deleting the asset', seconds=0.5)


def test_once_the_asset_is_gone_others_may_still_hold_the_object() -> None:
    theirs = released(finalizers=["example.com/theirs"])
    made = state_with(drivers=(DISK,))
    made.progress.volumes.track(theirs.uid).succeeded(Deleted())
    assert decided(theirs, made) == Wait(reason="its asset is gone; others hold the object by their finalizers")


@pytest.mark.parametrize(
    ("fields", "settings", "kept"),
    [
        ({}, {}, ["example.com/theirs"]),
        ({"status": {"phase": "Bound"}}, {}, [PROTECTED, "example.com/theirs"]),
        ({"annotations": {}}, {}, [PROTECTED, "example.com/theirs"]),
        ({}, {"binder": False}, [PROTECTED, "example.com/theirs"]),
    ],
    ids=["whole control plane", "bound", "a driver that is not here", "beside a binder"],
)
def test_the_write_that_lets_the_object_go_ends_its_protection_where_that_is_ours(
    fields: dict[str, Any], settings: dict[str, bool], kept: list[str]
) -> None:
    made_here = {"annotations": {"pv.kubernetes.io/provisioned-by": DISK.name}}
    item = released(finalizers=[*HELD, PROTECTED, "example.com/theirs"], **{**made_here, **fields})
    made = state_with(drivers=(DISK,), **settings)
    made.progress.volumes.track(item.uid).succeeded(Deleted())
    action = decided(item, made)
    assert isinstance(action, Patch)
    assert action.body == {"metadata": {"finalizers": kept}}


def test_whoever_protects_the_volume_lets_it_go_first_where_that_is_another_process() -> None:
    """Both writes are due when the object is deleted: the second one would be refused."""
    made = state_with(drivers=(DISK,), protection=False)
    protected = released(finalizers=[*HELD, PROTECTED])
    made.progress.volumes.track(protected.uid).succeeded(Deleted())
    assert decided(protected, made) == Wait(reason="its asset is gone; another process takes its protection away")
    last = decided(released(finalizers=HELD), made)
    assert isinstance(last, Patch)
    assert last.body == {"metadata": {"finalizers": None}}


@pytest.mark.parametrize("binder", [True, False], ids=["as the binder", "beside one"])
def test_what_lies_on_the_storage_of_another_volume_is_kept_and_says_so(*, binder: bool) -> None:
    item = released(hostPath={"path": "/data"})
    made = state_with(volume("other", hostPath={"path": "/data/below"}), drivers=(DISK,), binder=binder)
    action = decided(item, made)
    (event,) = action.events
    assert event == warning(VOLUMES, item, "VolumeFailedDelete", event.message)
    assert 'volume "other"' in event.message
    if binder:
        assert isinstance(action, Patch)
        assert action.body["status"] == {"phase": "Failed", "message": event.message, "reason": None}
        told = released(hostPath={"path": "/data"}, status={"phase": "Failed", "message": event.message})
        assert decided(told, made) == Wait(reason=event.message)
    else:
        assert action == Wait(reason=event.message, events=(event,))


def test_what_is_deleted_already_lets_its_object_go_though_another_volume_came_to_lie_there() -> None:
    item = released(hostPath={"path": "/data"})
    made = state_with(volume("other", hostPath={"path": "/data/below"}), drivers=(DISK,))
    made.progress.volumes.track(item.uid).succeeded(Deleted())
    assert decided(item, made).body == {"metadata": {"finalizers": None}}


def test_whether_a_deletion_in_several_steps_may_go_on_is_asked_right_before_each_step() -> None:
    """By the operation, of the live objects; the decision does not call it failed."""
    item = released(hostPath={"path": "/data"}, annotations=STATELESS)
    made = state_with(volume("other", hostPath={"path": "/data/below"}), drivers=(DISK,))
    made.progress.volumes.track(item.uid).succeeded(Deleting({}, 0.0))
    assert isinstance(decided(item, made), Run)


@pytest.mark.parametrize("binder", [True, False], ids=["as the binder", "beside one"])
def test_a_failure_is_written_on_the_volume_before_the_next_try(*, binder: bool) -> None:
    item = released()
    made = state_with(drivers=(DISK,), binder=binder)
    made.progress.volumes.track(item.uid).unreported_failure = "the disk is busy"
    action = decided(item, made)
    if not binder:
        assert isinstance(action, Run)
        return
    assert isinstance(action, Patch)
    assert (action.subresource, action.body["status"]["phase"]) == ("status", "Failed")
    assert action.body["status"]["message"] == "the disk is busy"
    assert action.events == (warning(VOLUMES, item, "VolumeFailedDelete", "the disk is busy"),)
    assert isinstance(decided(released(status={"phase": "Failed", "message": "the disk is busy"}), made), Run)


def test_a_volume_of_others_is_waited_for_and_once_it_goes_nothing_is_left_to_do() -> None:
    csi: dict[str, Any] = {
        "hostPath": None,
        "csi": {"driver": "x.example.com", "volumeHandle": "h"},
        "finalizers": None,
    }
    waits = decided(released(deletionTimestamp=None, **csi), state_with())
    assert waits == Wait(reason="an external provisioner deletes it")
    assert decided(released(**csi), state_with()) == Settled()


def test_a_volume_that_we_hold_without_its_driver_says_whom_it_waits_for() -> None:
    csi: dict[str, Any] = {"hostPath": None, "csi": {"driver": "x.example.com", "volumeHandle": "h"}}
    held = released(**csi)
    action = decided(held, state_with())
    assert isinstance(action, Patch)
    message = action.body["status"]["message"]
    assert 'driver "x.example.com" is not configured here' in message
    assert action.events == (warning(VOLUMES, held, "VolumeFailedDelete", message),)
    told = released(**csi, status={"phase": "Failed", "message": message})
    assert decided(told, state_with()) == Wait(reason=message)
    made = {"annotations": {"pv.kubernetes.io/provisioned-by": "y.example.com"}}
    assert (
        'driver "y.example.com" is not configured' in decided(released(**made), state_with()).body["status"]["message"]
    )
