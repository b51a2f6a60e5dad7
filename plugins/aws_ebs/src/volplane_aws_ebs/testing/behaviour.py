"""How a FakeEC2 behaves: durations, limits, quotas, volume and instance types. A test can change all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from volplane_testing.cloud import Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeType:
    """What a volume type allows."""

    sizes: tuple[int, int]
    """GiB."""
    iops: tuple[int, int] | None = None
    """None = cannot be provisioned."""
    iops_per_gib: int = 0
    iops_required: bool = False
    default_iops: int | None = None
    baseline: tuple[int, int] | None = None
    baseline_per_gib: int = 0
    """IOPS of each GiB, within the range `baseline`."""
    throughput: tuple[int, int] | None = None
    """MiB/s; None = cannot be provisioned."""
    default_throughput: int | None = None
    iops_per_mib: int = 0
    """IOPS that each MiB/s of throughput needs."""
    multi_attach: bool = False
    modifiable: bool = True
    """ModifyVolume takes such volumes, and makes them."""


VOLUME_TYPES: Mapping[str, VolumeType] = {
    "gp2": VolumeType(sizes=(1, 16_384), baseline=(100, 16_000), baseline_per_gib=3),
    "gp3": VolumeType(
        sizes=(1, 65_536),
        iops=(3_000, 80_000),
        iops_per_gib=500,
        default_iops=3_000,
        throughput=(125, 2_000),
        default_throughput=125,
        iops_per_mib=4,
    ),
    "io1": VolumeType(sizes=(4, 16_384), iops=(100, 64_000), iops_per_gib=50, iops_required=True, multi_attach=True),
    "io2": VolumeType(
        sizes=(4, 65_536), iops=(100, 256_000), iops_per_gib=1_000, iops_required=True, multi_attach=True
    ),
    "st1": VolumeType(sizes=(125, 16_384)),
    "sc1": VolumeType(sizes=(125, 16_384)),
    "standard": VolumeType(sizes=(1, 1_024), modifiable=False),
}
"""The volume types of EC2 (Amazon EC2 API reference, CreateVolume)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """An instance type."""

    attachments: int
    """EbsInfo.MaximumEbsAttachments."""
    shared: bool
    """Network interfaces after the first count too."""
    told_shared: bool | None = None
    """What EbsInfo.AttachmentLimitType says, where that is wrong."""
    cards: int = 1
    """EBS cards; each takes its part of the attachments. One that names no card is made at the first."""
    hypervisor: str = "nitro"
    """Or xen; a metal type has none."""

    @property
    def limit_type(self) -> str:
        """Return AttachmentLimitType, as EC2 tells it."""
        return "shared" if (self.shared if self.told_shared is None else self.told_shared) else "dedicated"


INSTANCE_TYPES: Mapping[str, InstanceType] = {
    "t3.micro": InstanceType(attachments=27, shared=True),
    "m5.large": InstanceType(attachments=27, shared=True),
    "m7i.large": InstanceType(attachments=32, shared=False),
    "m7i.48xlarge": InstanceType(attachments=128, shared=False),
    "i7i.metal-48xl": InstanceType(attachments=79, shared=False, told_shared=True, hypervisor=""),
    "m4.large": InstanceType(attachments=39, shared=False, told_shared=True, hypervisor="xen"),
    "c8gn.48xlarge": InstanceType(attachments=128, shared=False, cards=2),
}

