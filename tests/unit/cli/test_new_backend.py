"""`volplane new-backend`: what it writes is a whole distribution that passes its own tests."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from volplane.cli.main import main
from volplane_testing.cli.new_backend import distribution_files


def python(*arguments: str, cwd: Path, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_new_backend_is_built_installed_and_passes_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my_disks"]) == 0
    assert 'pip install -e ".[dev]"' in capsys.readouterr().out
    made, site = tmp_path / "volplane-my-disks", tmp_path / "site"
    python(
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
        ".",
        cwd=made,
    )
    assert (site / "volplane_my_disks" / "py.typed").is_file()
    (made / "src").rename(tmp_path / "out-of-the-way")

    told = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=made, PYTHONPATH=str(site))
    assert " passed" in told
    assert "failed" not in told

    root = tmp_path / "root"
    root.mkdir()
    drivers = [{"name": "disks.example.com", "backend": "my_disks", "options": {"root": str(root)}}]
    (made / "volplane.yaml").write_text(yaml.safe_dump({"drivers": drivers}))
    shown = python("-m", "volplane", "plugins", "--config", "volplane.yaml", cwd=made, PYTHONPATH=str(site))
    assert "volplane-my-disks 0.1.0" in shown
    assert "disks.example.com" in shown


@pytest.mark.parametrize("name", ["disks", "my-disks", "a1_b2", "x" * 40])
def test_every_file_is_whole(name: str) -> None:
    files = distribution_files(name)
    assert not [path for path, text in files.items() if "%%" in path + text]
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    module = f"volplane_{name.replace('-', '_')}"
    assert f"src/{module}/py.typed" in files
    [(entry, value)] = project["entry-points"]["volplane.backends"].items()
    assert entry == name
    assert value.partition(":")[0] == module
    assert f"class {value.partition(':')[2]}(" in files[f"src/{module}/backend.py"]
    assert project["dependencies"] == ["volplane>=0.1,<0.2"]
    workflow = yaml.safe_load(files[".github/workflows/test.yml"])
    assert {"run": "pytest"} in workflow["jobs"]["test"]["steps"]


@pytest.mark.parametrize("name", ["Disks", "my disks", "../disks", "-x", "7disks", "a__b", "", "x" * 41, "disks\n"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-backend", "--directory", str(tmp_path / "x"), "--", name]) == 1
    assert f"error: backend name {' '.join(repr(name).split())} must be lower-case" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("precious")
    assert main(["new-backend", "disks", "--directory", str(tmp_path)]) == 1
    assert "is not empty; name another --directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("name", "taken"), [("hostpath", "hostpath"), ("aws-ebs", "aws_ebs")])
def test_the_name_of_an_installed_backend_is_refused(
    name: str, taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", name]) == 1
    whose = f"by volplane-{taken.replace('_', '-')}"
    assert f"a backend {taken!r} is installed already {whose}" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
