"""The process in which `volplane check` judges."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal

import pytest

from volplane.errors import ConfigurationError, VolplaneError
from volplane_testing import MemoryBackend, MemoryStorage, Subject
from volplane_testing.conformance import RULES, RuleStatus, judging_apart
from volplane_testing.conformance.judging_apart import run_rules_apart

STORAGE = MemoryStorage()


class Remembering(MemoryBackend):
    def __init__(self, options: object) -> None:
        super().__init__({}, storage=STORAGE)


def refused() -> Subject:
    raise ConfigurationError("no such backend")


class Interrupting(io.StringIO):
    """A stream that interrupts its process when it is written out."""

    def flush(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interruption_in_its_last_moment_does_not_send_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it goes on with what its parent was doing."""
    read, told = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            monkeypatch.setattr("sys.stdout", Interrupting())
            judging_apart._judge_and_exit(read, told, refused, RULES[:1])
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(VolplaneError, match="no such backend"):
        run_rules_apart(refused)


def test_results_are_those_of_judging_here() -> None:
    begun: list[str] = []
    subject = Subject(Remembering, real_crashes=False)
    report = run_rules_apart(lambda: subject, RULES[:3], begin=lambda rule: begun.append(rule.name))
    assert [result.status for result in report.results] == [RuleStatus.KEPT] * 3
    assert begun == [rule.name for rule in RULES[:3]]
    assert report.results[1].calls
