import base64
import http.client
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from volplane.cli.main import main
from volplane_embedded.cli.embedded_server import server_settings

COMMAND = [sys.executable, "-m", "volplane", "apiserver"]


class Running:
    """A started `volplane apiserver`, after it has said that it serves."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *options], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if line.startswith("Ctrl-C"):
                return
        raise AssertionError(self.stop())

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


def ask(kubeconfig: Path, method: str, path: str, body: object = None) -> dict[str, Any]:
    """One request as the kubeconfig says."""
    config = yaml.safe_load(kubeconfig.read_text())
    [cluster], [user] = config["clusters"], config["users"]
    authority = base64.b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    host, _, port = cluster["cluster"]["server"].removeprefix("https://").rpartition(":")
    connection = http.client.HTTPSConnection(
        host, int(port), timeout=60, context=ssl.create_default_context(cadata=authority)
    )
    headers = {"Authorization": f"Bearer {user['user']['token']}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return answer


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def one(*options: str) -> Running:
        started.append(Running(tmp_path, "--port", "0", *options))
        return started[-1]

    yield one
    for each in started:
        if each.process.poll() is None:
            each.stop(signal.SIGKILL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_says_where_the_kubeconfig_is_and_stops_in_order(
    start: Callable[..., Running], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    running = start("--memory")
    assert running.said[0].startswith("serving https://127.0.0.1:")
    assert "kubeconfig volplane.kubeconfig" in running.said
    assert any(line.strip().startswith("kubectl --kubeconfig volplane.kubeconfig get ") for line in running.said)
    kubeconfig = tmp_path / "volplane.kubeconfig"
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
    assert ask(kubeconfig, "GET", "/api/v1/namespaces/default")["kind"] == "Namespace"
    assert running.stop(number) == (code, "")


def test_what_was_acknowledged_is_there_after_a_kill(start: Callable[..., Running], tmp_path: Path) -> None:
    kubeconfig = tmp_path / "data" / "kubeconfig"
    running = start("--data", "data")
    body = {"metadata": {"name": "kept"}, "data": {"key": "value"}}
    made = ask(kubeconfig, "POST", "/api/v1/namespaces/default/configmaps", body)
    running.stop(signal.SIGKILL)
    start("--data", "data")
    found = ask(kubeconfig, "GET", "/api/v1/namespaces/default/configmaps/kept")
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    assert found["data"] == {"key": "value"}


def test_a_data_directory_has_one_server(start: Callable[..., Running], tmp_path: Path) -> None:
    start("--data", "data")
    code, err = refused(tmp_path, "--port", "0", "--data", "data")
    assert code == 1
    assert "in use by another volplane API server" in err


def refused(directory: Path, *options: str) -> tuple[int, str]:
    ended = subprocess.run([*COMMAND, *options], cwd=directory, capture_output=True, text=True, check=False, timeout=60)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = refused(tmp_path, "--port", str(port))
    assert code == 1
    assert err == (
        f"error: port {port} on 127.0.0.1 is in use: stop what listens there, or take another one with --port "
        "(--port 0 takes a free one)\n"
    )
    assert not (tmp_path / "volplane.kubeconfig").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--memory", "--data", "x"), 1, "--memory and --data exclude each other"),
        (
            ("--port", "0", "--disable-admission", "Nope"),
            1,
            "unknown admission plugin Nope: there are DefaultStorageClass",
        ),
        (("--host", "192.0.2.1", "--port", "0"), 1, "--host 192.0.2.1 is no address of this machine"),
        (("--port", "0", "--data", "file/below"), 1, "--data: data directory file/below cannot be used"),
        (("--port", "0", "--kubeconfig-out", "file/below"), 1, "--kubeconfig-out file/below cannot be written"),
        (("--port", "70000"), 2, "--port"),
        (("--feature-gates", "AnyVolume=true"), 1, "'AnyVolume' is not known here; CrossNamespaceVolumeDataSource is"),
        (
            ("--feature-gates", "CrossNamespaceVolumeDataSource"),
            1,
            "must be CrossNamespaceVolumeDataSource=true or CrossNamespaceVolumeDataSource=false",
        ),
    ],
)
def test_what_cannot_be_had_is_one_line(
    *,
    options: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    found = main(["apiserver", *options])
    out, err = capsys.readouterr()
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
    assert code == 2 or err.count("\n") == 1


def test_other_machines_are_let_in_only_when_asked_and_with_a_warning(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start("--host", "0.0.0.0")
    assert running.said[0].startswith("serving https://127.0.0.1:")
    assert ask(tmp_path / "volplane.kubeconfig", "GET", "/version")["major"] == "1"
    code, err = running.stop()
    assert code == 0
    assert err.startswith("warning: 0.0.0.0 can be reached from other machines")


def test_a_default_class_is_set_unless_that_is_disabled(start: Callable[..., Running], tmp_path: Path) -> None:
    storage_class = {
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "example.com/disk",
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    for options, expected in (((), "fast"), (("--disable-admission", "DefaultStorageClass,Priority"), None)):
        running = start(*options)
        kubeconfig = tmp_path / "volplane.kubeconfig"
        ask(kubeconfig, "POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class)
        made = ask(kubeconfig, "POST", "/api/v1/namespaces/default/persistentvolumeclaims", claim)
        assert made["spec"].get("storageClassName") == expected
        running.stop()


def test_sources_in_other_namespaces_and_grants_come_with_their_gate(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s", "namespace": "team-a"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "dataSourceRef": source}
    grants = "/apis/gateway.networking.k8s.io/v1beta1/namespaces/default/referencegrants"
    kubeconfig = tmp_path / "volplane.kubeconfig"
    start("--feature-gates", "CrossNamespaceVolumeDataSource=true")
    body = {"metadata": {"name": "data"}, "spec": spec}
    made = ask(kubeconfig, "POST", "/api/v1/namespaces/default/persistentvolumeclaims", body)
    assert made["spec"]["dataSourceRef"] == source
    granted: dict[str, Any] = {"from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": "b"}], "to": []}
    body = {"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": {"name": "g"}}
    refused = ask(kubeconfig, "POST", grants, {**body, "spec": granted})
    assert "spec.to" in refused["message"]
    granted["to"] = [{"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}]
    assert ask(kubeconfig, "POST", grants, {**body, "spec": granted})["spec"] == granted


@pytest.mark.parametrize("text", ["", "CrossNamespaceVolumeDataSource=false", " CrossNamespaceVolumeDataSource=0,"])
def test_a_gate_that_is_off_is_not_on(text: str) -> None:
    settings = server_settings(data=None, memory=True, host="::1", port=0, kubeconfig_out=None, feature_gates=text)
    assert not settings.feature_gates


def test_a_closed_pipe_ends_nothing_with_a_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"], cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in err
