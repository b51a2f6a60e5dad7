"""A former version and this one take turns on a cluster with claims in flight: nothing is lost, nothing made twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.processes import ENVIRONMENT, Command, kubectl, objects, running, until

REPOSITORY = Path(__file__).resolve().parents[2]
FORMER = "6fc48452499ae361aeeee4b8c1013ce12a344a40"
"""The commit whose wheel takes part: the first one that other versions read records of."""
BATCH = 12
DRIVER = "slow.example.com"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]

BACKEND = '''
"""Makes a file in four turns, and takes it away in two; notes each call with the process that made it."""

import json
import os
from pathlib import Path

from volplane import Asset, BackendSpec, Done, DriverInfo, InProgress, Parameter, ParameterSchema
from volplane import VolumeSource, hookimpl


class Slow(BackendSpec):
    options_schema = ParameterSchema(parameters=(Parameter(name="root", doc="Where files are made.", required=True),))

    def __init__(self, options):
        self.root = Path(options["root"])

    def turn(self, verb, name, request, turns):
        """The state to go on with, None when it is done."""
        polls = request.context.state.get("polls", 0)
        with (self.root / "calls").open("a") as calls:
            calls.write(json.dumps({"verb": verb, "name": name, "polls": polls, "process": os.getpid()}) + "\\n")
        return {"polls": polls + 1} if polls < turns else None

    @hookimpl
    def describe(self, request):
        return DriverInfo(version="1")

    @hookimpl
    def provision(self, request):
        state = self.turn("provision", request.name, request, 4)
        if state is not None:
            return InProgress(retry_after=0.6, state=state)
        path = self.root / "assets" / request.name
        if not path.exists():
            path.touch()
            with (self.root / "made").open("a") as made:
                made.write(request.name + "\\n")
        source = VolumeSource(kind="hostPath", fields={"path": str(path)})
        return Asset(handle=request.name, source=source, capacity_bytes=request.capacity_bytes)

    @hookimpl
    def delete(self, request):
        state = self.turn("delete", request.volume.handle, request, 2)
        if state is not None:
            return InProgress(retry_after=0.6, state=state)
        (self.root / "assets" / request.volume.handle).unlink(missing_ok=True)
        return Done()
'''


def site(directory: Path, commit: str) -> Path:
    """The wheel of `volplane` as it was at this commit, unpacked."""
    tree, made = directory / "tree", directory / "site"
    tree.mkdir()
    archive = subprocess.run(["git", "-C", str(REPOSITORY), "archive", commit], capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"this checkout has no commit {commit}: it is not a whole clone")
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(directory)], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    [wheel] = directory.glob("volplane-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(made)
    return made


class Cluster:
    """The API server, and processes of two versions."""

    def __init__(self, directory: Path, kubeconfig: Path, sites: dict[str, Path]) -> None:
        self.kubeconfig = kubeconfig
        self._directory = directory
        self._paths = sites
        self.root = directory / "storage"
        (self.root / "assets").mkdir(parents=True)
        self.config = directory / "volplane.yaml"
        options = json.dumps({"drivers": [{"name": DRIVER, "backend": "slow", "options": {"root": str(self.root)}}]})
        self.config.write_text(options)
        plugin = directory / "plugin"
        (plugin / "slow-1.dist-info").mkdir(parents=True)
        (plugin / "slow_backend.py").write_text(BACKEND)
        (plugin / "slow-1.dist-info" / "METADATA").write_text("Name: slow\nVersion: 1\n")
        (plugin / "slow-1.dist-info" / "entry_points.txt").write_text("[volplane.backends]\nslow = slow_backend:Slow\n")
        self._plugin = plugin
        self.commands: list[Command] = []

    def start(self, version: str) -> Command:
        """A process of "former" or of "this"; it waits until another one ends."""
        paths = [str(self._plugin), *([str(self._paths[version])] if version in self._paths else [])]
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(reversed(paths))}
        where = "import volplane, sys; sys.stdout.write(volplane.__file__)"
        found = subprocess.run([sys.executable, "-c", where], env=environment, capture_output=True, check=True)
        expected = self._paths.get(version, REPOSITORY / "core")
        assert Path(found.stdout.decode()).is_relative_to(expected), "the version that was asked for is imported"
        command = Command(
            self._directory / f"run-{len(self.commands)}-{version}.log",
            "run",
            *("--kubeconfig", str(self.kubeconfig), "--config", str(self.config)),
            *("--controllers", "all", "--http", "127.0.0.1:0"),
            environment=environment,
        )
        self.commands.append(command)
        return command

    def ask(self, batch: str) -> None:
        """Claims `batch-0` and on."""
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        spec = {
            "storageClassName": "slow",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        }
        names = [f"{batch}-{number}" for number in range(BATCH)]
        items = [{**body, "metadata": {"name": name, "namespace": "default"}, "spec": spec} for name in names]
        kubectl(self.kubeconfig, "apply", "-f", "-", given=yaml.safe_dump_all(items))

    def forget(self, batch: str) -> None:
        names = [f"pvc/{batch}-{number}" for number in range(BATCH)]
        kubectl(self.kubeconfig, "delete", "-n", "default", "--wait=false", *names)

    def calls(self) -> list[dict[str, Any]]:
        path = self.root / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def under_way(self, verb: str) -> set[str]:
        """Assets of which some turns have been taken, and not all."""
        turns = Counter(call["name"] for call in self.calls() if call["verb"] == verb)
        return {name for name, taken in turns.items() if 1 < taken < 5}

    def bound(self) -> int:
        return sum(each["status"].get("phase") == "Bound" for each in objects(self.kubeconfig, "pvc"))

    def gone_on(self, verb: str) -> int:
        """Assets that one process began and another finished, without beginning anew."""
        turns: dict[str, list[dict[str, Any]]] = {}
        for call in self.calls():
            if call["verb"] == verb:
                turns.setdefault(call["name"], []).append(call)
        several = [calls for calls in turns.values() if len({call["process"] for call in calls}) > 1]
        return sum([call["polls"] for call in calls] == sorted(call["polls"] for call in calls) for calls in several)

    def said(self) -> str:
        return "\n".join(command.said() for command in self.commands)


def waits(command: Command) -> None:
    until("it waits or leads", lambda: "lead" in command.said() or "lease" in command.said(), said=command.said)


def hand_over(cluster: Cluster, verb: str, end: Callable[[], object]) -> None:
    """End the leader while operations are under way."""
    until(f"some {verb} is under way", lambda: len(cluster.under_way(verb)) >= BATCH // 2, said=cluster.said)
    end()


def test_versions_take_turns_with_work_under_way_and_nothing_is_lost_or_made_twice(tmp_path: Path) -> None:
    kubeconfig, parts = tmp_path / "kubeconfig", tmp_path / "former"
    parts.mkdir()
    sites = {"former": site(parts, FORMER)}
    with running(tmp_path / "server.log", "apiserver", "--port", "0", "--kubeconfig-out", str(kubeconfig)) as server:
        until("the server is up", kubeconfig.exists, said=server.said)
        cluster = Cluster(tmp_path, kubeconfig, sites)
        storage_class = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "slow"}}
        kubectl(kubeconfig, "apply", "-f", "-", given=json.dumps({**storage_class, "provisioner": DRIVER}))
        try:
            former = cluster.start("former")
            until("the driver is ready", lambda: "is ready" in former.said(), said=former.said)

            # An upgrade: this version waits, the former one is ended.
            this = cluster.start("this")
            waits(this)
            cluster.ask("a")
            hand_over(cluster, "provision", former.stop)
            until("all of the first are bound", lambda: cluster.bound() == BATCH, said=cluster.said)
            upgraded = cluster.gone_on("provision")
            assert upgraded > 0, "this version went on with what the former one had begun"

            # The way back, with deletions under way too.
            former = cluster.start("former")
            waits(former)
            cluster.ask("b")
            cluster.forget("a")
            hand_over(cluster, "provision", this.stop)
            until("the second are bound, the first gone", lambda: names_left(cluster) == {"b"}, said=cluster.said)
            until("all of the second are bound", lambda: cluster.bound() == BATCH, said=cluster.said)
            assert cluster.gone_on("provision") > upgraded, "and the former one with what this version had begun"

            # The former one dies, and nobody has ended its lease.
            this = cluster.start("this")
            waits(this)
            cluster.ask("c")
            hand_over(cluster, "provision", former.kill)
            until("all are bound", lambda: cluster.bound() == 2 * BATCH, 60, said=cluster.said)
            cluster.forget("b")
            cluster.forget("c")
            until("nothing is left", lambda: not objects(kubeconfig, "pvc", "pv"), 60, said=cluster.said)
            assert this.stop() == 0
        finally:
            for command in cluster.commands:
                if command.alive:
                    command.kill()
    assert list((cluster.root / "assets").iterdir()) == []
    made = Counter((cluster.root / "made").read_text().split())
    assert len(made) == 3 * BATCH
    assert set(made.values()) == {1}
    assert "Traceback" not in cluster.said()


def names_left(cluster: Cluster) -> set[str]:
    return {each["metadata"]["name"].partition("-")[0] for each in objects(cluster.kubeconfig, "pvc")}
