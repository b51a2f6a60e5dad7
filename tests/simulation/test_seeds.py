"""Many schedules, one test each, so that a failure names its seed: `volplane sim --seeds N` shows the rest."""

from __future__ import annotations

import pytest

from schedules import soaked
from volplane_testing import run_seed


@pytest.mark.parametrize("seed", soaked(range(2000), few=16))
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed)
    assert report.passed, str(report)
