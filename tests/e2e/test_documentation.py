"""The demo and the page about kubectl, as a newcomer would run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.e2e.processes import ENVIRONMENT, running, until
from tools.recording import PICTURE, lines_of

from ports import free_port
from volplane_aws_ebs.testing import Behaviour, FakeEC2, FakeEC2Server
from volplane_nfs.testing import why_no_ganesha
from volplane_testing.disks import DiskDirectory

REPOSITORY = Path(__file__).resolve().parents[2]
LONGEST_DEMO = 60.0


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    line = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UID", line)
    line = re.sub(r"volplane-scrub-[0-9a-f]{16}", "SCRUB", line)
    line = re.sub(r"127\.0\.0\.1:\d+|\d+\.\d+ s$", "NUMBER", line)
    return re.sub(r"volplane-demo-\w+", "DIRECTORY", line)


def told(lines: Iterable[str]) -> list[str]:
    """The stories and what was checked, in their order."""
    return [line for line in lines if line and not line.startswith("  ")]


def objects(lines: Iterable[str]) -> set[tuple[str, ...]]:
    """Kind and name of all that is watched: which of their phases a watch sees is a matter of time."""
    return {tuple(line.split()[:2]) for line in lines if line.startswith("  ")}


@pytest.mark.more
def test_the_demo_ends_well_and_in_time_and_says_what_its_recording_shows() -> None:
    begun = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "volplane", "demo"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env=ENVIRONMENT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert time.monotonic() - begun < LONGEST_DEMO * busy
    assert "\x1b" not in ended.stdout
    shown = [plain(line) for line in lines_of(PICTURE.read_text("utf-8"))]
    said = [plain(line) for line in ended.stdout.splitlines()]
    assert told(said) == told(shown), "make recording"
    assert objects(said) == objects(shown), "make recording"


def followed(page: str, directory: Path) -> str:
    """Run the blocks of a how-to on the cluster that it names; return what they print."""
    blocks = re.findall(
        r"```bash\n(.*?)```", (REPOSITORY / "docs" / "how-to" / page).read_text("utf-8"), flags=re.DOTALL
    )
    kubeconfig = directory / "cluster" / "kubeconfig"
    options = ("--data", str(directory / "cluster"), "--port", "0", "--http", "127.0.0.1:0")
    with running(directory / "dev.log", "dev", *options) as cluster:
        until("the cluster serves", kubeconfig.is_file, said=cluster.said)
        ended = subprocess.run(
            ["bash", "-euxc", "\n".join(blocks)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={
                **ENVIRONMENT,
                "HOME": str(directory),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr + cluster.said()
        assert cluster.stop() == 0, cluster.said()
    return ended.stdout


@pytest.mark.more
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_the_page_about_kubectl_works_word_for_word(tmp_path: Path) -> None:
    assert "Warning  ProvisioningFailed" in followed("try-it-with-kubectl.md", tmp_path)


@pytest.mark.more
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_the_page_about_undeleting_works_word_for_word(tmp_path: Path) -> None:
    followed("undelete-a-volume.md", tmp_path)


@pytest.mark.more
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_the_page_about_disks_of_nodes_works_word_for_word(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "provision-on-nodes.md").read_text("utf-8")
    before, lost, after = page.partition("## A node that is lost")
    kubeconfig = tmp_path / "cluster" / "kubeconfig"
    export, *first = re.findall(r"```bash\n(.*?)```", before, flags=re.DOTALL)
    second = re.findall(r"```bash\n(.*?)```", lost + after, flags=re.DOTALL)
    for nodes, blocks in (("3", first), ("2", second)):
        kubeconfig.unlink(missing_ok=True)
        options = ("--nodes", nodes, "--distributed", "--data", str(tmp_path / "cluster"), "--port", "0")
        with running(tmp_path / f"dev-{nodes}.log", "dev", *options, "--http", "127.0.0.1:0") as cluster:
            until("the cluster serves", kubeconfig.is_file, said=cluster.said)
            ended = subprocess.run(
                ["bash", "-euxc", "\n".join([export, *blocks])],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                env={
                    **ENVIRONMENT,
                    "HOME": str(tmp_path),
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                },
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr + cluster.said()
            assert cluster.stop() == 0, cluster.said()


@pytest.mark.more
def test_the_demo_on_nfs_ends_well_or_says_what_is_missing() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "volplane", "demo", "--backend", "nfs"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=ENVIRONMENT,
    )
    if reason := why_no_ganesha():
        assert ended.returncode != 0
        assert reason in ended.stderr
        return
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "on disk, greeting says" in ended.stdout


@pytest.mark.more
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
@pytest.mark.skipif(bool(why_no_ganesha()), reason=why_no_ganesha())
def test_the_page_about_nfs_works_word_for_word() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "provision-on-nfs.md").read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL)
    script = "trap 'kill $(jobs -p); wait' EXIT\n" + "\n".join(blocks).replace("12049", str(free_port()))
    with tempfile.TemporaryDirectory(prefix="volplane-", dir="/dev/shm") as lab:
        ended = subprocess.run(
            ["bash", "-euc", f'volplane() {{ exec {sys.executable} -m volplane "$@"; }}\n{script}'],
            cwd=lab,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
            env={**ENVIRONMENT, "HOME": lab, "LAB": lab},
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("hello\n") == 2


BEFORE_SNAPSHOTS = """
until kubectl get node node-1; do sleep 0.2; done
kubectl patch node node-1 -p '{"spec": {"providerID": "aws:///eu-test-1a/INSTANCE"}}'
kubectl apply -f - <<'END'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: ebs.volplane.dev
allowedTopologies: [{matchLabelExpressions: [{key: topology.kubernetes.io/zone, values: [eu-test-1a]}]}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: origin}
spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
END
writes() {
    kubectl apply -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: writes-$1}
