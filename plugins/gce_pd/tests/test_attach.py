"""Attaching and detaching: pacing, limits, order, and calls that come late."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from bench.gce_pd import measure

from volplane import (
    AccessMode,
    AttachedElsewhere,
    Attachment,
    BackendError,
    Done,
    InProgress,
    InvalidArgument,
    NodeIdentity,
    NotFound,
    ResourceExhausted,
    Throttled,
    Unavailable,
    VolumeInUse,
    VolumeMode,
)
from volplane_gce_pd.disk_types import hyperdisk_limit
from volplane_gce_pd.testing import Behaviour
from volplane_testing.cloud import FaultKind

A, B, C = (f"europe-test1-{letter}" for letter in "abc")
ZONE = "topology.gke.io/zone"
ATTACHED = Attachment(metadata={"disk-size": "10"})
"""The official node plugin compares the size with the device."""
REGIONAL = {"type": "pd-ssd", "replication-type": "regional-pd"}


def devices(vm: Any) -> list[str]:
    return list(vm.disks)[1:]


def test_a_disk_is_attached_under_the_device_name_that_stock_nodes_look_for(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    assert site.attach(asset, site.node(vm)) == ATTACHED
    assert vm.disks["pvc-u1"] == (asset.handle, "READ_WRITE")
    assert site.attach(asset, site.node(vm)) == ATTACHED
    assert site.fake.calls["instances.attachDisk"] == 1
    assert site.detach(asset, site.node(vm)) == Done()
    assert devices(vm) == []
    assert site.detach(asset, site.node(vm)) == Done()
    assert site.fake.calls["instances.detachDisk"] == 1


def test_a_regional_disk_has_another_device_name(site: Any) -> None:
    asset = site.provision(parameters=REGIONAL, allowed_segments=({ZONE: A}, {ZONE: B}))
    vm = site.vm(zone=B)
    site.attach(asset, site.node(vm))
    assert devices(vm) == ["pvc-u1_regional"]
    site.detach(asset, site.node(vm))
    assert devices(vm) == []


def test_a_read_only_attachment_is_one(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm), read_only=True)
    assert vm.disks["pvc-u1"][1] == "READ_ONLY"
    with pytest.raises(VolumeInUse, match="as READ_ONLY, but READ_WRITE is asked for"):
        site.attach(asset, site.node(vm))


def test_several_nodes_may_read_what_was_copied(site: Any) -> None:
    source = site.provision()
    asset = site.provision("u2", source_volume=source.handle, access_modes=(AccessMode.READ_ONLY_MANY,))
    volume = {"access_modes": (AccessMode.READ_ONLY_MANY,)}
    for name in ("node-a", "node-b"):
        site.attach(asset, site.node(site.vm(name)), "u2", volume=volume)
    disk = site.fake.disks[f"zones/{A}", "pvc-u2"]
    assert set(disk.users.values()) == {"READ_ONLY"}
    with pytest.raises(AttachedElsewhere):
        site.attach(asset, site.node(site.vm("node-c")), "u2")


ROX = (AccessMode.READ_ONLY_MANY,)


def test_a_hyperdisk_ml_is_written_first_and_read_by_many_from_its_first_read_only_attachment(site: Any) -> None:
    asset = site.provision(parameters={"type": "hyperdisk-ml"}, access_modes=ROX)
    assert site.disk.wanted["accessMode"] == "READ_WRITE_SINGLE"
    writer = site.node(site.vm("writer"))
    site.attach(asset, writer)
    with pytest.raises(AttachedElsewhere, match="writer"):
        site.attach(asset, site.node(site.vm("early")), volume={"access_modes": ROX})
    site.detach(asset, writer)
    for name in ("reader-1", "reader-2"):
        site.attach(asset, site.node(site.vm(name)), volume={"access_modes": ROX})
    assert site.disk.wanted["accessMode"] == "READ_ONLY_MANY"
    assert set(site.disk.users.values()) == {"READ_ONLY"}
    assert site.fake.calls["disks.update"] == 1
    site.again()
    with pytest.raises(InvalidArgument, match="READ_ONLY_MANY"):
        site.attach(asset, writer)


def test_a_switch_of_the_access_mode_that_fails_is_tried_anew(site: Any) -> None:
    asset = site.provision(parameters={"type": "hyperdisk-ml"}, access_modes=ROX)
    site.fail("disks.update", "INTERNAL_ERROR", "it broke")
    node = site.node(site.vm())
    with pytest.raises(Unavailable, match="it broke"):
        site.attach(asset, node, read_only=True)
    assert site.attach(asset, node, read_only=True) == ATTACHED
    assert site.disk.wanted["accessMode"] == "READ_ONLY_MANY"


def test_a_copy_of_a_hyperdisk_ml_is_read_by_many_at_once(site: Any) -> None:
    source = site.provision(parameters={"type": "hyperdisk-ml"})
    parameters = {"type": "hyperdisk-ml"}
    site.provision("u2", source_volume=source.handle, parameters=parameters, access_modes=ROX)
    assert site.fake.disks[f"zones/{A}", "pvc-u2"].wanted["accessMode"] == "READ_ONLY_MANY"


def test_a_hyperdisk_for_one_writer_is_read_by_no_second_node(site: Any) -> None:
    asset = site.provision(parameters={"type": "hyperdisk-balanced"})
    site.attach(asset, site.node(site.vm("vm-1")), read_only=True)
    tried = site.fake.calls["instances.attachDisk"]
    with pytest.raises(AttachedElsewhere):
        site.attach(asset, site.node(site.vm("vm-2")), read_only=True)
    assert site.fake.calls["instances.attachDisk"] == tried


def test_several_nodes_may_write_a_shared_hyperdisk(site: Any) -> None:
    modes = (AccessMode.READ_WRITE_MANY,)
    asset = site.provision(parameters={"type": "hyperdisk-balanced"}, access_modes=modes, volume_mode=VolumeMode.BLOCK)
    for name in ("node-a", "node-b"):
        site.attach(asset, site.node(site.vm(name)))
    assert len(site.disk.users) == 2


def test_a_disk_of_another_node_is_not_taken_and_the_node_is_named(site: Any) -> None:
    asset, first, second = site.provision(), site.vm("vm-1"), site.vm("vm-2")
    site.attach(asset, site.node(first, name="node-one"))
    with pytest.raises(AttachedElsewhere, match="attached to node-one") as raised:
        site.attach(asset, site.node(second))
    assert raised.value.node == "node-one"
    assert site.detach(asset, site.node(second)) == Done()
    assert devices(first) == ["pvc-u1"]


@pytest.mark.parametrize("shape", ["operation", "http"])
def test_a_race_for_a_disk_names_the_winner(new_site: Any, shape: str) -> None:
    site = new_site(Behaviour(shape=shape))
    asset, first, second = site.provision(), site.vm("vm-1"), site.vm("vm-2")
    one, two = site.attachment(asset, site.node(first)), site.attachment(asset, site.node(second))
    site.again()
    assert isinstance(site.backend.attach(two), InProgress)
    results = [site.backend.attach(two), site.backend.attach(one)]
    with pytest.raises(AttachedElsewhere) as raised:
        site.finish(site.backend.attach, replace(one, context=replace(one.context, state=dict(results[1].state))))
    assert raised.value.node == "vm-2"


def test_a_regional_disk_of_the_failover_class_is_taken_from_a_dead_node(site: Any) -> None:
    asset = site.provision(
        parameters={**REGIONAL, "availability-class": "regional-hard-failover"},
        allowed_segments=({ZONE: A}, {ZONE: B}),
    )
    dead, alive = site.vm("vm-a"), site.vm("vm-b", zone=B)
    site.attach(asset, site.node(dead))
    site.attach(asset, site.node(alive))
    assert list(site.disk.users) == [(B, "vm-b")]
    assert devices(dead) == []


def test_what_cannot_be_attached_says_why(site: Any) -> None:
    asset = site.provision()
    far = site.vm("far", zone=B)
    with pytest.raises(InvalidArgument, match="cannot be reached from another zone"):
        site.attach(asset, site.node(far))
    with pytest.raises(NotFound, match="gce://test-project"):
        site.attach(asset, NodeIdentity(name="n", instance_id="aws:///z/i-1"))
    with pytest.raises(NotFound, match="does not exist"):
        site.attach(asset, NodeIdentity(name="n", instance_id=f"gce://test-project/{A}/nobody"))
    vm = site.vm()
    with pytest.raises(NotFound, match="does not exist"):
        site.attach(f"projects/test-project/zones/{A}/disks/pvc-u9", site.node(vm), "u9")


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "limit"),
    [
        ("c4-standard-2", 8),
        ("c4-standard-48", 64),
        ("c4-highmem-288", 128),
        ("c4a-standard-4", 16),
        ("c4d-standard-8-lssd", 16),
        ("n4-standard-80", 32),
        ("n4a-standard-8", 16),
        ("n4d-standard-96", 32),
        ("a4-highgpu-8g", 128),
        ("a4x-highgpu-1g", 64),
        ("a4x-highgpu-4g", 128),
        ("a4x-maxgpu-4g-metal", 32),
        ("x4-megamem-960-metal", 40),
        ("c3-standard-192-metal", 16),
        ("c3-standard-8", None),
        ("n1-standard-1", None),
        ("custom-2-4096", None),
    ],
)
def test_series_that_take_only_hyperdisks_have_limits_of_their_own(machine: str, limit: int | None) -> None:
    assert hyperdisk_limit(machine) == limit


def fill(vm: Any, count: int) -> None:
    for number in range(count):
        vm.disks[f"d{number}"] = (f"projects/test-project/zones/{A}/disks/d{number}", "READ_WRITE")


@pytest.mark.parametrize(("machine", "most"), [("e2-micro", 16), ("n1-standard-1", 128), ("c4-standard-2", 8)])
def test_a_full_node_is_told_before_compute_engine_is_asked(site: Any, machine: str, most: int) -> None:
    parameters = {"type": "hyperdisk-balanced"} if machine.startswith("c4") else {}
    asset, vm = site.provision(parameters=parameters), site.vm(machine_type=machine)
    fill(vm, most - 1)
    with pytest.raises(ResourceExhausted, match=f"can hold {most}; move a pod") as raised:
        site.attach(asset, site.node(vm))
    assert raised.value.scope == "node"
    assert site.fake.calls["instances.attachDisk"] == 0
    vm.disks.popitem()
    site.clock.advance(1.0)
    assert site.attach(asset, site.node(vm)) == ATTACHED


@pytest.mark.parametrize(
    ("machine", "parameters"), [("n4-standard-4", {}), ("e2-micro", {"type": "hyperdisk-balanced"})]
)
def test_a_machine_that_does_not_take_the_type_of_a_disk_is_told(site: Any, machine: str, parameters: Any) -> None:
    asset, vm = site.provision(parameters=parameters), site.vm(machine_type=machine)
    with pytest.raises(InvalidArgument, match=f"disk type cannot be used by {machine} machine type"):
        site.attach(asset, site.node(vm))
    assert site.attach(asset, site.node(site.vm("node-b", machine_type="n2-standard-4")))


@pytest.mark.parametrize("status", ["STAGING", "SUSPENDED"])
def test_a_machine_that_is_neither_running_nor_stopped_is_waited_for(site: Any, status: str) -> None:
    asset, vm = site.provision(), site.vm()
    vm.status = status
    with pytest.raises(Unavailable, match=f"its status is {status}"):
        site.attach(asset, site.node(vm))
    for usable in ("TERMINATED", "RUNNING"):
        vm.status = usable
        site.clock.advance(5.0)
        assert site.attach(asset, site.node(vm)) == ATTACHED
        vm.status = status
        site.clock.advance(5.0)
        with pytest.raises(Unavailable, match=f"its status is {status}"):
            site.detach(asset, site.node(vm))
        vm.status = usable
        site.clock.advance(5.0)
        assert site.detach(asset, site.node(vm)) == Done()


@pytest.mark.parametrize("shape", ["operation", "http"])
def test_a_limit_that_only_compute_engine_knows_is_the_nodes(new_site: Any, shape: str) -> None:
    site = new_site(Behaviour(shape=shape, machine_types={}), attach=True)
    asset, vm = site.provision(), site.vm()
    fill(vm, 128)
    code = {"operation": "LIMIT_EXCEEDED", "http": "limitExceeded"}[shape]
    with pytest.raises(ResourceExhausted, match=r"maximum_persistent_disks.*move a pod to another node") as raised:
        site.attach(asset, site.node(vm))
    assert (raised.value.scope, raised.value.code, raised.value.reschedule) == ("node", code, False)


def test_the_limit_can_be_set_by_the_driver_and_by_the_node(new_site: Any) -> None:
    site = new_site(attach_limit=2)
    asset, vm = site.provision(), site.vm()
    fill(vm, 1)
    with pytest.raises(ResourceExhausted, match="can hold 2"):
        site.attach(asset, site.node(vm))
    label = "node-restriction.kubernetes.io/gke-volume-attach-limit-override"
    assert site.attach(asset, site.node(vm, labels={label: "20"})) == ATTACHED


# --- pacing -----------------------------------------------------------------------------------------------------


def start_all(site: Any, hook: Any, requests: list[Any]) -> tuple[list[Any], list[BackendError]]:
    """Let all requests run side by side until they are over."""
    left, done, failed = list(requests), [], []
    due = {id(request): site.clock.now for request in left}
    while left:
        request = min(left, key=lambda each: due[id(each)])
        site.clock.advance(max(due[id(request)] - site.clock.now, 0.0))
        left.remove(request)
        try:
            result = hook(request)
        except BackendError as error:
            failed.append(error)
            due[id(request)] = site.clock.now + (error.retry_after or 1.0)
            left.append(request)
            continue
        if isinstance(result, InProgress):
            later = replace(request, context=replace(request.context, state=dict(result.state)))
            due[id(later)] = site.clock.now + result.retry_after
            left.append(later)
        else:
            done.append(result)
    return done, failed


def test_forty_attachments_of_one_machine_never_overflow_its_queue(new_site: Any) -> None:
    site = new_site(Behaviour(vm_queue=16))
    vm = site.vm()
    assets = [site.provision(f"u{number}") for number in range(40)]
    requests = [site.attachment(asset, site.node(vm), f"u{number}") for number, asset in enumerate(assets)]
    done, failed = start_all(site, site.backend.attach, requests)
    assert (len(done), failed) == (40, [])
    assert len(devices(vm)) == 40
    assert site.fake.refused == {}


def test_many_attachments_in_all_zones_take_what_their_rate_allows_and_few_reads(new_site: Any) -> None:
    """A caller needs two looks and its turn: whoever waits for one of them must not lose the others by that."""
    rate, many, zones = 10, 30, (A, B, C)
    site = new_site(mutations_per_second=rate, mutation_burst=1)
    provisions, requests = [], []
    for number in range(many):
        uid, zone = f"u{number}", zones[number % 3]
        provisions.append(site.demand(uid, segment={ZONE: zone}))
        handle, node = (
            f"projects/test-project/zones/{zone}/disks/pvc-{uid}",
            site.node(site.vm(f"vm-{number}", zone=zone)),
        )
        requests.append(site.attachment(handle, node, uid))
    start_all(site, site.backend.provision, provisions)
    site.again().clock.advance(60.0)
    began, calls = site.clock.now, sum(site.fake.calls.values())
    done, failed = start_all(site, site.backend.attach, requests)
    assert (len(done), failed) == (many, [])
    assert site.clock.now - began < many / rate + 2.0 + 3.0
    assert sum(site.fake.calls.values()) - calls < 2 * many  # Half of them before callers are in step.


def test_an_operation_that_is_over_proves_the_attachment_and_the_detachment_without_a_read(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm))
    calls = dict(site.fake.calls)
    assert calls["instances.get"] == 1
    site.detach(asset, site.node(vm))
    assert devices(vm) == []
    assert site.fake.calls["instances.get"] == calls["instances.get"] + 1


def test_what_another_process_began_is_looked_at(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    request = site.attachment(asset, site.node(vm), "u1")
    while "operation" not in request.context.state:
        result = site.backend.attach(request)
        request = replace(request, context=replace(request.context, state=dict(result.state)))
        site.clock.advance(result.retry_after)
    site.clock.advance(5.0)
    assert site.disk.users
    del vm.disks["pvc-u1"]  # By hand, after the operation.
    site.disk.users.clear()
    site.again()
    assert site.finish(site.backend.attach, request) == ATTACHED
    assert site.fake.calls["instances.attachDisk"] == 2


@pytest.mark.parametrize("partial_lists", [True, False])
def test_a_zone_that_answers_again_is_read_with_the_others_again(new_site: Any, partial_lists: bool) -> None:
    site = new_site(Behaviour(partial_lists=partial_lists))
    zones = {"u1": A, "u2": B, "u3": C}
    assets = {uid: site.provision(uid, segment={ZONE: zone}) for uid, zone in zones.items()}
    nodes = {uid: site.node(site.vm(f"vm-{uid}", zone=zone)) for uid, zone in zones.items()}
    requests = [site.attachment(assets[uid], nodes[uid], uid) for uid in assets]
    site.fake.behave(unreachable=frozenset({B}))
    site.clock.advance(20.0)
    for _ in range(3):
        for request in requests:
            with suppress(Unavailable):
                site.backend.attach(request)
        site.clock.advance(0.5)
    site.fake.behave(unreachable=frozenset())
    assert start_all(site, site.backend.attach, requests)[0] == [ATTACHED] * 3
    site.clock.advance(61.0)
    calls = site.fake.calls["instances.aggregatedList"]
    waiting = [site.detachment(assets[uid], nodes[uid], uid) for uid in assets]
    done, failed = start_all(site, site.backend.detach, waiting)
    assert (len(done), failed) == (3, [])
    assert site.fake.calls["instances.aggregatedList"] > calls


@pytest.mark.soak
def test_a_hundred_in_flight_cost_a_tenth_of_a_read_for_each_change_at_the_rate_of_compute_engine() -> None:
    figures = measure(1_000, 100, 25)
    assert figures["of_limit"] <= 1.05
    assert figures["reads_per_disk_and_change"] <= 0.1
    assert (figures["refused"], figures["left"]) == ({}, 0)


def test_a_full_queue_of_others_is_waited_for_longer_each_time(new_site: Any) -> None:
    site = new_site(Behaviour(vm_queue=0))
    asset, vm = site.provision(), site.vm()
    waits = []
    for _ in range(8):
        with pytest.raises(Throttled, match="pending operations") as raised:
            site.attach(asset, site.node(vm))
        waits.append(raised.value.retry_after)
        site.clock.advance(60.0)
    assert waits == [5.0, 5.0, 5.0, 5.0, 5.0, 6.4, 12.8, 25.6]
    site.fake.behave(vm_queue=32)
    assert site.attach(asset, site.node(vm)) == ATTACHED


# --- late and lost calls ----------------------------------------------------------------------------------------


def test_a_late_detach_never_removes_a_fresh_attachment(site: Any) -> None:
    """The first detach arrives after the disk was detached by its repetition and attached again."""
    asset, vm = site.provision(), site.vm()
    node = site.node(vm)
    site.attach(asset, node)
    site.fault("instances.detachDisk", FaultKind.LATE, seconds=30.0)
    with pytest.raises(Unavailable):
        site.detach(asset, node)
    site.again()
    assert site.detach(asset, node) == Done()
    assert site.attach(asset, node) == ATTACHED
    site.clock.advance(120.0)
    with site.fake.settled():
        assert devices(vm) == ["pvc-u1"], "the late call did nothing"
    assert site.detach(asset, node) == Done()
    assert devices(vm) == []


def test_a_late_attach_does_not_bring_a_disk_back(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    node = site.node(vm)
    site.fault("instances.attachDisk", FaultKind.LATE, seconds=30.0)
    with pytest.raises(Unavailable):
        site.attach(asset, node)
    assert site.again().attach(asset, node) == ATTACHED
    assert site.detach(asset, node) == Done()
    site.clock.advance(120.0)
    with site.fake.settled():
        assert devices(vm) == []


@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.CLOSE])
def test_an_attachment_without_an_answer_is_made_once(site: Any, kind: FaultKind) -> None:
    asset, vm = site.provision(), site.vm()
    site.fault("instances.attachDisk", kind)
    with pytest.raises(Unavailable):
        site.attach(asset, site.node(vm))
    assert site.again().attach(asset, site.node(vm)) == ATTACHED
    assert len([each for each in site.fake.operations if each.method == "instances.attachDisk"]) == 1


def test_a_running_attachment_is_waited_for_by_the_next_process(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    request = site.attachment(asset, site.node(vm))
    while not site.fake.calls["instances.attachDisk"]:
        result = site.backend.attach(request)
        site.clock.advance(0.5)
    site.again()
    resumed = replace(request, context=replace(request.context, state=dict(result.state)))
    assert site.finish(site.backend.attach, resumed) == ATTACHED
    assert site.fake.calls["instances.attachDisk"] == 1


def test_a_detachment_waits_for_the_attachment_that_nobody_waits_for_any_more(new_site: Any) -> None:
    """Its VolumeAttachment is deleted while the disk is being attached, which the machine does not show yet."""
    site = new_site(Behaviour(operation_seconds={"attachDisk": 45.0}))
    asset, vm = site.provision(), site.vm()
    request = site.attachment(asset, site.node(vm))
    while not site.fake.calls["instances.attachDisk"]:
        result = site.backend.attach(request)
        site.clock.advance(result.retry_after)
    assert site.detach(asset, site.node(vm)) == Done()
    site.clock.advance(120.0)
    with site.fake.settled():
        assert devices(vm) == []


def test_a_failed_attachment_is_told_and_tried_anew(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.fail("instances.attachDisk", "INTERNAL_ERROR", "it broke")
    with pytest.raises(Unavailable, match="it broke"):
        site.attach(asset, site.node(vm))
    assert site.attach(asset, site.node(vm)) == ATTACHED


def test_a_former_leader_attaches_and_detaches_nothing(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm), context={"fence": "7/b/lease"})
    assert site.disk.labels["volplane-fence"] == "7_2f__2f_lease"
    site.again()
    with pytest.raises(Unavailable, match=r"former leader .* of term 6 "):
        site.detach(asset, site.node(vm), fence="6/a/lease")
    with pytest.raises(Unavailable, match=r"former leader .* of term 6 "):
        site.attach(asset, site.node(site.vm("node-b")), context={"fence": "6/a/lease"})
    assert devices(vm) == ["pvc-u1"]


# --- nodes that are gone ----------------------------------------------------------------------------------------


def test_a_deleted_machine_holds_nothing(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    node = site.node(vm)
    site.attach(asset, node)
    site.fake.delete_instance(vm)
    site.clock.advance(1.0)
    assert site.detach(asset, node) == Done()


def test_a_node_without_a_provider_id_is_known_by_the_name_of_its_machine(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm))
    assert site.again().detach(asset, NodeIdentity(name="node-a")) == Done()
    assert devices(vm) == []
    assert site.detach(asset, NodeIdentity(name="node-a")) == Done()


def test_a_node_that_may_be_the_holder_is_not_taken_for_detached(site: Any) -> None:
    asset, vm = site.provision(), site.vm("vm-7")
    site.attach(asset, site.node(vm, name="node-seven"))
    with pytest.raises(NotFound, match="still attached to vm-7"):
        site.again().detach(asset, NodeIdentity(name="node-seven"))
    assert devices(vm) == ["pvc-u1"]


def test_a_stolen_name_is_not_detached(site: Any) -> None:
    asset, vm = site.provision(), site.vm()
    site.attach(asset, site.node(vm))
    site.disk.labels["volplane-cluster"] = "cluster-2"
    site.clock.advance(11.0)
    with pytest.raises(BackendError, match="cluster-2"):
        site.detach(asset, site.node(vm))
    assert devices(vm) == ["pvc-u1"]
