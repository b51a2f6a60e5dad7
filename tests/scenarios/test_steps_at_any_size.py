"""Every operation costs what it touches: the lines of core that run for it are the same however many objects there are.

`python -m bench.growth` measures the same axes up to a million objects, with CPU, memory and latencies.
"""

from __future__ import annotations

import pytest
from bench.growth import AXES, steps_of

SIZES = {
    "objects": (100, 1_000),
    "nodes": (10, 200),
    "flips": (10, 300),
    "classes": (10, 100),
    "drivers": (10, 40),
    "selectors": (3, 90),
    "changes": (1, 100),
}


@pytest.mark.parametrize("axis", SIZES)
def test_a_unit_takes_as_many_steps_among_many_as_among_few(axis: str) -> None:
    few, many = (steps_of(AXES[axis], size) for size in SIZES[axis])
    assert many == pytest.approx(few, rel=0.002), f"lines of core for one {AXES[axis].unit}: {few:g}, then {many:g}"


def test_a_claim_of_a_large_namespace_that_is_deleted_takes_no_more_steps_than_one_of_a_small_one() -> None:
    few, many = (steps_of(AXES["namespace"], size) for size in (10, 60))
    assert many <= few * 1.002
