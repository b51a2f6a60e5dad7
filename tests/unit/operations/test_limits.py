"""Delays after failures, and the rate of a driver."""

import math

import pytest

from volplane.errors import (
    ApiUnavailable,
    InvalidArgument,
    OutcomeUnknown,
    PermissionDenied,
    Throttled,
    Unavailable,
)
from volplane.operations.operation import retry_delay


def test_delays_double_from_half_a_second_to_two_minutes() -> None:
    delays = [retry_delay(Unavailable("down"), failures) for failures in range(1, 11)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 32, 64, 120, 120]
    assert retry_delay(Unavailable("down"), 100_000) == 120


def test_an_unexpected_exception_backs_off_like_any_failure() -> None:
    assert retry_delay(KeyError("x"), 3) == 2


@pytest.mark.parametrize("error", [InvalidArgument("bad"), PermissionDenied("no")])
def test_errors_of_slow_classes_wait_five_minutes_from_the_first(error: Exception) -> None:
    assert retry_delay(error, 1) == 300


@pytest.mark.parametrize(
    ("asked", "delay"), [(17.0, 17.0), (600.0, 600.0), (0.0, 0.5), (-3.0, 0.5), (1e9, 3600.0), (math.nan, 0.5)]
)
def test_what_the_error_asks_for_comes_first_within_reason(asked: float, delay: float) -> None:
    assert retry_delay(Throttled("slow down", retry_after=asked), 1) == delay
    assert retry_delay(ApiUnavailable("busy", status=429, retry_after=asked), 1) == delay


def test_retry_after_also_shortens_a_slow_class() -> None:
    assert retry_delay(InvalidArgument("soon", retry_after=5), 4) == 5


def test_an_unknown_outcome_backs_off() -> None:
    assert retry_delay(OutcomeUnknown("timeout"), 2) == 1
