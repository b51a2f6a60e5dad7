"""Every StorageClass, VolumeAttributesClass and PersistentVolume of the official driver's documentation and e2e tests.

Their names and parameters are data (kubernetes-sigs/aws-ebs-csi-driver, August 2026). Each is provisioned, attached,
grown, changed, detached and deleted, unchanged but for the region; what is refused is refused with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from volplane import AccessMode, BackendError, Done, OwnsRequest, ValidateRequest, VolumeMode, VolumeSource
from volplane.drivers.parameters import check
from volplane_aws_ebs.parameters import PARAMETERS

GIB = 1 << 30
DRIVER = "ebs.csi.aws.com"
LARGE = ("st1", "sc1")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A class with what the example claims of it."""

    source: str
    parameters: dict[str, str] = field(default_factory=dict)
    attributes: tuple[dict[str, str], ...] = ()
    """Of VolumeAttributesClasses: that of the claim first, then others."""
    topology: dict[str, str] = field(default_factory=dict)
    """Of allowedTopologies."""
    gib: int = 4
    block_for_many: bool = False
    refused: str = ""


EXT4 = {"fstype": "ext4"}
GP3 = {"type": "gp3", "fsType": "ext4"}
TAGS = {
    "tagSpecification_1": "location=Seattle",
    "tagSpecification_2": "cost-center=",
    "tagSpecification_3": "PVC-Name={{ .PVCName }}",
    "tagSpecification_4": "PVC-Namespace={{ .PVCNamespace }}",
    "tagSpecification_5": "PV-Name={{ .PVName }}",
    "tagSpecification_6": 'key6={{ .PVCNamespace | contains "prod" }}',
}
EXAMPLES = [
    Example(
        source="examples/block-volume, dynamic-provisioning, ephemeral-volume, resizing, snapshot; docs/modify-volume"
    ),
    Example(source="examples/clone, tests/e2e-kubernetes", parameters={"encrypted": "true"}),
    Example(
        source="examples/storageclass",
        parameters={"csi.storage.k8s.io/fstype": "xfs", "type": "io1", "iopsPerGB": "50", "encrypted": "true"},
        topology={"topology.kubernetes.io/zone": "eu-test-1c"},
    ),
    Example(source="examples/windows", parameters={"fstype": "ntfs"}),
    Example(
        source="examples/modify-volume",
        attributes=({}, {"type": "io2", "iops": "3000", **{key: TAGS[key] for key in list(TAGS)[:2]}}),
        gib=10,
    ),
    Example(source="docs/tagging, volume attributes", attributes=({}, TAGS, {"tagDeletion_1": "location"})),
    Example(source="docs/tagging, at creation", attributes=(TAGS,)),
    Example(source="tests/e2e-kubernetes/volumeattributesclass", attributes=({}, {"type": "gp2"})),
    Example(source="docs/multi-attach", parameters={"type": "io2", "iops": "1000"}, block_for_many=True),
    Example(
        source="docs/outposts",
        parameters={"type": "gp2"},
        topology={"topology.ebs.csi.aws.com/outpost-id": "arn:aws:outposts:x:x:outpost/op-x"},
        refused=r"has no topology\.kubernetes\.io/zone",  # Outposts are absent.
    ),
    Example(source="docs/parameters", topology={"topology.kubernetes.io/zone": "eu-test-1a"}),
    Example(
        source="docs/tagging",
        parameters={
            "tagSpecification_1": "key1=value1",
            "tagSpecification_2": "key2=hello world",
            "tagSpecification_3": "key3=",
        },
    ),
    Example(
        source="docs/tagging, interpolated",
        parameters={
            "tagSpecification_1": "pvcnamespace={{ .PVCNamespace }}",
            "tagSpecification_2": "pvcname={{ .PVCName }}",
            "tagSpecification_3": "pvname={{ .PVName }}",
        },
    ),
    Example(
        source="docs/tagging, functions",
        parameters={
            "tagSpecification_1": 'backup={{ .PVCNamespace | contains "prod" }}',
            "tagSpecification_2": 'billingID={{ .PVCNamespace | field "-" 2 | toUpper }}',
        },
        refused="tagSpecification_2",  # As there: the namespace `default` has no third field.
    ),
    *(
        Example(
            source=f"tests/e2e/dynamic_provisioning, {kind} {fs}",
            parameters={"type": kind, "fstype": fs, **more},
            gib=500 if kind in LARGE else 10,
        )
        for kind, more in {
            "gp2": {},
            "gp3": {},
            "io1": {"iops": "100"},
            "io2": {"iops": "100", "encrypted": "true"},
            "st1": {},
            "sc1": {},
            "standard": {},
        }.items()
        for fs in ("ext4", "xfs")
    ),
    *(
        Example(source=f"tests/e2e/format_options, {next(iter(options))}", parameters={**EXT4, **options})
        for options in (
            {"blocksize": "1024"},
            {"inodesize": "512"},
            {"bytesperinode": "8192"},
            {"numberofinodes": "200192"},
            {"ext4bigalloc": "true"},
            {"ext4bigalloc": "true", "ext4clustersize": "16384"},
            {"ext4encryptionsupport": "true"},
        )
    ),
    *(
        Example(
            source=f"tests/e2e/modify_volume, {', '.join(attributes)}",
            parameters=GP3,
            attributes=({}, attributes),
            gib=10,
        )
        for attributes in (
            {"iops": "4000"},
            {"type": "io2", "iops": "100"},
            {"throughput": "150"},
            {"tagSpecification": "key1=test1"},
            {"iops": "4000", "throughput": "150"},
            {"iops": "4000", "throughput": "150", "tagSpecification": "key2=test2"},
        )
    ),
]


