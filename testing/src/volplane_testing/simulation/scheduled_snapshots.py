"""Snapshots at regular times: users who write schedules, clocks that are set, and the rules about what is taken.

The rules share no code with the decisions: which run a snapshot is of is read from its label and its name.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping
from random import Random
from typing import Any, Final

from volplane.kube import names
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of
from volplane_testing.simulation.run_context import RunContext

__all__ = ["ScheduledSnapshots", "write_schedules"]

_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
_SNAPSHOTS: Final = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots"
_MINUTE: Final = "* * * * *"
_KEPT: Final = ("keep=1", "keep=2", "max-age=60s", "keep=1; deadline=60s")
_TEXTS: Final = tuple(
    f"{_MINUTE}; class={each}" for each in ("retained; keep=3", *(f"deleted; {kept}" for kept in _KEPT))
)
_NONSENSE: Final = (f"{_MINUTE}", "0 0 31 2 *; keep=1", "\u202e; keep=1", "x" * 1000)
_GOES_ON: Final = 300.0
"""Virtual seconds for which there are schedules after everything else."""


class ScheduledSnapshots:
    """Its `actions` are the `what` of actions; it listens to the view."""

    def __init__(self, run_context: RunContext) -> None:
        self.actions: Mapping[str, Callable[..., Coroutine[Any, Any, None] | None]] = {
            "schedule": self.schedule,
            "damage_run": self.damage,
            "end_run": self.end_run,
        }
        self._view = run_context.view
        self._happened = run_context.trace.happened
        self._violations = run_context.violations
        self._runs: dict[str, set[str]] = defaultdict(set)
        """Uid of a claim -> names of the snapshots that were taken by its schedule."""
        self._damaged: set[str] = set()
        """Uids of claims whose tenant wrote the record of their runs."""
        run_context.view.listeners.append(self._committed)

    # --- rules --------------------------------------------------------------------------------------------------

    def _committed(self, commit: Commit) -> None:
        known: Json = commit.new or commit.old or {}
        uid = _scheduled_by(known) if commit.kind == "snapshot" else ""
        if not uid or not commit.by_controller:
            return
        if commit.old is None:
            self._happened["schedule: a snapshot is taken"] += 1
            self._check_run(known, uid)
        elif not _goes(commit.old) and (commit.new is None or _goes(commit.new)):
            self._check_deletion(commit.old, uid)

    def _check_run(self, snapshot: Json, uid: str) -> None:
        name = snapshot["metadata"]["name"]
        others = [each for each in self._of(uid) if each["metadata"]["name"] != name]
        last = max(others, key=_number, default=None)
        if last is not None and not (_is_ready(last) or _goes(last) or _has_failed(last)):
            text = f"{name} is taken while {last['metadata']['name']} of the same schedule is under way"
            self._violations.report("one-run-at-a-time", text)
        if name in self._runs[uid] and uid not in self._damaged:
            self._violations.report("one-snapshot-a-run", f"{name} is taken again")
        self._runs[uid].add(name)

    def _check_deletion(self, snapshot: Json, uid: str) -> None:
        """Check what a controller deletes: a good one only if a later one is good."""
        if not _is_ready(snapshot):
            return
        self._happened["schedule: a snapshot is deleted"] += 1
        later = [each for each in self._of(uid) if _number(each) > _number(snapshot)]
        if not any(_is_ready(each) and not _goes(each) for each in later):
            text = f"{snapshot['metadata']['name']} is deleted, the last good one of its schedule"
            self._violations.report("last-good-one-stays", text)

    def _of(self, uid: str) -> list[Json]:
        return [each for each in self._view.snapshots.values() if _scheduled_by(each) == uid]

    # --- people -------------------------------------------------------------------------------------------------

    def schedule(self, claim: str, text: str | None, suspend: str | None = None) -> None:
        """Write, change or remove the schedule of a claim, or suspend it."""
        if f"default/{claim}" in self._view.claims:
            self._happened["user: writes a schedule of snapshots"] += 1
            self._annotate(claim, {names.SNAPSHOT_SCHEDULE: text, names.SNAPSHOT_SUSPEND: suspend})

    def damage(self, claim: str, text: str | None) -> None:
        """Let a tenant write the record of runs."""
        found = self._view.claims.get(f"default/{claim}")
        if found is not None and names.SNAPSHOT_RUN in annotations_of(found):
            self._happened["user: writes the record of runs"] += 1
            self._damaged.add(found["metadata"]["uid"])
            self._annotate(claim, {names.SNAPSHOT_RUN: text})

    def end_run(self, claim: str) -> None:
        """Delete the snapshot that was taken last."""
        found = self._view.claims.get(f"default/{claim}")
        last = max(self._of(found["metadata"]["uid"]), key=_number, default=None) if found is not None else None
        if found is None or last is None or '"made":true' not in annotations_of(found).get(names.SNAPSHOT_RUN, ""):
            return
        self._happened["user: deletes a snapshot of a schedule"] += 1
        self._view.send("user", "DELETE", f"{_SNAPSHOTS}/{last['metadata']['name']}", b"{}")

    def recover(self) -> None:
        """End all schedules: they would go on for ever."""
        for claim in list(self._view.claims.values()):
            if names.SNAPSHOT_SCHEDULE in annotations_of(claim):
                self._annotate(claim["metadata"]["name"], {names.SNAPSHOT_SCHEDULE: None})

    def _annotate(self, claim: str, annotations: Json) -> None:
        body = json.dumps({"metadata": {"annotations": annotations}}).encode()
        headers = {"content-type": "application/merge-patch+json"}
        self._view.send("user", "PATCH", f"{_CLAIMS}/{claim}", body, headers=headers)


def _scheduled_by(snapshot: Json) -> str:
    return str((snapshot["metadata"].get("labels") or {}).get(names.SNAPSHOT_SCHEDULE, ""))


def _number(snapshot: Json) -> int:
    return int(annotations_of(snapshot).get(names.SNAPSHOT_RUN, "0"))


def _is_ready(snapshot: Json) -> bool:
    return bool((snapshot.get("status") or {}).get("readyToUse"))


def _has_failed(snapshot: Json) -> bool:
    return "terminal: " in ((snapshot.get("status") or {}).get("error") or {}).get("message", "")


def _goes(snapshot: Json) -> bool:
    return "deletionTimestamp" in snapshot["metadata"]


def write_schedules(do: Callable[..., None], about: str, claims: Collection[str], share: float, end: float) -> None:
    """Write actions of `ScheduledSnapshots`, in a share of the runs."""
    random = Random(f"{about} schedules")  # noqa: S311 -- schedules, not secrets
    if random.random() >= share:
        return
    end += _GOES_ON
    for claim in claims:
        do(random.uniform(0.0, 90.0), "schedule", claim=claim, text=random.choice(_TEXTS))
        for _ in range(random.choice((0, 1, 2))):
            text = random.choice((*_TEXTS, *_TEXTS, None, "skip", *_NONSENSE))
            do(random.uniform(60.0, end), "schedule", claim=claim, text=text, suspend=random.choice((None, "true")))
            do(random.uniform(60.0, end), "schedule", claim=claim, text=random.choice(_TEXTS))
        do(end, "schedule", claim=claim, text=None)
        if random.random() < 0.2:
            do(random.uniform(60.0, end), "damage_run", claim=claim, text=random.choice((None, "{}", "x")))
    for _ in range(random.choice((0, 1, 3))):
        do(random.uniform(0.0, end), "crash", which=0)
    for _ in range(random.choice((0, 1, 2))):
        do(random.uniform(0.0, end), "set_clock", seconds=random.choice((-1200.0, -70.0, 70.0, 5000.0)))
    for claim in claims:
        for _ in range(random.choice((0, 1, 2))):
            do(random.uniform(90.0, end), "end_run", claim=claim)
