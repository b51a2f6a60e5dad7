"""How a FakeCompute behaves: durations, limits, quotas, machine types. A test can change all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRules:
    """What a type of disk allows."""

    sizes: tuple[int, int]
    """GB."""
    regional_sizes: tuple[int, int] | None = None
    """GB."""
    iops: tuple[int, int] | None = None
    """None = cannot be provisioned."""
    default_iops: int = 0
    iops_per_gb: int = 0
    throughput: tuple[int, int] | None = None
    """MiB/s: None = cannot be provisioned."""
    default_throughput: int = 0
    least_iops_per_gb: int = 0
    """What a disk has at least for each GB."""
    least_throughput_per_gb: float = 0.0
    """What a disk has at least for each GB."""
    access_modes: tuple[str, ...] = ()
    ssd: bool = True


_RULES: Mapping[str, DiskRules] = {
    "pd-standard": DiskRules(sizes=(1, 65_536), regional_sizes=(200, 65_536), ssd=False),
    "pd-balanced": DiskRules(sizes=(1, 65_536), regional_sizes=(1, 65_536)),
    "pd-ssd": DiskRules(sizes=(1, 65_536), regional_sizes=(1, 65_536)),
    "pd-extreme": DiskRules(sizes=(500, 65_536), iops=(2_500, 120_000), default_iops=100_000, iops_per_gb=120_000),
    "hyperdisk-balanced": DiskRules(
        sizes=(4, 65_536),
        iops=(3_000, 160_000),
        default_iops=3_000,
        iops_per_gb=500,
        throughput=(140, 2_400),
        default_throughput=140,
        access_modes=("READ_WRITE_SINGLE", "READ_WRITE_MANY"),
    ),
    "hyperdisk-balanced-high-availability": DiskRules(
        sizes=(4, 65_536),
        regional_sizes=(4, 65_536),
        iops=(3_000, 100_000),
        default_iops=3_000,
        iops_per_gb=500,
        throughput=(140, 2_400),
        default_throughput=140,
        access_modes=("READ_WRITE_SINGLE", "READ_WRITE_MANY"),
    ),
    "hyperdisk-extreme": DiskRules(
        sizes=(64, 65_536),
        iops=(128, 350_000),
        default_iops=10_000,
        iops_per_gb=1_200,
        least_iops_per_gb=2,
        access_modes=("READ_WRITE_SINGLE",),
    ),
    "hyperdisk-throughput": DiskRules(
        sizes=(2_048, 32_768),
        throughput=(20, 2_400),
        default_throughput=180,
        least_throughput_per_gb=10 / 1_024,
        access_modes=("READ_WRITE_SINGLE",),
    ),
    "hyperdisk-ml": DiskRules(
        sizes=(4, 65_536),
        throughput=(400, 1_200_000),
        default_throughput=400,
        least_throughput_per_gb=0.12,
        access_modes=("READ_WRITE_SINGLE", "READ_ONLY_MANY"),
    ),
}

MACHINE_TYPES: Mapping[str, int] = {
    "e2-micro": 16,
    "n1-standard-1": 128,
    "n2-standard-4": 128,
    "n4-standard-4": 128,
    "c4-standard-2": 128,
}
"""Machine type -> maximumPersistentDisks."""

MACHINE_DISKS: Mapping[str, tuple[str, ...]] = {
    "e2": ("pd-",),
    "n4": ("hyperdisk-",),
    "c4": ("hyperdisk-",),
}
"""Series of machines -> beginnings of the types of disks that they take; others take all.

Source: Compute Engine documentation, "Machine series support for disks".
"""

COMPUTE_QUOTAS: Mapping[str, int] = {
    "mutations": 1_500,
    "reads": 1_500,
    "lists": 1_500,
    "aggregatedLists": 750,
    "operationReads": 1_500,
}
"""Default calls a minute of each group, for `Behaviour(calls_per_minute=COMPUTE_QUOTAS)`.

Source: Compute Engine documentation, "Rate quotas". A group's count begins again with every minute of the clock.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the project behaves. Durations are seconds of the fake's clock."""

    project: str = "test-project"
    region: str = "europe-test1"
    zones: tuple[str, ...] = ("europe-test1-a", "europe-test1-b", "europe-test1-c")
    zone_states: Mapping[str, str] = field(default_factory=dict)
    """Of zones that are not UP."""
    unreachable: frozenset[str] = frozenset()
    """Zones and regions that answer no call."""
    partial_lists: bool = True
    """An aggregated list lacks what is unreachable, and says so; False = it fails then."""
    stock_outs: frozenset[str] = frozenset()
    """Zones without room for disks."""
    shape: str = "operation"
    """How errors are reported that are found while an operation runs: "operation" = by the operation, "http" = by the
    answer to the call."""
    operation_seconds: Mapping[str, float] = field(
        default_factory=lambda: {"attachDisk": 2.0, "detachDisk": 2.0, "setLabels": 0.5}
    )
    """By the last part of a method's name, such as "insert"."""
    default_seconds: float = 1.0
    operation_kept: float = 1_209_600.0
    """How long a finished operation is known."""
    request_id_kept: float = 3_600.0
    """How long a requestId is."""
    disks_gb: int = 10_000_000
    """Quotas of the region for standard disks and all others."""
    ssd_gb: int = 10_000_000
    """Quotas of the region for standard disks and all others."""
    vm_queue: int = 32
    """Operations of a virtual machine that run or wait at once."""
    queue_code: str = "rateLimitExceeded"
    """Reason of the error of a full queue; seen was also resourceOperationRateExceeded."""
    snapshot_interval: float = 600.0
    """Seconds between two snapshots of a disk (Compute Engine documentation, "Snapshot frequency limits")."""
    cut_seconds: float = 2.0
    """How long a snapshot is CREATING."""
    upload_seconds: float = 20.0
    """How long it is UPLOADING then; of an image, how long it is PENDING."""
    ready_early_seconds: float = 0.0
    """How long it is READY before its operation ends."""
    restores_a_minute: int | None = None
    """Of one snapshot or image, None = any number (gcp-compute-persistent-disk-csi-driver, issue 1847)."""
    shared_projects: frozenset[str] = frozenset()
    """Other projects whose snapshots and images can be read."""
    hyperdisk_interval: float = 14_400.0
    """Seconds between two changes of a hyperdisk (Compute Engine documentation, "Modify a Hyperdisk")."""
    calls_per_minute: Mapping[str, int] = field(default_factory=dict)
    """By group, absent = any number."""
    permissions: frozenset[str] | None = None
    """Of the caller, None = all."""
    tokens: frozenset[str] | None = None
    """Access tokens that are accepted, None = any caller."""
    kms_keys: Mapping[str, bool] = field(default_factory=dict)
    """Key -> whether it may be used; others are unknown."""
    storage_pools: frozenset[str] = frozenset()
    """Full names."""
    disk_types: Mapping[str, DiskRules] = field(default_factory=lambda: _RULES)
    machine_types: Mapping[str, int] = field(default_factory=lambda: MACHINE_TYPES)
    machine_disks: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MACHINE_DISKS)
    max_results: int = 500
    """Items on a page at most."""

    def seconds(self, method: str) -> float:
        """Return how long an operation of this method runs."""
        return self.operation_seconds.get(method.rpartition(".")[2], self.default_seconds)
