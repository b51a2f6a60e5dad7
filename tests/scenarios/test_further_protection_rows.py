"""What in-use protection promises beside the rows that lie beside the checkout, each as a row of that form.

Source: pkg/controller/volume/pvcprotection and pvprotection of Kubernetes, and their tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.attach_objects import bound_claim, pod
from scenarios.differences import UNUSED_GATE
from scenarios.harness import Json
from scenarios.test_protection_rows import test_protection_does_what_the_scenario_says as play

CLAIM, VOLUME = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"
BEGIN = [{"op": "start"}, {"op": "settle", "within": "10s"}]
SETTLE = {"op": "settle", "within": "10s"}
GOING = {"deletionTimestamp": "2024-01-01T00:00:00Z"}
GONE = {"name": "pvc-1", "exists": False}


def claim(*finalizers: str, **metadata: Any) -> Json:
    return {**bound_claim()[0], "metadata": {"name": "pvc-1", "finalizers": list(finalizers), **metadata}}


def volume(phase: str, *finalizers: str, **metadata: Any) -> Json:
    made = {**bound_claim()[1], "metadata": {"name": "pv-1", "finalizers": list(finalizers), **metadata}}
    made["spec"] = {key: value for key, value in made["spec"].items() if key != "claimRef"}
    return {**made, "status": {"phase": phase}}


def written(outcome: str, *finalizers: str) -> Json:
    effect = {"finalizers": list(finalizers)}
    resource, namespace = "persistentvolumeclaims", "default"
    return {
        "verb": "update",
        "resource": resource,
        "name": "pvc-1",
        "namespace": namespace,
        "outcome": outcome,
        "effect": effect,
    }


def refused(status: int) -> Json:
    fault = {"verb": "update", "resource": "persistentvolumeclaims", "status": status, "times": 2}
    return {"apiFaults": [fault]}


def lists(count: int) -> list[Json]:
    return [{"resource": "pods", "namespace": "default", "count": count}]


def unused(status: str) -> Json:
    return {"claims": [{"name": "pvc-1", "conditions": [{"type": "Unused", "status": status}]}]}


ROWS: dict[str, Json] = {
    "a finalizer that could not be added is added by the third try": {
        "given": {"claims": [claim()]},
        "inject": refused(403),
        "then": {"writes": [*[written("injected-403", CLAIM)] * 2, written("ok", CLAIM)], "liveLists": []},
    },
    "each try to remove it follows a list of its own": {
        "given": {"claims": [claim(CLAIM, **GOING)]},
        "inject": refused(403),
        "then": {"writes": [*[written("injected-403")] * 2, written("ok")], "liveLists": lists(3), "claims": [GONE]},
    },
    "also after a conflict": {
        "given": {"claims": [claim(CLAIM, **GOING)]},
        "inject": refused(409),
        "then": {"writes": [*[written("injected-409")] * 2, written("ok")], "liveLists": lists(3), "claims": [GONE]},
    },
    "behind the gate of the condition Unused a finalizer is added after that": {
        "given": {"claims": [claim()]},
        "inject": {"config": {"featureGates": {UNUSED_GATE: True}}},
        "then": {
            "writes": [
                {**written("ok"), "subresource": "status"},
                written("ok", CLAIM),
            ],
            "writeCount": 2,
            "claims": [{"name": "pvc-1", "finalizers": [CLAIM], "conditions": [{"type": "Unused", "status": "True"}]}],
        },
    },
    "the condition Unused follows the pods that name the claim, on a node or not": {
        "given": {"claims": [claim(CLAIM)]},
        "inject": {"config": {"featureGates": {UNUSED_GATE: True}}},
        "steps": [
            {"op": "expect", "then": unused("True")},
            {"op": "create", "object": pod(at="")},
            SETTLE,
            {"op": "expect", "then": unused("False")},
            {"op": "delete", "ref": "pods/default/pod1", "gracePeriodSeconds": 0},
            SETTLE,
        ],
        "then": {**unused("True"), "writeCount": 3},
    },
    "other finalizers stay": {
        "given": {"claims": [claim("example.com/mine", CLAIM, **GOING)]},
        "then": {"claims": [{"name": "pvc-1", "finalizers": ["example.com/mine"], "terminating": True}]},
    },
    "a pod on no node keeps nothing": {
        "given": {"claims": [claim(CLAIM, **GOING)], "pods": [pod(at="")]},
        "then": {"claims": [GONE], "liveLists": lists(1)},
    },
    "a claim goes once its last pod has gone": {
        "given": {"claims": [claim(CLAIM, **GOING)], "pods": [pod(), pod("pod2")]},
        "steps": [
            {"op": "delete", "ref": "pods/default/pod1", "gracePeriodSeconds": 0},
            SETTLE,
            {"op": "expect", "then": {"claims": [{"name": "pvc-1", "terminating": True}]}},
            {"op": "delete", "ref": "pods/default/pod2", "gracePeriodSeconds": 0},
            SETTLE,
        ],
        "then": {"claims": [GONE]},
    },
    "a volume gets its finalizer": {
        "given": {"volumes": [volume("Available")]},
        "then": {"volumes": [{"name": "pv-1", "finalizers": [VOLUME]}]},
    },
    "a bound volume stays, and goes when it is released": {
        "given": {"volumes": [volume("Bound", VOLUME, **GOING)]},
        "steps": [
            {"op": "expect", "then": {"volumes": [{"name": "pv-1", "terminating": True}], "writeCount": 0}},
            {
                "op": "patch", "ref": "persistentvolumes/pv-1", "subresource": "status",
                "merge": {"status": {"phase": "Released"}},
            },
            SETTLE,
        ],
        "then": {"volumes": [{"name": "pv-1", "exists": False}]},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
async def test_protection_does_what_the_name_says(name: str) -> None:
    await play({"id": name, **ROWS[name], "steps": [*BEGIN, *ROWS[name].get("steps", ())]})
