"""The processes of a measurement: API server, controllers, bare client."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Controller", "Process", "Usage", "child", "controller", "load", "machine", "program", "server"]

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_SECONDS = 120.0
QUIET_SHARE = 0.03
"""Share of a core below which a process counts as idle."""


@dataclass(frozen=True)
class Usage:
    """What a process has used: CPU seconds (user and system), resident bytes now and their maximum."""

    cpu: float
    memory: int
    peak: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        peak = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
        return cls((int(fields[11]) + int(fields[12])) / TICKS, resident, int(peak.split()[1]) * 1024)


class Process:
    """A child process that is controlled by lines on stdin and stdout."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    def usage(self) -> Usage:
        return Usage.of(self.pid)

    def line(self, seconds: float = START_SECONDS) -> str:
        """The next line of its stdout. Raises SystemExit if it ends, or prints nothing in time."""
        out = self._popen.stdout
        if out is None or not select.select([out], [], [], seconds)[0] or not (printed := out.readline()):
            raise SystemExit(f"{self._popen.args!r} printed nothing within {seconds:g} s")
        return printed.decode().strip()

    def write(self, text: str) -> None:
        """Write a line to its stdin."""
        if self._popen.stdin is not None:
            self._popen.stdin.write(text.encode() + b"\n")
            self._popen.stdin.flush()

    def wait_for(self, path: Path, seconds: float = START_SECONDS) -> None:
        """Return once the file exists. Raises SystemExit if the process ends, or does not write it in time."""
        end = time.monotonic() + seconds
        while not path.exists():
            if self._popen.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self._popen.args!r} did not start")
            time.sleep(0.02)

    def pause(self) -> None:
        """Stop it with SIGSTOP until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def quiet(self, seconds: float = 120.0) -> Usage:
        """Wait until it is idle; returns what it has used. Raises SystemExit if it stays busy."""
        before, end = self.usage(), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.5)
            now = self.usage()
            if now.cpu - before.cpu <= 0.5 * QUIET_SHARE:
                return now
            before = now
        raise SystemExit(f"{self._popen.args!r} does not become idle")


class Controller(Process):
    """The controllers. url: of their HTTP endpoints."""

    url = ""

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics: name with labels -> value."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {
            sample: float(value) for sample, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
        }

    def total(self, metric: str) -> float:
        """The sum of all samples of one metric."""
        return sum(value for sample, value in self.metrics().items() if sample.partition("{")[0] == metric)

    def loop_latency(self) -> dict[str, float]:
        """p50, p99 and max of the latency of its loop in ms since the last call; it runs with `--loop`."""
        self.write("loop")
        latencies: dict[str, float] = json.loads(self.line())
        return latencies

    def bytes(self) -> tuple[int, int]:
        """Bytes read and written so far, sockets included."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return int(fields["rchar"]), int(fields["wchar"])

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return once it is ready. Raises SystemExit if it is not in time."""
        end = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() > end:
                raise SystemExit("the controllers are not ready")
            time.sleep(0.02)

    def writes(self) -> tuple[int, int]:
        """(writes of objects, writes of events) sent so far, from its own metrics."""
        objects = events = 0.0
        for sample, value in self.metrics().items():
            if not sample.startswith("rest_client_requests_total{"):
                continue
            if not any(f'method="{verb}"' in sample for verb in ("create", "patch", "delete")):
                continue
            if 'resource="events"' in sample:
                events += value
            else:
                objects += value
        return int(objects), int(events)


@contextmanager
def child(*command: str, kind: type[Process] = Process) -> Iterator[Any]:
    """Run a Python program until the block ends; then SIGTERM, and SIGKILL after 15 s."""
    with program(sys.executable, *command, kind=kind) as process:
        yield process


@contextmanager
def program(*command: str, kind: type[Process] = Process, log: Path | None = None) -> Iterator[Any]:
    """Run any program, as `child`. log: a file for what it prints, where nobody reads that."""
    with log.open("wb") if log is not None else nullcontext(subprocess.PIPE) as out:
        errors = subprocess.STDOUT if log is not None else None
        popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=errors)
    try:
        yield kind(popen)
    finally:
        popen.send_signal(signal.SIGCONT)
        popen.terminate()
        try:
            popen.wait(15)
        except subprocess.TimeoutExpired:
            popen.kill()
            popen.wait()
        for stream in (popen.stdin, popen.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def server(kubeconfig: Path, data: Path | None = None, **special: float) -> Iterator[Process]:
    """An API server that has written `kubeconfig`, in memory, or durable in the directory `data`.

    special: options of `bench.server`; none: `volplane apiserver`.
    """
    if special:
        options = [text for name, value in special.items() for text in (f"--{name.replace('_', '-')}", str(value))]
        command = ["-m", "bench.server", str(kubeconfig), *options]
    else:
        kept = ["--data", str(data)] if data is not None else ["--memory"]
        command = ["-m", "volplane", "apiserver", *kept, "--port", "0", "--kubeconfig-out", str(kubeconfig)]
    with child(*command) as process:
        process.wait_for(kubeconfig)
        yield process


@contextmanager
def controller(kubeconfig: Path, *options: str, wait: bool = True) -> Iterator[Controller]:
    """The controllers, ready if `wait`. options: see `bench.controller`."""
    with child("-m", "bench.controller", str(kubeconfig), *options, kind=Controller) as process:
        process.url = process.line()
        if wait:
            process.wait_ready()
        yield process


def load() -> str:
    """The load average of this machine, as a text."""
    one, five, _ = os.getloadavg()
    return f"load average {one:.1f} (1 min), {five:.1f} (5 min)"


def machine() -> str:
    """Processor and Python version of this machine, as a text."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores, {model}, Python {version}"


def report(title: str, rows: dict[str, Any]) -> None:
    """Print figures as a table."""
    print(title)
    for name, value in rows.items():
        print(f"  {name:44} {value:>12,.3f}" if isinstance(value, float) else f"  {name:44} {value:>12}")


def keep(path: Path | None, content: Any) -> None:
    """Write figures as JSON, if a path is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
