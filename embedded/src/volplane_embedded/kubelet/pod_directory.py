"""What the kubelet keeps on disk: `pods/<uid>/` with volumes, logs, and how each start of a container ended.

A start is recorded by its log (`containers/<name>/<attempt>.log`), its end by the last report of its sandbox beside the
log. From these a kubelet that was killed learns what ran; it kills what still runs, and runs no container again that
may run only once. All functions but the paths block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import stat
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from volplane_embedded.kubelet.container_config import ContainerPaths
from volplane_embedded.kubelet.mounts import remove_tree
from volplane_embedded.kubelet.pod_state import ContainerRecord, PodRecord, Terminated, new_record
from volplane_embedded.objects import ContainerStatus, Pod, timestamp
from volplane_embedded.sandbox.monitor import start_ticks
from volplane_embedded.sandbox.spec import Report, decode_report

_LOG = logging.getLogger(__name__)

_UNKNOWN: Final = "ContainerStatusUnknown"
_KILLED: Final = "the node agent was stopped while the container ran"
_MESSAGE_BYTES: Final = 4096
_TAIL_BYTES: Final = 2048
_DEATH_SECONDS: Final = 5.0
_LONGEST_NUMBER: Final = 10
_LONGEST_RESULT: Final = 65_536


class PodDirectory:
    """The directory of one pod. root: the kubelet's directory `pods`."""

    def __init__(self, root: Path, uid: str) -> None:
        self.directory = root / uid
        self.volumes = self.directory / "volumes"

    def places(self, container: str, attempt: int) -> ContainerPaths:
        """Files of one start."""
        directory = self.directory / "containers" / container
        return ContainerPaths(
            base=self.directory / "roots" / container,
            log=directory / f"{attempt}.log",
            result=directory / f"{attempt}.json",
            termination_message=directory / f"{attempt}.message",
        )

    def make(self, container: str, attempt: int) -> ContainerPaths:
        """Make the directories of a start. Files of the start before it are kept, older ones are removed."""
        places = self.places(container, attempt)
        self.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        places.base.mkdir(parents=True, exist_ok=True)
        places.log.parent.mkdir(parents=True, exist_ok=True)
        for path in places.log.parent.iterdir():
            if -1 < attempt_of(path) < attempt - 1:
                path.unlink(missing_ok=True)
        places.termination_message.touch()
        places.termination_message.chmod(0o666)
        return places

    def tear_down(self) -> None:
        """Unmount volumes that were mounted and remove volumes that were made here; logs stay. Raises MountError."""
        remove_tree(self.volumes)
        remove_tree(self.directory / "roots")

    def remove(self) -> None:
        """Remove everything. Raises MountError."""
        remove_tree(self.directory)


def attempt_of(path: Path) -> int:
    """Return the number of the start that a file is about; -1 if it is not one of ours."""
    number = path.name.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < _LONGEST_NUMBER else -1


def terminated_state(report: Report, places: ContainerPaths, *, policy: str) -> Terminated:
    """Describe how a container ended, with its termination message. policy: terminationMessagePolicy."""
    message = report.message or _read(places.termination_message, _MESSAGE_BYTES)
    if not message and policy == "FallbackToLogsOnError" and report.code != 0:
        message = _tail(places.log)
    return Terminated(
        code=report.code,
        signal=report.signal,
        reason="Completed" if report.code == 0 else "Error",
        message=message,
        started=_time(report.began),
        finished=_time(report.at or time.time()),
    )


def _time(seconds: float) -> str:
    return timestamp(datetime.fromtimestamp(seconds, UTC)) if seconds else ""


def _read(path: Path, most: int) -> str:
    try:
        return _content(path, most).decode(errors="replace")
    except OSError:
        return ""


