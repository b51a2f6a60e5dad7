"""Making volumes: the exact request is saved before it is sent, and sent again as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from volplane import (
    AccessMode,
    AlreadyExists,
    BackendError,
    InProgress,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
    Unsupported,
    VolumeMode,
)
from volplane_csi.testing import Behaviour
from volplane_testing.cloud import FaultKind

GIB = 1 << 30
ZONE = "topology.example.com/zone"


def test_nothing_is_sent_before_the_request_is_saved(world: Any) -> None:
    answer = world.backend.provision(world.demand())
    assert isinstance(answer, InProgress)
    assert len(json.dumps(answer.state)) < 600
    assert world.fake.volumes == {}
    assert world.provision().handle in [each.id for each in world.fake.volumes.values()]


def test_a_replay_is_byte_for_byte_what_was_saved(world: Any) -> None:
    request = world.saved(world.demand(parameters={"tier": "fast", "b": "2", "a": "1"}))
    world.fault("CreateVolume", FaultKind.LOSE)
    with pytest.raises(BackendError):
        world.backend.provision(request)
    # The class, the size and the nodes of the cluster are others now, and the process is another one.
    later = world.demand(size=7 * GIB, parameters={"tier": "slow"}, node_segments=({ZONE: "z"},))
    made = world.again().backend.provision(world.with_state(later, request.context.state))
    first, second = (each.SerializeToString(deterministic=True) for each in world.sent("CreateVolume"))
    assert first == second
    assert made.capacity_bytes == GIB
    assert len(world.fake.volumes) == 1


def test_the_name_is_that_which_the_sidecar_would_give(world: Any, new_world: Any) -> None:
    world.provision()
    world.provision(generation=2)
    assert list(world.fake.volumes) == ["pvc-u1", "pvc-u1-g2"]
    prefixed = new_world(volume_name_prefix="prod")
    prefixed.provision()
    assert list(prefixed.fake.volumes) == ["prod-u1"]


def test_the_volume_is_what_stock_tools_expect(world: Any) -> None:
    asset = world.provision(
        parameters={
            "tier": "fast",
            "csi.storage.k8s.io/fstype": "xfs",
            "csi.storage.k8s.io/node-stage-secret-name": "stage-${pvc.name}",
            "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}",
        },
        mount_options=("noatime",),
    )
    assert asset.source.fields == {
        "driver": "fake.csi.example.com",
        "volumeHandle": "vol-000001",
        "fsType": "xfs",
        "nodeStageSecretRef": {"name": "stage-data-u1", "namespace": "team"},
    }
    assert asset.attributes["of"] == "fake"
    assert "storage.kubernetes.io/csiProvisionerIdentity" in asset.attributes
    assert asset.annotations == {
        "volume.kubernetes.io/provisioner-deletion-secret-name": "",
        "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
    }
    (sent,) = world.sent("CreateVolume")
    assert dict(sent.parameters) == {"tier": "fast"}
    assert [(each.mount.fs_type, list(each.mount.mount_flags)) for each in sent.volume_capabilities] == [
        ("xfs", ["noatime"])
    ]


def test_each_access_mode_is_asked_for(world: Any, new_world: Any) -> None:
    modes = (AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_MANY)
    world.provision(access_modes=modes, volume_mode=VolumeMode.BLOCK)
    (sent,) = world.sent("CreateVolume")
    assert [each.access_mode.mode for each in sent.volume_capabilities] == [7, 5]
    assert all(each.HasField("block") for each in sent.volume_capabilities)
    capabilities = Behaviour().capabilities - {"SINGLE_NODE_MULTI_WRITER"}
    old = new_world(Behaviour(capabilities=capabilities))
    old.provision(access_modes=(AccessMode.READ_WRITE_ONCE_POD,))
    assert old.sent("CreateVolume")[0].volume_capabilities[0].access_mode.mode == 1


def test_claim_and_volume_are_named_to_drivers_that_want_it(new_world: Any) -> None:
    world = new_world(extra_create_metadata=True)
    world.provision()
    assert dict(world.sent("CreateVolume")[0].parameters) == {
        "csi.storage.k8s.io/pvc/name": "data-u1",
        "csi.storage.k8s.io/pvc/namespace": "team",
        "csi.storage.k8s.io/pv/name": "pvc-u1",
    }


# --- refusals -----------------------------------------------------------------------------------------------------


def refused(world: Any, request: Any) -> BackendError:
    with pytest.raises(BackendError) as error:
        world.backend.provision(request)
    return error.value


def test_already_exists_means_another_demand_only_if_nothing_was_sent_before(world: Any) -> None:
    world.provision(parameters={"tier": "fast"})
    first = world.saved(world.demand(parameters={"tier": "slow"}))
    error = refused(world, first)
    assert isinstance(error, AlreadyExists)
    assert error.nothing_left
    # In another process nothing tells whether it was the first one.
    error = refused(world.again(), first)
    assert type(error) is not AlreadyExists
    assert not error.nothing_done


def test_what_this_process_knows_to_be_made_is_not_asked_for_in_vain(new_world: Any) -> None:
    world = new_world(Behaviour(refuses_replays=True))
    request = world.saved(world.demand())
    made = world.backend.provision(request)
    assert world.backend.provision(request) == made
    world.delete(made)
    assert world.backend.provision(request).handle == "vol-000002"


def test_a_driver_that_refuses_equal_requests_never_proves_that_there_is_nothing(new_world: Any) -> None:
    world = new_world(Behaviour(refuses_replays=True))
    request = world.saved(world.demand())
    world.fault("CreateVolume", FaultKind.LOSE)
    assert not refused(world, request).nothing_done
    error = refused(world, request)
    assert not error.nothing_done
    assert "whose answer was lost" in str(error)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INVALID_ARGUMENT", InvalidArgument),
        ("OUT_OF_RANGE", OutOfRange),
        ("NOT_FOUND", NotFound),
        ("RESOURCE_EXHAUSTED", ResourceExhausted),
    ],
)
def test_a_refusal_of_the_first_attempt_leaves_nothing(world: Any, code: str, kind: type[BackendError]) -> None:
    request = world.saved(world.demand())
    world.refuse("CreateVolume", code, times=2)
    for _ in range(2):
        error = refused(world, request)
        assert isinstance(error, kind)
        assert error.nothing_left


@pytest.mark.parametrize("code", ["NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "UNAUTHENTICATED"])
def test_a_refusal_says_nothing_of_an_attempt_without_an_answer(world: Any, code: str) -> None:
    request = world.saved(world.demand())
    world.fault("CreateVolume", FaultKind.LOSE)
    refused(world, request)
    world.refuse("CreateVolume", code, times=2)
    assert not refused(world, request).nothing_left
    assert not refused(world.again(), request).nothing_left


@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "OUT_OF_RANGE"])
def test_what_a_driver_calls_impossible_it_has_never_made_unless_it_was_upgraded(world: Any, code: str) -> None:
    request = world.saved(world.demand())
    world.refuse("CreateVolume", code, times=2)
    assert refused(world.again(), request).nothing_left
    world.fake.behave(version="2.0")
    assert not refused(world.again(), request).nothing_left


@pytest.mark.parametrize("code", ["ABORTED", "INTERNAL", "UNKNOWN", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED"])
def test_any_other_code_leaves_it_open_whether_there_is_something(world: Any, code: str) -> None:
    request = world.saved(world.demand())
    world.refuse("CreateVolume", code)
    error = refused(world, request)
    assert type(error) is BackendError
    assert not error.nothing_done


def test_a_call_that_did_not_reach_the_driver_leaves_nothing(world: Any) -> None:
    request = world.saved(world.demand())
    world.fault("CreateVolume", FaultKind.CLOSE)
    error = refused(world, request)
    assert isinstance(error, Unavailable)
    assert error.nothing_left
    world.fault("CreateVolume", FaultKind.DROP)
    world.fault("CreateVolume", FaultKind.CLOSE)
    assert not refused(world, request).nothing_left
    assert not refused(world, request).nothing_left


def test_what_is_wrong_before_anything_is_saved_leaves_nothing(world: Any, new_world: Any) -> None:
    unknown = world.demand(parameters={"csi.storage.k8s.io/no-such": "x"})
    assert refused(world, unknown).nothing_left
    long = world.demand(parameters={f"key{number}": str(number) * 60 for number in range(900)})
    error = refused(world, long)
    assert isinstance(error, InvalidArgument)
    assert error.nothing_left
    mute = new_world(Behaviour(capabilities=frozenset({"PUBLISH_UNPUBLISH_VOLUME"})))
    assert isinstance(refused(mute, mute.demand()), Unsupported)


def test_a_driver_that_works_on_it_is_asked_again(new_world: Any) -> None:
    world = new_world(Behaviour(create_seconds=5.0))
    request = world.saved(world.demand())
    assert not refused(world, request).nothing_done
    world.fake.clock.advance(6.0)
    assert world.backend.provision(request).handle == "vol-000001"


# --- hostile answers ----------------------------------------------------------------------------------------------


def test_an_unknown_size_is_the_one_that_was_asked_for(new_world: Any) -> None:
    assert new_world(Behaviour(unknown_size=True)).provision(size=3 * GIB).capacity_bytes == 3 * GIB


def test_an_empty_volume_in_the_place_of_a_copy_is_deleted(world: Any) -> None:
    source = world.provision("u0")
    world.fake.behave(forgets_source=True)
    error = refused(world, world.saved(world.demand(source_volume=source.handle)))
    assert isinstance(error, Unsupported)
    assert error.nothing_left
    assert list(world.fake.volumes) == ["pvc-u0"]


@pytest.mark.parametrize("whose", ["u0", "u1"])
def test_what_is_known_to_be_the_volume_of_another_is_not_deleted_for_an_empty_copy(world: Any, whose: str) -> None:
    made = {uid: world.provision(uid).handle for uid in ("u0", "u1")}
    world.fake.behave(forgets_source=True, one_id=made[whose])
    error = refused(world, world.saved(world.demand("u2", source_volume=made["u0"])))
    assert f"{made[whose]!r}, which is another's: it is not deleted" in str(error)
    assert not error.nothing_done
    assert world.sent("DeleteVolume") == []


def test_nor_is_the_source_by_a_process_that_knows_nothing_else(world: Any) -> None:
    source = world.provision("u0").handle
    world.fake.behave(forgets_source=True, one_id=source)
    refused(world.again(), world.saved(world.demand("u2", source_volume=source)))
    assert world.sent("DeleteVolume") == []


def test_a_second_volume_for_one_request_is_told(new_world: Any) -> None:
    world = new_world(Behaviour(changes_ids=True))
    request = world.saved(world.demand())
    world.backend.provision(request)
    error = refused(world, request)
    assert not error.nothing_done
    assert "'vol-000001-2', before with 'vol-000001-1'" in str(error)


@pytest.mark.parametrize("id_", ["x" * 1025])
def test_an_id_that_no_volume_can_have_is_no_result(new_world: Any, id_: str) -> None:
    world = new_world(Behaviour(one_id=id_))
    error = refused(world, world.saved(world.demand()))
    assert not error.nothing_done
    assert len(str(error)) < 200


def test_a_context_that_is_too_large_or_secret_is_no_result(new_world: Any) -> None:
    world = new_world(Behaviour(context={"x": "y" * 40_000}))
    assert "context of 40001" in str(refused(world, world.saved(world.demand())))


# --- places -------------------------------------------------------------------------------------------------------


def places(world: Any, **fields: Any) -> list[str]:
    world.provision(**fields)
    needs = world.sent("CreateVolume")[-1].accessibility_requirements
    assert list(needs.requisite) == list(needs.preferred)
    return [each.segments[ZONE] for each in needs.preferred]


def test_a_chosen_place_is_the_only_one_and_others_are_tried_in_turn(new_world: Any) -> None:
    world = new_world(Behaviour(zones=("a", "b", "c")), topology_keys=ZONE)
    assert places(world, segment={ZONE: "b"}) == ["b"]
    assert world.provision("u40", segment={ZONE: "c"}).node_affinity == ({ZONE: "c"},)
    anywhere = tuple({ZONE: zone} for zone in "abc")
    first = {tuple(places(world, uid=f"u{number}", node_segments=anywhere)) for number in range(2, 20)}
    assert first == {("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")}
    assert set(places(world, uid="u30", allowed_segments=anywhere[:2], node_segments=anywhere)) == {"a", "b"}


def test_a_full_place_is_given_back_to_the_scheduler(new_world: Any) -> None:
    world = new_world(Behaviour(zones=("a", "b"), room=GIB), topology_keys=ZONE)
    world.provision("u0", segment={ZONE: "a"})
    error = refused(world, world.saved(world.demand(segment={ZONE: "a"})))
    assert isinstance(error, ResourceExhausted)
    assert error.reschedule
    assert error.nothing_left


def test_of_more_places_than_can_be_kept_the_first_ones_are_asked_for(new_world: Any) -> None:
    zones = tuple(f"rack-{number * 7919:08x}-{number:04}.example.com" for number in range(600))
    world = new_world(Behaviour(zones=zones), topology_keys=ZONE)
    asked = places(world, node_segments=tuple({ZONE: zone} for zone in zones))
    assert 30 < len(asked) < 600
