"""The IAM policy in the documentation is what the code needs, and no more."""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import volplane_aws_ebs
from volplane import (
    AccessMode,
    AdoptRequest,
    AttachRequest,
    BackendError,
    GroupSnapshotRequest,
    SnapshotIdentity,
    VolumeMode,
    VolumeSource,
)
from volplane_aws_ebs.api import Action
from volplane_aws_ebs.iam_policy import PARTITIONS, PLACEHOLDER, iam_policy

GIB = 1 << 30
PACKAGE = Path(volplane_aws_ebs.__file__).parent
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "aws-ebs-iam.json"


OURS = iam_policy("cluster-1")


ON_WHAT_IS_NOT_OURS = ("AttachToInstances", "MakeSnapshotsOfInstances", "MakeVolumesFromSnapshots")


def allowed() -> set[str]:
    return {action for statement in OURS["Statement"] for action in statement["Action"]}


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
    assert json.loads(DOCUMENT.read_text("utf-8")) == iam_policy(PLACEHOLDER), (
        "python -m volplane_aws_ebs.iam_policy CLUSTER_ID > docs/reference/aws-ebs-iam.json"
    )


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_partition_has_names_of_its_own(partition: str) -> None:
    policy = iam_policy("c", partition)
    names = {name for statement in policy["Statement"] for name in statement["Resource"]} - {"*"}
    assert names
    assert all(name.startswith(f"arn:{partition}:ec2:") for name in names)


def test_every_condition_on_a_mark_names_this_cluster_and_no_pattern() -> None:
    found = []
    for statement in OURS["Statement"]:
        for operator, condition in statement.get("Condition", {}).items():
            for key, value in condition.items():
                if key.endswith("/volplane.dev/cluster"):
                    assert (operator, value) in {("StringEquals", "cluster-1"), ("StringEqualsIfExists", "cluster-1")}
                    found.append(statement["Sid"])
    assert len(found) == 9


def test_only_marks_of_a_former_cluster_that_is_named_may_be_replaced() -> None:
    def of(policy: Any) -> Any:
        return next(each for each in policy["Statement"] if each["Sid"] == "ChangeMarks")["Condition"]

    changing = of(iam_policy("new", former=["old"]))
    assert changing["StringEquals"] == {"aws:ResourceTag/volplane.dev/cluster": ["new", "old"]}
    assert changing["StringEqualsIfExists"] == {"aws:RequestTag/volplane.dev/cluster": "new"}
    deleting = next(s for s in iam_policy("new", former=["old"])["Statement"] if s["Sid"] == "ChangeMarkedVolumes")
    assert deleting["Condition"] == {"StringEquals": {"aws:ResourceTag/volplane.dev/cluster": "new"}}


def test_the_command_prints_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "volplane_aws_ebs.iam_policy", "c-1", "--partition", "aws-cn"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)
    assert json.loads(printed.stdout) == iam_policy("c-1", "aws-cn")


def test_every_call_of_the_code_is_allowed_and_nothing_else() -> None:
    needed = {f"sts:{call}" if call is Action.DECODE_AUTHORIZATION_MESSAGE else f"ec2:{call}" for call in used()}
    needed.discard(f"ec2:{Action.ASSUME_ROLE}")
    assert allowed() == needed
    assert used() == set(Action)


def test_everything_that_changes_something_is_bound_to_marks() -> None:
    for statement in OURS["Statement"]:
        mutating = [action for action in statement["Action"] if Action(action.partition(":")[2]).mutates]
        if not mutating or statement["Sid"] in ON_WHAT_IS_NOT_OURS:
            continue
        assert "volplane.dev/" in json.dumps(statement["Condition"]) or "ec2:CreateAction" in json.dumps(statement)
        assert all(resource.startswith("arn:aws:ec2:") for resource in statement["Resource"])


