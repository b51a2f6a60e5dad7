"""The result of one seed: its run and, if that failed, the shortest failing run with what is needed to replay it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from volplane_testing.conformance import Subject
from volplane_testing.conformance.subject import MakeSubject
from volplane_testing.simulation.external_backends import Judged
from volplane_testing.simulation.real_time import IN_TIME
from volplane_testing.simulation.run import Trial, TrialResult, simulate
from volplane_testing.simulation.schedule import generate
from volplane_testing.simulation.shrink import MOST_TRIALS, shrink
from volplane_testing.simulation.trace import InvariantViolation

__all__ = ["SeedReport", "judge_seed", "run_seed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    """The result of a seed. trace and kept: of the shortest failing run found, or of the whole one; plain and
    picklable.
    """

    seed: int
    scenario: str
    violation: InvariantViolation | None
    trace: tuple[str, ...]
    kept: tuple[str, ...]
    """Actions by number and faults by mark: all that the trace needs. With seed and scenario they are the whole run."""
    left_out: int
    """How many actions and faults of the seed the trace does not need."""
    happened: Mapping[str, int]
    """Of the whole run: how often each kind of fault happened."""
    virtual_seconds: float
    cpu_seconds: float
    """Of the whole run."""
    real_seconds: float
    """Of the whole run: more than CPU where hooks wait."""
    judged: Mapping[str, Judged]
    """Of the whole run, by driver of a backend under test."""

    @property
    def passed(self) -> bool:
        """Whether every invariant held."""
        return self.violation is None

    def __str__(self) -> str:
        """Return the text for a failed test: violation, trace, and how to replay."""
        result = str(self.violation) if self.violation is not None else "every invariant held"
        replay = (f"replay: --only {','.join(self.kept)}",) if self.violation is not None else ()
        return "\n".join((f"seed {self.seed} ({self.scenario}): {result}", *self.trace, *replay))


def run_seed(seed: int, *backends: Subject | MakeSubject, scenario: str = "any") -> SeedReport:
    """Run one schedule of faults with these backends, at most two, in the places of simulated ones.

    backends: as of the conformance suite; best a function that gives a `Subject` with an empty storage. A schedule that
    fails is shortened. Raises ConfigurationError for a backend that cannot be simulated, KeyError for an unknown
    scenario.
    """
    return judge_seed(seed, scenario, run=partial(simulate, backends=backends))


def judge_seed(
    seed: int,
    scenario: str = "any",
    *,
    only: Collection[str] | None = None,
    trials: int = MOST_TRIALS,
    traced: bool = False,
    run: Callable[[Trial], TrialResult] = simulate,
) -> SeedReport:
    """Run a seed. only: `SeedReport.kept` of an earlier report, None = everything. trials: runs that shortening may
    take.

    traced: give the trace of a run that went well too. Raises KeyError for a scenario that there is not.
    """
    begun, real = time.process_time(), time.monotonic()
    whole = run(trial_of(seed, scenario, only))
    spent, waited = time.process_time() - begun, time.monotonic() - real
    shortest = whole
    # Each run of one that ends by its real time would take that again.
    if whole.violation is not None and whole.violation.invariant != IN_TIME and trials > 0:
        shortest = shrink(whole, trials=trials, run=run)
    shown = traced or shortest.violation is not None
    kept = (*map(str, shortest.done), *shortest.fired)
    return SeedReport(
        seed=seed,
        scenario=shortest.trial.schedule.scenario,
        violation=shortest.violation,
        trace=tuple(shortest.trace.lines()) if shown else (),
        kept=kept,
        left_out=len(whole.done) + len(whole.fired) - len(kept),
        happened=dict(whole.trace.happened),
        virtual_seconds=whole.seconds,
        cpu_seconds=spent,
        real_seconds=waited,
        judged=whole.judged,
    )


def trial_of(seed: int, scenario: str, only: Collection[str] | None) -> Trial:
    """Return the trial of a seed, or of a part of it."""
    schedule = generate(seed, scenario)
    if only is None:
        return Trial(schedule)
    actions = frozenset(int(item) for item in only if item.isdecimal())
    return Trial(schedule, actions, frozenset(item for item in only if not item.isdecimal()))
