"""Many schedules, one test each, so that a failure names its seed: `volplane sim --seeds N` shows the rest."""

from __future__ import annotations

import pytest

from schedules import soaked
from volplane_testing import run_seed


@pytest.mark.parametrize("seed", soaked(range(100), few=12))
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


@pytest.mark.parametrize(
    ("seed", "scenario"),
    [
        pytest.param(456, "mixed", id="two that lead know different reasons why a volume failed"),
        pytest.param(457, "tenants", id="one that was stopped goes on when the one that took its Lease is dead"),
        pytest.param(463, "used", id="a pod of a claim that is gone uses what somebody makes a volume of again"),
        pytest.param(432, "hostile", id="a tenant takes the protection of a claim that has not named its volume yet"),
        pytest.param(450, "hostile", id="a restore brings back a claim that its tenant held"),
        pytest.param(695, "trash", id="a claim that asked for a volume in the trash took another one, and goes later"),
        pytest.param(641, "reused", id="a machine that is gone is detached from under the name of the next one"),
        pytest.param(1134, "attach", id="a thread that was stopped attaches to a machine that is gone by then"),
        pytest.param(1158, "reused", id="a kubelet that is started anew twice reports what it knew in between"),
        pytest.param(
            1745, "hostile", id="a tenant removes a claim that had no protection when a volume was reserved for it"
        ),
        pytest.param(1867, "restore", id="a volume is restored whose asset is gone, and its claim is to grow"),
        pytest.param(1978, "snapshots", id="a clock that was set forth keeps a volume in the trash for longer"),
        pytest.param(2392, "used", id="a restore takes a running pod from its node, and a scrub of before goes on"),
        pytest.param(804, "reused", id="an attachment is about the disk that its volume had before"),
    ],
)
def test_nor_in_these_scenarios(seed: int, scenario: str) -> None:
    report = run_seed(seed, scenario=scenario)
    assert report.passed, str(report)


def test_a_claim_that_a_restore_brings_back_keeps_its_volume_though_its_end_was_seen() -> None:
    """Volumes are listed again a moment before claims, and what was gone is there."""
    report = run_seed(1666, scenario="stopped")
    assert report.passed, str(report)


def test_a_node_that_registered_again_unproven_keeps_the_disk_that_its_next_pod_is_about_to_mount() -> None:
    report = run_seed(1193, scenario="reused")
    assert report.passed, str(report)
