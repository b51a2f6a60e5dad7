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
FORMER = "3487d7470b40f66f712d571c86429b4ba11fd203"
"""The commit whose wheel takes part: the release before."""
BATCH, FEW = 8, 3
"""Claims that are made and deleted in each round; those that are recycled, and those that grow and are attached."""
TURNS = 12
"""Calls that each operation takes, as in `BACKEND`."""
DRIVER = "slow.example.com"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]

BACKEND = '''
"""Takes some turns for every operation; notes each call with the process that made it."""

import json
import os
from pathlib import Path

from volplane import Asset, Attachment, BackendSpec, Done, DriverInfo, Erased, InProgress, Parameter, ParameterSchema
from volplane import VolumeSource, hookimpl

TURNS = 12


class Slow(BackendSpec):
    options_schema = ParameterSchema(parameters=(Parameter(name="root", doc="Where files are made.", required=True),))

    def __init__(self, options):
        self.root = Path(options["root"])

    def turn(self, verb, name, request):
        """Return the answer to go on with, None when it is done."""
        polls = request.context.state.get("polls", 0)
        with (self.root / "calls").open("a") as calls:
            calls.write(json.dumps({"verb": verb, "name": name, "polls": polls, "process": os.getpid()}) + "\\n")
        return InProgress(retry_after=0.4, state={"polls": polls + 1}) if polls < TURNS - 1 else None

    def asset(self, handle, size):
        source = VolumeSource(kind="csi", fields={"driver": "slow.example.com", "volumeHandle": handle})
        return Asset(handle=handle, source=source, capacity_bytes=size)

    @hookimpl
    def describe(self, request):
        return DriverInfo(version="1", csi_driver_name="slow.example.com", attach_required=True)

    @hookimpl
    def provision(self, request):
        waiting = self.turn("provision", request.name, request)
        if waiting is None and not (self.root / "assets" / request.name).exists():
            (self.root / "assets" / request.name).touch()
            with (self.root / "made").open("a") as made:
                made.write(request.name + "\\n")
        return waiting or self.asset(request.name, request.capacity_bytes)

    @hookimpl
    def delete(self, request):
        waiting = self.turn("delete", request.volume.handle, request)
        if waiting is None:
            (self.root / "assets" / request.volume.handle).unlink(missing_ok=True)
        return waiting or Done()

    @hookimpl
    def recycle(self, request):
        return self.turn("recycle", request.volume.handle, request) or Erased()

    @hookimpl
    def expand(self, request):
        return self.turn("expand", request.volume.handle, request) or self.asset(
            request.volume.handle, request.capacity_bytes
        )

    @hookimpl
    def attach(self, request):
        return self.turn("attach", request.volume.handle, request) or Attachment()

    @hookimpl
    def detach(self, request):
        return self.turn("detach", request.volume.handle, request) or Done()
'''


