"""Some seeds of `volplane sim --backend volplane_hostpath.testing:subject`."""

from __future__ import annotations

import pytest

from volplane_hostpath.testing import subject
from volplane_testing import run_seed


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(each, marks=pytest.mark.soak) for each in range(10, 1_000))]
)
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)
