"""What a run is to do, and the list of sections."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from volplane.process.duties import DEFAULT_CONTROLLERS
from volplane.reclaim.scrub_pod import DEFAULT_IMAGE
from volplane_testing.qualification import (
    attaching,
    binding,
    crashing,
    expanding,
    leaving,
    protecting,
    reclaiming,
    snapshotting,
)
from volplane_testing.qualification.report import Measured
from volplane_testing.qualification.site import Site

__all__ = ["SECTIONS", "Plan", "Section"]

_MADE = frozenset({"provisioner", "reclaimer"})
"""Who makes volumes for claims, and removes them."""
_SNAPSHOTS = _MADE | {"snapshot-controller", "snapshotter"}


@dataclass(frozen=True, slots=True)
class Section:
    """One thing that is judged.

    run: raises `Failed` or `NotPossible`. pods: it needs pods that mount our volumes. needs: the controllers of ours
    without which nobody does what it judges.
    """

    name: str
    says: str
    run: Callable[[Site], Awaitable[Measured]]
    pods: bool = False
    needs: frozenset[str] = _MADE


SECTIONS: tuple[Section, ...] = (
    Section("static", "static volumes are bound from either side and released", binding.static, needs=frozenset()),
    Section("dynamic", "volumes are made for claims; what a pod writes, the next one reads", binding.dynamic),
    Section("late-binding", "a claim waits for its first pod, then both go on", binding.late, pods=True),
    Section("delete", "a deleted claim takes its volume and its asset along", reclaiming.delete),
    Section("trash", "the volume of a deleted claim is kept, and given back to its owner", reclaiming.trash),
    Section(
        "snapshots",
        "snapshots are cut, shown, kept by policy and deleted with what is on the storage",
        snapshotting.snapshots,
        needs=_SNAPSHOTS,
    ),
    Section(
        "restore",
        "a volume is made of a snapshot, none that is too small, and one of another claim",
        snapshotting.restore,
        needs=_SNAPSHOTS,
    ),
    Section("recycle", "a released volume is erased by a pod and offered again", reclaiming.recycle, pods=True),
    Section("protection", "claims and volumes in use outlive their deletion", protecting.protection),
    Section(
        "expand",
        "claims grow, while pods use them, and neither shrink nor grow against their class",
        expanding.expand,
        needs=_MADE | {"expander"},
    ),
    Section(
        "attach",
        "volumes are attached to one node at a time, and kept while they are",
        attaching.attach,
        needs=_MADE | {"attacher"},
    ),
    Section("kills", "nothing is lost, leaked or stuck when the controllers are killed in churn", crashing.kills),
    Section("leader", "of two replicas the other one works soon after the leader is killed", crashing.leader),
    Section("drain", "drain releases what we hold and keeps the assets, or deletes all", leaving.drain),
)
"""In the order in which they run. Each stands alone: it makes what it needs, and leaves nothing that another sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run.

    kubeconfig: None = as kubectl finds it. sections: names; empty = all. controllers: as of `volplane run`. backend,
    options, parameters: of the driver and its classes; the backend hostpath gets a root below `work` if it has none.
    work: directory on this machine for that root, configuration and logs; None = a temporary one. image: of pods;
    it needs a POSIX shell. churn_seconds, kills: length of the section of that name. patience: seconds that anything
    may take that has no limit of its own. run: the prefix of all names.
    """

    kubeconfig: Path | None = None
    sections: tuple[str, ...] = ()
    controllers: str = DEFAULT_CONTROLLERS
    backend: str = "hostpath"
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    capacity: str = "1Mi"
    work: Path | None = None
    image: str = DEFAULT_IMAGE
    churn_seconds: float = 120.0
    kills: int = 30
    patience: float = 60.0
    run: str = field(default_factory=lambda: f"volplane-check-{secrets.token_hex(3)}")

    def chosen(self) -> tuple[Section, ...]:
        """Return the sections to run."""
        return tuple(section for section in SECTIONS if not self.sections or section.name in self.sections)
