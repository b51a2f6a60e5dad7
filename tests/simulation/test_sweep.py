"""`make seeds`: every scenario and every planted bug is judged, and what is wrong is named."""

from __future__ import annotations

from simulation.search import ALL
from simulation.sweep import NODES, PLANTED, judge, runs, summary
from volplane_testing.simulation.scenarios import SCENARIOS


def test_every_planted_bug_and_every_scenario_is_run() -> None:
    todo = list(runs(range(2), [*SCENARIOS, NODES]))
    assert {bug for _, _, bug in todo if bug} == set(ALL) == set(PLANTED)
    assert [run for run in todo if not run[2]] == [
        (seed, name, "") for name in (*SCENARIOS, NODES) for seed in range(2)
    ]


def test_a_bug_that_is_caught_is_as_it_should_be_and_one_that_is_not_is_named() -> None:
    seed, _ = PLANTED["detach_what_is_in_use"]
    caught = judge(seed, "attach", "detach_what_is_in_use")
    missed = judge(0, "bind", "detach_what_is_in_use")
    assert caught.problem == ""
    assert summary([caught, missed]) == [
        "bugs              1 of 2 as they should be",
        "detach_what_is_in_use: seed 0 shows nothing instead of mounted-stays-attached",
    ]
