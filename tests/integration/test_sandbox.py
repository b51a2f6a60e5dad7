"""What a sandboxed command finds around itself."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from integration.node_cluster import why_no_sandbox
from volplane_embedded.kubelet.sandboxes import Sandboxes
from volplane_embedded.sandbox.spec import Bind, Report, Spec


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    if message := why_no_sandbox(tmp_path_factory.mktemp("probe")):
        pytest.skip(message)


def run(directory: Path, script: str, **fields: Any) -> tuple[list[str], list[Report]]:
    """Run a shell script; what it wrote, and what the sandbox said."""
    (directory / "base").mkdir()
    spec = Spec(
        argv=["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
        base=str(directory / "base"),
        log=str(directory / "log"),
        result=str(directory / "result"),
        **fields,
    )

    async def main() -> list[Report]:
        async with Sandboxes() as sandboxes:
            sandbox = await sandboxes.launch(spec)
            reports = [report async for report in sandbox.reports()]
            sandbox.close()
            return reports

    reports = asyncio.run(main())
    lines = [line.split(" ", 3)[-1] for line in (directory / "log").read_text().splitlines()]
    return lines, reports


def test_hidden_directories_are_empty_and_may_still_hold_a_volume(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "file").touch()
    shown = Bind(source=str(volume), target="/usr/share/shown")
    lines, _ = run(tmp_path, "ls /usr/share; ls /usr/share/shown", hidden=["/usr/share"], binds=[shown])
    assert lines == ["shown", "file"]


def test_a_command_ignores_no_signal_though_a_shell_has_started_the_agent_in_the_background(tmp_path: Path) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        [line], _ = run(tmp_path, "exec grep SigIgn /proc/self/status")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    ignored = int(line.split()[-1], 16)
    # 32 and 33 are the C library's own; what they are at the start, no program can change.
    assert [number for number in signal.valid_signals() if ignored >> number - 1 & 1] == []


def test_hidden_files_are_empty_and_stay_so(tmp_path: Path) -> None:
    before = Path("/etc/hostname").read_text()
    script = "cat /etc/hostname; echo x > /etc/hostname; cat /etc/hostname; echo end"
    lines, _ = run(tmp_path, script, hidden=["/etc/hostname"])
    assert lines == ["end"]
    assert Path("/etc/hostname").read_text() == before != ""


def test_volumes_may_lie_in_volumes_and_files_be_volumes(tmp_path: Path) -> None:
    outer, inner, file = tmp_path / "outer", tmp_path / "inner", tmp_path / "file"
    outer.mkdir()
    inner.mkdir()
    file.write_text("content\n")
    binds = [
        Bind(source=str(inner), target="/data/some/where"),
        Bind(source=str(outer), target="/data"),
        Bind(source=str(file), target="/etc/volplane-test/file", read_only=True),
        Bind(source=str(file), target="/etc/hostname", read_only=True),
    ]
    script = "touch /data/o /data/some/where/i; cat /etc/volplane-test/file /etc/hostname; echo x > /etc/hostname"
    lines, reports = run(tmp_path, script, binds=binds)
    assert lines[:2] == ["content", "content"]
    assert "Read-only" in lines[2]
    assert reports[-1].code != 0
    assert sorted(path.name for path in outer.iterdir()) == ["o", "some"]
    assert [path.name for path in inner.iterdir()] == ["i"]


def test_a_symlink_in_a_volume_does_not_lead_a_mount_out_of_the_sandbox(tmp_path: Path) -> None:
    volume, inner, outside = tmp_path / "volume", tmp_path / "inner", tmp_path / "outside"
    for path in (volume, inner, outside):
        path.mkdir()
    (volume / "link").symlink_to(outside)
    binds = [Bind(source=str(volume), target="/data"), Bind(source=str(inner), target="/data/link/new")]
    run(tmp_path, "touch /data/link/new/file", binds=binds)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (Bind(source="/no/such/directory", target="/data"), "cannot open /no/such/directory for /data"),
        (Bind(source="/etc", target="/etc/passwd"), "/etc is a directory, but /etc/passwd is a file"),
        (Bind(source="/etc/passwd", target="/etc"), "/etc/passwd is a file, but /etc is a directory"),
        (Bind(source="/etc", target="/data", sub_path="../root"), "must be relative and without '..'"),
    ],
)
def test_a_volume_that_cannot_be_mounted_is_named(tmp_path: Path, bind: Bind, message: str) -> None:
    _, [report] = run(tmp_path, "true", binds=[bind])
    assert (report.event, report.stage) == ("failed", "mounts")
    assert message in report.message


def test_a_sub_path_that_leads_up_leaves_nothing_behind(tmp_path: Path) -> None:
    (volume := tmp_path / "volume").mkdir()
    run(tmp_path, "true", binds=[Bind(source=str(volume), target="/data", sub_path="a/b/../..")])
    assert list(volume.iterdir()) == []


def test_directories_of_a_sub_path_have_the_mode_of_their_volume(tmp_path: Path) -> None:
    """A pod with fsGroup may write to them: the volume was given to its group before."""
    (volume := tmp_path / "volume").mkdir()
    volume.chmod(0o2775)
    run(tmp_path, "true", binds=[Bind(source=str(volume), target="/data", sub_path="a/b")])
    assert [(volume / each).stat().st_mode & 0o7777 for each in ("a", "a/b")] == [0o2775, 0o2775]


def test_a_sub_path_is_not_made_where_it_must_not(tmp_path: Path) -> None:
    (volume := tmp_path / "volume").mkdir()
    bind = Bind(source=str(volume), target="/data", sub_path="a", make_sub_path=False)
    _, [report] = run(tmp_path, "true", binds=[bind])
    assert "cannot open sub path 'a'" in report.message
    assert list(volume.iterdir()) == []


def test_a_working_directory_that_is_missing_is_a_failure_of_the_command(tmp_path: Path) -> None:
    _, [report] = run(tmp_path, "true", cwd="/no/such/directory")
    assert (report.event, report.stage) == ("failed", "command")
    assert "/no/such/directory" in report.message


def test_nothing_of_the_agents_environment_or_files_reaches_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLPLANE_SECRET", "hush")
    lines, _ = run(tmp_path, "env; ls -l /proc/self/fd; hostname", hostname="web")
    assert not any("hush" in line for line in lines)
    assert lines[-1] == "web"
    assert {line.split()[-3] for line in lines if "->" in line} == {"0", "1", "2", "3"}
