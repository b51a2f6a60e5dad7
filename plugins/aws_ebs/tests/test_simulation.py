"""Some seeds of `volplane sim --backend volplane_aws_ebs.testing:subject`, and of `attaching_subject` with `--scenario
attach`.
"""

from __future__ import annotations

import pytest

from volplane_aws_ebs.testing import attaching_subject, subject
from volplane_testing import run_seed


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(each, marks=pytest.mark.soak) for each in range(10, 1_000))]
)
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)


def test_what_was_asked_for_before_a_restore_and_not_since_may_be_left() -> None:
    report = run_seed(530, subject)
    assert report.passed, str(report)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 200))])
def test_no_volume_is_attached_to_two_nodes_or_taken_from_a_pod(seed: int) -> None:
    report = run_seed(seed, attaching_subject, scenario="attach")
    assert report.passed, str(report)
