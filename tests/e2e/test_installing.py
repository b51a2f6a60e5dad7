"""The tutorial of an operator, with the processes of the printed manifests started by hand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.processes import ENVIRONMENT, Command, kubectl, running, until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "install-volplane.md"
SERVED = {"Namespace", "ServiceAccount", "ConfigMap", "StorageClass"}
"""Kinds of the manifests that the embedded API server has."""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


def processes(directory: Path, kubeconfig: Path, installed: list[dict[str, Any]], node: str) -> list[Command]:
    """What the cluster would run: the commands of Deployment and DaemonSet with the file of their ConfigMap."""
    started = []
    maps = [each for each in installed if each["kind"] == "ConfigMap"]
    mounted = {each["metadata"]["namespace"]: each["data"]["volplane.yaml"] for each in maps}
    for each in installed:
        if each["kind"] not in ("Deployment", "DaemonSet"):
            continue
        [container] = each["spec"]["template"]["spec"]["containers"]
        arguments = [argument.replace("$(NODE_NAME)", node) for argument in container["args"]]
        configuration = directory / f"{each['kind']}.yaml"
        configuration.write_text(mounted[each["metadata"]["namespace"]])
        given = {"--config": str(configuration), "--http": "127.0.0.1:0"}
        arguments = [f"{name}={given.get(name, value)}" for name, value in (word.split("=", 1) for word in arguments)]
        program, verb = container["command"]
        assert program == "volplane"
        if each["kind"] == "Deployment":
            # `volplane dev`, which plays the cluster's own controllers, holds the Lease. It has no drivers.
            arguments.append("--no-leader-elect")
        log = directory / f"{each['kind']}.log"
        started.append(Command(log, verb, *arguments, environment={**ENVIRONMENT, "KUBECONFIG": str(kubeconfig)}))
    return started


@pytest.fixture
def storage() -> Iterator[Path]:
    """In the place of /srv/volumes. Pods have a /tmp of their own, so that nothing there can be mounted."""
    with tempfile.TemporaryDirectory(prefix="volplane-", dir="/var/tmp") as directory:
        yield Path(directory, "volumes")


def test_the_tutorial_of_an_operator_works_word_for_word(tmp_path: Path, storage: Path) -> None:
    kubeconfig, nothing = tmp_path / "kubeconfig", tmp_path / "nothing.yaml"
    nothing.write_text("drivers: []\n")
    blocks = [
        block.replace("/srv/volumes", str(storage))
        for block in re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    ]
    options = ("--config", str(nothing), "--port", "0", "--kubeconfig-out", str(kubeconfig), "--http", "127.0.0.1:0")
    environment = {
        **ENVIRONMENT,
        "HOME": str(tmp_path),
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def follow(*steps: str) -> str:
        ended = subprocess.run(
            ["bash", "-euxc", "\n".join(steps)],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
            env=environment,
        )
        told = "\n".join(command.said()[-2000:] for command in commands)
        assert ended.returncode == 0, ended.stdout + ended.stderr + told
        return ended.stdout

    commands: list[Command] = []
    with running(tmp_path / "dev.log", "dev", *options) as cluster:
        until("the cluster serves", kubeconfig.is_file, said=cluster.said)
        follow(*blocks[:2])
        installed = list(yaml.safe_load_all((tmp_path / "install.yaml").read_text("utf-8")))
        served = [each for each in installed if each["kind"] in SERVED]
        kubectl(kubeconfig, "apply", "-f", "-", given=yaml.safe_dump_all(served))
        node = kubectl(kubeconfig, "get", "nodes", "-o", "name").split()[0].removeprefix("node/")
        try:
            commands += processes(tmp_path, kubeconfig, installed, node)
            assert len(commands) == 2
            assert "hello" in follow(*blocks[2:])
        finally:
            codes = [command.stop() for command in commands]
        assert codes == [0, 0]
