"""Volumes that are made from snapshots and from other volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    AlreadyExists,
    BackendError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unsupported,
)
from volplane_aws_ebs.testing import Behaviour, FaultKind

GIB = 1 << 30
ZONE = "topology.kubernetes.io/zone"
A, B, C = (f"eu-test-1{letter}" for letter in "abc")
KEY, OTHER_KEY = (f"arn:aws:kms:eu-test-1:123456789012:key/{n}" for n in ("1", "2"))
NO_SNAPSHOT = "snap-0123456789abcdef0"


# --- from snapshots ---------------------------------------------------------------------------------------------


def test_a_snapshot_is_restored_larger_once_and_in_any_zone(region: Any) -> None:
    handle = region.snapshot(region.provision(size=2 * GIB)).handle
    region.ready(handle)
    copy = region.provision("u2", 3 * GIB, source_snapshot=handle, segment={ZONE: C})
    assert region.fake.volumes[copy.handle].snapshot == handle
    assert region.provision("u2", 3 * GIB, source_snapshot=handle, segment={ZONE: C}) == copy
    with pytest.raises(AlreadyExists, match="SnapshotId"):
        region.provision("u2", 3 * GIB, source_snapshot=NO_SNAPSHOT, segment={ZONE: C})


def test_a_snapshot_that_is_pending_is_told_and_waited_for(new_region: Any) -> None:
    region = new_region(Behaviour(snapshot_seconds=100.0))
    handle = region.snapshot(region.provision()).handle
    region.clock.advance(50.0)
    with pytest.raises(Unavailable, match=rf"{handle} is not ready \(pending, \d+%\): the volume is made") as raised:
        region.provision("u2", source_snapshot=handle)
    assert raised.value.retry_after is not None
    assert region.fake.calls["CreateVolume"] == 1
    region.clock.advance(60.0)
    assert region.provision("u2", source_snapshot=handle)


@pytest.mark.parametrize("state", ["error", "archived"])
def test_a_snapshot_that_cannot_be_used_says_why_before_a_call(region: Any, state: str) -> None:
    handle = region.snapshot(region.provision()).handle
    region.ready(handle)
    record = region.fake.snapshots[handle]
    record.archived, record.state = state == "archived", "error" if state == "error" else record.state
    region.clock.advance(10.0)
    with pytest.raises(BackendError, match="archive tier" if state == "archived" else "could not make it"):
        region.provision("u2", source_snapshot=handle)
    assert region.fake.calls["CreateVolume"] == 1


def test_a_smaller_volume_is_refused_with_both_sizes_also_for_the_snapshot_of_a_class(region: Any) -> None:
    handle = region.snapshot(region.provision(size=3 * GIB)).handle
    region.ready(handle)
    for fields in ({"source_snapshot": handle}, {"parameters": {"snapshotId": handle}}):
        with pytest.raises(InvalidArgument, match=f"2 GiB: snapshot {handle} has 3 GiB") as raised:
            region.provision("u2", 2 * GIB, **fields)
        assert raised.value.nothing_done
    assert region.fake.calls["CreateVolume"] == 1


def test_what_was_restored_is_found_whatever_became_of_its_snapshot(region: Any) -> None:
    handle = region.snapshot(region.provision()).handle
    region.ready(handle)
    copy = region.provision("u2", source_snapshot=handle)
    region.delete_snapshot(handle)
    assert region.again().provision("u2", source_snapshot=handle) == copy
    region.clock.advance(60.0)
    with pytest.raises(NotFound, match="does not exist") as raised:
        region.provision("u3", source_snapshot=handle)
    assert raised.value.nothing_done


def test_a_snapshot_in_a_local_zone_is_restored_there(new_region: Any) -> None:
    local = "eu-test-1-loc-1a"
    region = new_region(Behaviour(local_zones=(local,)))
    asset = region.provision(segment={ZONE: local})
    handle = region.snapshot(asset).handle
    region.ready(handle)
    region.fake.snapshots[handle].zone = local
    region.clock.advance(61.0)
    assert region.find_snapshot(handle).node_affinity == ({ZONE: local},)
    with pytest.raises(ResourceExhausted, match=f"{handle} is in {local}") as raised:
        region.provision("u2", source_snapshot=handle, segment={ZONE: A})
    assert (raised.value.reschedule, raised.value.nothing_done) == (True, True)
    assert region.provision("u2", source_snapshot=handle, segment={ZONE: local}).node_affinity == ({ZONE: local},)


def encrypted(region: Any, key: str = KEY) -> Any:
    return region.provision(parameters={"kmsKeyId": key})


def test_encryption_is_inherited_and_can_be_another_one(new_region: Any) -> None:
    region = new_region(Behaviour(kms_keys={KEY: True, OTHER_KEY: True}))
    asset = encrypted(region)
    handle = region.snapshot(asset).handle
    region.ready(handle)
    for n, (source, parameters, key) in enumerate(
        (
            ({"source_snapshot": handle}, {}, KEY),
            ({"source_snapshot": handle}, {"kmsKeyId": OTHER_KEY}, OTHER_KEY),
            ({"source_volume": asset.handle}, {}, KEY),
        )
    ):
        asset = region.provision(f"c{n}", **source, parameters=parameters)
        made = region.fake.volumes[asset.handle]
        assert (made.encrypted, made.kms_key) == (True, key)
    for source in ({"source_snapshot": handle}, {"source_volume": asset.handle}):  # Each is encrypted.
        with pytest.raises(InvalidArgument, match=r"'false', and .* is encrypted"):
            region.provision("c9", **source, parameters={"encrypted": False})


def test_the_key_of_a_source_that_may_not_be_used_is_named(new_region: Any) -> None:
    region = new_region(Behaviour(kms_keys={KEY: True, OTHER_KEY: True}))
    handle = region.snapshot(encrypted(region)).handle
    region.ready(handle)
    region.fake.behave(kms_keys={OTHER_KEY: True})
    with pytest.raises(PermissionDenied, match=f"{OTHER_KEY} .or that of {handle}, under KMS key {KEY}"):
        region.provision("u2", source_snapshot=handle, parameters={"kmsKeyId": OTHER_KEY})


# --- from volumes -----------------------------------------------------------------------------------------------


def copy(region: Any, source: Any, uid: str = "copy", size: int = GIB, **fields: Any) -> Any:
    return region.provision(uid, size, source_volume=source.handle, **{"segment": None, **fields})


def test_the_driver_says_where_copies_can_be(region: Any) -> None:
    assert region.describe().clones == "in place"


@pytest.mark.parametrize("zone", [A, B, C])
def test_without_a_selected_node_a_copy_is_made_where_its_source_is(region: Any, zone: str) -> None:
    source = region.provision(segment={ZONE: zone})
    for uid in ("c1", "c2"):
        made = copy(region, source, uid)
        assert made.node_affinity == ({ZONE: zone},)
        assert region.fake.volumes[made.handle].source == source.handle
    assert region.fake.refused == {}


def test_a_copy_has_the_type_and_performance_of_its_class_and_is_as_complete_as_a_new_volume(region: Any) -> None:
    source = region.provision(size=10 * GIB)
    parameters = {"type": "io2", "iops": 500, "tags": {"team": "a"}}
    made = copy(region, source, size=12 * GIB, parameters=parameters)
    volume, plain = region.fake.volumes[made.handle], region.fake.volumes[source.handle]
    assert (volume.volume_type, volume.iops, volume.size) == ("io2", 500, 12)
    assert set(plain.tags) <= set(volume.tags)
    assert volume.tags["volplane.dev/volume"] == "pvc-copy"
    assert volume.tags["team"] == "a"
    unasked = copy(region, source, "c2", size=10 * GIB)
    assert region.fake.volumes[unasked.handle].volume_type == "gp3", "never the default of EC2, which is gp2"


def test_a_node_in_another_zone_is_released_before_anything_is_asked(region: Any) -> None:
    source = region.provision()
    region.clock.advance(61.0)
    with pytest.raises(
        ResourceExhausted, match=f"is in {A}, where what is made from it must be, and the selected node"
    ) as raised:
        copy(region, source, segment={ZONE: B})
    assert (raised.value.reschedule, raised.value.nothing_done, raised.value.scope) == (True, True, "zone")
    with pytest.raises(InvalidArgument, match=f"{B} is asked for"):
        copy(region, source, allowed_segments=({ZONE: B},))
    assert "CopyVolumes" not in region.fake.calls


def test_a_source_that_is_gone_smaller_wished_or_another_ones_is_named(region: Any) -> None:
    source = region.provision(size=3 * GIB)
    with pytest.raises(InvalidArgument, match=r"2 GiB: .* has 3 GiB"):
        copy(region, source, size=2 * GIB)
    foreign = region.identity(source, "u9")
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1"):
        copy(region, source, size=3 * GIB, source_asset=foreign)
    made = copy(region, source, "made", size=3 * GIB, source_asset=region.identity(source))
    region.fake.volumes[source.handle].state = "error"
    region.clock.advance(1.0)
    with pytest.raises(Unavailable, match="is error"):
        copy(region, source, size=3 * GIB)
    region.fake.remove_volume(source.handle)
    region.clock.advance(1.0)
    with pytest.raises(NotFound, match="which is to be copied, does not exist"):
        copy(region, source, size=3 * GIB)
    assert copy(region, source, "made", size=3 * GIB) == made, "what was copied is found, whatever became of its source"


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
def test_a_copy_whose_answer_never_came_is_made_once(region: Any, kind: FaultKind) -> None:
    source = region.provision()
    region.fault("CopyVolumes", kind, seconds=8.0)
    with pytest.raises(Unavailable):
        copy(region, source)
    made = copy(region.again(), source)
    region.clock.advance(120.0)
    assert set(region.fake.volumes) == {source.handle, made.handle}


@pytest.mark.parametrize("code", ["InvalidAction", "UnsupportedOperation"])
def test_where_ec2_copies_no_volumes_a_snapshot_is_advised(region: Any, code: str) -> None:
    source = region.provision()
    region.refuse("CopyVolumes", code, "The action CopyVolumes is not valid for this web service.")
    with pytest.raises(Unsupported, match=r"copies no volumes in eu-test-1 .*make a VolumeSnapshot"):
        copy(region, source)


def test_a_region_without_copies_takes_the_snapshot_that_is_advised(new_region: Any) -> None:
    region = new_region(Behaviour(copies=False))
    source = region.provision()
    with pytest.raises(Unsupported, match="not available in this region"):
        copy(region, source)
    assert list(region.fake.volumes) == [source.handle]


def test_a_copy_without_room_tries_no_other_zone(region: Any) -> None:
    source = region.provision()
    region.clock.advance(61.0)
    region.fake.behave(zone_states={A: "constrained"})
    region.refuse("CopyVolumes", "InsufficientVolumeCapacity", times=5)
    with pytest.raises(ResourceExhausted, match="no room") as raised:
        copy(region, source)
    assert raised.value.nothing_done


def test_a_copy_is_attached_when_its_contents_are_there_if_its_class_says_so(new_region: Any) -> None:
    region = new_region(Behaviour(initialize_seconds=300.0))
    source = region.provision()
    made = copy(region, source, parameters={"blockAttachUntilInitialized": True})
    attributes = {"volumeAttributes": made.attributes, "volumeHandle": made.handle}
    identity = region.identity(made, "copy")
    identity = replace(identity, source=replace(identity.source, fields={**identity.source.fields, **attributes}))
    node = region.node(region.fake.add_instance())
    request = replace(region.attachment(made, node, "copy"), volume=identity)
    begun = region.clock.now
    region.finish(region.backend.attach, request)
    assert region.clock.now - begun > 240


def test_a_class_with_a_snapshot_makes_no_copies(region: Any) -> None:
    source = region.provision()
    with pytest.raises(InvalidArgument, match="snapshotId"):
        copy(region, source, parameters={"snapshotId": NO_SNAPSHOT})
    with pytest.raises(NotFound, match="no volume of EBS"):
        region.provision("c2", source_volume="projects/p/zones/z/disks/d")
