"""What the controller of schedules keeps between two looks at a claim, and what queues a claim.

Runs under way are counted by driver, so that those of many claims at one time do not all begin at once; those that
wait have their turn by namespaces. The count is of claims whose schedule was decided: what tenants write on
VolumeSnapshots takes no place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from volplane.controller.actions import Action, LiveReads, Queue, Settled
from volplane.controller.metrics import MOST_SERIES, Metrics
from volplane.kube import names
from volplane.kube.objects import StorageClass
from volplane.snapshots.objects import VolumeSnapshot
from volplane.snapshots.runs import Turn, at_work_on, decide_schedule
from volplane.snapshots.state import SnapshotState, claim_key_of
from volplane.state.matching import class_of_claim

SCHEDULES: Final = "snapshot-schedules"
_STATES: Final = ("followed", "late", "suspended", "refused")


@dataclass(slots=True, eq=False)
class Turns:
    state: SnapshotState
    claims: Queue
    """Claims with a schedule."""
    most: Callable[[str], int]
    """driver -> how many runs may be under way at once."""
    _turns: dict[str, Turn] = field(default_factory=dict)
    """By key of the claim: the last one."""
    _taken: defaultdict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """Driver -> keys of the claims with a run under way."""
    _awaiting: defaultdict[str, dict[str, dict[str, None]]] = field(default_factory=lambda: defaultdict(dict))
    """Driver -> namespace -> keys of the claims whose run waits for its turn; the next first."""
    _counted: bool = False

    def subscribe(self) -> None:
        self.state.snapshots.subscribe(self.snapshot_changed)
        self.state.cluster.classes.subscribe(self.class_changed)

    def decide(self, key: str, reads: LiveReads) -> Action:
        """Decide by `decide_schedule`, and keep whether a run is under way."""
        if not self._counted:
            self._counted = True  # Runs that another leader has begun count from the first decision on.
            for each in filter(None, self.scheduled()):
                if driver := at_work_on(each, self.state):
                    self._keep(each, Turn(Settled(), "followed", driver, "taken"))
        turn = decide_schedule(key, self.state, reads, lambda driver: self._is_free(driver, key))
        self._keep(key, turn)
        return turn.action

    def _is_free(self, driver: str, key: str) -> bool:
        taken = self._taken[driver]
        return key in taken or len(taken) < self.most(driver)

    def _keep(self, key: str, turn: Turn) -> None:
        before, namespace = self._turns.pop(key, None), key.partition("/")[0]
        if turn.state:
            self._turns[key] = turn
        if before is not None and (before.driver, before.slot) != (turn.driver, turn.slot):
            self._taken[before.driver].pop(key, None)
            self._drop(before.driver, namespace, key)
        if turn.slot == "taken":
            self._taken[turn.driver][key] = None
        elif turn.slot == "awaited":
            self._awaiting[turn.driver].setdefault(namespace, {})[key] = None
        if before is not None and before.slot == "taken" and turn.slot != "taken":
            self._wake(before.driver)

    def _drop(self, driver: str, namespace: str, key: str) -> None:
        keys = self._awaiting[driver].get(namespace, {})
        keys.pop(key, None)
        if not keys:
            self._awaiting[driver].pop(namespace, None)

    def _wake(self, driver: str) -> None:
        """Queue the claim whose turn it is. The namespaces take turns."""
        awaiting = self._awaiting[driver]
        if (namespace := next(iter(awaiting), None)) is not None:
            keys = awaiting.pop(namespace)
            key = next(iter(keys))
            del keys[key]
            if keys:
                awaiting[namespace] = keys
            self.claims.enqueue(key)

    # --- what queues a claim --------------------------------------------------------------------------------------

    def snapshot_changed(self, old: VolumeSnapshot | None, new: VolumeSnapshot | None) -> None:
        known = new or old or VolumeSnapshot()
        if names.SNAPSHOT_SCHEDULE in (known.metadata.labels or {}):
            self.claims.enqueue(claim_key_of(known))

    def class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        keys = (names.SNAPSHOT_SCHEDULE, names.SNAPSHOT_SUSPEND)
        before, after = ([each and each.annotation(key) for key in keys] for each in (old, new))
        if before != after:
            name = (new or old or StorageClass()).name
            for claim in self.state.cluster.claims.values():
                if class_of_claim(claim) == name:
                    self.claims.enqueue(claim.key)

    def scheduled(self, _driver: str = "") -> Iterator[str]:
        """Yield the keys of claims with a schedule, and "" for the others."""
        cluster = self.state.cluster
        return (claim.key if cluster.schedule_of(claim) is not None else "" for claim in cluster.claims.values())

    # --- what is shown --------------------------------------------------------------------------------------------

    def measure(self, metrics: Metrics) -> None:
        now, counts = self.state.cluster.surely_now(), Counter[tuple[str, str]]()
        late: dict[tuple[str, str], float] = {}
        for key, turn in self._turns.items():
            is_late = turn.state == "followed" and turn.late < now
            counts[turn.driver, "late" if is_late else turn.state] += 1
            if is_late and len(late) < MOST_SERIES:
                namespace, _, name = key.partition("/")
                late[namespace, name] = _seconds(turn.late, now)
        metrics.schedules.show({(driver, state): counts[driver, state] for driver, _ in counts for state in _STATES})
        metrics.late_schedules.show(late)


def _seconds(since: datetime, now: datetime) -> float:
    return (now - since).total_seconds()
