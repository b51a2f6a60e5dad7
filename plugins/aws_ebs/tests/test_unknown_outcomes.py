"""Lost answers, crashes, late effects: there is one volume in the end, and it is the claim's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from volplane import Absent, BackendError, Done, InProgress, Unavailable
from volplane_aws_ebs.ownership_tags import client_token
from volplane_aws_ebs.testing import Behaviour, FaultKind

GIB = 1 << 30
ZONE = "topology.kubernetes.io/zone"


def calls_of(region: Any, action: str) -> int:
    return int(region.fake.calls[action])


def test_tokens_tell_clusters_claims_generations_and_attempts_apart_and_fit(region: Any) -> None:
    owner = region.owner()
    others = [
        replace(owner, cluster_id="cluster-2"),
        replace(owner, claim_uid="u2"),
        replace(owner, volume_name="pvc-u2"),
        replace(owner, generation=2),
    ]
    tokens = {client_token(each, 0) for each in (owner, *others)} | {client_token(owner, 1)}
    assert len(tokens) == 6
    assert {len(token) for token in tokens} == {64}
    assert client_token(owner, 0) == client_token(replace(owner), 0)


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE, FaultKind.CLOSE])
@pytest.mark.parametrize("crash", [False, True])
def test_an_answer_of_create_that_never_came_makes_no_second_volume(
    region: Any, kind: FaultKind, *, crash: bool
) -> None:
    region.fault("CreateVolume", kind)
    with pytest.raises(Unavailable) as raised:
        region.provision()
    assert not raised.value.nothing_done
    if crash:
        region.again()
    asset = region.provision()
    region.clock.advance(60.0)
    assert list(region.fake.volumes) == [asset.handle]


def test_a_lost_answer_while_nothing_can_be_seen_yet_is_resolved_by_the_token(new_region: Any) -> None:
    region = new_region(Behaviour(visible_after=8.0))
    region.fault("CreateVolume", FaultKind.LOSE)
    with pytest.raises(Unavailable):
        region.provision()
    region.again()
    asset = region.provision()
    assert list(region.fake.volumes) == [asset.handle]
    assert calls_of(region, "CreateVolume") == 2


def test_a_volume_whose_token_is_forgotten_is_found_by_its_tags(new_region: Any) -> None:
    region = new_region(Behaviour(token_seconds=10.0))
    region.fault("CreateVolume", FaultKind.LOSE)
    with pytest.raises(Unavailable):
        region.provision()
    region.clock.advance(3600.0)
    asset = region.again().provision()
    assert list(region.fake.volumes) == [asset.handle]
    assert calls_of(region, "CreateVolume") == 1


def test_a_crash_between_any_two_calls_of_provision_makes_no_second_volume(region: Any) -> None:
    request = region.demand()
    handles = set()
    for _ in range(100):
        answer = region.again().backend.provision(request)
        handles |= set(region.fake.volumes)
        if not isinstance(answer, InProgress):
            break
        region.clock.advance(answer.retry_after)
    assert handles == {answer.handle}


def test_two_processes_at_once_make_one_volume(region: Any) -> None:
    one, two = region.backend, region.again().backend
    request = region.demand()
    answers = [one.provision(request), two.provision(request)]
    assert all(isinstance(answer, InProgress) for answer in answers)
    assert region.finish(one.provision, request) == region.finish(two.provision, request)
    assert len(region.fake.volumes) == 1


def test_provisioning_needs_no_state_unless_something_went_wrong(region: Any) -> None:
    answer = region.backend.provision(region.demand())
    while isinstance(answer, InProgress):
        assert answer.state == {}, "every state is a write to the API server"
        region.clock.advance(answer.retry_after)
        answer = region.backend.provision(region.demand())


def test_find_sees_a_volume_that_is_still_being_made(region: Any) -> None:
    assert region.find() == Absent()
    region.backend.provision(region.demand())
    found = region.find()
    assert found.handle in region.fake.volumes
    assert region.find(generation=2) == Absent()


def test_find_does_not_see_a_volume_that_is_going(region: Any) -> None:
    asset = region.provision()
    region.backend.delete(region.deletion(asset))
    assert region.fake.volumes[asset.handle].state == "deleting"
    assert region.find() == Absent()
    assert region.listed() == []


def test_the_same_generation_can_be_made_again_after_its_deletion(region: Any) -> None:
    first = region.provision()
    assert region.delete(first) == Done()
    second = region.provision()
    assert second.handle != first.handle
    assert list(region.fake.volumes) == [second.handle]


def test_another_process_makes_it_again_once_the_old_token_is_proven_burnt(region: Any) -> None:
    region.delete(region.provision())
    region.again()
    begun = region.clock.now
    asset = region.provision()
    assert region.clock.now - begun >= 60
    assert list(region.fake.volumes) == [asset.handle]
    region.again()
    assert region.provision() == asset


def test_an_attempt_is_written_down_before_its_token_is_used(region: Any) -> None:
    region.delete(region.provision())
    made = calls_of(region, "CreateVolume")
    answer = region.backend.provision(region.demand())
    assert isinstance(answer, InProgress)
    assert answer.state == {"attempt": 1}
    assert calls_of(region, "CreateVolume") == made


def test_a_volume_that_failed_is_removed_and_another_one_is_made(region: Any) -> None:
    region.fault("CreateVolume", FaultKind.STALL)
    region.backend.provision(region.demand())
    (broken,) = region.fake.volumes.values()
    broken.state = "error"
    region.clock.advance(2.0)
    with pytest.raises(BackendError, match=broken.id):
        region.provision()
    region.clock.advance(10.0)
    asset = region.provision()
    assert list(region.fake.volumes) == [asset.handle]


def test_of_two_volumes_with_the_same_marks_the_oldest_is_used_in_every_process(region: Any) -> None:
    asset = region.provision()
    with region.fake.locked_state() as cloud:
        volume = cloud.volumes[asset.handle]
        twin = replace(volume, id="vol-0ffffffffffffffff", number=cloud.number(), created=cloud.now, attachments={})
        cloud.volumes[twin.id] = twin
        cloud.tagged.add(twin.id, twin.tags)
    assert region.provision() == asset
    assert region.again().provision() == asset


def test_a_call_that_nobody_waits_for_changes_nothing(region: Any) -> None:
    request = region.demand()
    late = replace(request, context=replace(request.context, cancelled=lambda: True))
    with pytest.raises(Unavailable, match="the call was cancelled before anything was changed"):
        region.backend.provision(late)
    assert region.fake.volumes == {}


# --- delete -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP])
def test_an_answer_of_delete_that_never_came_is_resolved(region: Any, kind: FaultKind) -> None:
    asset = region.provision()
    region.fault("DeleteVolume", kind)
    with pytest.raises(Unavailable):
        region.delete(asset)
    assert region.again().delete(asset) == Done()
    assert region.fake.volumes == {}


def test_a_volume_that_is_not_shown_yet_is_not_taken_for_gone(new_region: Any) -> None:
    region = new_region(Behaviour(visible_after=0.6))
    region.backend.provision(region.demand())
    (handle,) = region.fake.volumes
    region.again()
    assert isinstance(region.backend.delete(region.deletion(handle)), InProgress)
    assert region.delete(handle) == Done()
    assert region.fake.volumes == {}


def test_a_deletion_that_ec2_forgot_is_ordered_again(region: Any) -> None:
    asset = region.provision()
    region.backend.delete(region.deletion(asset))
    region.fake.volumes[asset.handle].state = "available"
    with region.fake.locked_state() as cloud:
        cloud.timeline.__init__(region.clock)
    assert region.delete(asset) == Done()
    assert calls_of(region, "DeleteVolume") == 2


def test_a_deletion_that_ec2_shows_for_ever_is_done_after_a_minute(region: Any) -> None:
    asset = region.provision()
    region.fault("DeleteVolume", FaultKind.STALL)
    begun = region.clock.now
    assert region.delete(asset) == Done()
    assert 60 < region.clock.now - begun < 90


def test_a_handle_that_cannot_be_a_volume_is_nothing_to_delete(region: Any) -> None:
    before = region.fake.calls.total()
    assert region.delete("no-such-handle") == Done()
    assert region.fake.calls.total() == before


def test_a_static_volume_is_deleted_by_its_in_tree_handle_if_nobody_marked_it(region: Any) -> None:
    plain = region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1)["VolumeId"]
    region.clock.advance(5.0)
    assert region.delete(f"aws://eu-test-1a/{plain}", owner=None) == Done()
    assert region.fake.volumes == {}
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "CSIVolumeName", "Value": "pvc-9"}]}]
    other = region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1, TagSpecifications=tags)
    region.clock.advance(5.0)
    with pytest.raises(BackendError, match="CSIVolumeName='pvc-9'"):
        region.delete(other["VolumeId"], owner=None)
    assert list(region.fake.volumes) == [other["VolumeId"]]


def test_a_listing_shows_marks_of_every_cluster_and_nothing_else(new_region: Any) -> None:
    region = new_region(Behaviour(max_results=5))
    region.fake.add_instance()
    region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1)
    handles = {region.provision(f"u{n}").handle for n in range(12)}
    foreign = region.fake.volumes[min(handles)]
    foreign.tags["volplane.dev/cluster"] = "cluster-2"
    listed = region.listed()
    assert [each.handle for each in listed if each.owner.cluster_id == "cluster-2"] == [foreign.id]
    assert {each.handle for each in listed} == handles
    assert calls_of(region, "DescribeVolumes") >= 3
    assert all(each.created_at is not None and each.capacity_bytes == GIB for each in listed)


@pytest.mark.parametrize("late", [2.0, 8.0])
def test_answers_that_know_a_volume_now_and_do_not_then_make_no_second_one(new_region: Any, late: float) -> None:
    """EC2 is many servers: a volume, or a tag, that was seen may be absent in the next answer."""
    region = new_region(Behaviour(visible_after=late, flickers=True, create_seconds=4.0))
    for number in range(8):
        asset = region.provision(f"u{number}")
        assert region.again().provision(f"u{number}") == asset
        assert region.delete(asset, f"u{number}") == Done()
    assert region.fake.calls["CreateVolume"] == 8
    assert region.fake.volumes == {}


@pytest.mark.parametrize("hidden", ["volume", "attachment"])
@pytest.mark.parametrize("named", [True, False])
def test_one_answer_that_does_not_show_the_attachment_is_no_detachment(region: Any, hidden: str, named: bool) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.attach(asset, node)
    if not named:
        node = replace(node, instance_id="")
    region.clock.advance(20.0)
    held = region.fake.volumes[asset.handle]
    with region.fake.locked_state() as cloud:
        attachments, held.attachments = held.attachments, {}
        if hidden == "volume":
            del cloud.volumes[asset.handle]
    request = region.detachment(asset, node)
    waits = region.backend.detach(request)
    while isinstance(waits, InProgress) and not waits.retry_after >= 1.0:
        region.clock.advance(waits.retry_after)
        waits = region.backend.detach(request)
    assert isinstance(waits, InProgress)
    with region.fake.locked_state() as cloud:
        held.attachments, cloud.volumes[asset.handle] = attachments, held
    region.clock.advance(waits.retry_after)
    assert region.finish(region.backend.detach, request) == Done()
    assert (held.attachments, region.fake.calls["DetachVolume"]) == ({}, 1)


def test_a_driver_that_believes_one_empty_answer_makes_two_volumes_of_a_flickering_cloud(new_region: Any) -> None:
    region = new_region(Behaviour(visible_after=5.0, flickers=True))
    client, wanted = region.connect.client(), [{"Name": "tag:a", "Values": ["b"]}]
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "a", "Value": "b"}]}]
    for _ in range(4):
        if not client.describe_volumes(Filters=wanted)["Volumes"]:
            client.create_volume(AvailabilityZone="eu-test-1a", Size=1, TagSpecifications=tags)
    made = len(region.fake.volumes)
    assert made > 1
    answers = [len(client.describe_volumes(Filters=wanted)["Volumes"]) for _ in range(4)]
    assert answers in ([made, 0] * 2, [0, made] * 2)
    region.clock.advance(5.0)
    assert len(client.describe_volumes(Filters=wanted)["Volumes"]) == made


def test_a_listing_comes_in_pages_though_nobody_asked_for_them(new_region: Any) -> None:
    region = new_region(Behaviour(max_results=5, unasked_pages=True))
    for number in range(7):
        region.provision(f"u{number}")
    client = region.connect.client()
    first = client.describe_volumes()
    assert (len(first["Volumes"]), "NextToken" in first) == (5, True)
    assert len(region.listed()) == 7
    assert {region.again().find(f"u{number}").handle for number in range(7)} == set(region.fake.volumes)
