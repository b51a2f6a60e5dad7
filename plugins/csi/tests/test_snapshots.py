"""Snapshots: saved like volumes, followed until they are ready, copied back."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import Absent, AlreadyExists, BackendError, Done, FindSnapshotRequest, InProgress, NotFound
from volplane_csi.testing import ALL_CAPABILITIES, Behaviour
from volplane_testing.cloud import FaultKind

GIB = 1 << 30


def test_nothing_is_cut_before_the_request_is_saved(world: Any) -> None:
    request = world.cut(world.provision())
    answer = world.backend.create_snapshot(request)
    assert isinstance(answer, InProgress)
    assert world.fake.snapshots == {}
    made = world.backend.create_snapshot(world.with_state(request, answer.state))
    assert (made.handle, made.source, made.size_bytes, made.ready) == ("snap-000002", "vol-000001", GIB, True)
    assert made.created_at is not None


def test_a_lost_answer_is_found_by_the_same_request(world: Any) -> None:
    request = world.cut(world.provision())
    saved = world.with_state(request, world.backend.create_snapshot(request).state)
    world.fault("CreateSnapshot", FaultKind.LOSE)
    with pytest.raises(BackendError):
        world.backend.create_snapshot(saved)
    by_name = FindSnapshotRequest(context=world.context(), name=request.name, owner=request.owner)
    assert world.backend.find_snapshot(by_name) == Absent()
    assert world.again().backend.create_snapshot(saved).handle == "snap-000002"
    assert len(world.fake.snapshots) == 1


@pytest.mark.parametrize("way", ["LIST_SNAPSHOTS", "GET_SNAPSHOT"])
def test_a_snapshot_that_is_not_ready_is_looked_at(new_world: Any, way: str) -> None:
    capabilities = (ALL_CAPABILITIES - {"LIST_SNAPSHOTS"}) | {way}
    world = new_world(Behaviour(cut_seconds=60.0, capabilities=capabilities))
    made = world.snapshot(world.provision())
    assert not made.ready
    assert not world.find_snapshot(made.handle).ready
    world.fake.clock.advance(61.0)
    assert world.find_snapshot(made.handle).ready
    assert world.delete_snapshot(made.handle) == Done()
    assert world.find_snapshot(made.handle) == Absent()


def test_a_driver_that_shows_no_snapshots_is_asked_by_the_request_until_one_is_ready(new_world: Any) -> None:
    world = new_world(Behaviour(cut_seconds=7.0, capabilities=ALL_CAPABILITIES - {"LIST_SNAPSHOTS"}))
    request = world.cut(world.provision())
    answer = world.backend.create_snapshot(request)
    saved = world.with_state(request, answer.state)
    waiting = world.backend.create_snapshot(saved)
    assert isinstance(waiting, InProgress)
    assert waiting.state == answer.state
    world.fake.clock.advance(8.0)
    made = world.backend.create_snapshot(saved)
    assert made.ready
    assert world.find_snapshot(made.handle).ready


def test_a_name_that_is_taken_is_another_demand_only_the_first_time(world: Any) -> None:
    one, two = world.provision("u1"), world.provision("u2")
    world.snapshot(one)
    request = world.cut(two)
    saved = world.with_state(request, world.backend.create_snapshot(request).state)
    with pytest.raises(AlreadyExists):
        world.backend.create_snapshot(saved)
    with pytest.raises(BackendError) as error:
        world.again().backend.create_snapshot(saved)
    assert not error.value.nothing_done


def test_a_source_that_is_gone_proves_nothing_of_an_earlier_attempt(world: Any) -> None:
    asset = world.provision()
    request = world.cut(asset)
    saved = world.with_state(request, world.backend.create_snapshot(request).state)
    world.fault("CreateSnapshot", FaultKind.DROP)
    with pytest.raises(BackendError):
        world.backend.create_snapshot(saved)
    world.delete(asset)
    with pytest.raises(BackendError) as error:
        world.backend.create_snapshot(saved)
    assert not isinstance(error.value, NotFound)
    assert not error.value.nothing_left
    other = world.cut(asset, "s2")
    first = world.with_state(other, world.backend.create_snapshot(other).state)
    with pytest.raises(NotFound):
        world.backend.create_snapshot(first)


def test_volumes_are_made_of_snapshots_and_of_volumes(world: Any) -> None:
    asset = world.provision()
    world.fake.contents.write(asset.handle, "data")
    made = world.snapshot(asset)
    world.fake.contents.write(asset.handle, "later")
    restored = world.provision("u2", source_snapshot=made.handle)
    copy = world.provision("u3", source_volume=asset.handle)
    assert world.fake.contents.written(restored.handle) == ["data"]
    assert world.fake.contents.written(copy.handle) == ["data", "later"]


def test_parameters_are_those_of_the_class_and_metadata_if_wished(new_world: Any) -> None:
    world = new_world(extra_create_metadata=True)
    parameters = {"kind": "full", "csi.storage.k8s.io/snapshotter-secret-name": "x"}
    world.snapshot(world.provision(), parameters=parameters)
    assert dict(world.sent("CreateSnapshot")[0].parameters) == {
        "kind": "full",
        "csi.storage.k8s.io/volumesnapshot/name": "before",
        "csi.storage.k8s.io/volumesnapshot/namespace": "team",
        "csi.storage.k8s.io/volumesnapshotcontent/name": "snapcontent-s1",
    }
