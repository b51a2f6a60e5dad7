"""The processes of a measurement, each on its own as in real life: API server, controller, bare client."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Controller", "Process", "Usage", "child", "controller", "load", "machine", "server"]

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
START_SECONDS = 120.0
QUIET_SHARE = 0.03
"""Of a core: a process below it has nothing left to do."""


@dataclass(frozen=True)
class Usage:
    """What a process used so far: CPU seconds (user and system), and its resident bytes now and at most."""

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
    """A child that says on its standard output, line by line, what others need to know."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid

    def usage(self) -> Usage:
        return Usage.of(self.pid)

    def line(self, seconds: float = START_SECONDS) -> str:
        """The next line it prints. Ends the benchmark if it ends instead, or says nothing."""
        out = self._popen.stdout
        if out is None or not select.select([out], [], [], seconds)[0] or not (said := out.readline()):
            raise SystemExit(f"{self._popen.args!r} did not say what was expected within {seconds:g} s")
        return said.decode().strip()

    def tell(self, text: str) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.write(text.encode() + b"\n")
            self._popen.stdin.flush()

    def wait_for(self, path: Path, seconds: float = START_SECONDS) -> None:
        """Return once it wrote the file."""
        end = time.monotonic() + seconds
        while not path.exists():
            if self._popen.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{self._popen.args!r} did not start")
            time.sleep(0.02)

    def pause(self) -> None:
        """Stop it where it is: it uses nothing until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def quiet(self, seconds: float = 120.0) -> Usage:
        """What it has used once it has nothing left to do."""
        before, end = self.usage(), time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.5)
            now = self.usage()
            if now.cpu - before.cpu <= 0.5 * QUIET_SHARE:
                return now
            before = now
        raise SystemExit(f"{self._popen.args!r} does not come to rest")


class Controller(Process):
    """The controllers, with the address under which they tell about themselves."""

    url = ""

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics by name and labels, as written there."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {
            sample: float(value) for sample, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
        }

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def writes(self) -> tuple[int, int]:
        """(writes of objects, writes of events) that it sent so far, by its own count."""
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
    """Run a Python program until the block ends; SIGTERM, and SIGKILL for what does not heed it."""
    popen = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
        end = time.monotonic() + START_SECONDS
        while wait and not process.ready():
            if time.monotonic() > end:
                raise SystemExit("the controllers are not ready")
            time.sleep(0.02)
        yield process


def load() -> str:
    """How busy the machine is besides."""
    one, five, _ = os.getloadavg()
    return f"load average {one:.1f} (1 min), {five:.1f} (5 min)"


def machine() -> str:
    """What this was measured on."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores, {model}, Python {version}"


def report(title: str, rows: dict[str, Any]) -> None:
    """Print figures for people."""
    print(title)
    for name, value in rows.items():
        print(f"  {name:44} {value:>12,.3f}" if isinstance(value, float) else f"  {name:44} {value:>12}")


def keep(path: Path | None, content: Any) -> None:
    """Keep figures for scripts."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
