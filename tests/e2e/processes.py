"""Starting and ending the real commands, for tests that use them as a person would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Command", "kubectl", "objects", "running", "until"]

ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}


class Command:
    """A running `volplane` command whose output goes to a file."""

    def __init__(self, log: Path, *arguments: str, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        self.log = log
        self._file = log.open("ab")
        self._begin = log.stat().st_size
        self._process = subprocess.Popen(
            [sys.executable, "-m", "volplane", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
            env=environment,
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is told."""
        self._process.kill()
        self._process.wait()
        self._file.close()

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        finally:
            self._process.kill()
            self._process.wait()
            self._file.close()

    def said_itself(self) -> str:
        """What this process has written, where several write to the same file."""
        return self.log.read_bytes()[self._begin :].decode(errors="replace")

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def running(log: Path, *arguments: str) -> Iterator[Command]:
    """Run a command until the block ends."""
    command = Command(log, *arguments)
    try:
        yield command
    finally:
        if command.alive:
            command.stop()


def until(what: str, reached: Callable[[], bool], seconds: float = 120.0, *, said: Callable[[], str] = str) -> None:
    """Wait for other processes to make something so; fail with what was waited for, and what they said."""
    end = time.monotonic() + seconds
    pause = 0.02
    while not reached():
        assert time.monotonic() < end, f"not after {seconds:.0f} s: {what}\n{said()[-3000:]}"
        time.sleep(pause)
        pause = min(pause * 1.3, 0.25)


def kubectl(kubeconfig: Path, *arguments: str, given: str | None = None, check: bool = True) -> str:
    """Run kubectl; its standard output."""
    ended = subprocess.run(
        ["kubectl", "--kubeconfig", str(kubeconfig), *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**ENVIRONMENT, "HOME": str(kubeconfig.parent)},
    )
    assert not check or ended.returncode == 0, f"kubectl {' '.join(arguments)}: {ended.stderr}"
    return ended.stdout


def objects(kubeconfig: Path, *kinds: str) -> list[Any]:
    """All objects of these kinds, everywhere."""
    listed = json.loads(kubectl(kubeconfig, "get", ",".join(kinds), "-A", "-o", "json"))
    items: list[Any] = listed["items"]
    return items
