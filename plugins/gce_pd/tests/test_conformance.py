"""The promises that every backend makes, judged on a mocked Compute Engine in virtual time."""

from __future__ import annotations

import pytest

from volplane_gce_pd.testing import Behaviour, subject
from volplane_testing import BackendConformance, Subject
from volplane_testing.conformance import RULES

BY_TIME = tuple(
    rule
    for rule in RULES
    if rule.check.__module__.rpartition(".")[2] in ("provisioning", "deleting", "concurrency", "attaching", "snapshots")
)
"""Rules that hold or break by when things happen."""


class TestGcePd(BackendConformance):
    @pytest.fixture
    def backend(self) -> Subject:
        return subject(Behaviour(max_results=5), hyperdisks=True, crash_points=12)


class TestGcePdImages(BackendConformance):
    """Images as snapshots."""

    rules = tuple(rule for rule in RULES if rule.check.__module__.endswith(".snapshots"))

    @pytest.fixture
    def backend(self) -> Subject:
        return subject(Behaviour(max_results=5), images=True, crash_points=6)


@pytest.mark.more
class TestGcePdSlowAndFew(BackendConformance):
    """Slow operations that are soon forgotten, errors by HTTP, and one call a second."""

    rules = BY_TIME

    @pytest.fixture
    def backend(self) -> Subject:
        behaviour = Behaviour(default_seconds=6.0, operation_kept=9.0, shape="http", max_results=5)
        return subject(behaviour, crash_points=4, mutations_per_second=1, mutation_burst=1, operations_per_vm=1)
