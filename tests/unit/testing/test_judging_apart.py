"""The process in which `volplane check` judges."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest

from volplane.errors import ConfigurationError, VolplaneError
from volplane_testing import MemoryBackend, MemoryStorage, Subject
from volplane_testing.conformance import RULES, RuleStatus
from volplane_testing.conformance.judging_apart import run_rules_apart

STORAGE = MemoryStorage()


class Remembering(MemoryBackend):
    def __init__(self, options: object) -> None:
        super().__init__({}, storage=STORAGE)


def refused() -> Subject:
    raise ConfigurationError("no such backend")


class Interrupting(io.StringIO):
    """A stream that interrupts the process that judges when it is written out: in its last moment."""

    parent = os.getpid()

    def flush(self) -> None:
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGINT)


def test_it_never_goes_on_with_what_its_parent_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupting, "parent", os.getpid())
    monkeypatch.setattr("sys.stdout", Interrupting())
    went_on = tmp_path / "pids"
    try:
        with pytest.raises(VolplaneError, match="no such backend"):
            run_rules_apart(refused)
    finally:
        with went_on.open("a") as file:
            file.write(f"{os.getpid()}\n")
    assert went_on.read_text() == f"{os.getpid()}\n"


def test_results_are_those_of_judging_here() -> None:
    begun: list[str] = []
    subject = Subject(Remembering, real_crashes=False)
    report = run_rules_apart(lambda: subject, RULES[:3], begin=lambda rule: begun.append(rule.name))
    assert [result.status for result in report.results] == [RuleStatus.KEPT] * 3
    assert begun == [rule.name for rule in RULES[:3]]
    assert report.results[1].calls