EC2_LIMITS: Mapping[str, Rate] = {
    "CreateVolume": Rate(burst=100, per_second=5),
    "CreateTags": Rate(burst=100, per_second=10),
    **{
        action: Rate(burst=50, per_second=5)
        for action in (
            "AttachVolume",
            "DetachVolume",
            "DeleteVolume",
            "ModifyVolume",
            "CopyVolumes",
            "CreateSnapshot",
            "CreateSnapshots",
            "DeleteSnapshot",
            "DeleteTags",
            "EnableFastSnapshotRestores",
            "LockSnapshot",
        )
    },
    **{
        action: Rate(burst=100, per_second=20)
        for action in (
            "DescribeVolumes",
            "DescribeVolumesModifications",
            "DescribeInstances",
            "DescribeInstanceTypes",
            "DescribeAvailabilityZones",
            "DescribeFastSnapshotRestores",
            "DescribeImages",
            "DescribeLockedSnapshots",
            "DescribeSnapshots",
            "DescribeVolumeStatus",
        )
    },
}
"""Default limits of an account, for `Behaviour(throttle=EC2_LIMITS)`.

Source: Amazon EC2 Developer Guide, "Request throttling for the Amazon EC2 API".
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the account behaves. Durations are seconds of the fake's clock."""

    region: str = "eu-test-1"
    zones: tuple[str, ...] = ("eu-test-1a", "eu-test-1b", "eu-test-1c")
    local_zones: tuple[str, ...] = ()
    """Zones of type local-zone, beside `zones`."""
    zone_states: Mapping[str, str] = field(default_factory=dict)
    """Of zones that are not `available` (Amazon EC2 API reference, AvailabilityZone): a constrained one makes no
    volumes, an unavailable one answers nothing about them."""
    iops_ceilings: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(zone, volume type) -> IOPS that the zone gives, where that is less than the type has elsewhere."""
    type_quotas_gib: Mapping[str, int] = field(default_factory=dict)
    """Volume type -> GiB of all volumes of it."""
    iops_quotas: Mapping[str, int] = field(default_factory=dict)
    """Volume type -> IOPS of all volumes of it (AWS General Reference, "Amazon EBS endpoints and quotas")."""
    initialize_seconds: float = 0.0
    """How long the contents of a volume from a snapshot are still read from there."""
    account: str = "123456789012"
    create_seconds: float = 1.5
    attach_seconds: float = 1.5
    detach_seconds: float = 1.5
    delete_seconds: float = 1.5
    modify_seconds: float = 1.5
    optimize_seconds: float = 30.0
    snapshot_seconds: float = 5.0
    vanish_seconds: float = 0.8
    flickers: bool = False
    """While a change is not visible everywhere, every second answer shows it: other servers of EC2 answer."""
    unasked_pages: bool = False
    """Describe calls without MaxResults return pages, too, as accounts with many resources see."""
    visible_after: float = 0.0
    """How long Describe calls do not show a new resource or tag (eventual consistency)."""
    token_seconds: float = 86_400.0
    """How long a client token is remembered."""
    volume_quota: int = 100_000
    """Of the account and region."""
    storage_quota_gib: int = 50_000_000
    """Of the account and region."""
    snapshot_quota: int = 100_000
    """Of the account and region."""
    pending_snapshots: int = 5
    """Of a volume at once; one of a volume of type st1 or sc1."""
    locked_code: str = "OperationNotPermitted"
    """Code by which DeleteSnapshot refuses a locked snapshot. No documentation has it."""
    fast_restore_quota: int = 5
    """Snapshots with fast restore (AWS General Reference, "Amazon EBS endpoints and quotas")."""
    optimize_restore_seconds: float = 60.0
    """How long a fast restore is `optimizing`."""
    modifications_per_day: int = 4
    """In any 24 hours."""
    snapshot_interval: float = 15.0
    """Seconds between two snapshots of a volume."""
    kms_keys: Mapping[str, bool] = field(default_factory=dict)
    """ARN -> whether the caller may use the key. A volume under another key is deleted `vanish_seconds` after
    CreateVolume succeeded, as on EC2."""
    encrypt_by_default: bool = False
    """Of the account."""
    throttle: Mapping[str, Rate] = field(default_factory=dict)
    """Calls per action, absent = any number."""
    allowed: frozenset[str] | None = None
    """Actions that the caller may use, None = all."""
    access_keys: frozenset[str] | None = None
    """Key ids that are known, None = any."""
    account_refused: str = ""
    """Code by which the account may do nothing: OptInRequired, PendingVerification or Blocked."""
    callers_clock: float = 0.0
    """How far the clock of the caller is off; EC2 takes requests of the last five minutes."""
    copies: bool = True
    """The region has CopyVolumes."""
    tag_seconds: float = 0.0
    """How long the tags of a resource take no other change."""
    roles: Mapping[str, str] | None = None
    """ARN of a role that may be assumed -> the external id that it asks for, "" = none. None = every role."""
    volume_types: Mapping[str, VolumeType] = field(default_factory=lambda: VOLUME_TYPES)
    instance_types: Mapping[str, InstanceType] = field(default_factory=lambda: INSTANCE_TYPES)
    max_results: int = 1_000
    """Items on a page at most."""

    @property
    def zone_ids(self) -> Mapping[str, str]:
        """Return the zone -> id of the zone."""
        return {name: f"tst1-az{number}" for number, name in enumerate((*self.zones, *self.local_zones), 1)}
