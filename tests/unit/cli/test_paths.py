"""Paths that cannot be used, as options of every command: the user's error, in one line that says what to do."""

from pathlib import Path

import pytest

from volplane.cli.main import main

BAD = "file/below"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["dev", "--port", "0", "--data", BAD], "data directory file/below"),
        (["dev", "--port", "0", "--volumes", BAD], "--volumes file/below"),
        (["dev", "--port", "0", "--disks", BAD], "--disks file/below"),
        (["dev", "--port", "0", "--kubeconfig-out", BAD], "--kubeconfig-out file/below"),
        (["dev", "--config", BAD], BAD),
        (["apiserver", "--port", "0", "--data", BAD], "data directory file/below"),
        (["apiserver", "--port", "0", "--data", "file"], "data directory file"),
        (["run", "--config", BAD], BAD),
        (["run", "--kubeconfig", BAD], "--kubeconfig file/below"),
        (["run", "--kubeconfig", "directory"], "--kubeconfig directory"),
        (["status", "--kubeconfig", BAD], "--kubeconfig file/below"),
        (["explain", "pv", "x", "--kubeconfig", "absent"], "--kubeconfig absent"),
        (["drain", "--kubeconfig", BAD], "--kubeconfig file/below"),
        (["manifests", "--config", BAD], "--config file/below"),
        (["manifests", "--config", "directory"], "--config directory"),
        (["plugins", "--config", "directory"], "directory"),
        (["new-backend", "example", "--directory", BAD], "--directory file/below"),
        (["new-backend", "example", "--directory", "file"], "--directory file"),
        (["check", "hostpath", "--options", "directory"], "--options: directory"),
    ],
)
def test_a_path_that_cannot_be_used_is_one_line_of_advice_and_leaves_nothing(
    arguments: list[str],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert option in err
    assert "; " in err
    assert "bug" not in err
    assert "Errno" not in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["directory", "file"]
