"""Some seeds of `volplane sim --backend volplane_gce_pd.testing:subject`, and of `attaching_subject` with `--scenario
attach`; more for `make soak`.
"""

from __future__ import annotations

import pytest

from volplane_gce_pd.testing import attaching_subject, subject
from volplane_testing import run_seed


@pytest.mark.parametrize("seed", range(6))
def test_nothing_breaks_whatever_happens(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)


def test_a_leader_whom_a_restored_lease_does_not_name_begins_anew() -> None:
    report = run_seed(347, subject)
    assert report.passed, str(report)


def test_a_claim_whose_disk_a_tenant_has_hidden_in_another_zone_waits_for_a_person() -> None:
    report = run_seed(824, subject)
    assert report.passed, str(report)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000))
def test_nothing_breaks_in_a_thousand_schedules(seed: int) -> None:
    report = run_seed(seed, subject)
    assert report.passed, str(report)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 200))])
def test_no_disk_is_attached_to_two_nodes_or_taken_from_a_pod(seed: int) -> None:
    report = run_seed(seed, attaching_subject, scenario="attach")
    assert report.passed, str(report)
