"""`volplane check --cluster`, against the embedded cluster in its short form, and against a real one if asked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.embedded import EmbeddedCluster, embedded_cluster
from e2e.processes import ENVIRONMENT, until
from integration.controller_process import Asked
from integration.node_cluster import why_no_sandbox
from integration.stock_neighbours import StockCluster
from volplane.cli.main import main
from volplane.errors import ConfigurationError
from volplane.kube.client import Client
from volplane.kube.kinds import NODES
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.objects import CSI_NODES
from volplane_testing.disks import DiskDirectory
from volplane_testing.qualification import SECTIONS, Plan, SectionStatus, SuiteReport, run_suite

EVERYTHING = ("/api/v1/persistentvolumes", "/api/v1/persistentvolumeclaims", "/apis/storage.k8s.io/v1/storageclasses")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAMESPACES = ["default", "kube-node-lease", "kube-public", "kube-system"]


@dataclass(frozen=True)
class Run:
    code: int
    report: dict[str, Any]
    cluster: EmbeddedCluster
    asked: set[Asked]
    work: Path


def volplane(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "volplane", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)


ALL = tuple(section.name for section in SECTIONS)
QUICK = tuple(name for name in ALL if name not in ("leader", "drain"))
"""Those two start most processes."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(QUICK, marks=pytest.mark.more), pytest.param(ALL, marks=pytest.mark.soak)],
    ids=["quick", "all"],
)
def short(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One short run over sections, as the whole control plane."""
    directory = tmp_path_factory.mktemp("short")
    asked: set[Asked] = set()
    node = not why_no_sandbox(directory / "probe")
    with embedded_cluster(directory, node=node) as cluster:
        cluster.record(asked)
        arguments = ("--kubeconfig", str(cluster.kubeconfig), "--controllers", "all", "--output", "json")
        length = ("--churn", "4", "--kills", "1", "--work", str(directory / "work"))
        sections = [text for name in request.param for text in ("--section", name)]
        ended = volplane("check", "--cluster", *arguments, *length, *sections)
        assert ended.stdout, ended.stderr
        yield Run(ended.returncode, json.loads(ended.stdout), cluster, asked, directory / "work")


def test_every_section_passes_where_a_node_runs_pods_and_each_other_says_what_is_missing(short: Run) -> None:
    sections = {each["name"]: each for each in short.report["sections"]}
    assert tuple(sections) in (QUICK, ALL)
    failed = {name: each["reason"] for name, each in sections.items() if each["status"] == "failed"}
    assert failed == {}
    assert (short.code, short.report["passed"], short.report["left"]) == (0, True, [])
    missing = {name for name, each in sections.items() if each["status"] == "not possible"}
    pods = {section.name for section in SECTIONS if section.pods}
    pods = pods if short.report["cluster"]["podsNotPossible"] else set()
    assert missing == pods | {"attach"}, "the backend hostpath attaches nothing"
    assert all(sections[name]["reason"] for name in missing)
    assert sections["kills"]["measured"]["kills"] == 1
    assert "leader" not in sections or sections["leader"]["measured"]["takeover_seconds"] <= 20
    assert "leader" not in sections or sections["leader"]["measured"]["handover_seconds"] <= 5


def test_nothing_of_a_run_is_left(short: Run) -> None:
    assert short.cluster.names(*EVERYTHING) == []
    assert sorted(short.cluster.names("/api/v1/namespaces")) == NAMESPACES
    assert list(short.work.iterdir()) == []


def test_a_run_asks_for_nothing_that_it_does_not_print(short: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--print-rbac", "--controllers", "all"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    (rules,) = [each["rules"] for each in documents if each["kind"] == "ClusterRole"]

    def allowed(asked: Asked) -> bool:
        return any(
            asked.group in rule["apiGroups"]
            and asked.resource in rule["resources"]
            and asked.verb in rule["verbs"]
            and (asked.name in rule.get("resourceNames", [asked.name]))
            for rule in rules
        )

    assert sorted(str(each) for each in short.asked if not allowed(each)) == []


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeEC2Server]:
    """A mocked region whose disks the nodes of an embedded cluster can use."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    quick = {
        f"{what}_seconds": 0.1 for what in ("create", "attach", "detach", "delete", "modify", "optimize", "snapshot")
    }
    fake = FakeEC2(Behaviour(**quick))
    with FakeEC2Server(fake, disks=DiskDirectory(tmp_path / "disks")) as server:
        yield server