def _content(path: Path, most: int) -> bytes:
    """Raises OSError, also for what is no regular file: reading a pipe would wait for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
        return stream.read(most)


def _tail(log: Path) -> str:
    """Return the last lines that the container wrote, without their times."""
    lines = _read(log, 1 << 20)[-2 * _TAIL_BYTES :].splitlines()[-80:]
    return "\n".join(line.split(" ", 3)[-1] for line in lines)[-_TAIL_BYTES:]


# --- after a restart of the kubelet ---------------------------------------------------------------------------------


def restore_record(pod: Pod, root: Path, now: datetime) -> tuple[PodRecord, bool]:
    """Restore what a former process knew of a pod, and whether any container of it ran."""
    record = new_record(pod, _begun(pod, now))
    files = PodDirectory(root, pod.uid)
    reported = {one.name: one for one in (*(pod.status.init_container_statuses or ()), *_main_statuses(pod))}
    for container in record.containers:
        _read_container(container, files, reported.get(container.name), timestamp(now))
    return record, any(container.attempt >= 0 for container in record.containers)


def _main_statuses(pod: Pod) -> list[ContainerStatus]:
    return pod.status.container_statuses or []


def _begun(pod: Pod, now: datetime) -> datetime:
    if pod.status.start_time is None:
        return now
    return datetime.fromisoformat(pod.status.start_time)


def _read_container(
    container: ContainerRecord, files: PodDirectory, reported: ContainerStatus | None, now: str
) -> None:
    directory = files.places(container.name, 0).log.parent
    attempts = sorted(number for path in directory.glob("*.log") if (number := attempt_of(path)) >= 0)
    if not attempts:
        _restore_from_status(container, reported, now)
        return
    container.attempt = attempts[-1]
    container.ended = _recorded_end(files.places(container.name, attempts[-1]), now)
    if len(attempts) > 1:
        container.last = _recorded_end(files.places(container.name, attempts[-2]), now)


def _recorded_end(places: ContainerPaths, now: str) -> Terminated:
    try:
        report = decode_report(_content(places.result, _LONGEST_RESULT))
    except (OSError, msgspec.MsgspecError):
        report = Report(event="started")
    if report.event == "exited":
        return terminated_state(report, places, policy="File")
    if report.event == "failed":
        return Terminated(code=128, reason="StartError", message=report.message, finished=_time(report.at) or now)
    return Terminated(code=137, reason=_UNKNOWN, message=_KILLED, finished=now, started=_time(report.at))


def _restore_from_status(container: ContainerRecord, reported: ContainerStatus | None, now: str) -> None:
    """Take over from the pod's status whether the container ran: there are no files."""
    state = (reported.state if reported is not None else None) or {}
    if reported is None or not (state.get("running") or state.get("terminated")):
        return
    container.attempt = reported.restart_count
    ended = state.get("terminated")
    if ended is None:
        container.ended = Terminated(code=137, reason=_UNKNOWN, message=_KILLED, finished=now)
        return
    container.ended = Terminated(
        code=int(ended.get("exitCode", 0)),
        reason=str(ended.get("reason", "")),
        message=str(ended.get("message", "")),
        signal=int(ended.get("signal", 0)),
        started=str(ended.get("startedAt") or ""),
        finished=str(ended.get("finishedAt") or now),
    )


def kill_stale_processes(root: Path) -> None:
    """Kill the containers of a former process that still run, found by process id and start time, and wait for their
    end.
    """
    running: list[tuple[int, int]] = []
    for path in root.glob("*/containers/*/*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            report = decode_report(_content(path, _LONGEST_RESULT))
            if report.event == "started" and _is_alive(report.pid, report.ticks):
                _LOG.warning("killing process %d, a container of a former node agent", report.pid)
                os.kill(report.pid, signal.SIGKILL)
                running.append((report.pid, report.ticks))
    give_up = time.monotonic() + _DEATH_SECONDS
    while any(_is_alive(*one) for one in running) and time.monotonic() < give_up:
        time.sleep(0.01)


def _is_alive(pid: int, ticks: int) -> bool:
    try:
        return start_ticks(pid) == ticks and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError, ValueError):
        return False


def left_directories(root: Path) -> set[str]:
    """Return the names in the pods' directory, which are uids of pods."""
    return {entry.name for entry in root.iterdir()} if root.is_dir() else set()
