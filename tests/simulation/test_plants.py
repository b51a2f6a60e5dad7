"""The simulation finds mistakes: each known bug, planted into the controllers, breaks an invariant in a recorded
seed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schedules import soaked
from simulation.leader_plants import LEADER_PLANTS
from simulation.need_plants import NEED_PLANTS
from simulation.planting import planted
from simulation.plants import PLANTS
from simulation.recorded import ALL_CAUGHT, CAUGHT
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


def test_every_planted_bug_has_a_recorded_seed_below_3000() -> None:
    assert set(CAUGHT) == set(PLANTS)
    assert len(CAUGHT) >= 10
    assert all(seed < 3000 for seed, _ in CAUGHT.values())


def test_the_bugs_of_needs_and_leaders_show_within_1000_seeds() -> None:
    """Among them all that take away what a living claim or pod needs, or act after a pause."""
    soon = {bug for bug, (seed, _) in CAUGHT.items() if seed < 1000}
    assert set(NEED_PLANTS) | set(LEADER_PLANTS) <= soon
    assert len(soon) >= 13


def test_the_documentation_names_every_bug_with_its_seed(repository: Path) -> None:
    page = (repository / "docs" / "design" / "simulation.md").read_text("utf-8")
    rows = re.findall(r"^\| [\w` ]+ \| ([a-z ]+) \| (\d+) \| `([a-z-]+)` \|$", page, re.MULTILINE)
    recorded = [each for table in ALL_CAUGHT for each in table.items()]
    assert rows == [(bug.replace("_", " "), str(seed), invariant) for bug, (seed, invariant) in recorded]


@pytest.mark.parametrize("bug", PLANTS)
def test_a_planted_bug_is_caught(bug: str) -> None:
    seed, invariant = CAUGHT[bug]
    trial = Trial(generate(seed))
    with planted(PLANTS[bug]):
        outcome = simulate(trial)
    assert outcome.violation is not None
    assert outcome.violation.invariant == invariant


@pytest.mark.parametrize("seed", soaked(sorted({seed for seed, _ in CAUGHT.values()}), few=6))
def test_it_is_the_bug_that_is_caught_and_nothing_else(seed: int) -> None:
    assert simulate(Trial(generate(seed))).violation is None
