"""What the node agent keeps on disk, and finds there again."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from volplane_embedded.kubelet import pod_directory
from volplane_embedded.kubelet.pod_directory import (
    PodDirectory,
    kill_stale_processes,
    left_directories,
    restore_record,
    terminated_state,
)
from volplane_embedded.objects import Pod
from volplane_embedded.sandbox.monitor import start_ticks
from volplane_embedded.sandbox.spec import Report, encode

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(**status: Any) -> Pod:
    spec = {"containers": [{"name": "main"}, {"name": "side"}]}
    return msgspec.convert({"metadata": {"name": "web", "uid": "u-1"}, "spec": spec, "status": status}, Pod)


def started(root: Path, attempt: int, report: Report | None, container: str = "main") -> None:
    places = PodDirectory(root, "u-1").make(container, attempt)
    places.log.write_text("")
    if report is not None:
        places.result.write_bytes(encode(report))


def test_a_pod_that_never_ran_starts_anew(tmp_path: Path) -> None:
    record, ran = restore_record(pod(startTime="2025-12-31T23:59:00Z"), tmp_path, NOW)
    assert not ran
    assert (NOW - record.begun).total_seconds() == 60
    assert [container.attempt for container in record.containers] == [-1, -1]


def test_ends_are_read_back_and_what_was_running_has_ended_unknown(tmp_path: Path) -> None:
    started(tmp_path, 0, Report(event="exited", code=1, began=1.0, at=2.0))
    started(tmp_path, 1, Report(event="exited", code=0, began=3.0, at=4.0))
    started(tmp_path, 0, Report(event="started", pid=1, ticks=1, at=5.0), "side")
    record, ran = restore_record(pod(), tmp_path, NOW)
    assert ran
    main, side = record.main
    assert main.ended is not None
    assert main.last is not None
    assert (main.attempt, main.ended.code, main.last.code) == (1, 0, 1)
    assert main.ended.finished == "1970-01-01T00:00:04Z"
    assert side.ended is not None
    assert (side.ended.code, side.ended.reason) == (137, "ContainerStatusUnknown")


def test_a_start_without_a_report_counts_as_one(tmp_path: Path) -> None:
    started(tmp_path, 0, None)
    record, ran = restore_record(pod(), tmp_path, NOW)
    assert ran
    assert record.main[0].ended is not None
    assert record.main[0].ended.reason == "ContainerStatusUnknown"


def test_without_files_the_pods_status_is_believed(tmp_path: Path) -> None:
    statuses = [
        {"name": "main", "restartCount": 2, "state": {"terminated": {"exitCode": 4, "reason": "Error"}}},
        {"name": "side", "restartCount": 0, "state": {"running": {"startedAt": "2025-12-31T23:59:00Z"}}},
    ]
    record, ran = restore_record(pod(containerStatuses=statuses), tmp_path, NOW)
    assert ran
    main, side = record.main
    assert main.ended is not None
    assert side.ended is not None
    assert (main.attempt, main.ended.code, side.ended.code) == (2, 4, 137)


def test_only_the_last_two_starts_are_kept(tmp_path: Path) -> None:
    for attempt in range(4):
        started(tmp_path, attempt, Report(event="exited"))
    names = {path.name for path in (tmp_path / "u-1/containers/main").glob("*.log")}
    assert names == {"2.log", "3.log"}


def test_a_termination_message_comes_from_its_file_or_from_the_log(tmp_path: Path) -> None:
    places = PodDirectory(tmp_path, "u-1").make("main", 0)
    places.log.write_text("2026-01-01T00:00:00.000000000Z stdout F it broke\n")
    failed = Report(event="exited", code=1, at=1.0)
    assert terminated_state(failed, places, policy="File").message == ""
    assert terminated_state(failed, places, policy="FallbackToLogsOnError").message == "it broke"
    assert terminated_state(Report(event="exited", at=1.0), places, policy="FallbackToLogsOnError").message == ""
    places.termination_message.write_text("because")
    assert terminated_state(failed, places, policy="FallbackToLogsOnError").message == "because"


def test_processes_of_a_former_agent_are_killed_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_directory, "_DEATH_SECONDS", 60.0)
    with subprocess.Popen(["sleep", "60"]) as ours, subprocess.Popen(["sleep", "60"]) as other:
        started(tmp_path, 0, Report(event="started", pid=ours.pid, ticks=start_ticks(ours.pid)))
        started(tmp_path, 0, Report(event="started", pid=other.pid, ticks=start_ticks(other.pid) - 1), "side")
        begun = time.monotonic()
        kill_stale_processes(tmp_path)
        assert time.monotonic() - begun < 30, "one that has only not been waited for is dead"
        assert ours.wait(timeout=30) == -9
        assert other.poll() is None
        other.kill()


def test_files_of_pods_that_are_gone_are_removed(tmp_path: Path) -> None:
    for uid in ("known", "gone"):
        PodDirectory(tmp_path, uid).make("main", 0)
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (tmp_path / "gone" / "link").symlink_to(outside)
    assert left_directories(tmp_path) == {"known", "gone"}
    PodDirectory(tmp_path, "gone").remove()
    assert left_directories(tmp_path) == {"known"}
    assert (outside / "precious").exists()
