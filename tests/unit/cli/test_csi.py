"""`volplane csi`: what it refuses before it serves anything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import volplane.csi
from volplane.cli.main import main

Run = Callable[..., tuple[int, str, str]]
USUAL = ("csi", "--backend", "hostpath", "--cluster", "prod")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def called(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return called


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--endpoint", "tcp://0.0.0.0:9000"), 1, "expected unix:///PATH"),
        (("--endpoint", "csi.sock"), 1, "expected unix:///PATH"),
        (("--endpoint", "unix:///nowhere/csi.sock", "-o", "hunter2"), 1, "expected KEY=VALUE"),
        (("--endpoint", "unix:///nowhere/csi.sock", "-o", "root=/a", "-o", "root=/b"), 1, "-o root is given twice"),
        (("--endpoint", "unix:///nowhere/csi.sock", "-o", "rot=/a"), 1, "did you mean 'root'"),
        (("--endpoint", "unix:///nowhere/csi.sock", "-o", "root=/nowhere"), 1, "/nowhere/csi.sock.lock"),
        (("--endpoint", "unix:///nowhere/csi.sock", "--backend", "nosuch"), 1, "nosuch"),
        (("--endpoint", "unix:///nowhere/csi.sock", "--cluster", "two words"), 2, "printable ASCII"),
        ((), 2, "--endpoint"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_served(
    run: Run, arguments: tuple[str, ...], code: int, says: str
) -> None:
    got, _, err = run(*USUAL, *arguments)
    assert got == code
    assert says in " ".join(err.split())
    assert "Traceback" not in err


def test_without_grpc_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "volplane.csi.server", raising=False)
    monkeypatch.delattr(volplane.csi, "server", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    code, _, err = run(*USUAL, "--endpoint", f"unix://{tmp_path}/csi.sock")
    assert code == 1
    assert 'pip install "volplane[csi]"' in err
