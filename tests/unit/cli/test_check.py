"""`volplane check`: backends judged from the command line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volplane.cli.main import main
from volplane_testing.conformance import RULES

MODULE = """
import dataclasses
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from volplane import Absent, Done, InProgress, NotFound, Parameter, ParameterSchema, hookimpl
from volplane_testing import MemoryBackend, MemoryStorage, Subject

STORAGE = MemoryStorage()


class Good(MemoryBackend):
    def __init__(self, options):
        super().__init__(options, storage=STORAGE)


class Bad(Good):
    @hookimpl
    def delete(self, request):
        if self.storage.by_handle(request.volume.handle) is None:
            raise NotFound(f"asset {request.volume.handle} does not exist")
        return super().delete(request)


class Waiving(Good):
    @hookimpl
    def describe(self, request):
        waived = {"the-smallest-size-works": "a stripe is the least"}
        return dataclasses.replace(super().describe(request), waived_rules=waived)


class Hangs(Good):
    @hookimpl
    def delete(self, request):
        print("it hangs", file=sys.stderr, flush=True)
        threading.Event().wait()


class HangsOnce(Good):
    calls = 0

    @hookimpl
    def delete(self, request):
        HangsOnce.calls += 1
        if HangsOnce.calls == 1:
            print("it hangs", file=sys.stderr, flush=True)
            threading.Event().wait()
        return super().delete(request)


class MakesLate(Good):
    @hookimpl
    def provision(self, request):
        print("it hangs", file=sys.stderr, flush=True)
        threading.Event().wait()


class SlowOnce(Good):
    calls = 0

    @hookimpl
    def provision(self, request):
        SlowOnce.calls += 1
        if SlowOnce.calls == 1:
            threading.Event().wait(0.8)
        return super().provision(request)


class NeverBuilt(Good):
    @hookimpl
    def describe(self, request):
        threading.Event().wait()


class NeverStops(Good):
    @hookimpl
    def stop(self, request):
        threading.Event().wait()


class NeverDone(Good):
    @hookimpl
    def provision(self, request):
        return InProgress(retry_after=1e9)


class HangsInAPool(Good):
    @hookimpl
    def delete(self, request):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(threading.Event().wait).result()


class HoldsTheLock(Good):
    @hookimpl
    def delete(self, request):
        re.match("(a|a)*b", "a" * 99)


class Dies(Good):
    @hookimpl
    def delete(self, request):
        os.kill(os.getpid(), signal.SIGKILL)


class Exits(Good):
    @hookimpl
    def describe(self, request):
        os._exit(0)


def subject():
    return Subject(Good, capacity_bytes=1 << 20)


class Deaf(Good):
    options_schema = ParameterSchema(parameters=(Parameter(name="at", doc="Where.", default="here"),))

    def __init__(self, options):
        super().__init__(options)
        self.reachable = options["at"] == "here"

    @hookimpl
    def find(self, request):
        return super().find(request) if self.reachable else Absent()


