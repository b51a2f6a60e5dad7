"""The table of delays: reason, failures in a row -> seconds."""

from __future__ import annotations

import math
from random import Random

import pytest

from volplane import _delays as backoff
from volplane._delays import Backoff

DELAYS: list[tuple[Backoff, list[float], float]] = [
    # row, delays after failure 1, 2, 3 …, delay after the 1000th
    (backoff.RECONCILE_FAILED, [0.005, 0.01, 0.02, 0.04], 1000),
    (backoff.API_UNAVAILABLE, [0.005, 0.01, 0.02, 0.04], 30),
    (backoff.API_REFUSED, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4], 300),
    (backoff.REGISTRY_CLOSED, [1, 2, 4, 8], 1000),
    (backoff.HOOK_FAILED, [0.5, 1, 2, 4, 8, 16, 32, 64, 120, 120], 120),
    (backoff.HOOK_FAILED_SLOW, [300, 300], 300),
    (backoff.LONG_CALL, [1, 1], 1),
    (backoff.LIVE_STATE_FORBIDS, [1, 1], 1),
    (backoff.SOURCE_AWAITED, [1, 2, 4, 8, 16, 32, 60, 60], 60),
    (backoff.SCRUB_FAILED, [2, 4, 8, 16, 32, 64, 64], 64),
    (backoff.RECORD_OVERWRITTEN, [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300], 300),
    (backoff.RECORD_OF_OTHERS, [60, 120, 240, 480, 960, 1920, 3600], 3600),
    (backoff.WATCH_ENDED, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30], 30),
    (backoff.CIRCUIT_OPEN, [0] * 9 + [0.15, 0.225, 0.3375, 0.50625, 0.759375, 1, 1], 1),
    (backoff.EVENT_NOT_WRITTEN, [1, 2, 4, 8, 16, 32, 60], 60),
    (backoff.EVENT_REFUSED, [1, 4, 16, 16], 16),
    (backoff.LEASE_NOT_HELD, [1, 1], 1),
    (backoff.LEASE_NOT_RENEWED, [1, 1], 1),
    (backoff.PREPARE_FAILED, [1, 1], 1),
    (backoff.NODE_GROWTH_REFUSED, [300, 300], 300),
    (backoff.DRIVER_NOT_STARTED, [1, 2, 4, 8, 16, 30, 30], 30),
    (backoff.LEAK_CHECK_FAILED, [60, 60], 60),
    (backoff.LEAK_CHECK_WITHOUT_DRIVER, [10, 10], 10),
]


@pytest.mark.parametrize(("row", "delays", "last"), DELAYS, ids=str)
def test_every_row_grows_as_the_table_says(row: Backoff, delays: list[float], last: float) -> None:
    assert [row.delay(failures) for failures in range(1, len(delays) + 1)] == pytest.approx(delays)
    assert row.delay(1000) == pytest.approx(last)


def test_every_row_of_the_table_is_tested() -> None:
    assert [row for row, _, _ in DELAYS] == [row for row in vars(backoff).values() if isinstance(row, Backoff)]


ASKED: list[tuple[Backoff, float, float]] = [
    # row, asked for, delay after the first failure
    (backoff.RECONCILE_FAILED, 7, 0.005),
    (backoff.API_UNAVAILABLE, 7, 7),
    (backoff.API_UNAVAILABLE, 4000, 300),
    (backoff.API_UNAVAILABLE, 0.001, 0.005),
    (backoff.API_REFUSED, 7, 0.1),
    (backoff.LONG_CALL, 7, 7),
    (backoff.LONG_CALL, 0, 0.2),
    (backoff.LONG_CALL, 1e9, 3600),
    (backoff.HOOK_FAILED, 7, 7),
    (backoff.HOOK_FAILED, 0, 0.5),
    (backoff.HOOK_FAILED, -3, 0.5),
    (backoff.HOOK_FAILED, 1e9, 3600),
    (backoff.HOOK_FAILED, math.nan, 0.5),
    (backoff.HOOK_FAILED, math.inf, 0.5),
    (backoff.HOOK_FAILED_SLOW, 7, 7),
    (backoff.HOOK_FAILED_SLOW, math.nan, 300),
    (backoff.WATCH_ENDED, 7, 7),
    (backoff.WATCH_ENDED, 0.1, 0.8),
    (backoff.EVENT_NOT_WRITTEN, 7, 7),
    (backoff.EVENT_NOT_WRITTEN, 0.5, 1),
    (backoff.PREPARE_FAILED, 7, 7),
]


@pytest.mark.parametrize(("row", "asked", "seconds"), ASKED)
def test_what_the_other_side_asks_for(row: Backoff, asked: float, seconds: float) -> None:
    assert row.delay(1, asked=asked) == seconds


def test_an_open_circuit_waits_as_long_as_the_server_asks_but_not_for_ever() -> None:
    assert backoff.CIRCUIT_OPEN.delay(10, asked=7) == 7
    assert backoff.CIRCUIT_OPEN.delay(10, asked=300) == 25


@pytest.mark.parametrize(
    ("row", "failures", "low", "high"),
    [
        (backoff.WATCH_ENDED, 1, 0.4, 0.8),
        (backoff.WATCH_ENDED, 9, 15, 30),
        (backoff.LEASE_NOT_HELD, 1, 1, 1.2),
        (backoff.LEAK_CHECK_FAILED, 1, 60, 66),
        (backoff.HOOK_FAILED, 1, 0.5, 0.5),
    ],
)
def test_jitter_stays_within_its_row(row: Backoff, failures: int, low: float, high: float) -> None:
    random = Random(1)
    drawn = [row.delay(failures, random=random) for _ in range(200)]
    assert low <= min(drawn) <= max(drawn) <= high
    assert max(drawn) - min(drawn) >= 0.9 * (high - low)


def test_a_floor_is_not_jittered() -> None:
    assert backoff.WATCH_ENDED.delay(1, asked=7, random=Random(1)) == 7


def test_retries_together_are_those_of_client_gos_default_rate_limiter() -> None:
    assert (backoff.RETRY_RATE, backoff.RETRY_BURST, backoff.RETRIES_PER_SUCCESS) == (10, 100, 2)