class Judge:
    """Says of each call to the mock whether the policy allows it: actions, resources, tags."""

    def __init__(self, region: Any, policy: Any = OURS) -> None:
        self.region, self.policy = region, policy
        self.denied: list[str] = []
        self._request = region.fake.request
        region.fake.request = self.request

    def request(self, action: str, given: Any, **options: Any) -> Any:
        tags = {t["Key"]: t["Value"] for s in given.get("TagSpecifications", ()) for t in s["Tags"]}
        later = {tag["Key"]: tag.get("Value", "") for tag in given.get("Tags", ())}
        for resource in self.resources(action, given):
            if not any(self.allows(statement, action, resource, tags, later) for statement in self.policy["Statement"]):
                self.denied.append(f"{action} on {resource}")
        return self._request(action, given, **options)

    def resources(self, action: str, given: Any) -> list[str]:
        if action.startswith("Describe"):
            return ["*"]
        kinds = {"Volume": "volume/*", "Volumes": "volume/*", "Snapshot": "snapshot/*", "Snapshots": "snapshot/*"}
        made = kinds.get(action.removeprefix("Create").removeprefix("Copy"))
        whole = given.get("InstanceSpecification", {})
        there = self.region.fake.volumes.values()
        of_instance = [each.id for each in there if whole.get("InstanceId") in each.attachments and not each.root]
        ids = [
            whole.get("InstanceId"),
            *(each for each in of_instance if each not in whole.get("ExcludeDataVolumeIds", ())),
            given.get("VolumeId"),
            given.get("SourceVolumeId"),
            given.get("SnapshotId"),
            given.get("InstanceId"),
            *given.get("Resources", ()),
        ]
        kinds = {"vol": "volume", "snap": "snapshot", "i": "instance"}
        named = [f"{kinds[id_.partition('-')[0]]}/{id_}" for id_ in ids if id_]
        return [f"arn:aws:ec2:r:1:{each}" for each in ([made] if made else []) + named]

    def allows(self, statement: Any, action: str, resource: str, tags: Any, later: dict[str, str]) -> bool:
        if f"ec2:{action}" not in statement["Action"]:
            return False
        if not any(fnmatch.fnmatch(resource, pattern) for pattern in statement["Resource"]):
            return False
        there, requested = self.tags_of(resource.rpartition("/")[2]), {**tags, **later}
        return all(
            self.meets(f"{operator} {key}", [value] if isinstance(value, str) else value, there, requested, later)
            for operator, condition in statement.get("Condition", {}).items()
            for key, value in condition.items()
        )

    def meets(self, condition: str, wanted: list[str], there: Any, requested: Any, later: Any) -> bool:
        operator, _, key = condition.partition(" ")
        kind, _, name = key.partition("/")
        if kind == "aws:ResourceTag":
            return (name in there) == (wanted == ["false"]) if operator == "Null" else there.get(name) in wanted
        if kind == "aws:RequestTag":
            return (name not in requested and operator.endswith("IfExists")) or requested.get(name) in wanted
        return key == "aws:TagKeys" and self.keys_fit(operator, wanted, set(later))

    def keys_fit(self, operator: str, wanted: list[str], keys: set[str]) -> bool:
        if operator == "Null":
            return bool(keys) == (wanted == ["false"])
        if operator == "ForAllValues:StringNotLike":
            return not any(fnmatch.fnmatchcase(key, pattern) for key in keys for pattern in wanted)
        return keys <= set(wanted)

    def tags_of(self, id_: str) -> Any:
        for table in (self.region.fake.volumes, self.region.fake.snapshots):
            if id_ in table:
                return table[id_].tags
        return {}


def test_a_whole_life_needs_no_more_than_the_policy(region: Any) -> None:
    judge = Judge(region)
    node = region.node(region.fake.add_instance())
    asset = region.provision(size=20 * GIB, context=region.context(fence="1/a/lease"))
    region.attach(asset, node, fence="2/b/lease")
    snapshot = region.snapshot(asset)
    region.clock.advance(60.0)
    group = GroupSnapshotRequest(
        context=region.context(),
        name="groupsnapshot-g",
        volumes=(region.identity(asset),),
        owner=region.snapshot_owner("g"),
        group=SnapshotIdentity(namespace="team-a", name="together", content="groupsnapcontent-g"),
        parameters=region.typed_snapshot({}),
    )
    region.finish(region.backend.create_group_snapshot, group)
    region.expand(asset, 30 * GIB)
    region.clock.advance(60.0)
    region.modify(asset, tagSpecification_1="team=storage", iopsPerGB="110")
    region.modify(asset, tagDeletion_1="team")
    region.detach(asset, node, fence="2/b/lease")
    shared = {"access_modes": (AccessMode.READ_WRITE_MANY,), "volume_mode": VolumeMode.BLOCK}
    region.ready(snapshot.handle)
    clone = region.provision("u4", 30 * GIB, source_volume=asset.handle)
    copy = region.provision(
        "u2", 20 * GIB, source_snapshot=snapshot.handle, parameters={"type": "io2", "iops": 500}, **shared
    )
    waiting = {"volumeAttributes": {"blockattachuntilinitialized": "true"}, "volumeHandle": copy.handle}
    identity = region.identity(copy, "u2", source=VolumeSource(kind="csi", fields=waiting))
    there = AttachRequest(context=region.context(), volume=identity, node=node)
    region.finish(region.backend.attach, there)
    region.detach(copy, node, "u2")
    adopted = AdoptRequest(context=region.context(), volume=region.identity(copy, "u3"), former=region.owner("u2"))
    region.backend.adopt(adopted)
    region.listed()
    region.probe()
    region.delete(copy, "u3")
    region.delete(clone, "u4")
    region.delete(asset)
    classed = {"lockMode": "governance", "lockDuration": "1", "fastSnapshotRestoreAvailabilityZones": "eu-test-1a"}
    region.ready(snapshot.handle, parameters=classed)
    region.fake.snapshots[snapshot.handle].lock = None
    region.listed_snapshots()
    region.fake.add_image(snapshot.handle)
    for code in ("", "OperationNotPermitted"):
        if code:
            region.refuse("DeleteSnapshot", code)
        with pytest.raises(BackendError):
            region.delete_snapshot(snapshot.handle)
    region.fake.snapshots[snapshot.handle].images = ()
    region.delete_snapshot(snapshot.handle)
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


