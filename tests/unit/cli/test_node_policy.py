"""What the admission policy for the account of the nodes decides: a table, evaluated where cel-python is installed."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import pytest

from api_fields import unknown_fields_of_object
from volplane.cli.installation import node_policy
from volplane.kube import names

POLICY, BINDING = node_policy("ours-nodes", '["local.example.com"]', "volplane-node.ours")
EXTRA = {"authentication.kubernetes.io/node-name": ["a"], "authentication.kubernetes.io/node-uid": ["uid-a"]}
ACCOUNT = "system:serviceaccount:ours-nodes:volplane-node"


LOCAL: Mapping[str, Any] = {"local": {"path": "/srv/v"}}
SECRET = {"name": "volplane-seal", "namespace": "ours"}
DISK: Mapping[str, Any] = {
    "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "nodePublishSecretRef": SECRET}
}


def volume(
    *nodes: str,
    key: str = "kubernetes.io/hostname",
    operator: str = "In",
    made_by: str = "local.example.com",
    source: Mapping[str, Any] = LOCAL,
) -> dict[str, Any]:
    """One whose affinity has a term for each of these nodes."""
    terms = [{"matchExpressions": [{"key": key, "operator": operator, "values": [node]}]} for node in nodes]
    annotations = {names.PROVISIONED_BY: made_by} if made_by else {}
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}, **source}
    return {"metadata": {"name": "v", "annotations": annotations}, "spec": spec}


def twice_bound() -> dict[str, Any]:
    """One that two expressions of a term put on another node."""
    made = volume("a")
    [term] = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    term["matchExpressions"] += [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]
    return made


def claim(selected: str | None = None, uid: str | None = None, size: str = "1Gi") -> dict[str, Any]:
    given = {names.SELECTED_NODE: selected, names.NODE_UID: uid}
    annotations = {key: value for key, value in given.items() if value is not None}
    return {
        "metadata": {"name": "c", **({"annotations": annotations} if annotations else {})},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


def room(node: str, owner: str) -> dict[str, Any]:
    owners = [{"kind": "Node", "name": owner}]
    return {
        "metadata": {"name": "r", "ownerReferences": owners},
        "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}},
    }


FREE = {"metadata": {"name": "v"}, "spec": {}}
VOLUMES, CLAIMS, ROOM = "persistentvolumes", "persistentvolumeclaims", "csistoragecapacities"
TABLE: Mapping[str, tuple[str, Any, Any, bool]] = {
    "makes a volume of its node": (VOLUMES, None, volume("a"), True),
    "changes a volume of its node": (VOLUMES, volume("a"), volume("a"), True),
    "deletes a volume of its node": (VOLUMES, volume("a"), None, True),
    "makes a volume of another node": (VOLUMES, None, volume("b"), False),
    "changes a volume of another node": (VOLUMES, volume("b"), volume("b"), False),
    "deletes a volume of another node": (VOLUMES, volume("b"), None, False),
    "makes a volume of its node by another label": (VOLUMES, None, volume("a", key="example.com/rack"), False),
    "makes a volume with a second expression": (VOLUMES, None, twice_bound(), False),
    "makes a volume that names a Secret": (VOLUMES, None, volume("a", source=DISK), False),
    "makes a volume of a central driver": (VOLUMES, None, volume("a", made_by="ebs.example.com"), False),
    "makes a volume of nobody": (VOLUMES, None, volume("a", made_by=""), False),
    "changes a static volume": (VOLUMES, volume("a", made_by=""), volume("a", made_by=""), True),
    "gives a volume another driver": (VOLUMES, volume("a", made_by=""), volume("a"), False),
    "takes a volume of a central driver": (VOLUMES, volume("a", made_by="ebs.example.com"), volume("a"), False),
    "makes a volume of two nodes": (VOLUMES, None, volume("a", "b"), False),
    "makes a volume of every node but its own": (VOLUMES, None, volume("a", operator="NotIn"), False),
    "makes a volume that is everywhere": (VOLUMES, None, FREE, False),
    "changes a volume that is everywhere": (VOLUMES, FREE, FREE, False),
    "takes a volume to its node": (VOLUMES, volume("b"), volume("a"), False),
    "records on a claim of its node": (CLAIMS, claim("a"), claim("a"), True),
    "gives a claim back": (CLAIMS, claim("a", "uid-a"), claim(), True),
    "records on a claim whose volume is on its node": (CLAIMS, claim(uid="uid-a"), claim(uid="uid-a"), True),
    "records on a claim of another node": (CLAIMS, claim("b"), claim("b"), False),
    "records on a claim of another node with its own mark": (CLAIMS, claim("b", "uid-a"), claim("b", "uid-a"), False),
    "takes a claim of another node": (CLAIMS, claim("b"), claim("a"), False),
    "takes a claim of no node": (CLAIMS, claim(), claim("a"), False),
    "records on a claim of a driver that is on no node": (CLAIMS, claim(), claim(), False),
    "gives a claim to another node": (CLAIMS, claim("a"), claim("b"), False),
    "lets a claim ask for more": (CLAIMS, claim("a"), claim("a", size="2Gi"), False),
    "makes a claim": (CLAIMS, None, claim("a"), False),
    "publishes room of its node": (ROOM, None, room("a", "a"), True),
    "corrects room of its node": (ROOM, room("a", "a"), room("a", "a"), True),
    "publishes room of another node": (ROOM, None, room("b", "a"), False),
    "removes room of another node": (ROOM, room("b", "b"), None, False),
    "takes the room of another node": (ROOM, room("b", "b"), room("b", "a"), False),
}
"""What it does: resource, object before and after, and whether it may."""


def evaluated(expression: str, values: Mapping[str, Any]) -> Any:
    """Evaluate CEL. What cannot be evaluated is an error, by which the server refuses (`failurePolicy: Fail`)."""
    celpy = pytest.importorskip("celpy", reason="cel-python is not installed")
    evaluation = importlib.import_module("celpy.evaluation")
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    try:
        return program.evaluate({name: celpy.json_to_cel(value) for name, value in values.items()})
    except evaluation.CELEvalError:
        return None


def admits(resource: str, before: Any, after: Any, extra: Any = EXTRA, user: str = ACCOUNT) -> bool:
    """Whether the policy lets this request through."""
    request = {"resource": {"resource": resource}, "userInfo": {"username": user, "extra": extra}}
    values: dict[str, Any] = {"request": request, "object": after, "oldObject": before}
    if not all(evaluated(each["expression"], values) for each in POLICY["spec"]["matchConditions"]):
        return True
    found = {}
    for variable in POLICY["spec"]["variables"]:
        found[variable["name"]] = evaluated(variable["expression"], values)
        values["variables"] = copy.deepcopy(found)
    return all(evaluated(each["expression"], values) for each in POLICY["spec"]["validations"])


@pytest.mark.parametrize(("resource", "before", "after", "may"), TABLE.values(), ids=TABLE)
def test_a_process_of_a_node_writes_what_concerns_that_node(resource: str, before: Any, after: Any, may: bool) -> None:
    assert admits(resource, before, after) == may


def test_nobody_else_is_restricted() -> None:
    foreign = volume("b")
    assert admits(VOLUMES, foreign, foreign, user="system:serviceaccount:ours:volplane")


def test_a_token_that_names_no_node_is_refused() -> None:
    assert not admits(VOLUMES, volume("a"), volume("a"), extra={})


def test_it_refuses_what_it_says_and_whatever_it_cannot_evaluate() -> None:
    for each in (POLICY, BINDING):
        assert unknown_fields_of_object(each) == []
    assert POLICY["spec"]["failurePolicy"] == "Fail"
    assert BINDING["spec"] == {"policyName": POLICY["metadata"]["name"], "validationActions": ["Deny"]}
    resources = [name for rule in POLICY["spec"]["matchConstraints"]["resourceRules"] for name in rule["resources"]]
    assert resources == [VOLUMES, CLAIMS, f"{CLAIMS}/status", ROOM]
    text = str(POLICY)
    assert names.SELECTED_NODE in text
    assert names.NODE_UID in text
