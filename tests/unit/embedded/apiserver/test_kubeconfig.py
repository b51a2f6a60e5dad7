from __future__ import annotations

import base64
from pathlib import Path

import yaml

from volplane_embedded.apiserver.kubeconfig import CONTEXT, ensure_token, write_kubeconfig


def test_a_kubeconfig_is_for_its_user_alone_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config"
    path.parent.mkdir()
    path.write_text("old")
    path.chmod(0o644)
    write_kubeconfig(path, "https://127.0.0.1:6443", "secret", "PEM")
    assert path.stat().st_mode & 0o777 == 0o600
    config = yaml.safe_load(path.read_text())
    cluster = config["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"PEM"
    assert config["users"][0]["user"] == {"token": "secret"}
    assert config["current-context"] == CONTEXT
    assert [entry.name for entry in path.parent.iterdir()] == ["config"]


def test_without_tls_there_is_no_authority(tmp_path: Path) -> None:
    write_kubeconfig(tmp_path / "config", "http://127.0.0.1:1", "secret", None)
    config = yaml.safe_load((tmp_path / "config").read_text())
    assert config["clusters"][0]["cluster"] == {"server": "http://127.0.0.1:1"}


def test_a_data_directory_keeps_its_token(tmp_path: Path) -> None:
    token = ensure_token(tmp_path)
    assert len(token) >= 43
    assert ensure_token(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_without_a_directory_every_token_is_new() -> None:
    assert ensure_token(None) != ensure_token(None)