def site(directory: Path, commit: str) -> Path:
    """Return the unpacked wheel of `volplane` as it was at this commit."""
    tree, made = directory / "tree", directory / "site"
    tree.mkdir()
    archive = subprocess.run(["git", "-C", str(REPOSITORY), "archive", commit], capture_output=True, check=False)
    assert archive.returncode == 0, (
        f"this checkout has no commit {commit}; make it a whole clone: git fetch --unshallow"
    )
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(directory)], cwd=tree, check=True, stdout=subprocess.DEVNULL)
    [wheel] = directory.glob("volplane-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(made)
    return made


class Cluster:
    """The API server, and processes of two versions."""

    def __init__(
        self, directory: Path, kubeconfig: Path, sites: dict[str, Path], backend: str = BACKEND, **driver: Any
    ) -> None:
        """backend: its source. driver: more keys of it in the configuration file."""
        self.kubeconfig = kubeconfig
        self._directory = directory
        self._paths = sites
        self.root = directory / "storage"
        (self.root / "assets").mkdir(parents=True)
        self.config = directory / "volplane.yaml"
        options = {"root": str(self.root)}
        drivers = [{"name": DRIVER, "backend": "slow", "options": options, **driver}]
        self.config.write_text(json.dumps({"drivers": drivers}))
        plugin = directory / "plugin"
        (plugin / "slow-1.dist-info").mkdir(parents=True)
        (plugin / "slow_backend.py").write_text(backend)
        (plugin / "slow-1.dist-info" / "METADATA").write_text("Name: slow\nVersion: 1\n")
        (plugin / "slow-1.dist-info" / "entry_points.txt").write_text("[volplane.backends]\nslow = slow_backend:Slow\n")
        self._plugin = plugin
        self.commands: list[Command] = []

    def start(self, version: str, *options: str) -> Command:
        """A process of "former" or of "this"; it waits until another one ends. options: instead of all controllers."""
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
            *(options or ("--controllers", "all")),
            *("--http", "127.0.0.1:0"),
            environment=environment,
        )
        self.commands.append(command)
        return command

    def apply(self, *bodies: dict[str, Any]) -> None:
        kubectl(self.kubeconfig, "apply", "-f", "-", given=yaml.safe_dump_all(bodies))

    def ask(self, batch: str, many: int, storage_class: str, size: str = "1Mi") -> None:
        """Make claims `batch-0` and on, or ask for more in those that are there."""
        spec = {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        }
        named = [{"name": f"{batch}-{number}", "namespace": "default"} for number in range(many)]
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        self.apply(*({**body, "metadata": metadata, "spec": spec} for metadata in named))

    def forget(self, batch: str, many: int) -> None:
        names = [f"pvc/{batch}-{number}" for number in range(many)]
        kubectl(self.kubeconfig, "delete", "-n", "default", "--wait=false", *names)

    def volumes_of(self, batch: str) -> list[Any]:
        claims = {each["spec"].get("claimRef", {}).get("name", ""): each for each in objects(self.kubeconfig, "pv")}
        return [volume for claim, volume in claims.items() if claim.startswith(f"{batch}-")]

    def attach(self, batch: str) -> None:
        """Want the volumes of these claims on the node, as a stock attach-detach controller does."""
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment"}
        spec = {"attacher": DRIVER, "nodeName": "node-a"}
        names = [volume["metadata"]["name"] for volume in self.volumes_of(batch)]
        sources = {name: {"source": {"persistentVolumeName": name}} for name in names}
        self.apply(*({**body, "metadata": {"name": f"on-{name}"}, "spec": spec | sources[name]} for name in names))

    def detach(self) -> None:
        kubectl(self.kubeconfig, "delete", "volumeattachments", "--all", "--wait=false")

    def runs(self, verb: str) -> list[list[dict[str, Any]]]:
        """Return the calls of each operation: those of one asset, until one begins with the first turn."""
        path = self.root / "calls"
        runs: list[list[dict[str, Any]]] = []
        last: dict[str, list[dict[str, Any]]] = {}
        for call in map(json.loads, path.read_text().splitlines() if path.exists() else ()):
            if call["verb"] == verb:
                if call["polls"] == 0 or call["name"] not in last:
                    runs.append([])
                    last[call["name"]] = runs[-1]
                last[call["name"]].append(call)
        return runs

    def under_way(self, verb: str) -> bool:
        """Return whether some operation has taken a turn, and not all."""
        return any(1 < run[-1]["polls"] < TURNS - 2 for run in self.runs(verb))

    def gone_on(self, verb: str) -> int:
        """Count the operations that one process began and another finished."""
        done = [run for run in self.runs(verb) if run[-1]["polls"] == TURNS - 1]
        return sum(len({call["process"] for call in run}) > 1 for run in done)

    def bound(self, batch: str) -> bool:
        claims = [each for each in objects(self.kubeconfig, "pvc") if each["metadata"]["name"].startswith(f"{batch}-")]
        return bool(claims) and all(each["status"].get("phase") == "Bound" for each in claims)

    def gone(self, batch: str) -> bool:
        return not self.volumes_of(batch) and not any(
            each["metadata"]["name"].startswith(f"{batch}-") for each in objects(self.kubeconfig, "pvc")
        )

    def offered(self) -> int:
        return sum(each["status"].get("phase") == "Available" for each in objects(self.kubeconfig, "pv"))

    def grown(self, size: str) -> bool:
        return all(volume["spec"]["capacity"]["storage"] == size for volume in self.volumes_of("stays"))

    def attached(self) -> int:
        found = objects(self.kubeconfig, "volumeattachments")
        return sum(bool(each.get("status", {}).get("attached")) for each in found)

    def said(self) -> str:
        return "\n".join(command.said() for command in self.commands)


