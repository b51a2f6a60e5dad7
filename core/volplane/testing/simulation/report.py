"""One seed judged: run, and if it failed, made short and spelled out, so that anybody can see and replay it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from volplane.testing.simulation.plan import generate
from volplane.testing.simulation.shrink import MOST_TRIALS, shrink
from volplane.testing.simulation.simulation import Outcome, Trial, simulate
from volplane.testing.simulation.verdict import Violation

__all__ = ["Report", "judge_seed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a seed showed. trace and kept: of the shortest failing run found, or of the whole one; plain and picklable."""

    seed: int
    scenario: str
    violation: Violation | None
    trace: tuple[str, ...]
    kept: tuple[str, ...]
    """Actions by number and faults by mark: all that the trace needs. With seed and scenario they are the whole run."""
    left_out: int
    """How many actions and faults of the seed the trace does not need."""
    happened: Mapping[str, int]
    """Of the whole run: how often which kind of trouble came."""
    virtual_seconds: float
    cpu_seconds: float
    """Of the whole run."""


def judge_seed(
    seed: int,
    scenario: str = "any",
    *,
    only: Collection[str] | None = None,
    trials: int = MOST_TRIALS,
    traced: bool = False,
    run: Callable[[Trial], Outcome] = simulate,
) -> Report:
    """Run a seed. only: `Report.kept` of an earlier report, None = everything. trials: runs that shortening may take.

    traced: give the trace of a run that went well too. Raises KeyError for a scenario that there is not.
    """
    begun = time.process_time()
    whole = run(trial_of(seed, scenario, only))
    spent = time.process_time() - begun
    shortest = whole
    if whole.violation is not None and trials > 0:
        shortest = shrink(whole, trials=trials, run=run)
    told = traced or shortest.violation is not None
    kept = (*map(str, shortest.done), *shortest.fired)
    return Report(
        seed=seed,
        scenario=shortest.trial.plan.scenario,
        violation=shortest.violation,
        trace=tuple(shortest.trace.lines()) if told else (),
        kept=kept,
        left_out=len(whole.done) + len(whole.fired) - len(kept),
        happened=dict(whole.trace.happened),
        virtual_seconds=whole.seconds,
        cpu_seconds=spent,
    )


def trial_of(seed: int, scenario: str, only: Collection[str] | None) -> Trial:
    """The run that a report tells of."""
    plan = generate(seed, scenario)
    if only is None:
        return Trial(plan)
    actions = frozenset(int(item) for item in only if item.isdecimal())
    return Trial(plan, actions, frozenset(item for item in only if not item.isdecimal()))
