"""The promises that every backend makes, judged on a fake CSI driver in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from volplane_csi.testing import ALL_CAPABILITIES, Behaviour, attaching_subject, subject
from volplane_testing import BackendConformance, Subject
from volplane_testing.conformance import RULES

SECRET = "known-to-two-only"
LATE = tuple(rule for rule in RULES if rule.check.__module__.rpartition(".")[2] in ("crashes", "snapshots"))
"""Rules that hold or break by when things happen."""


class TestCsi(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Subject:
        from dataclasses import replace

        (tmp_path / "secret").write_text(json.dumps({"key": SECRET}))
        behaviour = Behaviour(zones=("a", "b"), page=5, secrets={"key": SECRET}, attach_limit=4)
        made = subject(behaviour, crash_points=8, controller_secret=f"file:{tmp_path}/secret")
        return replace(made, secrets=(SECRET,))


class TestCsiSlow(BackendConformance):
    """Snapshots take their time, and GetSnapshot tells when one is ready."""

    rules = LATE

    @pytest.fixture
    def backend(self) -> Subject:
        capabilities = (ALL_CAPABILITIES - {"LIST_SNAPSHOTS", "SINGLE_NODE_MULTI_WRITER"}) | {"GET_SNAPSHOT"}
        behaviour = Behaviour(cut_seconds=20.0, capabilities=capabilities)
        return subject(behaviour, crash_points=4)


@pytest.mark.soak
class TestCsiWithoutPlaces(BackendConformance):
    @pytest.fixture
    def backend(self) -> Subject:
        return attaching_subject()
