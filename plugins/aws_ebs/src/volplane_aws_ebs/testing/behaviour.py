"""How a FakeEC2 behaves: speeds, limits, quotas, what it knows. All of it can be changed by a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["EC2_LIMITS", "INSTANCE_KINDS", "VOLUME_KINDS", "Behaviour", "InstanceKind", "Rate", "VolumeKind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A token bucket: `burst` calls at once, `per_second` refilled."""

    burst: float
    per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeKind:
    """What a volume type allows. Sizes in GiB, throughput in MiB/s; iops and throughput are None where they cannot be asked for."""

    sizes: tuple[int, int]
    iops: tuple[int, int] | None = None
    iops_per_gib: int = 0
    iops_required: bool = False
    default_iops: int | None = None
    throughput: tuple[int, int] | None = None
    default_throughput: int | None = None
    multi_attach: bool = False


VOLUME_KINDS: Mapping[str, VolumeKind] = {
    "gp2": VolumeKind(sizes=(1, 16_384), default_iops=100),
    "gp3": VolumeKind(
        sizes=(1, 65_536),
        iops=(3_000, 80_000),
        iops_per_gib=500,
        default_iops=3_000,
        throughput=(125, 2_000),
        default_throughput=125,
    ),
    "io1": VolumeKind(sizes=(4, 16_384), iops=(100, 64_000), iops_per_gib=50, iops_required=True, multi_attach=True),
    "io2": VolumeKind(
        sizes=(4, 65_536), iops=(100, 256_000), iops_per_gib=1_000, iops_required=True, multi_attach=True
    ),
    "st1": VolumeKind(sizes=(125, 16_384)),
    "sc1": VolumeKind(sizes=(125, 16_384)),
    "standard": VolumeKind(sizes=(1, 1_024)),
}
"""As the service model of botocore documents CreateVolume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKind:
    """attachments: EbsInfo.MaximumEbsAttachments; shared: network interfaces beyond the first count as well."""

    attachments: int
    shared: bool


INSTANCE_KINDS: Mapping[str, InstanceKind] = {
    "t3.micro": InstanceKind(attachments=27, shared=True),
    "m5.large": InstanceKind(attachments=27, shared=True),
    "m7i.large": InstanceKind(attachments=32, shared=False),
    "m7i.48xlarge": InstanceKind(attachments=128, shared=False),
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
            "CreateSnapshot",
            "DeleteSnapshot",
            "DeleteTags",
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
            "DescribeSnapshots",
        )
    },
}
"""What an account gets unless it asked for more: the figures that AWS publishes. For `Behaviour(throttle=EC2_LIMITS)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """Durations in seconds of the fake's clock.

    visible_after: how long what was made or tagged cannot be seen by Describe calls (eventual consistency).
    zone_ids, zones: the region's. kms_keys: ARN -> whether the caller may use the key; a volume under a key that is
    unknown or may not be used vanishes a moment after CreateVolume succeeded, as on EC2. encrypt_by_default: of the
    account. token_seconds: how long a client token is remembered. volume_quota, storage_quota_gib, snapshot_quota: of
    the account and region. modifications_per_day: in any 24 hours. throttle: calls per action, absent = any number.
    allowed: actions that the caller may use, None = all. access_keys: key ids that are known, None = any.
    """

    region: str = "eu-test-1"
    zones: tuple[str, ...] = ("eu-test-1a", "eu-test-1b", "eu-test-1c")
    account: str = "123456789012"
    create_seconds: float = 1.5
    attach_seconds: float = 1.5
    detach_seconds: float = 1.5
    delete_seconds: float = 1.5
    modify_seconds: float = 1.5
    optimize_seconds: float = 30.0
    snapshot_seconds: float = 5.0
    vanish_seconds: float = 0.8
    visible_after: float = 0.0
    token_seconds: float = 86_400.0
    volume_quota: int = 100_000
    storage_quota_gib: int = 50_000_000
    snapshot_quota: int = 100_000
    modifications_per_day: int = 4
    kms_keys: Mapping[str, bool] = field(default_factory=dict)
    encrypt_by_default: bool = False
    throttle: Mapping[str, Rate] = field(default_factory=dict)
    allowed: frozenset[str] | None = None
    access_keys: frozenset[str] | None = None
    volume_kinds: Mapping[str, VolumeKind] = field(default_factory=lambda: VOLUME_KINDS)
    instance_kinds: Mapping[str, InstanceKind] = field(default_factory=lambda: INSTANCE_KINDS)
    most_results: int = 1_000