async def become_instances(server: Any, fake: FakeEC2, *, known: bool, plugin: bool) -> None:
    """Each node is an instance of the region, or says that it is in its zone. plugin: with the node plugin of its
    disks.
    """
    client = Client(InProcessTransport(server))
    for node in (await client.list(NODES)).items:
        instance = fake.add_instance("eu-test-1a")
        if known:
            await client.patch(NODES, node.name, {"spec": {"providerID": f"aws:///eu-test-1a/{instance.id}"}})
        labels = {"topology.kubernetes.io/zone": "eu-test-1a"}
        await client.patch(NODES, node.name, {"metadata": {"labels": labels}})
        drivers = [{"name": "ebs.csi.aws.com", "nodeID": instance.id, "topologyKeys": None}] if plugin else []
        await client.patch(CSI_NODES, node.name, {"spec": {"drivers": drivers}})


DISKS = ("attach", "expand")
SNAPSHOTS = ("snapshots", "restore")


@pytest.mark.parametrize(
    "sections",
    [pytest.param(DISKS, marks=pytest.mark.more), pytest.param(("recycle", *DISKS), marks=pytest.mark.soak)],
    ids=["quick", "scrubbed too"],
)
def test_disks_of_a_cloud_are_attached_grow_are_scrubbed_and_follow_pods(
    ec2: FakeEC2Server, tmp_path: Path, sections: tuple[str, ...]
) -> None:
    node = not why_no_sandbox(tmp_path / "probe")
    report = checked_on_disks(ec2, tmp_path, sections, known=True, plugin=node)
    assert report.passed, report.results
    statuses = {each.name: each.status for each in report.results}
    needs_pods = SectionStatus.PASSED if node else SectionStatus.NOT_POSSIBLE
    assert statuses.pop("recycle", needs_pods) == needs_pods
    assert statuses == dict.fromkeys(DISKS, SectionStatus.PASSED)
    attach = report.results[-1]
    assert attach.measured["nodes"] == 2
    assert ("pods" in attach.measured) == node
    assert ec2.fake.volumes == {}
    assert report.left == ()


@pytest.mark.soak
def test_snapshots_of_disks_are_cut_kept_deleted_and_restored_with_what_was_written(
    ec2: FakeEC2Server, tmp_path: Path
) -> None:
    node = not why_no_sandbox(tmp_path / "probe")
    report = checked_on_disks(ec2, tmp_path, SNAPSHOTS, known=True, plugin=node)
    assert report.passed, report.results
    snapshots, restore = report.results
    assert snapshots.measured["bound_by"] == "volplane"
    assert "clone_seconds" in restore.measured
    assert (restore.measured["data"] == "read by pods") == node
    assert (ec2.fake.volumes, ec2.fake.snapshots) == ({}, {})
    assert report.left == ()


def test_sections_of_snapshots_say_so_where_the_cluster_does_not_serve_the_kinds(tmp_path: Path) -> None:
    with embedded_cluster(tmp_path) as cluster:
        cluster.delete(f"{DEFINITIONS}/volumesnapshots.snapshot.storage.k8s.io")
        report = checked(cluster, tmp_path / "work", controllers="all", sections=SNAPSHOTS)
    missing = "the API server does not serve volumesnapshots.snapshot.storage.k8s.io: its CRD is not installed"
    assert [(each.status, each.reason) for each in report.results] == [(SectionStatus.NOT_POSSIBLE, missing)] * 2
    assert report.left == ()


@pytest.mark.soak
def test_nodes_that_the_cloud_does_not_know_are_said(ec2: FakeEC2Server, tmp_path: Path) -> None:
    report = checked_on_disks(ec2, tmp_path, ("attach",), known=False, plugin=False)
    [attach] = report.results
    assert attach.status is SectionStatus.NOT_POSSIBLE
    assert attach.reason.startswith("the storage knows no node of this cluster: node node-")


def checked_on_disks(
    ec2: FakeEC2Server, directory: Path, sections: tuple[str, ...], *, known: bool, plugin: bool
) -> SuiteReport:
    """Of two nodes with disks of the mocked region."""
    options = {"region": "eu-test-1", "endpoint": ec2.url, "attach": True}
    with embedded_cluster(directory, node=True, nodes=2, disks=directory / "disks") as cluster:
        becoming = become_instances(cluster.server, ec2.fake, known=known, plugin=plugin)
        asyncio.run_coroutine_threadsafe(becoming, cluster.loop).result(30)
        return checked(
            cluster,
            directory / "work",
            controllers="all",
            backend="aws_ebs",
            options=options,
            capacity="1Gi",
            sections=sections,
        )


# --- what goes wrong ----------------------------------------------------------------------------------------------


def checked(cluster: EmbeddedCluster, work: Path, stop: asyncio.Event | None = None, **plan: Any) -> SuiteReport:
    return asyncio.run(run_suite(Plan(kubeconfig=cluster.kubeconfig, work=work, **plan), stop or asyncio.Event()))


