"""Growing, changing performance, adoption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    AdoptRequest,
    AlreadyExists,
    BackendError,
    Done,
    InProgress,
    InvalidArgument,
    ListRequest,
    ModifyRequest,
    NotFound,
    Throttled,
    Unavailable,
    Unsupported,
)
from volplane_aws_ebs.testing import FaultKind

GIB = 1 << 30


def test_a_volume_grows_while_it_is_attached_and_stays_grown(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.attach(asset, node)
    grown = region.expand(asset, 3 * GIB)
    assert grown.capacity_bytes == 3 * GIB
    assert (grown.handle, grown.node_affinity) == (asset.handle, asset.node_affinity)
    assert region.fake.volumes[asset.handle].size == 3
    assert region.expand(asset, 2 * GIB).capacity_bytes == 3 * GIB
    assert region.fake.calls["ModifyVolume"] == 1


def test_a_volume_that_was_grown_still_answers_its_demand(region: Any) -> None:
    asset = region.provision()
    region.expand(asset, 3 * GIB)
    again = region.again().provision()
    assert (again.handle, again.capacity_bytes) == (asset.handle, 3 * GIB)


def test_iops_per_gib_are_computed_anew_in_the_same_change(region: Any) -> None:
    parameters = {"type": "io2", "iopsPerGB": 50, "allowAutoIOPSIncreaseOnModify": True}
    asset = region.provision(size=20 * GIB, parameters=parameters)
    assert region.fake.volumes[asset.handle].iops == 1000
    region.again().expand(asset, 40 * GIB)
    assert (region.fake.volumes[asset.handle].iops, region.fake.calls["ModifyVolume"]) == (2000, 1)


def test_iops_stay_when_a_volume_grows_unless_the_class_says_otherwise(region: Any) -> None:
    asset = region.provision(size=20 * GIB, parameters={"type": "io2", "iopsPerGB": 50})
    region.expand(asset, 40 * GIB)
    assert region.fake.volumes[asset.handle].iops == 1000


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP])
def test_an_answer_that_never_came_does_not_cost_a_second_change(region: Any, kind: FaultKind) -> None:
    asset = region.provision()
    region.fault("ModifyVolume", kind)
    with pytest.raises(Unavailable):
        region.expand(asset, 2 * GIB)
    assert region.again().expand(asset, 2 * GIB).capacity_bytes == 2 * GIB
    with region.fake.locked_state() as cloud:
        assert len(cloud.volumes[asset.handle].modifications) == 1


def test_a_change_during_optimization_waits_and_says_since_when(region: Any) -> None:
    asset = region.provision()
    region.expand(asset, 2 * GIB)
    with pytest.raises(
        Throttled, match=r"still being optimized after the change of 2026-01-01 \d\d:\d\d UTC"
    ) as raised:
        region.expand(asset, 3 * GIB)
    region.clock.advance(raised.value.retry_after)
    assert region.expand(asset, 3 * GIB).capacity_bytes == 3 * GIB


def test_the_cool_down_is_told_with_its_end_and_ends(region: Any) -> None:
    asset = region.provision()
    for size in (2, 3, 4, 5):
        region.expand(asset, size * GIB)
        region.clock.advance(60.0)
    with pytest.raises(Throttled, match=r"four changes in 24 hours \(.*Wait at least \d+ minutes") as raised:
        region.expand(asset, 6 * GIB)
    assert raised.value.nothing_done
    waited = 0.0
    while waited < 25 * 3600:
        region.clock.advance(raised.value.retry_after)
        waited += raised.value.retry_after
        try:
            grown = region.expand(asset, 6 * GIB)
            break
        except Throttled:
            continue
    assert grown.capacity_bytes == 6 * GIB
    assert 23 * 3600 < waited < 24.5 * 3600


def test_what_cannot_grow_says_why(region: Any) -> None:
    magnetic = region.provision("u0", parameters={"type": "standard"})
    with pytest.raises(InvalidArgument, match="of type standard, which EC2 does not change"):
        region.expand(magnetic, 2 * GIB, uid="u0")
    asset = region.provision(parameters={"type": "gp2"})
    with pytest.raises(InvalidArgument, match="at most 16384 GiB"):
        region.expand(asset, 20_000 * GIB)
    region.fake.remove_volume(asset.handle)
    with pytest.raises(NotFound, match="does not exist"):
        region.expand(asset, 2 * GIB)
    with pytest.raises(InvalidArgument, match="no volume of EBS"):
        region.expand("pvc-1", 2 * GIB)


def test_a_volume_of_another_claim_or_driver_does_not_grow(region: Any) -> None:
    asset = region.provision()
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1"):
        region.expand(asset, 2 * GIB, uid="u2")
    plain = region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1)["VolumeId"]
    region.clock.advance(5.0)
    with pytest.raises(AlreadyExists, match="carries no marks"):
        region.expand(plain, 2 * GIB)
    assert region.expand(plain, 2 * GIB, owner=None).capacity_bytes == 2 * GIB


def test_performance_is_changed_in_one_call_and_not_twice(region: Any) -> None:
    asset = region.provision(size=20 * GIB)
    assert region.modify(asset, type="gp3", iops="5000", throughput="200") == Done()
    assert region.modify(asset, iops="5000") == Done()
    volume = region.fake.volumes[asset.handle]
    assert (volume.iops, volume.throughput, region.fake.calls["ModifyVolume"]) == (5000, 200, 1)


GOLD = {"type": "io2", "iops": "4000", "tagSpecification_1": "tier=gold of {{ .PVCName }}"}


@pytest.mark.parametrize(
    ("parameters", "mutable", "made"),
    [
        ({"type": "gp3", "iops": 5000, "throughput": 250}, {"iops": "6000"}, ("gp3", 6000, 250)),
        ({"type": "gp3", "iops": 5000}, {"throughput": "500"}, ("gp3", 5000, 500)),
        ({"type": "io2", "iopsPerGB": 50}, {"iops": "3000"}, ("io2", 3000, None)),
        ({"type": "gp2"}, GOLD, ("io2", 4000, None)),
        ({"type": "io1"}, {"iops": "1000"}, ("io1", 1000, None)),
        ({"type": "io2", "iops": 1000}, {"iopsPerGB": "100"}, ("io2", 2000, None)),
        ({"type": "gp2"}, {"volumeType": "st1", "type": "gp3"}, ("gp3", 3000, 125)),
        ({"type": "gp3"}, {"type": "io1", "iops": "2000"}, ("io1", 1000, None)),
    ],
)
def test_attributes_of_another_class_win_when_a_volume_is_made(
    region: Any, parameters: Any, mutable: Any, made: Any
) -> None:
    asset = region.provision(size=20 * GIB, parameters=parameters, mutable_parameters=mutable)
    volume = region.fake.volumes[asset.handle]
    assert (volume.volume_type, volume.iops, volume.throughput) == made
    assert volume.tags.get("tier") == ("gold of data-u1" if mutable is GOLD else None)
    # Nothing is left for `modify`, in the next process either.
    assert region.modify(asset, **mutable) == region.again().modify(asset, **mutable) == Done()
    assert (region.fake.calls["ModifyVolume"], region.fake.calls["CreateVolume"]) == (0, 1)
    assert region.fake.calls["CreateTags"] == 0


def test_a_claim_that_names_another_class_meanwhile_gets_the_same_volume_changed(region: Any) -> None:
    parameters = {"type": "gp3", "iops": 4000}
    asset = region.provision(size=20 * GIB, parameters=parameters, mutable_parameters={"iops": "5000"})
    for mutable in ({"iops": "6000"}, {"type": "io2", "iops": "7000"}, {}):
        request = {"size": 20 * GIB, "parameters": parameters, "mutable_parameters": mutable}
        assert region.again().provision(**request).handle == asset.handle
    region.modify(asset, iops="6000")
    assert (region.fake.volumes[asset.handle].iops, region.fake.calls["CreateVolume"]) == (6000, 1)


@pytest.mark.parametrize(
    ("parameters", "mutable"),
    [
        ({"type": "io2"}, [{"iops": "5000"}, {"iops": "6000"}, {"type": "gp3"}]),
        ({"type": "gp2", "throughput": 250}, [{"type": "gp3"}, {"type": "gp3", "iops": "5000"}]),
        ({"type": "st1"}, [{"type": "gp3"}, {"type": "gp3", "iops": "4000"}]),
    ],
)
def test_attributes_that_change_meanwhile_keep_the_volume_of_a_class_that_is_not_enough_alone(
    region: Any, parameters: Any, mutable: Any
) -> None:
    made = {
        region.again().provision(size=20 * GIB, parameters=parameters, mutable_parameters=each).handle
        for each in mutable
    }
    assert (len(made), region.fake.calls["CreateVolume"]) == (1, 1)
    for other in ({"size": 21 * GIB}, {"parameters": {**parameters, "encrypted": True}}):
        request = {"size": 20 * GIB, "parameters": parameters, "mutable_parameters": mutable[0], **other}
        with pytest.raises(AlreadyExists, match="by another demand"):
            region.again().provision(**request)


def test_attributes_that_cannot_be_had_make_no_volume(region: Any) -> None:
    for mutable, told in (
        ({"iops": "many"}, "'many'"),
        ({"colour": "red"}, "colour"),
        ({"type": "standard"}, "standard"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            region.provision(size=4 * GIB, mutable_parameters=mutable)
    assert region.fake.calls["CreateVolume"] == 0


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"iops": "many"}, "parameter iops is 'many', expected a whole number"),
        ({"type": "floppy"}, "expected one of gp3, gp2"),
        ({"type": "standard"}, "'standard', expected one of gp3, gp2, io2, io1, st1, sc1"),
        ({"encrypted": "true"}, "unknown parameter 'encrypted'; what can be changed is type, iops, throughput"),
        ({"iopsPerGB": "0"}, "parameter iopsPerGB is '0', expected a whole number"),
        ({"iopsPerGB": "5", "iops": "4000"}, "iops=4000 and iopsPerGB=5 exclude each other"),
        ({"type": "st1", "iopsPerGB": "5"}, "volumes of type st1 have no IOPS"),
        ({"allowAutoIOPSIncreaseOnModify": "maybe"}, "is 'maybe', expected true or false"),
        ({"tagSpecification_1": "team"}, "tagSpecification_1 is 'team', expected a tag such as"),
        ({"tagSpecification_1": "a={{ .Nobody }}"}, "there is no .Nobody"),
        ({"tagDeletion_1": "volplane.dev/cluster"}, "parameter tagDeletion_1: 'volplane.dev/cluster' is reserved"),
        ({"tagDeletion_1": "kubernetes.io/cluster/a"}, "tagDeletion_1: .kubernetes.io/cluster/a. is reserved"),
        ({"tagDeletion_1": "a", "tagSpecification_9": "a=b"}, "set and remove the same tag, 'a'"),
    ],
)
def test_what_cannot_be_changed_is_refused(region: Any, parameters: Any, told: str) -> None:
    asset = region.provision()
    with pytest.raises(InvalidArgument, match=told):
        region.modify(asset, **parameters)


def test_tags_are_changed_without_a_modification(region: Any) -> None:
    asset = region.provision(parameters={"tags": {"team": "a", "old": "x"}})
    wanted = {
        "tagSpecification_1": "team=b",
        "tagSpecification_2": "of={{ .PVCNamespace }}/{{ .PVCName | toUpper }}/{{ .PVName }}",
        "tagDeletion_1": "old",
        "tagDeletion_2": "never",
    }
    assert region.modify(asset, **wanted) == Done()
    assert region.again().modify(asset, **wanted) == Done()
    tags = region.fake.volumes[asset.handle].tags
    assert (tags["team"], tags["of"]) == ("b", "default/DATA-U1/pvc-u1")
    assert "old" not in tags
    calls = region.fake.calls
    assert (calls["ModifyVolume"], calls["CreateTags"], calls["DeleteTags"]) == (0, 1, 1)


def test_iops_for_each_gib_are_set_and_kept_when_the_volume_grows(region: Any) -> None:
    asset = region.provision(size=100 * GIB)
    region.modify(asset, iopsPerGB="50", allowAutoIOPSIncreaseOnModify="true")
    assert region.fake.volumes[asset.handle].iops == 5000
    region.clock.advance(60.0)
    region.expand(asset, 200 * GIB)
    assert region.fake.volumes[asset.handle].iops == 10_000


def test_the_older_name_of_the_type_counts_where_the_newer_one_is_absent(region: Any) -> None:
    asset = region.provision(size=20 * GIB)
    region.modify(asset, volumeType="io2", iops="500")
    assert region.fake.volumes[asset.handle].volume_type == "io2"
    assert region.modify(asset, volumeType="gp3", type="io2") == Done()


def test_a_former_leader_changes_no_tags(region: Any) -> None:
    asset = region.provision(context=region.context(fence="9/b/lease"))
    late = ModifyRequest(
        context=region.context(fence="8/a/lease"),
        volume=region.identity(asset),
        parameters={"tagSpecification_1": "a=b"},
    )
    with pytest.raises(Unavailable, match=r"former leader .* of term 8 "):
        region.finish(region.backend.modify, late)


@pytest.mark.parametrize(("before", "after"), [("io2", "gp3"), ("gp3", "io2")])
def test_a_value_that_stays_is_named_when_the_type_changes(region: Any, before: str, after: str) -> None:
    """ModifyVolume gives what it does not name the default of the new type."""
    asset = region.provision(size=100 * GIB, parameters={"type": before, "iops": 5000})
    assert region.modify(asset, type=after, iops="5000") == Done()
    volume = region.fake.volumes[asset.handle]
    assert (volume.volume_type, volume.iops, region.fake.calls["ModifyVolume"]) == (after, 5000, 1)


def test_a_change_that_failed_is_told_and_not_repeated_until_the_day_is_spent(region: Any) -> None:
    """Amazon EBS User Guide, "Monitor the progress of volume modifications": a failed one may be tried again."""
    asset = region.provision()
    region.fault("ModifyVolume", FaultKind.FAIL, message="The volume could not be modified.", times=2)
    request = region.expansion(asset, 2 * GIB)
    for _ in range(2):
        with pytest.raises(
            BackendError, match=r"Size 2 of 2026-01-01 .* has failed: The volume could not be modified; .* in 8 h"
        ) as raised:
            region.finish(region.backend.expand, request)
        region.clock.advance(60.0)
        region.again()
    with pytest.raises(BackendError, match="has failed") as raised:
        region.finish(region.backend.expand, request)
    region.clock.advance(raised.value.retry_after)
    assert region.fake.calls["ModifyVolume"] == 1
    with pytest.raises(BackendError, match="has failed"):
        region.finish(region.backend.expand, request)
    assert region.fake.calls["ModifyVolume"] == 2
    assert region.expand(asset, 3 * GIB).capacity_bytes == 3 * GIB, "another wish is tried at once"


def together(region: Any, *calls: tuple[Any, Any]) -> list[Any]:
    """Hooks called side by side until each has ended, as the core calls them; an error is an end."""
    ends: list[Any] = [None] * len(calls)
    due = [region.clock.now] * len(calls)
    while None in ends:
        number = min((n for n in range(len(calls)) if ends[n] is None), key=lambda n: due[n])
        region.clock.now = max(region.clock.now, due[number])
        hook, request = calls[number]
        try:
            answer = hook(request)
        except BackendError as error:
            ends[number] = error
            continue
        if isinstance(answer, InProgress):
            due[number] = region.clock.now + answer.retry_after
        else:
            ends[number] = answer
    return ends


def change(region: Any, asset: Any, **parameters: str) -> ModifyRequest:
    return ModifyRequest(context=region.context(), volume=region.identity(asset), parameters=parameters)


def test_growing_and_changing_a_volume_together_is_one_change(region: Any) -> None:
    asset = region.provision(size=10 * GIB)
    ends = together(
        region,
        (region.backend.expand, region.expansion(asset, 20 * GIB)),
        (region.backend.modify, change(region, asset, iops="4000")),
    )
    assert (ends[0].capacity_bytes, ends[1]) == (20 * GIB, Done())
    volume = region.fake.volumes[asset.handle]
    assert (volume.size, volume.iops, region.fake.calls["ModifyVolume"]) == (20, 4000, 1)


def test_iops_that_only_the_new_size_allows_are_changed_with_it(region: Any) -> None:
    asset = region.provision(size=2 * GIB)
    together(
        region,
        (region.backend.modify, change(region, asset, iops="4000")),
        (region.backend.expand, region.expansion(asset, 20 * GIB)),
    )
    volume = region.fake.volumes[asset.handle]
    assert (volume.size, volume.iops, region.fake.calls["ModifyVolume"]) == (20, 4000, 1)


@pytest.mark.parametrize(
    ("wanted", "iops"),
    [({"iops": "50000"}, 10_000), ({"iops": "100"}, 3_000), ({"type": "io1", "iops": "2000"}, 1_000)],
)
def test_iops_that_the_size_does_not_allow_are_capped_as_by_the_official_driver(
    region: Any, wanted: Any, iops: int
) -> None:
    asset = region.provision(size=20 * GIB, mutable_parameters={"iops": "4000"})
    assert region.modify(asset, **wanted) == region.again().modify(asset, **wanted) == Done()
    assert (region.fake.volumes[asset.handle].iops, region.fake.calls["ModifyVolume"]) == (iops, 1)


def test_what_a_class_says_goes_before_iops_per_gib(region: Any) -> None:
    asset = region.provision(size=20 * GIB, parameters={"type": "io2", "iopsPerGB": 50})
    together(
        region,
        (region.backend.modify, change(region, asset, iops="3000")),
        (region.backend.expand, region.expansion(asset, 40 * GIB)),
    )
    volume = region.fake.volumes[asset.handle]
    assert (volume.size, volume.iops, region.fake.calls["ModifyVolume"]) == (40, 3000, 1)


def test_a_refused_change_does_not_stop_the_one_it_was_merged_with(region: Any) -> None:
    asset = region.provision(size=10 * GIB)
    region.refuse("ModifyVolume", "InvalidParameterCombination", times=9, when=lambda given: "Iops" in given)
    ends = together(
        region,
        (region.backend.expand, region.expansion(asset, 20 * GIB)),
        (region.backend.modify, change(region, asset, iops="4000")),
    )
    assert ends[0].capacity_bytes == 20 * GIB
    assert isinstance(ends[1], InvalidArgument | Throttled)


def test_a_wish_that_was_withdrawn_is_not_made(region: Any) -> None:
    asset = region.provision(size=10 * GIB)
    region.backend.modify(change(region, asset, iops="4000"))
    region.clock.advance(30.0)
    region.expand(asset, 20 * GIB)
    assert (region.fake.volumes[asset.handle].iops, region.fake.volumes[asset.handle].size) == (3000, 20)


def test_iops_that_were_set_later_are_not_raised_by_growing(region: Any) -> None:
    asset = region.provision(size=100 * GIB, parameters={"type": "io2", "iopsPerGB": 50})
    region.modify(asset, iops="3000")
    region.clock.advance(4000.0)
    region.again().expand(asset, 101 * GIB)
    assert (region.fake.volumes[asset.handle].size, region.fake.volumes[asset.handle].iops) == (101, 3000)


# --- fences -----------------------------------------------------------------------------------------------------


def test_a_former_leader_neither_grows_nor_changes_what_its_successor_holds(region: Any) -> None:
    asset = region.provision(context=region.context(fence="4/replica-a/lease"))
    grow = region.expansion(asset, 2 * GIB)
    region.finish(region.backend.expand, replace(grow, context=region.context(fence="5/replica-b/lease")))
    assert region.fake.volumes[asset.handle].tags["volplane.dev/fence"] == "5//lease"
    region.clock.advance(120.0)
    late = replace(region.expansion(asset, 3 * GIB), context=region.context(fence="4/replica-a/lease"))
    change = ModifyRequest(context=late.context, volume=late.volume, parameters={"iops": "4000"})
    for process in (region, region.again()):
        with pytest.raises(Unavailable, match=r"former leader .* of term 4 "):
            process.finish(process.backend.expand, late)
        with pytest.raises(Unavailable, match=r"former leader .* of term 4 "):
            process.finish(process.backend.modify, change)
    assert region.fake.calls["ModifyVolume"] == 1


def test_the_fence_of_another_cluster_does_not_outlive_the_adoption(region: Any) -> None:
    asset = region.provision(context=region.context(fence="9/replica-a/lease"))
    request = adoption(region, asset.handle)
    assert region.backend.adopt(replace(request, context=region.context(fence="1/replica-b/lease"))) == Done()
    grow = replace(
        region.expansion(asset, 2 * GIB), volume=request.volume, context=region.context(fence="1/replica-b/lease")
    )
    assert region.finish(region.backend.expand, grow).capacity_bytes == 2 * GIB


# --- adoption ---------------------------------------------------------------------------------------------------


def adoption(region: Any, handle: str, **fields: Any) -> AdoptRequest:
    new = replace(region.owner("u9"), cluster_id="cluster-2")
    volume = region.identity(handle, owner=new)
    return AdoptRequest(context=region.context(), volume=volume, former=region.owner(), **fields)


def test_a_restored_cluster_takes_over_its_volumes(region: Any) -> None:
    asset = region.provision()
    request = adoption(region, asset.handle)
    assert region.backend.adopt(request) == Done()
    assert region.backend.adopt(request) == Done()
    (listed,) = region.listed()
    assert listed.owner == request.volume.owner
    assert region.fake.calls["CreateTags"] == 1


def test_a_volume_of_a_third_cluster_is_not_taken_over(region: Any) -> None:
    asset = region.provision("u5")
    with pytest.raises(AlreadyExists, match="belongs to pvc-u5 of cluster 'cluster-1'"):
        region.backend.adopt(adoption(region, asset.handle))
    with pytest.raises(NotFound):
        region.backend.adopt(adoption(region, "vol-0123456789abcdef0"))
    static = replace(adoption(region, asset.handle), volume=region.identity(asset, owner=None))
    with pytest.raises(Unsupported, match="carries no marks"):
        region.backend.adopt(static)


def test_volumes_of_the_official_driver_are_listed_by_one_of_its_name_marked_and_given_back(region: Any) -> None:
    client, official = region.connect.client(), "ebs.csi.aws.com"
    tags = [{"Key": "CSIVolumeName", "Value": "pvc-u1"}, {"Key": "ebs.csi.aws.com/cluster", "Value": "true"}]
    made = client.create_volume(
        AvailabilityZone="eu-test-1a", Size=1, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )
    handle, context = made["VolumeId"], region.context(driver=official)
    region.clock.advance(5.0)
    assert region.listed() == []
    (listed,) = region.backend.list_assets(ListRequest(context=context)).assets
    assert (listed.handle, listed.owner.cluster_id, listed.owner.volume_name) == (handle, official, "pvc-u1")
    with pytest.raises(AlreadyExists, match="carries no marks"):
        region.expand(handle, 2 * GIB)
    take = AdoptRequest(context=context, volume=region.identity(handle), former=listed.owner)
    assert region.backend.adopt(take) == region.backend.adopt(take) == Done()
    assert region.expand(handle, 2 * GIB).capacity_bytes == 2 * GIB
    back = replace(take, volume=region.identity(handle, owner=listed.owner), former=region.owner())
    assert region.backend.adopt(back) == region.backend.adopt(back) == Done()
    assert region.backend.list_assets(ListRequest(context=context)).assets[0].owner == listed.owner
    with pytest.raises(AlreadyExists, match=r"in cluster 'ebs\.csi\.aws\.com'"):
        region.delete(handle)
    # Marked by a third cluster, it is that one's, whatever the official driver has written.
    region.fake.volumes[handle].tags["volplane.dev/cluster"] = "third"
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1 of cluster 'third'"):
        region.backend.adopt(take)
