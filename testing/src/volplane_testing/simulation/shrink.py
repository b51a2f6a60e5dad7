"""Shortens a failing schedule: leaves out actions and faults as long as the same invariant breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from volplane_testing.simulation.run import Trial, TrialResult, simulate

__all__ = ["MOST_TRIALS", "shrink"]

MOST_TRIALS: Final = 200
"""Runs that a search for a shorter schedule may take: bounded in number, not in time, so that it ends alike
everywhere."""

Item = int | str
"""An action by number, a fault by its mark."""


def shrink(
    result: TrialResult, *, trials: int = MOST_TRIALS, run: Callable[[Trial], TrialResult] = simulate
) -> TrialResult:
    """Return the shortest failing run found. Raises ValueError for one that did not fail."""
    if result.violation is None:
        raise ValueError(f"seed {result.trial.schedule.seed} did not fail")
    return _Shrinker(result, result.violation.invariant, trials, run).shrink()


class _Shrinker:
    """Delta debugging: drop ever smaller parts of what is left."""

    def __init__(self, result: TrialResult, invariant: str, trials: int, run: Callable[[Trial], TrialResult]) -> None:
        self._best = result
        self._invariant = invariant
        self._trials = trials
        self._run = run

    def shrink(self) -> TrialResult:
        items: list[Item] = [*self._best.done, *self._best.fired]
        if not self._try([]):
            items = self._ddmin(items)
        return self._best

    def _ddmin(self, items: list[Item]) -> list[Item]:
        size = max(1, len(items) // 2)
        while size >= 1 and self._trials > 0:
            items, dropped = self._sweep(items, size)
            if size == 1 and not dropped:
                break
            size = max(1, size // 2) if not dropped or size > 1 else 1
        return items

    def _sweep(self, items: list[Item], size: int) -> tuple[list[Item], bool]:
        """Try to leave out each stretch of this size once, the last first, since late ones seldom matter."""
        dropped = False
        start = len(items) - size
        while start > -size and self._trials > 0:
            low = max(0, start)
            kept = items[:low] + items[start + size :]
            if self._try(kept):
                items, dropped = self._remaining(kept), True
                start = min(start, len(items))
            start -= size
        return items, dropped

    def _remaining(self, kept: Sequence[Item]) -> list[Item]:
        """Return the kept items that happened in the shorter run."""
        happened = {*self._best.done, *self._best.fired}
        return [item for item in kept if item in happened]

    def _try(self, kept: Sequence[Item]) -> bool:
        self._trials -= 1
        actions = frozenset(item for item in kept if isinstance(item, int))
        faults = frozenset(item for item in kept if isinstance(item, str))
        result = self._run(Trial(self._best.trial.schedule, actions, faults))
        if result.violation is None or result.violation.invariant != self._invariant:
            return False
        self._best = result
        return True
