"""The IAM policy in the documentation is what the code needs, and no more."""

from __future__ import annotations

import ast
import fnmatch
import json
from pathlib import Path
from typing import Any

import pytest

import volplane_aws_ebs
from volplane import AccessMode, AdoptRequest, DeleteSnapshotRequest, VolumeMode
from volplane_aws_ebs.api import Action
from volplane_aws_ebs.iam_policy import iam_policy

GIB = 1 << 30
PACKAGE = Path(volplane_aws_ebs.__file__).parent
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "aws-ebs-iam.json"


def allowed() -> set[str]:
    return {action for statement in iam_policy()["Statement"] for action in statement["Action"]}


def used() -> set[Action]:
    """Every call that some module of the driver names, where it is made."""
    found = set()
    for path in PACKAGE.glob("*.py"):
        if path.name in ("calls.py", "policy.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Action":
                found.add(Action[node.attr])
    return found


def test_the_document_is_what_the_code_says() -> None:
    if not DOCUMENT.parent.is_dir():
        pytest.skip("not in the repository")
    assert json.loads(DOCUMENT.read_text("utf-8")) == iam_policy(), (
        "python -m volplane_aws_ebs.iam_policy > docs/reference/aws-ebs-iam.json"
    )


def test_every_call_of_the_code_is_allowed_and_nothing_else() -> None:
    needed = {f"sts:{call}" if call is Action.DECODE_AUTHORIZATION_MESSAGE else f"ec2:{call}" for call in used()}
    needed.discard(f"ec2:{Action.ASSUME_ROLE}")
    assert allowed() == needed
    assert used() == set(Action)


def test_everything_that_changes_something_is_bound_to_marks() -> None:
    for statement in iam_policy()["Statement"]:
        mutating = [action for action in statement["Action"] if Action(action.partition(":")[2]).mutates]
        if not mutating or statement["Sid"] in ("AttachToInstances", "MakeVolumesFromSnapshots"):
            continue
        assert "volplane.dev/" in json.dumps(statement["Condition"]) or "ec2:CreateAction" in json.dumps(statement)
        assert all(resource.startswith("arn:aws:ec2:") for resource in statement["Resource"])


class Judge:
    """Says of each call to the mock whether the policy allows it: actions, resources, tags."""

    def __init__(self, region: Any) -> None:
        self.region = region
        self.denied: list[str] = []
        self._request = region.fake.request
        region.fake.request = self.request

    def request(self, action: str, given: Any, **options: Any) -> Any:
        tags = {t["Key"]: t["Value"] for s in given.get("TagSpecifications", ()) for t in s["Tags"]}
        later = [tag["Key"] for tag in given.get("Tags", ())]
        for resource in self.resources(action, given):
            if not any(
                self.allows(statement, action, resource, tags, later) for statement in iam_policy()["Statement"]
            ):
                self.denied.append(f"{action} on {resource}")
        return self._request(action, given, **options)

    def resources(self, action: str, given: Any) -> list[str]:
        if action.startswith("Describe"):
            return ["*"]
        made = {"CreateVolume": "volume/*", "CreateSnapshot": "snapshot/*"}.get(action)
        ids = [given.get("VolumeId"), given.get("SnapshotId"), given.get("InstanceId"), *given.get("Resources", ())]
        kinds = {"vol": "volume", "snap": "snapshot", "i": "instance"}
        named = [f"{kinds[id_.partition('-')[0]]}/{id_}" for id_ in ids if id_]
        return [f"arn:aws:ec2:r:1:{each}" for each in ([made] if made else []) + named]

    def allows(self, statement: Any, action: str, resource: str, tags: Any, later: list[str]) -> bool:
        if f"ec2:{action}" not in statement["Action"]:
            return False
        if not any(fnmatch.fnmatch(resource, pattern) for pattern in statement["Resource"]):
            return False
        there = self.tags_of(resource.rpartition("/")[2])
        for condition in statement.get("Condition", {}).values():
            for key, value in condition.items():
                if key.startswith("aws:RequestTag/") and key.partition("/")[2] not in tags:
                    return False
                if key.startswith("aws:ResourceTag/") and key.partition("/")[2] not in there:
                    return False
                if key == "aws:TagKeys" and not set(later) <= set(value):
                    return False
                if key == "ec2:CreateAction":
                    return False
        return True

    def tags_of(self, id_: str) -> Any:
        for table in (self.region.fake.volumes, self.region.fake.snapshots):
            if id_ in table:
                return table[id_].tags
        return {}


def test_a_whole_life_needs_no_more_than_the_policy(region: Any) -> None:
    judge = Judge(region)
    node = region.node(region.fake.add_instance())
    asset = region.provision(size=20 * GIB, context=region.context(fence="1/a"))
    region.attach(asset, node, fence="2/b")
    snapshot = region.snapshot(asset)
    region.expand(asset, 30 * GIB)
    region.detach(asset, node, fence="2/b")
    shared = {"access_modes": (AccessMode.READ_WRITE_MANY,), "volume_mode": VolumeMode.BLOCK}
    copy = region.provision(
        "u2", 20 * GIB, source_snapshot=snapshot.handle, parameters={"type": "io2", "iops": 500}, **shared
    )
    adopted = AdoptRequest(context=region.context(), volume=region.identity(copy, "u3"), former=region.owner("u2"))
    region.backend.adopt(adopted)
    region.listed()
    region.probe()
    region.delete(copy, "u3")
    region.delete(asset)
    request = DeleteSnapshotRequest(context=region.context(), handle=snapshot.handle)
    region.finish(region.backend.delete_snapshot, request)
    assert judge.denied == []
    made = {f"ec2:{action}" for action in region.fake.calls if not action.startswith("sts:")}
    assert made == {action for action in allowed() if action.startswith("ec2:")}


def test_the_policy_does_not_reach_the_volumes_of_others(region: Any) -> None:
    judge = Judge(region)
    plain = region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=1)["VolumeId"]
    assert judge.denied == ["CreateVolume on arn:aws:ec2:r:1:volume/*"]
    region.clock.advance(5.0)
    region.delete(plain, owner=None)
    assert f"DeleteVolume on arn:aws:ec2:r:1:volume/{plain}" in judge.denied