@pytest.mark.parametrize("tags", [[], [{"Key": "volplane.dev/cluster"}], [{"Key": "a"}, {"Key": "CSIVolumeName"}]])
def test_the_policy_lets_no_tag_go_that_says_whose_a_volume_is(region: Any, tags: Any) -> None:
    asset = region.provision()
    judge = Judge(region)
    region.connect.client().delete_tags(Resources=[asset.handle], Tags=tags)
    assert judge.denied == [f"DeleteTags on arn:aws:ec2:r:1:volume/{asset.handle}"]


OFFICIAL = {"CSIVolumeName": "pvc-u1", "ebs.csi.aws.com/cluster": "true"}


@pytest.mark.parametrize(("former", "marked"), [(["ebs.csi.aws.com"], False), ([], False), (["ebs.csi.aws.com"], True)])
def test_volumes_of_the_official_driver_are_taken_over_only_by_a_policy_that_names_it_and_unmarked(
    region: Any, former: Any, marked: bool
) -> None:
    handle = region.provision().handle
    tags = region.fake.volumes[handle].tags
    mine = {key: text for key, text in tags.items() if key.startswith("volplane.dev/")}
    for key in mine:
        del tags[key]
    tags |= {**OFFICIAL, **({**mine, "volplane.dev/cluster": "cluster-2"} if marked else {})}
    judge = Judge(region, iam_policy("cluster-1", former=former))
    official = replace(region.owner(), cluster_id="ebs.csi.aws.com")
    mine_again = AdoptRequest(
        context=region.context(fence="1/me/lease"), volume=region.identity(handle), former=official
    )
    if marked:
        mark = [{"Key": "volplane.dev/cluster", "Value": "cluster-1"}]
        region.connect.client().create_tags(Resources=[handle], Tags=mark)
    else:
        region.backend.adopt(mine_again)
    assert judge.denied == ([f"CreateTags on arn:aws:ec2:r:1:volume/{handle}"] if marked or not former else [])
    if former and not marked:
        back = region.identity(handle, owner=official)
        region.backend.adopt(AdoptRequest(context=region.context(), volume=back, former=region.owner()))
        region.backend.adopt(mine_again)
        assert judge.denied == []
        tags = region.fake.volumes[handle].tags
        assert tags["volplane.dev/cluster"] == "cluster-1"
        assert tags.items() >= OFFICIAL.items()


def test_the_policy_does_not_reach_the_volumes_of_another_cluster(region: Any) -> None:
    """Both run in one account; each role has the policy of its cluster."""
    asset = region.provision(size=20 * GIB)
    region.fake.volumes[asset.handle].tags["volplane.dev/cluster"] = "cluster-2"
    judge = Judge(region)
    client = region.connect.client()
    client.delete_volume(VolumeId=asset.handle)
    mark = {"Key": "volplane.dev/cluster", "Value": "cluster-1"}
    with contextlib.suppress(Exception):
        client.create_tags(Resources=[asset.handle], Tags=[mark])
    assert judge.denied == [
        f"DeleteVolume on arn:aws:ec2:r:1:volume/{asset.handle}",
        f"CreateTags on arn:aws:ec2:r:1:volume/{asset.handle}",
    ]


@pytest.mark.parametrize("former", [["ebs.csi.aws.com"], []])
def test_snapshots_of_the_official_driver_are_changed_only_by_a_policy_that_names_it(region: Any, former: Any) -> None:
    asset = region.provision()
    handle = region.snapshot(asset).handle
    region.fake.snapshots[handle].tags = {
        "CSIVolumeSnapshotName": "snapshot-uid-snap-a",
        "ebs.csi.aws.com/cluster": "true",
    }
    judge = Judge(region, iam_policy("cluster-1", former=former))
    region.delete_snapshot(handle, driver="ebs.csi.aws.com")
    assert judge.denied == ([] if former else [f"DeleteSnapshot on arn:aws:ec2:r:1:snapshot/{handle}"])
