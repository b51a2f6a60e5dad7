"""Parameters of tests that run under many schedules."""

from collections.abc import Iterable
from typing import Any

import pytest


def schedules(seeds: Iterable[int], **options: Any) -> list[Any]:
    """Each seed as a parameter whose test runs in the order of tasks that the seed decides; see the mark virtual_time."""
    return [pytest.param(seed, marks=pytest.mark.virtual_time(seed=seed, **options), id=str(seed)) for seed in seeds]
