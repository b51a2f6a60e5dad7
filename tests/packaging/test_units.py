"""The systemd unit of `volplane csi` is one that systemd reads, and what it mounts reaches the kubelet; Nomad's job."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from volplane.cli import main as cli

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "volplane-csi@.service"
JOB = UNIT.parents[2] / "docs" / "how-to" / "serve-a-backend-under-nomad.md"
TEXT = UNIT.read_text("utf-8")
NAMESPACES = r"^(Private|Protect|Read|Inaccessible|ExecPaths|NoExecPaths|Bind|TemporaryFile|Root|DynamicUser|Mount)"
"""Begin the directives that give a process a mount namespace (systemd.exec(5), MountFlags=)."""


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_knows_every_directive(tmp_path: Path) -> None:
    instance = tmp_path / "volplane-csi@a.example.com.service"
    instance.write_text(TEXT.replace("/opt/volplane/bin/volplane", shutil.which("true") or "/bin/true"), "utf-8")
    ended = subprocess.run(["systemd-analyze", "verify", instance], capture_output=True, text=True, check=False)
    assert [line for line in ended.stderr.splitlines() if "volplane-csi" in line] == []


def test_nothing_hides_what_is_mounted_from_the_kubelet() -> None:
    assert re.findall(NAMESPACES, TEXT, re.MULTILINE) == []


def test_the_command_has_the_options_of_the_unit_and_of_the_job() -> None:
    command = get_command(cli.application(["csi"])).commands["csi"]  # type: ignore[attr-defined]
    known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    assert "CSI_ENDPOINT" in {parameter.envvar for parameter in command.params}
    unit = re.findall(r"(?<![\w-])(--[a-z-]+)=", TEXT)
    job = re.findall(r'"(-[a-z-]+)[="]', JOB.read_text("utf-8"))
    assert len(unit) > 4
    assert len(job) > 6
    assert {*unit, *job} <= {word for word in known if word.startswith("--")}, "`-o=KEY=VALUE` is no option"
