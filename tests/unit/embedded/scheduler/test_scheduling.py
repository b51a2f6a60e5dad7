"""Where pods go: the scheduler's decision as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from volplane.controller.actions import Patch, Settled, Wait
from volplane.kube import names
from volplane.kube.objects import Claim, CsiDriver, CsiStorageCapacity, Node, StorageClass, Volume, VolumeAttachment
from volplane.state.matching import place_of
from volplane_embedded.objects import CsiNode, Pod, claim_names
from volplane_embedded.scheduler.scheduling import Bind, Placement, SchedulerState, decide
from volplane_embedded.scheduler.volume_binding import StorageState
from volplane_embedded.scheduler.volume_limits import LimitState

NOW = "2026-01-01T00:00:00Z"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
TAKEN = (
    "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
SELECTED = "volume.kubernetes.io/selected-node"


def pod(name: str = "web", *, claims: Iterable[str] = (), **spec: Any) -> Pod:
    volumes = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
    return msgspec.convert({"metadata": metadata, "spec": {"volumes": volumes, **spec}}, Pod)


def node(name: str, *, zone: str = "a", pods: str = "110", **spec: Any) -> Node:
    labels = {"kubernetes.io/hostname": name, "zone": zone}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": {"pods": pods}}}
    return msgspec.convert(body, Node)


def claim(name: str = "data", *, volume: str = "", phase: str = "", **fields: Any) -> Claim:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5"}
    metadata |= {"annotations": BOUND if volume else {}, **fields.pop("metadata", {})}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "late",
        "volumeName": volume,
        **fields,
    }
    status = {"phase": phase or ("Bound" if volume else "Pending")}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Claim)


def on(host: str) -> dict[str, Any]:
    need = {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [need]}]}}


def volume(name: str, *, host: str = "", size: str = "1Gi", phase: str = "Available", **fields: Any) -> Volume:
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "late",
        "local": {"path": "/x"},
        **({"nodeAffinity": on(host)} if host else {}),
        **fields,
    }
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", **spec.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Volume)


def storage_class(name: str = "late", *, mode: str = "WaitForFirstConsumer", **fields: Any) -> StorageClass:
    body = {"metadata": {"name": name}, "provisioner": "hostpath.volplane.dev", "volumeBindingMode": mode, **fields}
    return msgspec.convert(body, StorageClass)


def state(
    *objects: Pod | Node | Claim | Volume | StorageClass | CsiNode | VolumeAttachment | CsiDriver | CsiStorageCapacity,
    assumed: Mapping[str, str] | None = None,
) -> SchedulerState:
    pods = [one for one in objects if isinstance(one, Pod)]
    nodes = {one.name: one for one in objects if isinstance(one, Node)}
    claims = {one.key: one for one in objects if isinstance(one, Claim)}
    volumes = {one.name: one for one in objects if isinstance(one, Volume)}
    classes = {one.name: one for one in objects if isinstance(one, StorageClass)}
    csi_nodes = {one.name: one for one in objects if isinstance(one, CsiNode)}
    drivers = {one.name: one for one in objects if isinstance(one, CsiDriver)}
    room = [one for one in objects if isinstance(one, CsiStorageCapacity)]
    attachments = [one for one in objects if isinstance(one, VolumeAttachment)]

    def reserved(key: str) -> list[Volume]:
        held = ((one, one.spec.claim_ref) for one in volumes.values())
        return [one for one, ref in held if ref is not None and ref.key == key]

    return SchedulerState(
        pods=lambda: pods,
        users=lambda key: [one for one in pods if key in {f"{one.namespace}/{name}" for name in claim_names(one)}],
        nodes=nodes,
        storage=StorageState(
            claims=claims.get,
            volumes=volumes.get,
            classes=classes.get,
            candidates=lambda wanted: [one for one in volumes.values() if place_of(one) == place_of(wanted)],
            reserved=reserved,
            nodes=nodes,
            csi_drivers=drivers.get,
            room=lambda name: [one for one in room if one.storage_class_name == name],
        ),
        limits=LimitState(
            csi_nodes.get,
            lambda: attachments,
            lambda maker: [one for one in volumes.values() if one.annotation(names.PROVISIONED_BY) == maker],
        ),
        now=NOW,
        assumed=assumed or {},
    )


def message_of(placement: Placement) -> str:
    """What the condition that is written says."""
    assert isinstance(placement.step, Patch), placement
    [condition] = placement.step.body["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    text: str = condition["message"]
    return text


def test_a_pod_goes_to_the_node_with_the_fewest_pods() -> None:
    there = pod("old", nodeName="node-1")
    placement = decide(pod(), state(node("node-1"), node("node-2"), there))
    assert isinstance(placement.step, Bind)
    assert placement.node == placement.step.node == "node-2"
    assert [event.message for event in placement.step.events] == ["Successfully assigned default/web to node-2"]


def test_equal_nodes_are_taken_by_name_and_assumed_pods_count() -> None:
    nodes = (node("node-2"), node("node-1"))
    assert decide(pod(), state(*nodes)).node == "node-1"
    waiting = pod("other")
    assert decide(pod(), state(*nodes, waiting, assumed={waiting.key: "node-1"})).node == "node-2"


def test_a_pod_that_is_placed_gone_or_somebody_elses_is_left_alone() -> None:
    for one in (pod(nodeName="node-9"), pod(schedulerName="mine")):
        assert isinstance(decide(one, state(node("node-1"))).step, Settled)


def test_a_gated_pod_says_so_once_and_waits() -> None:
    gated = pod(schedulingGates=[{"name": "volplane.dev/scrub"}])
    placement = decide(gated, state(node("node-1")))
    assert message_of(placement) == "Scheduling is blocked due to non-empty scheduling gates"
    assert isinstance(placement.step, Patch)
    assert placement.step.events == ()
    gated.status.conditions = placement.step.body["status"]["conditions"]
    assert isinstance(decide(gated, state(node("node-1"))).step, Wait)


@pytest.mark.parametrize(
    ("spec", "nodes", "reason"),
    [
        ({}, [], "no nodes available to schedule pods"),
        ({}, [node("n", unschedulable=True)], "0/1 nodes are available: 1 node(s) were unschedulable."),
        (
            {},
            [node("n", taints=[{"key": "db", "value": "yes", "effect": "NoExecute"}])],
            "0/1 nodes are available: 1 node(s) had untolerated taint {db: yes}.",
        ),
        (
            {"nodeSelector": {"zone": "b"}},
            [node("n"), node("m")],
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
        ),
        ({}, [node("n", pods="0")], "0/1 nodes are available: 1 Too many pods."),
    ],
)
def test_why_no_node_will_do_stands_on_the_pod(spec: dict[str, Any], nodes: list[Node], reason: str) -> None:
    placement = decide(pod(**spec), state(*nodes))
    assert message_of(placement) == reason
    assert isinstance(placement.step, Patch)
    assert [(one.reason, one.message) for one in placement.step.events] == [("FailedScheduling", reason)]


def test_a_tolerated_cordon_does_not_keep_a_pod_away() -> None:
    tolerating = pod(tolerations=[{"operator": "Exists"}])
    assert decide(tolerating, state(node("n", unschedulable=True))).node == "n"


def test_a_preferred_node_wins_over_an_emptier_one() -> None:
    term = {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    there = pod("old", nodeName="m")
    assert decide(pod(affinity=affinity), state(node("n"), node("m", zone="b"), there)).node == "m"


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], 'persistentvolumeclaim "data" not found'),
        (
            [claim(volume="disk", phase="Lost")],
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "disk"',
        ),
        (
            [claim(volume="disk", metadata={"deletionTimestamp": NOW})],
            'persistentvolumeclaim "data" is being deleted',
        ),
        (
            [claim(), storage_class(mode="Immediate")],
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        ([claim()], "pod has unbound immediate PersistentVolumeClaims"),
        (
            [claim(volume="disk")],
            "1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        ),
        (
            [claim(volume="disk"), volume("disk", metadata={"deletionTimestamp": NOW})],
            "1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        ),
        (
            [claim(volume="disk"), volume("disk", host="elsewhere")],
            "1 node(s) didn't match PersistentVolume's node affinity",
        ),
        (
            [claim(), storage_class(provisioner="kubernetes.io/no-provisioner")],
            "1 node(s) didn't find available persistent volumes to bind",
        ),
        (
            [
                claim(),
                storage_class(allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]),
            ],
            "1 node(s) didn't find available persistent volumes to bind",
        ),
        (
            [claim(volume="disk", accessModes=["ReadWriteOncePod"]), pod("first", claims=["data"], nodeName="n")],
            TAKEN,
        ),
    ],
)
def test_claims_that_forbid_it_keep_a_pod_from_every_node(objects: list[Any], reason: str) -> None:
    placement = decide(pod(claims=["data"]), state(node("n"), *objects))
    assert message_of(placement) == f"0/1 nodes are available: {reason}."


def test_a_pod_follows_its_bound_volume() -> None:
    objects = (claim(volume="disk"), volume("disk", host="node-2", phase="Bound"))
    placement = decide(pod(claims=["data"]), state(node("node-1"), node("node-2"), *objects))
    assert isinstance(placement.step, Bind)
    assert placement.node == "node-2"


def test_a_waiting_claim_reserves_the_smallest_volume_that_fits_on_a_node() -> None:
    volumes = (
        volume("small", host="node-2", size="512Mi"),
        volume("right", host="node-2", size="2Gi"),
        volume("large", host="node-2", size="9Gi"),
        volume("taken", host="node-1", claimRef={"namespace": "default", "name": "other", "uid": "u"}),
        volume("scrubbed", host="node-1", phase="Released"),
    )
    none = storage_class(provisioner="kubernetes.io/no-provisioner")
    placement = decide(pod(claims=["data"]), state(node("node-1"), node("node-2"), claim(), none, *volumes))
    assert isinstance(placement.step, Patch)
    assert (placement.node, placement.step.target.name) == ("node-2", "right")
    assert placement.step.body["spec"]["claimRef"]["uid"] == "uid-data"
    assert placement.step.body["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}


def test_two_claims_of_a_pod_do_not_reserve_the_same_volume() -> None:
    objects = (claim("a"), claim("b"), storage_class(provisioner="kubernetes.io/no-provisioner"), volume("one"))
    both = pod(claims=["a", "b"])
    assert "didn't find available" in message_of(decide(both, state(node("n"), *objects)))
    first = decide(both, state(node("n"), *objects, volume("two")))
    assert isinstance(first.step, Patch)
    assert first.step.target.name == "one"


def test_a_volume_that_a_person_reserved_keeps_that_mark() -> None:
    reference = {"namespace": "default", "name": "data"}
    held = volume("held", claimRef=reference)
    placement = decide(pod(claims=["data"]), state(node("n"), claim(), storage_class(), held))
    assert isinstance(placement.step, Patch)
    assert placement.step.target.name == "held"
    assert "metadata" not in placement.step.body


def test_without_a_volume_the_node_is_named_on_the_claim_and_then_kept() -> None:
    nodes = (node("node-1"), node("node-2"))
    waiting = pod(claims=["data"])
    placement = decide(waiting, state(*nodes, claim(), storage_class()))
    assert isinstance(placement.step, Patch)
    assert placement.step.body == {"metadata": {"annotations": {SELECTED: "node-1"}}}
    chosen = claim(metadata={"annotations": {SELECTED: "node-2"}})
    placement = decide(waiting, state(*nodes, chosen, storage_class()))
    assert isinstance(placement.step, Wait)
    assert placement.node == "node-2"


def test_while_a_claim_is_being_bound_the_pod_waits_in_silence() -> None:
    half = claim(volumeName="disk")
    waiting = pod(claims=["data"])
    placement = decide(waiting, state(node("n"), half, storage_class(), assumed={waiting.key: "n"}))
    assert isinstance(placement.step, Wait)
    assert placement.node == "n"
    assert "unbound immediate" in message_of(decide(waiting, state(node("n"), half, storage_class())))


def test_a_claim_whose_node_is_gone_or_was_taken_back_gets_a_new_one() -> None:
    waiting = pod(claims=["data"])
    lost = claim(metadata={"annotations": {SELECTED: "node-9"}})
    for one in (lost, claim()):
        placement = decide(waiting, state(node("node-1"), one, storage_class()))
        assert isinstance(placement.step, Patch)
        assert placement.step.body["metadata"]["annotations"] == {SELECTED: "node-1"}


def test_a_pod_stays_with_the_node_chosen_before() -> None:
    nodes = (node("node-1"), node("node-2"))
    free = (volume("one"), volume("two"))
    waiting = pod(claims=["a", "b"])
    objects = state(*nodes, claim("a"), claim("b"), storage_class(), *free)
    assert decide(waiting, replace(objects, assumed={waiting.key: "node-2"})).node == "node-2"


def test_a_pod_prefers_volumes_that_exist_to_such_that_must_be_made() -> None:
    objects = (claim(), storage_class(), volume("ready", host="node-2"))
    there = pod("old", nodeName="node-2")
    placement = decide(pod(claims=["data"]), state(node("node-1"), node("node-2"), there, *objects))
    assert placement.node == "node-2"


# --- how many volumes a node can have --------------------------------------------------------------------------------

DISKS = "disks.sim"


def disk(name: str, claim: str) -> Volume:
    """A volume that is attached, bound to a claim."""
    reference = {"namespace": "default", "name": claim, "uid": f"uid-{claim}"}
    return volume(name, local=None, csi={"driver": DISKS, "volumeHandle": name}, claimRef=reference, phase="Bound")


def limit(node: str, count: int, driver: str = DISKS) -> CsiNode:
    drivers = [{"name": driver, "nodeID": node, "allocatable": {"count": count}}]
    return msgspec.convert({"metadata": {"name": node}, "spec": {"drivers": drivers}}, CsiNode)


def attached(disk: str, node: str) -> VolumeAttachment:
    spec = {"attacher": DISKS, "nodeName": node, "source": {"persistentVolumeName": disk}}
    return msgspec.convert({"metadata": {"name": f"csi-{disk}"}, "spec": spec}, VolumeAttachment)


ONE, TWO = disk("d-one", "one"), disk("d-two", "two")
BOTH = (claim("one", volume="d-one"), claim("two", volume="d-two"), ONE, TWO, node("n"))
THERE = pod("there", claims=["one"], nodeName="n")
FULL = "0/1 nodes are available: 1 node(s) exceed max volume count."


def test_a_claim_that_is_not_bound_yet_counts_for_the_csi_driver_of_its_provisioner() -> None:
    made = {"annotations": {names.PROVISIONED_BY: "ebs.volplane.dev"}}
    csi = {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}
    reference = {"namespace": "default", "name": "one", "uid": "uid-one"}
    held = volume("d-one", local=None, csi=csi, phase="Bound", claimRef=reference, metadata=made)
    full = limit("n", 1, "ebs.csi.aws.com")
    objects = (claim("two"), storage_class(provisioner="ebs.volplane.dev"), claim("one", volume="d-one"), held)
    placement = decide(
        pod(claims=["two"]), state(*objects, node("n"), pod("there", claims=["one"], nodeName="n"), full)
    )
    assert message_of(placement) == "0/1 nodes are available: 1 node(s) exceed max volume count."


@pytest.mark.parametrize(
    ("objects", "fits"),
    [
        ((THERE, limit("n", 2)), True),
        ((THERE, limit("n", 1)), False),
        ((THERE, limit("n", 1, "another.sim")), True),
        ((THERE,), True),
        ((attached("d-one", "n"), limit("n", 1)), False),
        ((attached("d-one", "n"), THERE, limit("n", 2)), True),
        ((attached("d-two", "n"), limit("n", 1)), True),
        ((attached("d-one", "elsewhere"), limit("n", 1)), True),
        ((limit("n", 0),), False),
    ],
)
def test_a_node_takes_no_more_volumes_than_its_csi_node_allows(objects: tuple[Any, ...], fits: bool) -> None:
    placement = decide(pod(claims=["two"]), state(*BOTH, *objects))
    if fits:
        assert placement.node == "n"
    else:
        assert message_of(placement) == FULL


def test_a_pod_that_is_about_to_be_bound_counts_and_one_that_is_over_does_not() -> None:
    coming, over = pod("coming", claims=["one"]), replace_status(THERE, "Succeeded")
    here = state(*BOTH, coming, limit("n", 1), assumed={coming.key: "n"})
    assert message_of(decide(pod(claims=["two"]), here)) == FULL
    assert decide(pod(claims=["two"]), state(*BOTH, over, limit("n", 1))).node == "n"


def test_a_volume_counts_once_however_many_pods_share_it() -> None:
    shares = pod("shares", claims=["one"])
    assert decide(shares, state(*BOTH, THERE, attached("d-one", "n"), limit("n", 1))).node == "n"


def test_a_claim_without_a_volume_counts_for_the_driver_of_its_class() -> None:
    late = (claim("two"), storage_class(provisioner=DISKS), claim("one", volume="d-one"), ONE, node("n"), THERE)
    assert message_of(decide(pod(claims=["two"]), state(*late, limit("n", 1)))) == FULL
    assert decide(pod(claims=["two"]), state(*late, limit("n", 2))).node == "n"


def replace_status(one: Pod, phase: str) -> Pod:
    return msgspec.structs.replace(one, status=msgspec.convert({"phase": phase}, type(one.status)))


# --- published room -----------------------------------------------------------------------------------------------

NO_ROOM = "node(s) did not have enough free storage"


def driver(*, publishes: bool = True) -> CsiDriver:
    spec = {"storageCapacity": publishes}
    return msgspec.convert({"metadata": {"name": "hostpath.volplane.dev"}, "spec": spec}, CsiDriver)


def room(host: str, capacity: str | None, *, storage_class: str = "late", **fields: Any) -> CsiStorageCapacity:
    body = {
        "metadata": {"name": f"csisc-{host}", "namespace": "storage"},
        "storageClassName": storage_class,
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": host}},
        "capacity": capacity,
        **fields,
    }
    return msgspec.convert(body, CsiStorageCapacity)


TWO = (node("node-1"), node("node-2"), claim(), storage_class())


def test_a_claim_goes_where_room_for_it_is_published() -> None:
    placement = decide(pod(claims=["data"]), state(*TWO, driver(), room("node-1", "1023Mi"), room("node-2", "1Gi")))
    assert placement.node == "node-2"


@pytest.mark.parametrize(
    "published",
    [
        (),
        (room("node-1", "10Gi", storage_class="other"), room("node-2", "1Mi")),
        (room("node-1", None), room("node-2", "10Gi", nodeTopology=None)),
        (room("node-1", "10Gi", maximumVolumeSize="512Mi"),),
        (room("node-1", "lots"),),
    ],
)
def test_without_enough_published_room_a_pod_says_so_as_the_stock_scheduler_does(published: tuple[Any, ...]) -> None:
    placement = decide(pod(claims=["data"]), state(*TWO, driver(), *published))
    assert message_of(placement) == f"0/2 nodes are available: 2 {NO_ROOM}."


def test_a_single_volume_may_be_larger_than_what_is_published_as_free() -> None:
    large = room("node-1", "1Mi", maximumVolumeSize="1Gi")  # The scheduler heeds the maximum alone where there is one.
    assert decide(pod(claims=["data"]), state(*TWO, driver(), large)).node == "node-1"


def test_room_counts_only_for_drivers_that_say_they_publish_it() -> None:
    for others in ((), (driver(publishes=False),)):
        assert decide(pod(claims=["data"]), state(*TWO, room("node-2", "1Mi"), *others)).node == "node-1"


def test_a_claim_whose_node_is_selected_is_not_measured_again() -> None:
    chosen = claim(metadata={"annotations": {"volume.kubernetes.io/selected-node": "node-1"}})
    objects = (node("node-1"), node("node-2"), chosen, storage_class(), driver(), room("node-1", "0"))
    assert decide(pod(claims=["data"]), state(*objects)).node == "node-1"
