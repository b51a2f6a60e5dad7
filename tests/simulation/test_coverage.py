"""No fault is dead: every kind of trouble that the schedules can make comes in some of these seeds."""

from __future__ import annotations

from simulation.recorded import COVERING
from volplane_testing.simulation.coverage import KINDS, Coverage
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.schedule import generate


def test_every_kind_of_trouble_comes() -> None:
    coverage = Coverage()
    for seed in COVERING:
        coverage.add(simulate(Trial(generate(seed))).trace.happened)
    assert coverage.missing() == []
    known = {f"{where}: {what}" for where, kinds in KINDS.items() for what in kinds}
    assert set(coverage.times) == known, "what is counted is listed"
