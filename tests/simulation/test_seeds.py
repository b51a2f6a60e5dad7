"""Many schedules, one test each, so that a failure names its seed: `volplane sim --seeds N` shows the rest."""

from __future__ import annotations

import pytest

from schedules import soaked
from volplane_testing import run_seed


@pytest.mark.parametrize("seed", soaked(range(2000), few=16))
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed)
    assert report.passed, str(report)


def test_nobody_gets_a_volume_that_its_backend_erases_though_the_policy_is_retain_by_now() -> None:
    report = run_seed(41576)
    assert report.passed, str(report)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(30842, id="the Lease is deleted, and its holder stopped before it takes another"),
        pytest.param(31373, id="a hook ends after a restore that has lost its record"),
        pytest.param(35332, id="a restore brings back a claim that grows, and its asset is deleted"),
        pytest.param(31780, id="a restore loses the class of an asset"),
    ],
)
def test_nothing_is_asked_that_nobody_could_know(seed: int) -> None:
    report = run_seed(seed)
    assert report.passed, str(report)
