"""What attach-detach and the attacher promise beside the rows that lie beside the checkout, each as a row of that form.

Source: pkg/controller/volume/attachdetach and pkg/volume/csi/csi_attacher.go of Kubernetes.
"""

from __future__ import annotations

import pytest

from scenarios.attach_objects import UNIQUE, attached_to, bound_claim, event, listed, node, pod, pod_at, row
from scenarios.attaching import DRIVER, Row
from scenarios.harness import Json
from volplane.attach.desired import plugin_label, show_volumes
from volplane.controller.metrics import Metrics

SETTLE = {"op": "settle", "within": "20s"}
GONE = {"op": "delete", "ref": "pods/default/pod1", "gracePeriodSeconds": 0}
B = node("node-b")
PLUGIN = plugin_label(DRIVER)


def changed(ref: str, merge: Json, subresource: str = "") -> Json:
    return {"op": "patch", "ref": ref, "merge": merge, "subresource": subresource}


def in_use(at: str, *volumes: str) -> Json:
    return changed(f"nodes/{at}", {"status": {"volumesInUse": list(volumes)}}, "status")


def failing(call: str, at: str) -> Json:
    return {"backendFaults": [{"call": call, "node": at}]}


ENDED = {"phase": "Succeeded"}
STOPPED = {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]}
HELD = {"metadata": {"finalizers": ["example.com/held"]}, "status": STOPPED}
OWNER = {"kind": "Pod", "apiVersion": "v1", "name": "pod1", "uid": "$(uid:pods/default/pod1)", "controller": True}
TEMPLATE = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
EPHEMERAL = [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": TEMPLATE}}}]

ROWS: dict[str, Json] = {
    "a volume that is not mounted is detached once its pod is gone": row(
        node(),
        bound_claim(),
        pod(),
        steps=[GONE, SETTLE],
        then={
            "backendCalls": {"attach": 1, "detach": 1},
            "attachments": [],
            "nodeStatus": [listed("node-a", without=[UNIQUE])],
        },
    ),
    "an attach that failed on one node is undone before another node gets the volume": row(
        node(),
        B,
        bound_claim(),
        pod(),
        steps=[GONE, pod_at("pod2", "node-b"), SETTLE],
        inject=failing("attach", "node-a"),
        then={
            "attachments": [attached_to(exists=False), attached_to("node-b", attached=True)],
            "nodeStatus": [listed("node-b", UNIQUE)],
        },
    ),
    "a healthy node that uses the volume keeps it, however long": row(
        node(),
        bound_claim(),
        pod(),
        steps=[in_use("node-a", UNIQUE), GONE, {"op": "advance", "by": "2h"}],
        then={"backendCalls": {"attach": 1, "detach": 0}, "attachments": [attached_to(attached=True)]},
    ),
    "while a detach fails no other node gets the volume, whatever the storage would allow": row(
        node(),
        B,
        bound_claim(),
        pod(),
        steps=[GONE, pod_at("pod2", "node-b"), SETTLE],
        inject=failing("detach", "node-a"),
        then={"attachments": [attached_to(terminating=True), attached_to("node-b", exists=False)]},
    ),
    "a volume that its former node still uses is not attached elsewhere, and the pod is told": row(
        node(),
        B,
        bound_claim(),
        pod(),
        steps=[in_use("node-a", UNIQUE), GONE, pod_at("pod2", "node-b"), SETTLE],
        then={
            "attachments": [attached_to(attached=True), attached_to("node-b", exists=False)],
            "events": [
                event(
                    "pod2",
                    "Volume is already exclusively attached to one node and can't be attached to another",
                    count=1,
                )
            ],
        },
    ),
    "two objects of one disk are one volume": row(
        node(),
        B,
        bound_claim(),
        bound_claim(2),
        pod(),
        steps=[pod_at("pod2", "node-b", claim="pvc-2"), SETTLE],
        then={
            "backendCalls": {"attach": 1},
            "attachments": [attached_to(attached=True), attached_to("node-b", exists=False)],
        },
    ),
    "a node that was told too much by a late cache is told right": row(
        node(),
        bound_claim(),
        pod(),
        steps=[
            {"op": "holdWatch", "resource": "nodes", "match": {"name": "node-a"}},
            changed("nodes/node-a", {"metadata": {"labels": {"x": "y"}}}),
            GONE,
            SETTLE,
        ],
        inject={"informerLag": [{"resource": "nodes", "mode": "withhold", "names": ["node-a"]}]},
        then={"attachments": [], "nodeStatus": [listed("node-a", without=[UNIQUE])]},
    ),
    "of the annotation of a node the key counts alone": row(
        node(annotations={"volumes.kubernetes.io/controller-managed-attach-detach": "no"}),
        bound_claim(),
        pod(),
        then={"attachments": [attached_to(attached=True)]},
    ),
    "a kubelet that attaches for itself is left alone": row(
        node(annotations={}),
        bound_claim(),
        pod(),
        then={"attachments": [], "backendCalls": {"attach": 0}},
    ),
    "a pod that has ended wants nothing": row(
        node(),
        bound_claim(),
        pod(),
        steps=[changed("pods/default/pod1", {"status": ENDED}, "status"), SETTLE],
        then={"attachments": [], "backendCalls": {"attach": 1, "detach": 1}},
    ),
    "a pod that goes and of which nothing runs wants nothing, though a finalizer keeps it": row(
        node(),
        bound_claim(),
        pod(metadata=HELD["metadata"], status=STOPPED),
        steps=[GONE, SETTLE],
        then={
            "attachments": [],
            "pods": [{"name": "pod1", "namespace": "default", "exists": True, "terminating": True}],
        },
    ),
    "a claim of another uid than its volume names is not attached": row(
        node(),
        bound_claim(uid="somebody-else"),
        pod(),
        then={"attachments": [], "backendCalls": {"attach": 0}},
    ),
    "a claim that is not bound is not attached, and is once it is": row(
        node(),
        bound_claim(phase="Pending"),
        pod(),
        steps=[
            {"op": "expect", "then": {"attachments": []}},
            changed("persistentvolumeclaims/default/pvc-1", {"status": {"phase": "Bound"}}, "status"),
            SETTLE,
        ],
        then={"attachments": [attached_to(attached=True)]},
    ),
    "a claim that is being deleted is attached for the pod that it waits for": row(
        node(),
        bound_claim(),
        steps=[{"op": "delete", "ref": "persistentvolumeclaims/default/pvc-1"}, pod_at("pod1", "node-a"), SETTLE],
        then={"attachments": [attached_to(attached=True)]},
    ),
    "nothing of a volume that is being deleted is attached, and the pod is told": row(
        node(),
        bound_claim(),
        steps=[{"op": "delete", "ref": "persistentvolumes/pv-1"}, pod_at("pod1", "node-a"), SETTLE],
        then={"backendCalls": {"attach": 0}, "events": [event("pod1", 'PersistentVolume "pv-1" is being deleted')]},
    ),
    "the claim of an ephemeral volume is attached for the pod that it was made for": row(
        node(),
        bound_claim(name="pod1-data", metadata={"ownerReferences": [OWNER]}),
        pod(volumes=EPHEMERAL),
        then={"attachments": [attached_to(attached=True)]},
    ),
    "a claim of the name of an ephemeral volume is not attached for another's pod": row(
        node(), bound_claim(name="pod1-data"), pod(volumes=EPHEMERAL), then={"attachments": []}
    ),
    "a status that lost the volume with its node gets it again": row(
        node(),
        bound_claim(),
        pod(),
        steps=[changed("nodes/node-a", {"status": {"volumesAttached": None}}, "status"), SETTLE],
        then={"nodeStatus": [listed("node-a", UNIQUE)], "backendCalls": {"attach": 1, "detach": 0}},
    ),
    "entries of volumes that no attachment has are withdrawn, those of other plugins stay": row(
        node(attached=[UNIQUE, "kubernetes.io/vendor/disk"]),
        then={"nodeStatus": [listed("node-a", "kubernetes.io/vendor/disk", without=[UNIQUE])]},
    ),
    "volumes that are not attached are forced from no node": row(
        node(ready="Unknown"),
        bound_claim(),
        pod(),
        steps=[GONE, SETTLE],
        inject={"config": {"maxWaitForUnmount": "1s"}},
        then={
            "attachments": [],
            "metrics": [
                {
                    "name": "attach_detach_controller_attachdetach_controller_forced_detaches",
                    "labels": {"reason": "timeout"},
                    "delta": 0,
                }
            ],
        },
    ),
}


@pytest.mark.parametrize("name", ROWS)
async def test_attach_and_detach_do_what_the_name_says(name: str) -> None:
    scenario = Row(ROWS[name])
    async with scenario.harness as harness:
        await scenario.prepare()
        for step in scenario.row["steps"]:
            await scenario.take(step)
        wrong = await scenario.shortfalls(scenario.row["then"])
        assert not wrong, "\n".join([*wrong, f"reasons: {harness.reasons()}"])


STOCK = {
    "attach_detach_controller_attachdetach_controller_forced_detaches": ("reason",),
    "attachdetach_controller_total_volumes": ("plugin_name", "state"),
    "storage_count_attachable_volumes_in_use": ("node", "volume_plugin"),
    "storage_operation_duration_seconds": ("volume_plugin", "operation_name", "status", "migrated"),
}
"""Metrics of pkg/controller/volume/attachdetach/metrics and pkg/volume/util/metrics.go, and their labels."""


def test_every_metric_of_the_stock_controller_has_its_name_and_labels() -> None:
    ours = {each.name: each.labels for each in Metrics().descriptions}
    assert {name: ours.get(name) for name in STOCK} == STOCK


async def test_metrics_show_what_the_stock_controller_would_count() -> None:
    scenario = Row(row(node(), B, bound_claim(), bound_claim(2, handle="vol-2"), pod()))
    async with scenario.harness as harness:
        await scenario.prepare()
        for step in scenario.row["steps"]:
            await scenario.take(step)
        scenario.backend.failing |= {("attach", "node-b"), ("detach", "node-a")}
        for step in (pod_at("pod2", "node-b", claim="pvc-2"), GONE, SETTLE):
            await scenario.take(step)
        metrics, plane = harness.metrics, harness.plane
        show_volumes(plane.state, metrics)
        scenario.backend.failing.clear()
        await scenario.take({"op": "settle", "within": "10m"})
        driver = plane.drivers.get(DRIVER)
        assert driver is not None
        assert plane.attachments is not None
        await plane.attachments.compare(driver)

        def value(name: str, **labels: str) -> float:
            return metrics.registry.get_sample_value(name, labels) or 0.0

        def operations(operation: str, status: str) -> float:
            labels = {"volume_plugin": PLUGIN, "operation_name": operation, "status": status, "migrated": "false"}
            return value("storage_operation_duration_seconds_count", **labels)

        assert value("attachdetach_controller_total_volumes", plugin_name=PLUGIN, state="desired_state_of_world") == 1
        assert value("attachdetach_controller_total_volumes", plugin_name=PLUGIN, state="actual_state_of_world") == 2
        assert value("storage_count_attachable_volumes_in_use", node="node-b", volume_plugin=PLUGIN) == 1
        assert operations("volume_attach", "success") == 2
        assert operations("volume_attach", "fail-unknown") >= 1
        assert operations("volume_detach", "success") == 1
        assert operations("volume_detach", "fail-unknown") >= 1
        assert operations("verify_volumes_are_attached_per_node", "success") == 1
