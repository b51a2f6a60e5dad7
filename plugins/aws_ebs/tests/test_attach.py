"""Attaching and detaching: where, as what, by whom, and what is in the way."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    AccessMode,
    AlreadyExists,
    AttachedElsewhere,
    Attachment,
    BackendError,
    Done,
    InProgress,
    NodeIdentity,
    NotFound,
    ResourceExhausted,
    Unavailable,
    VolumeInUse,
    VolumeMode,
)
from volplane_aws_ebs.devices import NAMES, DeviceNames
from volplane_aws_ebs.resources import Ec2Instance, InstanceLimits
from volplane_aws_ebs.testing import Behaviour, FaultKind, InstanceType

GIB = 1 << 30


def devices(region: Any) -> set[str]:
    return {each.device for volume in region.fake.volumes.values() for each in volume.attachments.values()}


def test_the_device_is_in_the_metadata(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    assert region.attach(asset, node) == Attachment(metadata={"devicePath": "/dev/xvdaa"})
    assert region.attach(asset, node) == region.again().attach(asset, node)
    assert region.fake.calls["AttachVolume"] == 1


def test_every_volume_of_a_node_gets_another_device(region: Any) -> None:
    node = region.node(region.fake.add_instance())
    for number in range(12):
        asset = region.provision(f"u{number}")
        region.attach(asset, node, f"u{number}")
    assert len(devices(region)) == 12


def test_a_name_is_not_used_again_soon(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    first = region.attach(asset, node)
    region.detach(asset, node)
    assert region.attach(asset, node) != first


def test_a_name_that_somebody_else_uses_is_avoided(region: Any) -> None:
    instance = region.fake.add_instance()
    other = region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1)["VolumeId"]
    region.clock.advance(5.0)
    region.connect.client().attach_volume(VolumeId=other, InstanceId=instance.id, Device="/dev/xvdaa")
    asset = region.provision()
    assert region.attach(asset, region.node(instance)).metadata["devicePath"] == "/dev/xvdab"


@pytest.mark.parametrize("code", ["InvalidParameterValue", "InvalidDevice.InUse"])
def test_a_name_that_is_in_use_although_nobody_shows_it_is_given_up(region: Any, code: str) -> None:
    message = "Invalid value '/dev/xvdaa' for unixDevice. Attachment point /dev/xvdaa is already in use"
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.refuse("AttachVolume", code, message)
    assert region.attach(asset, node).metadata["devicePath"] == "/dev/xvdab"


def test_all_names_in_use_is_exhausted() -> None:
    names = DeviceNames(lambda: 0.0)
    full = Ec2Instance(
        id="i-1",
        zone="a",
        instance_type="m5.large",
        state="running",
        devices=dict.fromkeys(NAMES, "vol-x"),
        interfaces=1,
    )
    with pytest.raises(ResourceExhausted, match="no device name left"):
        names.reserve(full, "vol-1")


def test_names_work_on_every_hypervisor() -> None:
    assert NAMES[0] == "/dev/xvdaa"
    assert not [name for name in NAMES if name.startswith("/dev/xvdc") and len(name) > 9]
    assert "/dev/xvddy" not in NAMES
    assert len(set(NAMES)) == len(NAMES)
    assert len(NAMES) == 127


def test_a_volume_that_moves_waits_until_it_is_free(region: Any) -> None:
    asset = region.provision()
    one, two = (region.node(region.fake.add_instance(), name) for name in ("worker-1", "worker-2"))
    region.attach(asset, one)
    assert isinstance(region.backend.detach(region.detachment(asset, one)), InProgress)
    assert isinstance(region.attach(asset, two), Attachment)
    assert list(region.fake.volumes[asset.handle].attachments) == [two.instance_id.rpartition("/")[2]]


def test_an_attachment_that_hangs_is_undone_and_tried_with_another_name(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.fault("AttachVolume", FaultKind.STALL)
    with pytest.raises(Unavailable, match="hung for 90 s"):
        region.attach(asset, node)
    assert region.attach(asset, node).metadata["devicePath"] == "/dev/xvdab"


def test_an_attachment_that_the_guest_holds_says_so(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance(), "worker-1")
    region.attach(asset, node)
    region.fault("DetachVolume", FaultKind.STALL)
    with pytest.raises(VolumeInUse, match=r"detaching from worker-1 .* unmount it there"):
        region.detach(asset, node)


def test_a_node_that_dies_frees_its_volumes(region: Any) -> None:
    asset, instance = region.provision(), region.fake.add_instance()
    region.attach(asset, region.node(instance))
    region.fake.terminate(instance)
    assert region.detach(asset, region.node(instance)) == Done()
    assert isinstance(region.attach(asset, region.node(region.fake.add_instance(), "worker-2")), Attachment)


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
def test_an_answer_that_never_came_is_resolved(region: Any, kind: FaultKind) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.fault("AttachVolume", kind, seconds=1.0)
    with pytest.raises(Unavailable):
        region.attach(asset, node)
    region.clock.advance(1.0)
    assert isinstance(region.again().attach(asset, node), Attachment)
    region.fault("DetachVolume", kind, seconds=1.0)
    with pytest.raises(Unavailable):
        region.detach(asset, node)
    region.clock.advance(1.0)
    assert region.again().detach(asset, node) == Done()
    assert region.fake.volumes[asset.handle].state == "available"


def test_a_volume_of_another_claim_is_not_attached(region: Any) -> None:
    asset, node = region.provision("u1"), region.node(region.fake.add_instance())
    with pytest.raises(AlreadyExists, match="belongs to pvc-u1"):
        region.attach(asset, node, "u2")
    region.attach(asset, node)
    with pytest.raises(AlreadyExists):
        region.detach(asset, node, "u2")


def test_a_node_that_is_no_instance_is_not_found_and_holds_nothing(region: Any) -> None:
    asset, node = region.provision(), NodeIdentity(name="laptop", instance_id="kind://docker/kind/laptop")
    with pytest.raises(NotFound, match=r"laptop has spec.providerID 'kind://docker/kind/laptop'"):
        region.attach(asset, node)
    assert region.detach(asset, node) == Done()


@pytest.mark.parametrize("form", ["aws:///eu-test-1a/{}", "aws://eu-test-1a/{}", "{}"])
def test_provider_ids_come_in_several_forms(region: Any, form: str) -> None:
    asset, instance = region.provision(), region.fake.add_instance()
    node = NodeIdentity(name="node-a", instance_id=form.format(instance.id))
    assert isinstance(region.attach(asset, node), Attachment)


@pytest.mark.parametrize("state", ["pending", "stopping"])
def test_an_instance_that_is_on_its_way_is_waited_for(region: Any, state: str) -> None:
    asset, instance = region.provision(), region.fake.add_instance()
    instance.state = state
    with pytest.raises(VolumeInUse, match="its state does not allow this now; it is tried again"):
        region.attach(asset, region.node(instance))
    for usable in ("running", "stopped"):
        instance.state = usable
        region.clock.advance(30.0)
        assert region.attach(asset, region.node(instance))
        assert region.detach(asset, region.node(instance)) == Done()


# --- limits -----------------------------------------------------------------------------------------------------


def fill(region: Any, node: NodeIdentity, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        region.attach(region.provision(f"f{number}"), node, f"f{number}")


def test_the_limit_of_the_instance_type_is_kept_without_trying(region: Any) -> None:
    instance = region.fake.add_instance(instance_type="t3.micro", interfaces=3)
    node = region.node(instance, "worker-1")
    fill(region, node, 24)  # 27 less the root volume and two interfaces
    asset, tried = region.provision(), region.fake.calls["AttachVolume"]
    with pytest.raises(
        ResourceExhausted, match=r"worker-1 \(t3.micro\) holds 25 volumes and can hold 25 beside 3"
    ) as raised:
        region.attach(asset, node)
    assert raised.value.scope == "node"
    assert region.fake.calls["AttachVolume"] == tried


def test_interfaces_do_not_count_where_the_limit_is_dedicated(region: Any) -> None:
    node = region.node(region.fake.add_instance(instance_type="m7i.large", interfaces=4))
    fill(region, node, 31)
    asset = region.provision()
    with pytest.raises(ResourceExhausted, match="can hold 32"):
        region.attach(asset, node)


def test_a_type_whose_limit_ec2_calls_shared_by_mistake_is_filled(new_region: Any) -> None:
    kind = InstanceType(attachments=8, shared=False, told_shared=True, hypervisor="")
    region = new_region(Behaviour(instance_types={"i7i.metal-48xl": kind}))
    node = region.node(region.fake.add_instance(instance_type="i7i.metal-48xl", interfaces=6))
    fill(region, node, 7)
    asset, tried = region.provision(), region.fake.calls["AttachVolume"]
    with pytest.raises(ResourceExhausted, match="can hold 8"):
        region.attach(asset, node)
    assert region.fake.calls["AttachVolume"] == tried


@pytest.mark.parametrize(
    ("name", "hypervisor", "limits"),
    [
        ("i7i.metal-24xl", "", InstanceLimits(attachments=30)),
        ("c5.metal", "", InstanceLimits(attachments=30, shared=True)),
        ("m5.large", "nitro", InstanceLimits(attachments=30, shared=True)),
        ("m4.large", "xen", InstanceLimits(attachments=39)),
    ],
)
def test_limits_are_read_as_the_official_driver_reads_them(name: str, hypervisor: str, limits: InstanceLimits) -> None:
    info = {"MaximumEbsAttachments": 30, "AttachmentLimitType": "shared"}
    assert InstanceLimits.of({"InstanceType": name, "Hypervisor": hypervisor, "EbsInfo": info}) == limits


@pytest.mark.parametrize("options", [{}, {"attach_limit": 127}])
def test_the_cards_of_an_instance_are_filled_evenly(new_region: Any, options: Any) -> None:
    region = new_region(Behaviour(instance_types={"c8gn.48xlarge": InstanceType(attachments=8, shared=False, cards=2)}))
    region = region.again(**options) if options else region
    node = region.node(region.fake.add_instance(instance_type="c8gn.48xlarge"))
    fill(region, node, 7)
    cards = [each.card for volume in region.fake.volumes.values() for each in volume.attachments.values()]
    assert (cards.count(0), cards.count(1)) == (3, 4), "the root volume is at the first"
    region.detach(region.provision("f0"), node, "f0")
    fill(region, node, 1, start=9)
    cards = [each.card for volume in region.fake.volumes.values() for each in volume.attachments.values()]
    assert (cards.count(0), cards.count(1)) == (3, 4), "the root volume is at the first"


def test_a_type_that_cannot_be_read_leaves_what_is_known_of_others(region: Any) -> None:
    small = region.node(region.fake.add_instance(instance_type="t3.micro"), "small")
    fill(region, small, 26)
    region.refuse("DescribeInstanceTypes", "InternalError")
    other = region.node(region.fake.add_instance(instance_type="m7i.large"), "other")
    fill(region, other, 1, start=50)
    asset, tried = region.provision(), region.fake.calls["AttachVolume"]
    with pytest.raises(ResourceExhausted, match="can hold 27"):
        region.attach(asset, small)
    assert region.fake.calls["AttachVolume"] == tried
    third = region.node(region.fake.add_instance(instance_type="m5.large"), "third")
    fill(region, third, 26, start=60)
    with pytest.raises(ResourceExhausted, match="can hold 27"):
        region.attach(asset, third)


def test_a_place_that_was_freed_is_used_at_once(new_region: Any) -> None:
    region = new_region(attach_limit=3)
    node = region.node(region.fake.add_instance())
    fill(region, node, 2)
    asset = region.provision()
    with pytest.raises(ResourceExhausted):
        region.attach(asset, node)
    region.detach(region.provision("f0"), node, "f0")
    assert isinstance(region.attach(asset, node), Attachment)


def test_an_unknown_instance_type_is_left_to_ec2(region: Any) -> None:
    instance = region.fake.add_instance()
    region.refuse("DescribeInstanceTypes", "UnauthorizedOperation", times=99)
    assert isinstance(region.attach(region.provision(), region.node(instance)), Attachment)


# --- several nodes ----------------------------------------------------------------------------------------------


def shared(region: Any) -> Any:
    return region.provision(
        size=20 * GIB,
        parameters={"type": "io2", "iops": 500},
        access_modes=(AccessMode.READ_WRITE_MANY,),
        volume_mode=VolumeMode.BLOCK,
    )


def test_a_shared_volume_is_on_several_nodes_and_leaves_each_alone(region: Any) -> None:
    asset = shared(region)
    nodes = [region.node(region.fake.add_instance(), f"worker-{n}") for n in range(3)]
    for node in nodes:
        assert isinstance(region.attach(asset, node), Attachment)
    region.detach(asset, nodes[1])
    held = set(region.fake.volumes[asset.handle].attachments)
    assert held == {nodes[n].instance_id.rpartition("/")[2] for n in (0, 2)}
    with pytest.raises(VolumeInUse, match=r"worker-0.*worker-2"):
        region.delete(asset)


# --- fences -----------------------------------------------------------------------------------------------------


def test_a_former_leader_neither_detaches_nor_attaches_what_its_successor_holds(region: Any) -> None:
    asset = region.provision(context=region.context(fence="4/replica-a/lease"))
    one, two = (region.node(region.fake.add_instance(), name) for name in ("worker-1", "worker-2"))
    region.attach(asset, one, fence="5/replica-b/lease")
    for process in (region, region.again()):
        with pytest.raises(Unavailable, match="leader of term 5"):
            process.detach(asset, one, fence="4/replica-a/lease")
        with pytest.raises(Unavailable, match=r"former leader .* of term 4 "):
            process.attach(asset, two, fence="4/replica-a/lease")
    assert region.detach(asset, one, fence="5/replica-b/lease") == Done()


def test_the_fence_is_written_only_when_the_leader_changed(region: Any) -> None:
    asset = region.provision(context=region.context(fence="4/replica-a/lease"))
    node = region.node(region.fake.add_instance())
    region.attach(asset, node, fence="4/replica-a/lease")
    assert region.fake.calls["CreateTags"] == 0
    region.detach(asset, node, fence="5/replica-b/lease")
    region.attach(asset, node, fence="5/replica-b/lease")
    assert region.fake.calls["CreateTags"] == 1
    assert region.fake.volumes[asset.handle].tags["volplane.dev/fence"] == "5//lease"


def test_a_former_leader_does_not_delete(region: Any) -> None:
    asset = region.provision(context=region.context(fence="5/replica-b/lease"))
    request = region.deletion(asset)
    with pytest.raises(Unavailable, match="leader of term 5"):
        region.finish(
            region.backend.delete,
            type(request)(context=region.context(fence="4/replica-a/lease"), volume=request.volume),
        )


def test_a_late_detach_does_not_cut_a_fresh_attachment_to_the_same_node(region: Any) -> None:
    """The look was before, the call comes after another process has detached and attached again: the device differs."""
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.attach(asset, node)
    late = region.backend
    region.clock.advance(1.0)
    volume = region.fake.volumes[asset.handle]
    (attachment,) = volume.attachments.values()
    late.provision(region.demand())  # Looks at the volume: what the late process knows from now on.
    attachment.device = "/dev/xvdbz"
    answer = late.detach(region.detachment(asset, node))
    assert isinstance(answer, InProgress)
    assert attachment.state == "attached"
    assert region.fake.refused["InvalidAttachment.NotFound"] == 1


def test_a_volume_that_is_attached_elsewhere_by_a_process_that_is_gone_names_the_instance(region: Any) -> None:
    asset = region.provision()
    one, two = (region.node(region.fake.add_instance(), name) for name in ("worker-1", "worker-2"))
    region.attach(asset, one)
    with pytest.raises(AttachedElsewhere) as raised:
        region.again().attach(asset, two)
    assert raised.value.node == one.instance_id.rpartition("/")[2]


def test_contention_ends_in_an_error_that_says_so(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.refuse("AttachVolume", "VolumeInUse", f"{asset.handle} is already attached to an instance", times=9)
    with pytest.raises(BackendError, match="already attached"):
        region.attach(asset, node)


def test_a_volume_on_a_node_that_is_gone_is_not_called_detached(region: Any) -> None:
    asset, instance = region.provision(), region.fake.add_instance()
    region.attach(asset, region.node(instance))
    assert region.detach(asset, NodeIdentity(name="node-b")) == Done(), "it is attached to node-a alone"
    region.again()
    with pytest.raises(NotFound, match=rf"node-a is gone or .* still attached to {instance.id}"):
        region.detach(asset, NodeIdentity(name="node-a"))
    assert list(region.fake.volumes[asset.handle].attachments) == [instance.id]
    region.fake.terminate(instance)
    region.clock.advance(10.0)
    assert region.detach(asset, NodeIdentity(name="node-a")) == Done()


def test_a_node_object_that_is_gone_is_remembered_for_the_detach(region: Any) -> None:
    asset, node = region.provision(), region.node(region.fake.add_instance())
    region.attach(asset, node)
    assert region.detach(asset, NodeIdentity(name=node.name)) == Done()
    assert region.fake.volumes[asset.handle].state == "available"


def test_a_detachment_that_does_not_end_is_told_to_whoever_waits_for_it(region: Any) -> None:
    asset = region.provision()
    one, two = (region.node(region.fake.add_instance(), name) for name in ("worker-1", "worker-2"))
    region.attach(asset, one)
    (attachment,) = region.fake.volumes[asset.handle].attachments.values()
    attachment.state = "detaching"
    region.clock.advance(30.0)
    begun = region.clock.now
    with pytest.raises(AttachedElsewhere, match=r"attached to worker-1 .*detaching for 1\d\d s"):
        region.attach(asset, two)
    assert 120 < region.clock.now - begun < 150
    with pytest.raises(VolumeInUse, match=r"detaching from worker-1 for 1\d\d s"):
        region.attach(asset, one)
    with pytest.raises(VolumeInUse, match=r"detaching from worker-1 for 1\d\d s"):
        region.delete(asset)
    with pytest.raises(VolumeInUse, match=r"detaching from worker-1 for 1\d\d s"):
        region.detach(asset, one)
    attachment.state = "attached"
    region.clock.advance(60.0)
    assert region.detach(asset, one) == Done(), "the next one is timed anew"
