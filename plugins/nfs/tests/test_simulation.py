"""Some seeds of `volplane sim --backend volplane_nfs.testing:subject`."""

from __future__ import annotations

import pytest

from volplane_nfs.testing import subject
from volplane_testing import run_seed


@pytest.mark.parametrize("seed", range(5))
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5, 300))
def test_nothing_breaks_in_many_more_schedules(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)
