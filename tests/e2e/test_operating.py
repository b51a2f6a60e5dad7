"""Installing, leaving, and looking after volplane: API server and controllers are processes of their own."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from tests.e2e.processes import Command, kubectl, objects, running, until

from ports import free_port
from volplane.cli.main import main

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: fast.example.com
"""
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NAME, namespace: default}
spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"""


def volplane(*arguments: str, code: int = 0) -> str:
    """Run a command to its end, in this process; everything it said."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        ended = main(arguments)
    assert ended == code, said.getvalue()
    return said.getvalue()


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """A cluster without any controller."""
    data = tmp_path / "cluster"
    with running(tmp_path / "apiserver.log", "apiserver", "--data", str(data), "--port", "0") as server:
        until("the server serves", (data / "kubeconfig").is_file, said=server.said)
        yield data / "kubeconfig"


class Controllers:
    """`volplane run` with one driver."""

    def __init__(self, directory: Path, kubeconfig: Path) -> None:
        self.root = directory / "root"
        self.http = f"127.0.0.1:{free_port()}"
        self._log = directory / "run.log"
        self.config = directory / "volplane.yaml"
        self._kubeconfig = kubeconfig
        driver = {"root": str(self.root), "create_root": True, "shared": True}
        self.config.write_text(
            yaml.safe_dump({"drivers": [{"name": "fast.example.com", "backend": "hostpath", "options": driver}]})
        )

    def start(self) -> Command:
        options = ("--kubeconfig", str(self._kubeconfig), "--config", str(self.config), "--http", self.http)
        return Command(self._log, "run", "--controllers", "all", *options)

    def directories(self) -> list[str]:
        above = self.root / "default"
        return sorted(path.name.partition("-")[0] for path in above.iterdir()) if above.is_dir() else []


@pytest.fixture
def controllers(tmp_path: Path, kubeconfig: Path) -> Controllers:
    return Controllers(tmp_path, kubeconfig)


def make_claims(kubeconfig: Path, *claims: str) -> None:
    kubectl(kubeconfig, "apply", "-f", "-", given=CLASS)
    for name in claims:
        kubectl(kubeconfig, "apply", "-f", "-", given=CLAIM.replace("NAME", name))
        kubectl(kubeconfig, "wait", "--for=jsonpath={.status.phase}=Bound", f"pvc/{name}", "--timeout=60s")


def test_what_manifests_prints_is_accepted(kubeconfig: Path) -> None:
    printed = list(yaml.safe_load_all(volplane("manifests", "--controllers", "all")))
    served = [each for each in printed if each["kind"] in {"Namespace", "ServiceAccount", "ConfigMap"}]
    (deployment,) = (each for each in printed if each["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "volplane-system"}, **template}
    pod["metadata"] = {**template["metadata"], "name": "p", "namespace": "volplane-system"}
    assert len(served) == 3
    kubectl(kubeconfig, "apply", "-f", "-", given=yaml.safe_dump(served[0]))
    text = yaml.safe_dump_all([*served, pod])
    out = kubectl(kubeconfig, "apply", "--dry-run=server", "-f", "-", given=text)
    assert out.count("(server dry run)") == 4


def test_a_claim_is_explained_with_and_without_a_controller(kubeconfig: Path, controllers: Controllers) -> None:
    kubectl(kubeconfig, "apply", "-f", "-", given=CLASS)
    kubectl(kubeconfig, "apply", "-f", "-", given=CLAIM.replace("NAME", "a"))
    before = objects(kubeconfig, "pvc")
    ask = ("explain", "pvc", "a", "--http", controllers.http, "--kubeconfig", str(kubeconfig))
    here = volplane(*ask, "--config", str(controllers.config), "--controllers", "all")
    assert "its class fast binds Immediate and is provisioned by fast.example.com, which is served here" in here
    assert "a write to PersistentVolumeClaim default/a: declare the intent to provision" in here
    assert f"no controller answers at {controllers.http}" in here
    assert "nothing here: a volume for it is fast.example.com's to make" in volplane(*ask)
    assert objects(kubeconfig, "pvc") == before
    assert not controllers.root.exists()

    command = controllers.start()
    try:
        make_claims(kubeconfig, "a")
        told = volplane(*ask)
        assert "nothing: everything is as it should be" in told
        assert "no controller answers" not in told
        assert command.stop() == 0, command.said()
    finally:
        command.kill()


def test_releasing_keeps_the_data_and_deleting_does_not(kubeconfig: Path, controllers: Controllers) -> None:
    here = ("--kubeconfig", str(kubeconfig), "--http", controllers.http)
    command = controllers.start()
    try:
        make_claims(kubeconfig, "a", "b")
        shown = volplane("drain", *here)
        assert "volplane.dev/reclaim" in shown
        assert "nothing was changed; --release releases them and keeps the assets, --delete deletes them" in shown
        assert "--yes needs --release or --delete" in volplane("drain", *here, "--yes", code=2)
        assert "a controller is at work" in volplane("drain", *here, "--release", "--yes", code=1)
        assert "the controller has no driver 'other.example.com'" in volplane(
            "drain", *here, "--driver", "other.example.com", code=1
        )
        assert "fast.example.com was checked at" in volplane("leaks", "--http", controllers.http)
        assert controllers.directories() == ["a", "b"]

        volplane("drain", *here, "--delete", "--yes", "--driver", "other.example.com", code=1)
        assert controllers.directories() == ["a", "b"]
        deleted = volplane("drain", *here, "--delete", "--yes")
        assert "nothing is held any more" in deleted
        assert objects(kubeconfig, "pv", "pvc") == []
        assert controllers.directories() == []

        make_claims(kubeconfig, "c")
        assert command.stop() == 0, command.said()
        assert "no controller is at work" in volplane("drain", *here, "--delete", "--yes", code=1)
        assert "nothing is held any more" in volplane("drain", *here, "--release", "--yes")
    finally:
        command.kill()
    (volume,) = objects(kubeconfig, "pv")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["metadata"].get("finalizers", []) == ["kubernetes.io/pv-protection"]
    assert [claim["status"]["phase"] for claim in objects(kubeconfig, "pvc")] == ["Bound"]
    assert controllers.directories() == ["c"]
    told = [event for event in objects(kubeconfig, "events") if event["reason"] == "Released"]
    assert [event["involvedObject"]["name"] for event in told] == [volume["metadata"]["name"]]
    assert "nothing is held" in volplane("drain", *here)


def test_a_deletion_that_a_pod_holds_up_says_so(kubeconfig: Path, controllers: Controllers) -> None:
    here = ("--kubeconfig", str(kubeconfig), "--http", controllers.http)
    command = controllers.start()
    try:
        make_claims(kubeconfig, "used")
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "user"},
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "c", "image": "i", "command": ["true"]}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}],
            },
        }
        kubectl(kubeconfig, "apply", "-f", "-", given=json.dumps(pod))
        said = volplane("drain", *here, "--delete", "--yes", "--timeout", "3", code=1)
        assert "claim default/used; pod default/user" in said
        waits = [event for event in objects(kubeconfig, "events") if event["reason"] == "DrainWaits"]
        assert "pod default/user" in waits[0]["message"]
        kubectl(kubeconfig, "delete", "pod", "user", "--grace-period=0", "--force")
        until("the claim is gone", lambda: objects(kubeconfig, "pvc") == [])
        assert command.stop() == 0, command.said()
    finally:
        command.kill()
