"""Parameters of tests that run many times: under many schedules, or the more the longer one waits."""

from collections.abc import Iterable
from typing import Any

import pytest


def schedules(seeds: Iterable[int], *, few: int | None = None, **options: Any) -> list[Any]:
    """Each seed as a parameter whose test runs in the order of tasks that the seed decides.

    few: how many of them `make test` takes, the others are for `make soak`. options: of the mark virtual_time.
    """
    return [
        pytest.param(
            seed,
            marks=[pytest.mark.virtual_time(seed=seed, **options)]
            + ([] if few is None or number < few else [pytest.mark.soak]),
            id=str(seed),
        )
        for number, seed in enumerate(seeds)
    ]


def soaked(values: Iterable[Any], *, few: int) -> list[Any]:
    """The first `few` values for `make test`, the others for `make soak`."""
    return [
        value if number < few else pytest.param(value, marks=pytest.mark.soak) for number, value in enumerate(values)
    ]
