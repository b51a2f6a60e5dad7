"""Some seeds of `volplane sim --backend volplane_nfs.testing:subject` and of `:export_subject`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from volplane_nfs.testing import export_subject, subject
from volplane_testing import Subject, run_seed

both_modes = pytest.mark.parametrize("server", [subject, export_subject], ids=["subdirectory", "export"])
Server = Callable[[], AbstractContextManager[Subject]]


@both_modes
@pytest.mark.parametrize("seed", range(5))
def test_nothing_breaks_whatever_happens(server: Server, seed: int) -> None:
    report = run_seed(seed, server)
    assert report.passed, str(report)


@pytest.mark.soak
@both_modes
@pytest.mark.parametrize("seed", range(5, 300))
def test_nothing_breaks_in_many_more_schedules(server: Server, seed: int) -> None:
    report = run_seed(seed, server)
    assert report.passed, str(report)