def waits(command: Command) -> None:
    until("it waits or leads", lambda: "lead" in command.said() or "lease" in command.said(), said=command.said)


def hand_over(cluster: Cluster, old: str, new: str, size: str, end: Callable[[], object]) -> None:
    """Begin one operation of every kind, end the leader while all are under way, and wait until all are done.

    The claims `old` are deleted and `new` made, the pool is recycled, what stays grows and changes its attachments.
    """
    attaching = not cluster.attached()
    verbs = ("provision", "delete", "recycle", "expand", "attach" if attaching else "detach")
    before = {verb: cluster.gone_on(verb) for verb in verbs}
    cluster.forget("pool", FEW)
    cluster.forget(old, BATCH)
    cluster.ask(new, BATCH, "slow")
    cluster.ask("stays", FEW, "slow", size)
    if attaching:
        cluster.attach("stays")
    else:
        cluster.detach()
    until("all is under way", lambda: all(cluster.under_way(verb) for verb in verbs), said=cluster.said)
    end()
    until("claims are bound", lambda: cluster.bound(new) and cluster.gone(old), 90, said=cluster.said)
    until("the pool is erased", lambda: cluster.offered() == FEW, 90, said=cluster.said)
    until("volumes have grown", lambda: cluster.grown(size), 90, said=cluster.said)
    until("attachments", lambda: cluster.attached() == FEW * attaching, 90, said=cluster.said)
    until("no attachment is left", lambda: attaching or not objects(cluster.kubeconfig, "volumeattachments"), 90)
    cluster.ask("pool", FEW, "pool")
    until("the pool is used again", lambda: cluster.bound("pool"), said=cluster.said)
    for verb in verbs:
        assert cluster.gone_on(verb) > before[verb], f"a {verb} that one process began, another one finished"


def test_versions_take_turns_with_work_under_way_and_nothing_is_lost_or_made_twice(tmp_path: Path) -> None:
    kubeconfig, parts = tmp_path / "kubeconfig", tmp_path / "former"
    parts.mkdir()
    sites = {"former": site(parts, FORMER)}
    with running(tmp_path / "server.log", "apiserver", "--port", "0", "--kubeconfig-out", str(kubeconfig)) as server:
        until("the server is up", kubeconfig.exists, said=server.said)
        cluster = Cluster(tmp_path, kubeconfig, sites)
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": DRIVER}
        recycled = {"metadata": {"name": "pool"}, "parameters": {"volplane.dev/on-release": "recycle"}}
        cluster.apply({**kind, "metadata": {"name": "slow"}, "allowVolumeExpansion": True}, {**kind, **recycled})
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
        try:
            former = cluster.start("former")
            for batch, many, storage_class in (("stays", FEW, "slow"), ("pool", FEW, "pool"), ("a", BATCH, "slow")):
                cluster.ask(batch, many, storage_class)
            for batch in ("stays", "pool", "a"):
                until(f"{batch} is bound", lambda batch=batch: cluster.bound(batch), said=cluster.said)  # type: ignore[misc]

            # An upgrade: this version waits, the former one is ended.
            this = cluster.start("this")
            waits(this)
            hand_over(cluster, "a", "b", "2Mi", former.stop)

            # The way back.
            former = cluster.start("former")
            waits(former)
            hand_over(cluster, "b", "c", "3Mi", this.stop)

            # The former one dies, and nobody has ended its lease.
            this = cluster.start("this")
            waits(this)
            hand_over(cluster, "c", "d", "4Mi", former.kill)

            cluster.detach()
            cluster.forget("d", BATCH)
            cluster.forget("stays", FEW)
            until("nothing is left but the pool", lambda: len(objects(kubeconfig, "pv")) == FEW, 90, said=cluster.said)
            assert this.stop() == 0
        finally:
            for command in cluster.commands:
                if command.alive:
                    command.kill()
    made = Counter((cluster.root / "made").read_text().split())
    assert len(made) == 4 * BATCH + 2 * FEW
    assert set(made.values()) == {1}
    left = {volume.name for volume in (cluster.root / "assets").iterdir()}
    assert len(left) == FEW
    assert "Traceback" not in cluster.said()
