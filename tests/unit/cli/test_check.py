"""`volplane check`: backends judged from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volplane.cli.main import main
from volplane_testing.conformance import RULES

MODULE = """
import dataclasses

from volplane import Done, NotFound, hookimpl
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


def subject():
    return Subject(Good, capacity_bytes=1 << 20)


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
