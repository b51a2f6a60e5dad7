"""`volplane support-bundle`: everything that helps, and nothing that is secret."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ports import free_port
from volplane.cli.main import main
from volplane.cli.support_bundle import without_secrets
from volplane.errors import ApiError
from volplane.kube.http.transport import HttpTransport
from volplane.kube.transport import Request, Response


def bundled(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        names = archive.getnames()
        found = {name.removeprefix("volplane/"): archive.extractfile(name) for name in names}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def test_a_bundle_has_the_objects_and_says_what_it_has_not(
    kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = tmp_path / "bundle.tar.gz", tmp_path / "config.yaml"
    config.write_text("drivers: [{name: a.example.com, backend: b, options: {password: hunter2, login: env:LOGIN}}]")
    nobody = f"127.0.0.1:{free_port()}"
    arguments = ["--kubeconfig", kubeconfig, "--output", str(file), "--config", str(config), "--http", nobody]
    assert main(["support-bundle", *arguments]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    files = bundled(file)
    [claim] = json.loads(files["cluster/persistentvolumeclaims.json"])
    assert claim["metadata"]["name"] == "data"
    assert "managedFields" not in claim["metadata"]
    [driver] = json.loads(files["configuration.json"])["drivers"]
    assert driver["options"] == {"password": "***", "login": "env:LOGIN"}
    assert "volplane" in json.loads(files["about.json"])["installed"]
    assert json.loads(files["cluster/leases.json"]) == json.loads(files["cluster/leases-of-nodes.json"]) == []
    assert json.loads(files["cluster/version.json"])["major"] == "1"
    assert f"controller: no controller answers at {nobody}" in files["errors.txt"]
    assert "no controller answers" in capsys.readouterr().out


def test_a_configuration_that_cannot_be_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"a: {'9' * 5000}")
    assert main(["support-bundle", "--config", str(config), "--output", str(tmp_path / "b")]) == 1
    assert f"{config} is no YAML: " in capsys.readouterr().err


def test_a_bundle_replaces_no_file(kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine"
    file.write_text("precious")
    assert main(["support-bundle", "--kubeconfig", kubeconfig, "--output", str(file)]) == 1
    assert file.read_text() == "precious"
    assert f"{file} exists already" in capsys.readouterr().err


def test_a_bundle_without_a_cluster_and_a_controller_has_what_there_is_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, absent = tmp_path / "bundle.tar.gz", tmp_path / "absent"
    address = f"127.0.0.1:{free_port()}"
    assert main(["support-bundle", "--kubeconfig", str(absent), "--output", str(file), "--http", address]) == 1
    told = capsys.readouterr()
    assert "error: the bundle says nothing of the cluster: " in told.err
    assert f"no controller answers at {address}" in told.err
    assert str(absent) in told.err
    assert told.out == ""
    files = bundled(file)
    assert set(files) == {"about.json", "errors.txt"}
    assert "absent" in files["errors.txt"]


def test_a_bundle_for_which_a_server_is_away_fails(
    kubeconfig: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free_port()}"
    away = tmp_path / "away"
    away.write_text(yaml.safe_dump(config))
    assert (
        main(["support-bundle", "--kubeconfig", str(away), "--output", "-", "--http", f"127.0.0.1:{free_port()}"]) == 1
    )
    told = capsysbinary.readouterr()
    assert b"cannot be reached: nothing listens there" in told.err
    with tarfile.open(fileobj=io.BytesIO(told.out)) as archive:
        assert "volplane/errors.txt" in archive.getnames()


def test_a_bundle_of_a_user_without_rights_fails_and_shows_no_empty_lists(
    kubeconfig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bundle.tar.gz"
    allowed = HttpTransport.send

    async def send(self: HttpTransport, request: Request) -> Response:
        if request.path != "/version":
            raise ApiError(f"{request.path} is forbidden", status=403, reason="Forbidden")
        return await allowed(self, request)

    monkeypatch.setattr(HttpTransport, "send", send)
    arguments = ["--kubeconfig", kubeconfig, "--output", str(file), "--http", f"127.0.0.1:{free_port()}"]
    assert main(["support-bundle", *arguments]) == 1
    assert "persistentvolumes: " in capsys.readouterr().err
    assert set(bundled(file)) == {"about.json", "cluster/version.json", "errors.txt"}


def test_a_bundle_can_go_to_a_pipe(kubeconfig: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["support-bundle", "--kubeconfig", kubeconfig, "--output", "-", "--http", "127.0.0.1:9"]) == 0
    with tarfile.open(fileobj=io.BytesIO(capsysbinary.readouterr().out)) as archive:
        assert "volplane/cluster/persistentvolumes.json" in archive.getnames()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"password": "x"}, {"password": "***"}),
        ({"apiToken": "x", "tokens": 3}, {"apiToken": "***", "tokens": 3}),
        ({"secretAccessKey": ["a", "b"]}, {"secretAccessKey": ["***", "***"]}),
        ({"password": "secret:ns/name/key"}, {"password": "secret:ns/name/key"}),
        ({"csi.storage.k8s.io/provisioner-secret-name": "x"}, {"csi.storage.k8s.io/provisioner-secret-name": "x"}),
        ({"secretRef": {"name": "x"}}, {"secretRef": {"name": "x"}}),
        ({"mountOptions": ["vers=4", "password=x,ro"]}, {"mountOptions": ["vers=4", "password=***,ro"]}),
        (
            {"mountOptions": ["username=a,pwd=x", "passphrase=x", "apikey=x"]},
            {"mountOptions": ["username=a,pwd=***", "passphrase=***", "apikey=***"]},
        ),
        (
            {"args": ["--password=x", "--db-pass", "x", "--secret-key=x", "--login", "--verbose", "-v"]},
            {"args": ["--password=***", "--db-pass", "***", "--secret-key=***", "--login", "--verbose", "-v"]},
        ),
        ({"options": {"endpoint": "https://a:x@filer/"}}, {"options": {"endpoint": "https://a:***@filer/"}}),
        ({"options": {"dsn": "a:x@tcp(db)/b"}}, {"options": {"dsn": "***"}}),
        ({"options": {"url": "postgres://a:x@db?c=d"}}, {"options": {"url": "postgres://a:***@db?c=d"}}),
        ({"volumeAttributes": {"key": "x"}}, {"volumeAttributes": {"key": "***"}}),
        ({"tolerations": [{"key": "node"}]}, {"tolerations": [{"key": "node"}]}),
        ({"message": "cannot log in to https://a:x@filer"}, {"message": "cannot log in to https://a:***@filer"}),
        ({"env": [{"name": "A", "value": "x"}]}, {"env": [{"name": "A", "value": "***"}]}),
        (
            {"annotations": {"volplane.dev/handle": "h", "example.com/note": "x"}},
            {"annotations": {"volplane.dev/handle": "h", "example.com/note": "***"}},
        ),
        ({"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x"}}, {"annotations": {}}),
        ({"metadata": {"name": "a", "managedFields": []}}, {"metadata": {"name": "a"}}),
    ],
)
def test_what_may_be_secret_is_hidden(before: Any, after: Any) -> None:
    assert without_secrets(before) == after
