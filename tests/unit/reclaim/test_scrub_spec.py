"""What of a scrubber pod may be otherwise than it was made, and what may not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from volplane.reclaim.scrub_pod import spec_difference

NODES = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
DEMANDED = {"requiredDuringSchedulingIgnoredDuringExecution": NODES}
MADE: dict[str, Any] = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "hostNetwork": False,
    "activeDeadlineSeconds": 600,
    "affinity": {"nodeAffinity": DEMANDED},
    "volumes": [{"name": "volume", "hostPath": {"path": "/data", "type": "Directory"}}],
    "containers": [
        {
            "name": "scrub",
            "image": "debian",
            "command": ["/bin/sh", "-c", "rm"],
            "volumeMounts": [{"name": "volume", "mountPath": "/scrub"}],
            "securityContext": {"runAsUser": 0, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}


def changed(**spec: Any) -> str:
    """What is found if these fields of the live spec are otherwise."""
    return spec_difference(MADE, {**copy.deepcopy(MADE), **spec})


def in_container(**fields: Any) -> str:
    return changed(containers=[{**MADE["containers"][0], **fields}])


def test_nothing_differs_from_itself() -> None:
    assert changed() == ""


@pytest.mark.parametrize(
    "field",
    [
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "imagePullSecrets",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "resources",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "serviceAccount",
        "serviceAccountName",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
    ],
)
def test_where_when_and_how_patiently_it_runs_may_be_filled_in(field: str) -> None:
    assert changed(**{field: "filled in"}) == ""


@pytest.mark.parametrize(
    "field", ["imagePullPolicy", "resources", "terminationMessagePath", "terminationMessagePolicy"]
)
def test_so_may_these_of_a_container_and_of_nothing_else(field: str) -> None:
    assert in_container(**{field: "filled in"}) == ""
    assert changed(volumes=[{**MADE["volumes"][0], field: "filled in"}]) == f"{field} added of volume 'volume'"
    if field != "resources":
        assert changed(**{field: "filled in"}) == f"{field} was added"


@pytest.mark.parametrize(
    ("field", "default"),
    [
        ("apiVersion", "v1"),
        ("defaultMode", 420),
        ("expirationSeconds", 3600),
        ("hostIPC", False),
        ("hostNetwork", False),
        ("hostPID", False),
        ("readOnly", False),
        ("stdin", False),
        ("stdinOnce", False),
        ("tty", False),
    ],
)
def test_a_default_of_the_api_says_nothing_wherever_it_stands(field: str, default: object) -> None:
    assert changed(**{field: default}) == ""
    volume = {**MADE["volumes"][0], "hostPath": {**MADE["volumes"][0]["hostPath"], field: default}}
    assert changed(volumes=[volume]) == ""
    assert changed(**{field: "another value"}) != ""


@pytest.mark.parametrize("nothing", [None, {}, [], ""])
def test_what_is_empty_says_nothing(nothing: object) -> None:
    assert changed(securityContext=nothing) == ""
    assert in_container(env=nothing, lifecycle={"preStop": nothing}) == ""


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"hostPID": True}, "hostPID was added"),
        ({"hostNetwork": True}, "hostNetwork was added"),
        ({"restartPolicy": "Always"}, "restartPolicy was changed"),
        ({"activeDeadlineSeconds": None}, "activeDeadlineSeconds was removed"),
        ({"somethingOfALaterKubernetes": 0}, "somethingOfALaterKubernetes was added"),
        ({"affinity": None}, "nodeAffinity was removed"),
        ({"affinity": {"nodeAffinity": {}}}, "nodeAffinity was removed"),
        ({"affinity": {"podAffinity": {}}}, "nodeAffinity was removed"),
    ],
)
def test_whatever_else_differs_is_named(spec: dict[str, Any], why: str) -> None:
    assert changed(**spec) == why


def test_preferences_only_choose_among_the_nodes_of_the_volume() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": NODES}]}
    assert changed(affinity={"nodeAffinity": {**DEMANDED, **preferred}, "podAffinity": preferred}) == ""
    without = {key: value for key, value in MADE.items() if key != "affinity"}
    assert spec_difference(without, {**without, "affinity": {"nodeAffinity": preferred}}) == ""
    assert spec_difference(without, MADE) == "nodeAffinity was added"


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("volume", "volumes"),
        ("container", "containers"),
        ("init container", "initContainers"),
        ("ephemeral container", "ephemeralContainers"),
    ],
)
def test_what_is_added_to_a_list_removed_from_it_or_changed_in_it_is_named(kind: str, field: str) -> None:
    one, two = {"name": "a", "image": "x"}, {"name": "b", "image": "x"}
    made = {**MADE, field: [one]}
    assert spec_difference(made, {**MADE, field: [one]}) == ""
    assert spec_difference(made, {**MADE, field: [one, two]}) == f"{kind} 'b' was added"
    assert spec_difference({**MADE, field: [two, one]}, {**MADE, field: [one]}) == f"{kind} 'b' was removed"
    assert spec_difference(made, {**MADE, field: [one, one]}) == f"{kind}s of one name were added"
    assert spec_difference(made, {**MADE, field: [{**one, "image": "y"}]}) == f"image changed of {kind} 'a'"
    assert spec_difference(made, {**MADE, field: None}) == f"{kind} 'a' was removed"
    assert spec_difference({**MADE, field: None}, made) == f"{kind} 'a' was added"


@pytest.mark.parametrize("field", ["volumes", "containers", "initContainers", "ephemeralContainers"])
def test_in_which_order_they_stand_says_nothing(field: str) -> None:
    one, two = {"name": "a", "image": "x"}, {"name": "b", "image": "x"}
    assert spec_difference({**MADE, field: [one, two]}, {**MADE, field: [two, one]}) == ""


@pytest.mark.parametrize("field", ["containers", "initContainers", "ephemeralContainers"])
def test_containers_of_every_kind_are_filled_in_alike(field: str) -> None:
    made = {**MADE, field: [{"name": "a", "image": "x"}]}
    live = {**MADE, field: [{"name": "a", "image": "x", "imagePullPolicy": "IfNotPresent"}]}
    assert spec_difference(made, live) == ""


def test_of_what_is_nested_everything_counts() -> None:
    assert (
        in_container(securityContext={"runAsUser": 0, "privileged": True})
        == "securityContext changed of container 'scrub'"
    )
    assert in_container(command=["/bin/sh", "-c", "true"]) == "command changed of container 'scrub'"
    assert in_container(command=["/bin/true"]) == "command changed of container 'scrub'"
    assert in_container(volumeMounts=[]) == "volumeMounts removed of container 'scrub'"
    assert in_container(env=[{"name": "PATH", "value": "/evil"}]) == "env added of container 'scrub'"
    assert in_container(command=("/bin/sh", "-c", "rm")) == ""
