"""A seed is a whole schedule: the same one always runs alike, also a shortened one, also in another process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from schedules import soaked
from simulation.planting import planted
from simulation.plants import PLANTS
from simulation.recorded import CAUGHT
from volplane_testing import run
from volplane_testing.simulation.distributed import DistributedRun
from volplane_testing.simulation.report import judge_seed
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.scenarios import SCENARIOS
from volplane_testing.simulation.schedule import generate
from volplane_testing.simulation.shrink import shrink

BUG = "release_before_it_is_erased"


@pytest.mark.parametrize("scenario", soaked(sorted(SCENARIOS), few=5))
def test_a_seed_runs_alike_twice(scenario: str) -> None:
    first, second = (simulate(Trial(generate(7, scenario))) for _ in range(2))
    assert list(first.trace.lines()) == list(second.trace.lines())
    assert len(first.trace.entries) > 20


def test_seeds_differ() -> None:
    assert len({simulate(Trial(generate(seed))).trace.digest() for seed in range(4)}) == 4


def test_a_seed_runs_alike_where_sets_are_ordered_otherwise() -> None:
    code = (
        "from volplane_testing import run\n"
        "from volplane_testing.simulation.distributed import DistributedRun\n"
        "from volplane_testing.simulation.schedule import generate\n"
        "from volplane_testing.simulation.run import Trial, simulate\n"
        "print([simulate(Trial(generate(seed))).trace.digest() for seed in range(2)])\n"
        "on_nodes = DistributedRun(3, steps=15)\n"
        "run(on_nodes.run())\n"
        "print(on_nodes.trace)\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hashes in ("1", "2")
    }
    on_nodes = DistributedRun(3, steps=15)
    run(on_nodes.run())
    digests = [simulate(Trial(generate(seed))).trace.digest() for seed in range(2)]
    assert told == {f"{digests}\n{on_nodes.trace}\n"}


def test_shortening_leaves_out_all_that_the_violation_does_not_need() -> None:
    seed, invariant = CAUGHT[BUG]
    with planted(PLANTS[BUG]):
        whole = simulate(Trial(generate(seed)))
        short = shrink(whole)
        assert short.violation is not None
        assert short.violation.invariant == invariant
        assert set(short.done) < set(whole.done)
        assert set(short.fired) <= set(whole.fired)
        assert len(short.trace.entries) < len(whole.trace.entries)
        for number in short.done:
            without = simulate(Trial(generate(seed), frozenset(short.done) - {number}, frozenset(short.fired)))
            assert without.violation is None or without.violation.invariant != invariant


def test_what_went_well_cannot_be_shortened() -> None:
    with pytest.raises(ValueError, match="seed 7 did not fail"):
        shrink(simulate(Trial(generate(7))))


def test_a_report_holds_all_that_a_replay_needs() -> None:
    seed, _ = CAUGHT[BUG]
    with planted(PLANTS[BUG]):
        report = judge_seed(seed, trials=40)
        again = judge_seed(seed, only=report.kept, trials=0)
    assert report.left_out > 0
    assert (again.violation, again.trace, again.kept) == (report.violation, report.trace, report.kept)
