"""`volplane ui` as a process: it prints an address, serves it, and stops in order."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from volplane.cli.main import main

VOLPLANE = [sys.executable, "-m", "volplane"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an API server."""
    command = [*VOLPLANE, "apiserver", "--memory", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        said(server, "Ctrl-C")
        yield tmp_path / "volplane.kubeconfig"
        server.kill()


def said(process: subprocess.Popen[str], last: str) -> str:
    """What it says up to a line with these words."""
    text = ""
    assert process.stdout is not None
    for line in process.stdout:
        text += line
        if last in line:
            return text
    raise AssertionError(text)


def test_it_prints_an_address_serves_it_and_stops_though_somebody_looks(cluster: Path) -> None:
    """The browser is started without the address: every user of the machine reads the arguments of its process."""
    asked, led, script = (cluster.with_name(name) for name in ("asked", "led", "browser"))
    script.write_text(f'#!/bin/sh\ncp "${{1#file://}}" {led}\nstat -c %a "$(dirname "${{1#file://}}")" >> {led}\n')
    script.write_text(script.read_text() + f"echo $1 > {asked}.new\nmv {asked}.new {asked}\n")
    script.chmod(0o700)
    command = [*VOLPLANE, "ui", "--open", "--kubeconfig", str(cluster), "--http", "127.0.0.1:1"]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "BROWSER": f"{script} %s"}, **streams) as page:
        try:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{40,})", said(page, "Ctrl-C"))
            assert found is not None
            port, token = int(found[1]), found[2]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/api/live", headers={"Authorization": f"Bearer {token}"})
            stream = connection.getresponse()
            while '"gaps":[]' not in (line := stream.readline().decode()):
                pass
            state = json.loads(line.removeprefix("data: "))
            assert state["server"].startswith("https://127.0.0.1:")
            assert state["silence"] == "no controller answers at 127.0.0.1:1"
            while not asked.exists():
                assert page.poll() is None
                time.sleep(0.01)
            assert token not in asked.read_text()
            assert f'url={found[0]}"' in led.read_text()
            assert led.read_text().endswith("\n700\n")
            page.send_signal(signal.SIGTERM)
            _, err = page.communicate(timeout=60)
            assert (page.returncode, err) == (0, "")
            connection.close()
            assert not Path(asked.read_text().strip().removeprefix("file://")).exists()
        finally:
            page.kill()


@pytest.mark.parametrize(
    ("options", "why"), [(["--context", "absent"], "absent"), (["--http", "nowhere"], "it must be ADDRESS:PORT")]
)
def test_what_cannot_be_is_said_in_a_line(
    tmp_path: Path, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({"clusters": [], "users": [], "contexts": []}))
    assert main(["ui", "--kubeconfig", str(kubeconfig), *options]) == 1
    heard = capsys.readouterr().err
    assert why in heard
    assert heard.count("\n") == 1