def test_a_section_that_fails_says_why_with_the_events_of_the_cluster_and_all_is_removed(tmp_path: Path) -> None:
    with embedded_cluster(tmp_path) as cluster:
        report = checked(
            cluster,
            tmp_path / "work",
            controllers="all",
            sections=("dynamic", "late-binding"),
            parameters={"mode": "no mode"},
            patience=2.0,
        )
        assert not report.passed
        dynamic, late = report.results
        assert (dynamic.status, late.status) == (SectionStatus.FAILED, SectionStatus.NOT_POSSIBLE)
        assert "not after 2 s: dynamic-0, dynamic-1, dynamic-2 and 7 more bound; last warnings: " in dynamic.reason
        assert "mode" in dynamic.reason
        assert late.reason == "no node of the cluster is Ready"
        assert report.left == ()
        assert cluster.names(*EVERYTHING) == []
        assert sorted(cluster.names("/api/v1/namespaces")) == NAMESPACES
        assert (Path(report.logs) / "run-1.log").is_file()


@pytest.mark.more
def test_without_a_binder_nothing_is_judged_and_with_another_one_we_are_not_a_second(tmp_path: Path) -> None:
    with embedded_cluster(tmp_path) as cluster, pytest.raises(ConfigurationError, match="nobody binds claims"):
        checked(cluster, tmp_path / "work", sections=("static",))

    async def stock(server: Any) -> None:
        neighbours = StockCluster(server)
        await neighbours.start()
        try:
            await asyncio.Event().wait()
        finally:
            await neighbours.stop()

    (tmp_path / "2").mkdir()
    with embedded_cluster(tmp_path / "2", beside=stock) as cluster:
        with pytest.raises(ConfigurationError, match="somebody else binds claims in this cluster"):
            checked(cluster, tmp_path / "work", sections=("static",), controllers="all")
        report = checked(cluster, tmp_path / "work", sections=("static",))
        assert report.passed, report.document()
        assert report.facts.binder
        few = checked(cluster, tmp_path / "work", sections=("expand",), controllers="provisioner,reclaimer")
        (expand,) = few.results
        assert (expand.status, expand.reason) == (SectionStatus.NOT_POSSIBLE, "--controllers does not name expander")
        assert cluster.names(*EVERYTHING) == []


@pytest.mark.more
def test_ctrl_c_ends_the_section_and_removes_everything(tmp_path: Path) -> None:
    with embedded_cluster(tmp_path) as cluster:
        arguments = ("--kubeconfig", str(cluster.kubeconfig), "--controllers", "all", "--section", "kills")
        command = [sys.executable, "-m", "volplane", "check", "--cluster", *arguments, "--work", str(tmp_path / "work")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as process:
            try:
                until("a volume is made", lambda: any(name.startswith("pvc-") for name in cluster.names(EVERYTHING[0])))
            finally:
                process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        assert (process.returncode, output) == (130, ""), errors
        assert cluster.names(*EVERYTHING) == []
        assert sorted(cluster.names("/api/v1/namespaces")) == NAMESPACES
        assert "left behind" not in errors


@pytest.mark.soak
def test_no_controller_outlives_a_suite_that_is_killed(tmp_path: Path) -> None:
    def controllers() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                command = process.read_bytes().decode(errors="replace")
                if "\0run\0" in command and str(tmp_path) in command:
                    found.append(command)
        return found

    with embedded_cluster(tmp_path) as cluster:
        arguments = ("--kubeconfig", str(cluster.kubeconfig), "--controllers", "all", "--section", "kills")
        command = [sys.executable, "-m", "volplane", "check", "--cluster", *arguments, "--work", str(tmp_path / "work")]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
        ) as process:
            try:
                until("controllers run", lambda: bool(controllers()))
            finally:
                process.kill()
        until("no controller runs", lambda: not controllers())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--section", "statik"), "--section: 'statik' is no section; did you mean 'static'?"),
        (("--controllers", "binders"), '--controllers: "binders" is no controller'),
        (("--rule", "x"), "leave --cluster out"),
    ],
)
def test_wrong_options_are_refused_by_name(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--cluster", *arguments]) in (1, 2)
    assert told in capsys.readouterr().err.replace("\n", " ")


# --- a real cluster -----------------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_the_cluster_of_kubeconfig_passes(tmp_path: Path) -> None:
    kubeconfig = os.environ.get("KUBECONFIG")
    assert kubeconfig, "KUBECONFIG names no cluster"
    ended = volplane("check", "--cluster", "--kubeconfig", kubeconfig, *os.environ.get("CHECK_ARGS", "").split())
    assert ended.returncode == 0, ended.stdout + ended.stderr