spec:
  restartPolicy: Never
  volumes: [{name: data, persistentVolumeClaim: {claimName: origin}}]
  containers:
  - name: main
    image: any
    command: [sh, -c, "echo $1 > /data/file"]
    volumeMounts: [{name: data, mountPath: /data}]
END
    kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/writes-$1 --timeout=60s
}
writes before
"""
BETWEEN_THEM = "writes after"
AFTER_THEM = """
kubectl apply -f - <<'END'
apiVersion: v1
kind: Pod
metadata: {name: reads}
spec:
  restartPolicy: Never
  volumes:
  - {name: back, persistentVolumeClaim: {claimName: back}}
  - {name: restored, persistentVolumeClaim: {claimName: restored}}
  - {name: copy, persistentVolumeClaim: {claimName: copy}}
  containers:
  - name: main
    image: any
    command: [sh, -c, 'test "$(cat /back/file /restored/file /copy/file | tr "\\n" " ")" = "before before after "']
    volumeMounts:
    - {name: back, mountPath: /back}
    - {name: restored, mountPath: /restored}
    - {name: copy, mountPath: /copy}
END
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/reads --timeout=60s
"""


def blocks_of(page: str) -> str:
    """The blocks of a how-to as one script; those of YAML are applied."""
    text = (REPOSITORY / "docs" / "how-to" / page).read_text("utf-8")
    found = re.findall(r"^( *)```(bash|yaml)\n(.*?)^\1```", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(
        textwrap.dedent(block) if kind == "bash" else f"kubectl apply -f - <<'END'\n{textwrap.dedent(block)}END"
        for _, kind, block in found
    )


@pytest.mark.more
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_the_pages_about_snapshots_and_restores_work_word_for_word(tmp_path: Path) -> None:
    kubeconfig, disks = tmp_path / "cluster" / "kubeconfig", tmp_path / "disks"
    quick = {f"{what}_seconds": 0.1 for what in ("create", "attach", "detach", "delete", "snapshot")}
    fake = FakeEC2(Behaviour(**quick))
    instance = fake.add_instance("eu-test-1a").id
    pages = [blocks_of("take-a-snapshot.md"), blocks_of("restore-and-clone.md")]
    assert ["volplane snapshot" in pages[0], "volplane restore" in pages[1]] == [True, True]
    grants = "kubectl create namespace team-a\n"
    parts = (BEFORE_SNAPSHOTS.replace("INSTANCE", instance), pages[0], grants, BETWEEN_THEM, pages[1], AFTER_THEM)
    environment = {
        **ENVIRONMENT,
        "HOME": str(tmp_path),
        "KUBECONFIG": str(kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    key = tmp_path / "any-key"
    key.write_text("any")
    with FakeEC2Server(fake, disks=DiskDirectory(disks)) as server:
        options = {"region": "eu-test-1", "endpoint": server.url, "attach": True}
        keys = dict.fromkeys(("access_key_id", "secret_access_key"), f"file:{key}")
        driver = {"name": "ebs.volplane.dev", "backend": "aws_ebs", "options": {**options, **keys}}
        (tmp_path / "ebs.json").write_text(json.dumps({"drivers": [driver]}))
        given = ("--config", str(tmp_path / "ebs.json"), "--disks", str(disks), "--data", str(kubeconfig.parent))
        zone = ("--node-label", "topology.kubernetes.io/zone=eu-test-1a")
        gate = ("--feature-gates", "CrossNamespaceVolumeDataSource=true")
        with running(
            tmp_path / "dev.log", "dev", *given, *zone, *gate, "--port", "0", "--http", "127.0.0.1:0"
        ) as cluster:
            until("the cluster serves", kubeconfig.is_file, said=cluster.said)
            ended = subprocess.run(
                ["bash", "-euxc", "\n".join(parts)],
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=240,
                env=environment,
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr + cluster.said()
            assert cluster.stop() == 0, cluster.said()
    assert re.search(r"snapshot default/s (is cut|can be used)", ended.stdout)
    assert "claim default/back is bound" in ended.stdout