nothing = 7
"""
TWO = ("--rule", "delete-of-what-is-gone-is-done", "--rule", "delete-removes-the-asset")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    (tmp_path / "checked_backends.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def volplane(*arguments: str) -> tuple[int, str, str]:
        code = main(["check", *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    yield volplane
    sys.modules.pop("checked_backends", None)


def test_a_good_backend_passes(run: Run) -> None:
    code, out, _ = run("checked_backends:Good", "--in-process", *TWO)
    assert (code, out) == (0, "2 kept\n")


def test_a_violation_is_explained_and_fails_the_command(run: Run) -> None:
    code, out, _ = run("checked_backends:Bad", "--in-process", *TWO)
    assert code == 1
    assert "FAIL  delete-of-what-is-gone-is-done: delete raised NotFound: asset memory-" in out
    assert "The rule: `delete` of an asset that is gone is `Done`, also when it is repeated." in out
    assert "process 1: delete(memory-" in out
    assert out.endswith("1 kept, 1 violated\n")


def test_everything_is_shown_when_asked_for(run: Run) -> None:
    code, out, _ = run("checked_backends:Waiving", "--in-process", "-v", "--rule", "the-smallest-size-works", *TWO)
    assert code == 0
    assert "waived: the-smallest-size-works (a stripe is the least)" in out
    assert "ok    delete-removes-the-asset" in out


def test_a_waived_rule_is_always_shown(run: Run) -> None:
    _, out, _ = run("checked_backends:Waiving", "--in-process", "--rule", "the-smallest-size-works")
    assert out == "waived: the-smallest-size-works (a stripe is the least)\n1 waived\n"


def test_a_function_may_give_the_subject(run: Run) -> None:
    code, out, _ = run("checked_backends:subject", "--capacity", "3Mi", "--parameters", "colour=red", *TWO)
    assert (code, out) == (0, "2 kept\n")


def test_a_function_may_open_a_storage_for_each_rule(run: Run) -> None:
    code, out, err = run("volplane_hostpath.testing:subject", *TWO)
    assert (code, out) == (0, "2 kept\n"), err


def test_an_installed_backend_is_found_by_name_and_judged_on_a_real_storage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "options.yaml").write_text(f"root: {tmp_path}/root\nnode_name: node-a\n")
    rules = ("a-crash-in-the-middle-of-provision-is-made-whole", "the-place-asked-for-is-the-place")
    where = ("--options", "options.yaml", "-o", "overcommit_percent=1000", "--segment", "kubernetes.io/hostname=node-a")
    code, out, err = run("hostpath", *where, "--rule", rules[0], "--rule", rules[1])
    assert (code, out) == (0, "2 kept\n"), err


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("Hangs", "provision-makes-an-asset: in cleaning up, delete did not return within 1 s; it waits in wait, "),
        ("NeverBuilt", "the constructor, or describe, did not return within 1 s"),
        ("NeverStops", "in cleaning up, stop did not return within 1 s"),
    ],
)
def test_a_call_that_never_returns_is_a_violation_that_ends_the_command(run: Run, backend: str, says: str) -> None:
    code, out, _ = run(f"checked_backends:{backend}", "--in-process", "--patience", "1")
    assert code == 1
    [failure] = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert says in failure
    assert " did not return)\n" in out
    assert "1 violated" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("HoldsTheLock", "delete did not return within 1 s; it held the interpreter's lock"),
        ("Dies", "delete ended the process by SIGKILL"),
        ("Exits", "the constructor, or describe, ended the process with exit code 0"),
    ],
)
def test_a_call_that_stops_or_ends_its_process_is_a_violation(run: Run, backend: str, says: str) -> None:
    code, out, _ = run(f"checked_backends:{backend}", "--in-process", "--patience", "1")
    assert code == 1
    [failure] = [line for line in out.splitlines() if line.startswith("FAIL")]
    assert failure.endswith(f": {says}")
    assert "not judged: 1" in out  # in one line, so that the failure stays in sight
    assert "1 violated, " in out.splitlines()[-1]
    assert " not judged" in out.splitlines()[-1]


def test_an_option_with_which_the_storage_cannot_be_reached_shows_what_is_swallowed(run: Run) -> None:
    rule = ("--rule", "a-storage-out-of-reach-is-not-empty")
    code, out, _ = run("checked_backends:Deaf", "--in-process", "--unreachable", "at=nowhere", *rule)
    assert code == 1
    assert "find answers Absent() while the storage cannot be reached: an error of the storage is swallowed" in out
    code, out, _ = run("checked_backends:Deaf", "--in-process", *rule, "-v")
    assert code == 0
    assert "needs Subject.unreachable (--unreachable OPTION=VALUE) or Subject.outage" in out


def test_a_backend_that_lacks_an_option_is_told_where_options_are_given(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane_testing.cli.subjects.GROUP", "no.fakes")
    code, out, err = run("hostpath", *TWO)
    assert code == 1
    assert "hostpath is judged without options; --options FILE or --options KEY=VALUE gives it some" in out
    assert "option 'root' is required" in err


def test_a_module_whose_import_ends_the_process_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "exiting.py").write_text("import os\nos._exit(0)\n")
    code, out, err = run("exiting:Backend", *TWO)
    assert (code, out) == (1, "")
    assert "error: exiting:Backend: importing exiting ended the process with exit code 0\n" in err


def test_work_that_is_never_done_is_a_violation_and_not_waited_for(run: Run) -> None:
    code, out, _ = run("checked_backends:NeverDone", "--in-process", "--rule", "provision-makes-an-asset")
    assert code == 1
    assert "provision wants to be called again in 1e+09 s, after 0 s of waiting: longer than progress_patience" in out
    code, out, _ = run("checked_backends:NeverDone", "--in-process", "--rule", RULES[0].name)
    assert (code, out) == (0, "1 kept\n")


def test_threads_of_a_backend_that_hang_do_not_hold_the_command(run: Run) -> None:
    arguments = ["check", "checked_backends:HangsInAPool", "--in-process", "--patience", "1", *TWO]
    ran = subprocess.run(
        [sys.executable, "-m", "volplane", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 1, ran.stderr
    assert "FAIL  delete-removes-the-asset: delete did not return within 1 s" in ran.stdout


def interrupted(backend: str, times: int = 1) -> tuple[int, str, list[str]]:
    """Interrupt a check each time that a hook hangs; exit code, stdout, and the lines of stderr without progress."""
    process = subprocess.Popen(
        [sys.executable, "-m", "volplane", "check", backend, "--in-process", *TWO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    err = []
    while times:
        err.append(process.stderr.readline())
        if "it hangs" in err[-1]:
            process.send_signal(signal.SIGINT)
            times -= 1
    out, rest = process.communicate(timeout=60)
    err += rest.splitlines(keepends=True)
    # Where nothing is a terminal, progress is a line from time to time.
    return process.returncode, out, [line for line in err if not line.startswith(("judging ", "it hangs"))]


def test_ctrl_c_deletes_what_was_made_and_says_so(run: Run) -> None:
    code, out, err = interrupted("checked_backends:HangsOnce")
    assert (code, out) == (130, "")
    assert err == ["warning: interrupted; nothing that was made here is left on the storage\n"]


def test_ctrl_c_names_what_a_call_may_still_make(run: Run) -> None:
    code, out, [left] = interrupted("checked_backends:MakesLate")
    assert (code, out) == (130, "")
    assert re.fullmatch(r"warning: left on the storage: pvc-[0-9a-f-]{36}, if provision still makes it\n", left)


def test_a_slow_hook_is_named_while_it_goes_on_and_is_the_last_that_is_judged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane_testing.cli.check.SLOW_CALL", 0.1)
    code, out, err = run("checked_backends:SlowOnce", "--in-process", *TWO)
    assert "warning: provision has not returned for 0.1 s. A hook that waits for its storage should answer InP" in err
    assert (code, out.splitlines()[0]) == (
        1,
        "not judged: delete-of-what-is-gone-is-done (provision took 1 s, and no --patience allows that)",
    )
    assert out.endswith("1 kept, 1 not judged\n"), "the rule in which it was called is judged"


def test_a_slow_hook_is_judged_by_every_rule_if_its_patience_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane_testing.cli.check.SLOW_CALL", 0.1)
    code, out, err = run("checked_backends:SlowOnce", "--in-process", "--patience", "60s", *TWO)
    assert (code, out) == (0, "2 kept\n")
    assert "has not returned" not in err


def test_a_second_ctrl_c_ends_the_deletion_too_and_says_what_is_left(run: Run) -> None:
    code, out, err = interrupted("checked_backends:Hangs", times=2)
    assert (code, out) == (130, "")
    assert err == ["warning: left on the storage: memory-1\n"]


def test_on_a_terminal_a_line_shows_how_many_rules_are_judged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("volplane.cli.framework.console._can_colour", lambda _stream: True)
    _, _, err = run("checked_backends:Good", "--in-process", *TWO)
    assert "judging 0/2" in err
    assert "\x1b[2K" in err, "the line is drawn again"
    assert err.endswith("judging 2/2\n")


def test_a_backend_that_brings_a_storage_for_tests_is_judged_on_it(run: Run) -> None:
    code, out, err = run("aws_ebs", *TWO)
    assert code == 0, err
    [where, result] = out.splitlines()
    assert (
        where == "aws_ebs is judged on its storage for tests, volplane_aws_ebs.testing:subject; --options name another"
    )
    assert result == "2 kept"


def test_the_rules_can_be_listed(run: Run) -> None:
    code, out, _ = run("--list")
    assert code == 0
    assert out.count("\n") == 2 * len(RULES)
    assert "provision-again-gives-the-same-asset (cannot be waived)\n    An equal demand gets" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("hostpth",), "error: backend 'hostpth' is not installed; did you mean 'hostpath'?"),
        (("checked_backends:Goood",), "has no Goood; did you mean 'Good'?"),
        (("no_such_module:Good",), "error: no_such_module:Good: importing no_such_module raised ModuleNotFoundError"),
        (("checked_backends:nothing",), "gives int, expected a backend class or a Subject"),
        (("checked_backends:Good", "--rule", "delete-twice"), "error: --rule: 'delete-twice' is no rule"),
        (("checked_backends:Good", "-o", "no-file.yaml"), "no-file.yaml cannot be read: No such file"),
        (("checked_backends:Good", "--capacity", "much"), "--capacity: 'much' must be a size such as 1Gi"),
        (("checked_backends:Good", "--capacity", "0"), "--capacity: '0' must be at least 1 byte"),
        (("checked_backends:Good", "--segment", "zone"), "--segment: 'zone' must be K=V"),
        (("checked_backends:Good", "-o", "colour=red"), "unknown option 'colour'"),
    ],
)
def test_what_cannot_be_judged_is_one_line(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = run(*arguments)
    assert code == 1
    [error] = [line for line in err.splitlines() if line.startswith("error: ")]
    assert says in error


def test_without_a_backend_the_usage_is_wrong(run: Run) -> None:
    code, _, err = run()
    assert code == 2
    assert "name the backend to judge" in err
