"""What a schedule is drawn from: the classes of the run, and the scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["ALPHA", "BETA", "CLASSES", "KEEPING", "SCENARIOS", "Scenario"]

ALPHA: Final = "alpha.sim"
"""Driver whose backend has `find`, and whose assets pods erase."""
BETA: Final = "beta.sim"
"""Driver whose backend has zones, no `find`, and erases by itself."""

CLASSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fast": {"provisioner": ALPHA, "reclaimPolicy": "Delete"},
    "keep": {"provisioner": ALPHA, "reclaimPolicy": "Retain"},
    "pool": {"provisioner": ALPHA, "reclaimPolicy": "Delete", "parameters": {"volplane.dev/on-release": "recycle"}},
    "zonal": {"provisioner": BETA, "reclaimPolicy": "Delete"},
    "late": {"provisioner": BETA, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"},
    "late-alpha": {"provisioner": ALPHA, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"},
}
"""Bodies of classes. "" as a claim's class means static volumes."""
KEEPING: Final[Mapping[str, Mapping[str, Any]]] = {
    "kept": {"provisioner": ALPHA, "reclaimPolicy": "Delete", "parameters": {"volplane.dev/trash": "40s"}},
    "kept-zonal": {"provisioner": BETA, "reclaimPolicy": "Delete", "parameters": {"volplane.dev/trash": "15s"}},
}
"""The same of classes that have the volumes of deleted claims kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Ranges of counts and shares (0 to 1) from which a schedule is drawn.

    kept: claims that nobody deletes. switches: classes that name other drivers for a moment. stops: processes that
    are stopped and go on. leases: Leases that are deleted. forgers: pods of others under the name of a scrubber
    pod. forced: claims that are removed by force while a pod uses them. grown: bound claims that ask for more.
    parted: processes that are cut off from the API server; edited: Leases that are edited by hand; both where no
    two lead and none is stopped. interrupted: static volumes that are given to others in the middle of a scrub.
    twice: second installations that serve the same drivers. twins: claims of whose disk a person makes a second volume,
    in another notation. damaged: Leases and marks of terms whose numbers are damaged. reused: claims whose volumes are
    restored under their names or attached twice, and nodes that are registered again. hostile: claims whose tenant
    writes all that may be written; hooks are cancelled, too. trash: claims for whose kept volumes
    somebody asks. snapshots: claims of which snapshots are cut. scheduled: runs in which claims have schedules, too.
    groups: groups of snapshots, of claims with a label. followers: runs in which a process leads whose caches are warm
    and lag.
    alone: only the name of the scenario chooses it.
    """

    claims: tuple[int, int] = (2, 5)
    static: tuple[int, int] = (0, 3)
    classes: tuple[str, ...] = tuple(CLASSES)
    static_claims: float = 0.3
    policies: tuple[str, ...] = ("Retain", "Recycle", "Recycle", "Delete")
    pods: float = 0.5
    incarnations: tuple[int, int] = (1, 2)
    admins: float = 0.15
    tenants: float = 0.1
    restores: float = 0.05
    leaders: float = 0.2
    outages: float = 0.3
    class_changes: float = 0.15
    kept: float = 0.2
    switches: float = 0.05
    stops: float = 0.15
    leases: float = 0.1
    forgers: float = 0.05
    forced: float = 0.05
    grown: float = 0.1
    lags: tuple[float, ...] = (0.0, 0.0, 0.5, 5.0)
    parted: float = 0.05
    edited: float = 0.05
    interrupted: float = 0.0
    twice: float = 0.0
    twins: float = 0.0
    damaged: float = 0.0
    hostile: float = 0.0
    attaches: bool = False
    reused: float = 0.0
    trash: float = 0.0
    snapshots: float = 0.0
    scheduled: float = 0.0
    groups: float = 0.0
    followers: float = 0.0
    alone: bool = False


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "mixed": Scenario(),
    "provision": Scenario(
        claims=(3, 6), static=(0, 1), static_claims=0.05, incarnations=(1, 3), pods=0.2, tenants=0.2, class_changes=0.3
    ),
    "recycle": Scenario(
        claims=(2, 4),
        static=(1, 4),
        classes=("pool",),
        static_claims=0.7,
        policies=("Recycle",),
        incarnations=(2, 3),
        pods=0.7,
        admins=0.25,
    ),
    "reclaim": Scenario(
        claims=(2, 4),
        classes=("fast", "keep", "zonal"),
        policies=("Delete", "Retain"),
        admins=0.6,
        incarnations=(1, 2),
        outages=0.5,
        lags=(0.0, 5.0, 20.0),
    ),
    "bind": Scenario(claims=(3, 6), static=(2, 5), static_claims=0.9, classes=("fast",), pods=0.2, admins=0.2),
    "leaders": Scenario(
        leaders=1.0,
        claims=(3, 5),
        static=(1, 3),
        static_claims=0.5,
        policies=("Retain", "Recycle", "Recycle", "Delete"),
        incarnations=(1, 3),
        lags=(0.5, 5.0, 20.0),
    ),
    "tenants": Scenario(claims=(3, 5), static=(0, 1), static_claims=0.05, tenants=0.8, pods=0.2, incarnations=(1, 2)),
    "stopped": Scenario(
        stops=1.0,
        grown=0.9,
        leases=0.3,
        claims=(3, 5),
        static=(1, 3),
        static_claims=0.5,
        policies=("Retain", "Recycle", "Recycle", "Delete"),
        incarnations=(1, 3),
        leaders=0.0,
    ),
    "switched": Scenario(
        switches=1.0, kept=0.8, claims=(3, 5), static=(0, 1), static_claims=0.05, pods=0.2, leaders=0.0
    ),
    "used": Scenario(
        claims=(2, 4),
        static=(1, 3),
        classes=("pool", "fast"),
        static_claims=0.6,
        policies=("Recycle", "Recycle", "Delete"),
        pods=1.0,
        forgers=0.5,
        forced=0.5,
        lags=(0.0, 0.5, 5.0),
    ),
    "restore": Scenario(restores=0.6, claims=(2, 3), static=(0, 2)),
    "interrupted": Scenario(
        alone=True,
        interrupted=1.0,
        claims=(2, 3),
        static=(2, 4),
        static_claims=1.0,
        policies=("Recycle",),
        incarnations=(1, 2),
        kept=0.0,
        admins=0.0,
        leaders=0.0,
    ),
    "twice": Scenario(
        alone=True,
        twice=1.0,
        claims=(3, 5),
        static=(0, 1),
        static_claims=0.1,
        classes=("fast", "keep", "zonal", "late", "late-alpha"),
        leaders=0.0,
        stops=0.0,
        leases=0.0,
        parted=0.0,
        edited=0.0,
        tenants=0.1,
    ),
    "hostile": Scenario(
        alone=True,
        hostile=0.8,
        claims=(3, 6),
        static=(0, 1),
        static_claims=0.0,
        classes=("fast", "keep", "zonal"),
        pods=0.0,
        admins=0.0,
        tenants=0.0,
        restores=0.0,
        class_changes=0.0,
        switches=0.0,
        forced=0.0,
        leaders=0.0,
        stops=0.0,
        leases=0.0,
        parted=0.0,
        edited=0.0,
    ),
    "parted": Scenario(
        alone=True,
        parted=1.0,
        edited=0.6,
        leaders=0.0,
        stops=0.0,
        grown=0.5,
        claims=(3, 5),
        static=(1, 3),
        static_claims=0.4,
        policies=("Retain", "Recycle", "Recycle", "Delete"),
        incarnations=(1, 3),
    ),
    "twins": Scenario(
        alone=True,
        twins=0.8,
        claims=(2, 4),
        static=(0, 0),
        classes=("fast", "fast", "keep"),
        static_claims=0.0,
        pods=0.0,
        incarnations=(1, 1),
        kept=1.0,
        admins=0.0,
        tenants=0.0,
        restores=0.0,
        leaders=0.0,
        stops=0.0,
        leases=0.0,
        parted=0.0,
        edited=0.0,
        lags=(0.0, 0.5, 5.0),
    ),
    "damaged": Scenario(
        alone=True,
        damaged=1.0,
        edited=0.5,
        parted=0.2,
        leaders=0.0,
        stops=0.0,
        grown=0.5,
        claims=(3, 5),
        static=(1, 2),
        static_claims=0.3,
        incarnations=(1, 3),
    ),
    "trash": Scenario(
        alone=True,
        trash=0.9,
        claims=(2, 4),
        static=(0, 1),
        classes=("kept", "kept", "kept-zonal", "fast"),
        static_claims=0.05,
        pods=0.3,
        incarnations=(1, 3),
        kept=0.1,
        admins=0.3,
        tenants=0.1,
        restores=0.0,
        leaders=0.4,
        class_changes=0.0,
        switches=0.0,
        forced=0.0,
        grown=0.0,
        lags=(0.0, 0.5, 5.0),
    ),
    "snapshots": Scenario(
        alone=True,
        snapshots=0.9,
        scheduled=0.4,
        trash=0.3,
        claims=(2, 4),
        static=(0, 0),
        classes=("fast", "fast", "kept", "keep"),
        static_claims=0.0,
        pods=0.2,
        incarnations=(1, 2),
        kept=0.5,
        admins=0.0,
        tenants=0.0,
        restores=0.0,
        leaders=0.3,
        class_changes=0.0,
        switches=0.0,
        forced=0.0,
        grown=0.0,
        lags=(0.0, 0.5, 5.0),
    ),
    "groups": Scenario(
        alone=True,
        groups=0.9,
        claims=(2, 5),
        static=(0, 0),
        classes=("fast", "fast", "keep"),
        static_claims=0.0,
        pods=0.2,
        incarnations=(1, 2),
        kept=0.7,
        admins=0.0,
        tenants=0.0,
        restores=0.0,
        leaders=0.3,
        class_changes=0.0,
        switches=0.0,
        forced=0.0,
        grown=0.0,
        lags=(0.0, 0.5, 5.0),
    ),
    "followed": Scenario(
        alone=True,
        followers=1.0,
        leaders=0.0,
        stops=0.0,
        parted=0.1,
        claims=(3, 6),
        incarnations=(1, 3),
        tenants=0.2,
        forced=0.1,
    ),
    "followed-attach": Scenario(
        alone=True,
        followers=1.0,
        attaches=True,
        leaders=0.0,
        stops=0.0,
        claims=(2, 4),
        static=(0, 0),
        classes=("fast", "fast", "keep"),
    ),
    "attach": Scenario(
        alone=True,
        attaches=True,
        claims=(1, 3),
        static=(0, 0),
        classes=("fast", "fast", "keep"),
        outages=0.3,
        stops=0.3,
    ),
    "reused": Scenario(
        alone=True,
        attaches=True,
        reused=0.8,
        claims=(1, 3),
        static=(0, 0),
        classes=("fast", "fast", "keep"),
        stops=0.0,
        leaders=0.0,
    ),
}
