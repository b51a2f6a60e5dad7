"""Where nothing goes wrong, controllers do to each object what those of commit 3487d747 have done."""

from __future__ import annotations

import json

import pytest

from schedules import soaked
from simulation.sequences import FILE, SEEDS, digest
from volplane_testing.simulation.scenarios import SCENARIOS

GOLDEN: dict[str, list[str]] = json.loads(FILE.read_text("utf-8"))
HOW = (
    "`python -m simulation.sequences --show SCENARIO SEED` in tests/, here and at another commit, shows what differs;"
    " if it has to, CHANGELOG.md says why, and `python -m simulation.sequences` records it"
)


def test_every_scenario_is_recorded() -> None:
    assert set(GOLDEN) == set(SCENARIOS)
    assert all(len(digests) == len(SEEDS) for digests in GOLDEN.values())


@pytest.mark.parametrize("scenario", GOLDEN)
@pytest.mark.parametrize("seed", soaked(SEEDS, few=2))
def test_writes_hook_calls_and_events_of_each_object_are_the_recorded_ones(scenario: str, seed: int) -> None:
    assert digest(seed, scenario) == GOLDEN[scenario][seed], HOW