def typed(parameters: dict[str, str]) -> dict[str, Any]:
    values, flaws = check(PARAMETERS, parameters, "parameter")
    assert flaws == (), flaws
    return values


def claim(example: Example, attributes: dict[str, str]) -> dict[str, Any]:
    many = {"access_modes": (AccessMode.READ_WRITE_MANY,), "volume_mode": VolumeMode.BLOCK}
    return {
        "parameters": typed(example.parameters),
        "mutable_parameters": attributes,
        **({"segment": example.topology} if example.topology else {}),
        **(many if example.block_for_many else {}),
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.source)
def test_every_class_of_the_official_driver_works_unchanged_or_is_refused_with_the_reason(
    region: Any, example: Example
) -> None:
    first, *later = example.attributes or ({},)
    wanted = claim(example, first)
    region.backend.validate(ValidateRequest(context=region.context(), parameters=wanted["parameters"]))
    if example.refused:
        with pytest.raises(BackendError, match=example.refused):
            region.provision(size=example.gib * GIB, **wanted)
        assert region.fake.volumes == {}
        return
    asset = region.provision(size=example.gib * GIB, **wanted)
    zone = next(iter(region.fake.volumes.values())).zone
    assert zone == example.topology.get("topology.kubernetes.io/zone", zone)
    node = region.node(region.fake.add_instance(zone))
    assert region.attach(asset, node).metadata["devicePath"]
    modifiable = example.parameters.get("type") != "standard"
    if modifiable:
        assert region.expand(asset, (example.gib + 1) * GIB).capacity_bytes == (example.gib + 1) * GIB
        region.clock.advance(60.0)
    for attributes in later:
        assert region.modify(asset, **attributes) == Done()
        region.clock.advance(60.0)
        volume = region.fake.volumes[asset.handle]
        shown = {"type": volume.volume_type, "iops": str(volume.iops), "throughput": str(volume.throughput)}
        assert all(shown[key] == value for key, value in attributes.items() if key in shown)
    assert region.detach(asset, node) == region.delete(asset) == Done()
    assert region.fake.volumes == {}


@pytest.mark.parametrize(
    ("source", "handle", "ours"),
    [
        ("examples/static-provisioning", "vol-03c604538dd7d2f41", True),
        ("docs/node-local-volumes", "local-ebs://dev/xvdbz", False),
    ],
)
def test_volumes_that_people_write_are_ours_if_they_name_a_volume(
    region: Any, source: str, handle: str, ours: bool
) -> None:
    fields = {"driver": DRIVER, "volumeHandle": handle, "fsType": "ext4"}
    request = OwnsRequest(context=region.context(), source=VolumeSource(kind="csi", fields=fields))
    assert region.backend.owns(request) is ours, source
    if ours:
        made = region.connect.client().create_volume(AvailabilityZone="eu-test-1a", Size=5)["VolumeId"]
        region.clock.advance(5.0)
        node, static = region.node(region.fake.add_instance()), region.identity(made, owner=None)
        attachment = region.attachment(made, node)
        request = type(attachment)(context=attachment.context, volume=static, node=node)
        assert region.finish(region.backend.attach, request)
        assert region.expand(made, 8 * GIB, owner=None).capacity_bytes == 8 * GIB


SNAPSHOT_CLASSES = [
    ("examples/snapshot, tests/e2e", {}, None),
    (
        "docs/tagging",
        {
            "tagSpecification_1": "key1=value1",
            "tagSpecification_2": "key2=",
            "tagSpecification_3": "snapshotnamespace={{ .VolumeSnapshotNamespace }}",
            "tagSpecification_4": "snapshotname={{ .VolumeSnapshotName }}",
            "tagSpecification_5": "snapshotcontentname={{ .VolumeSnapshotContentName }}",
        },
        None,
    ),
    ("docs/fast-snapshot-restores", {"fastSnapshotRestoreAvailabilityZones": "eu-test-1a, eu-test-1b"}, None),
    ("docs/snapshot-lock", {"lockMode": "governance", "lockDuration": "1"}, "governance"),
    (
        "docs/snapshot-lock, compliance",
        {"lockMode": "compliance", "lockDuration": "7", "lockCoolOffPeriod": "24"},
        "compliance",
    ),
]


@pytest.mark.parametrize(
    ("parameters", "lock"), [each[1:] for each in SNAPSHOT_CLASSES], ids=[each[0] for each in SNAPSHOT_CLASSES]
)
def test_every_snapshot_class_of_the_official_driver_works_unchanged(region: Any, parameters: Any, lock: Any) -> None:
    made = region.snapshot(region.provision(), parameters=parameters)
    assert region.ready(made.handle, parameters=parameters).ready
    record = region.fake.snapshots[made.handle]
    assert (record.lock.mode if record.lock else None) == lock
    assert region.provision("u2", source_snapshot=made.handle)
    record.lock = None
    assert region.delete_snapshot(made.handle) == Done()
