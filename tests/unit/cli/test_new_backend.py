"""`volplane new-backend`: what it writes is a whole distribution that passes its own tests."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import yaml

from volplane.cli.main import main
from volplane.controller.config import parse_configuration
from volplane_testing.cli.new_backend import Kind, distribution_files
from volplane_testing.conformance import RULES

CUMULUS = Path(__file__).resolve().parents[3] / "examples" / "cumulus"
RENAMED = (
    ("CumulusBackend", "%%class%%"),
    ("FakeCumulus", "FakeDisks"),
    (
        "A backend for disks of Cumulus, a made-up cloud with a REST API (docs/how-to/write-a-cloud-backend.md).",
        "Disks of a cloud with a REST API, by the kit of volplane (its docs/how-to/write-a-cloud-backend.md).",
    ),
    ("no machine of Cumulus", "no machine of this cloud"),
    ("a disk of Cumulus", "a disk of this cloud"),
    ("Disks of Cumulus.", "Disks of a cloud."),
    ("The fake of Cumulus: its disks", "The fake cloud: its disks"),
    ("cumulus = self._cumulus = Cumulus(", "calls = self._calls = Calls("),
    ("self.operations(cumulus, nodes)", "self.operations(calls, nodes)"),
    ("cumulus: Cumulus, nodes", "calls: Calls, nodes"),
    ("self._cumulus, self._nodes, self._fences = cumulus,", "self._calls, self._nodes, self._fences = calls,"),
    ("_cumulus.", "_calls."),
    ("class Cumulus:", "class Calls:"),
    ("cumulus.example.com", "%%host%%.example.com"),
    ("cumulus:///", "%%host%%:///"),
    (
        'distribution: ClassVar[str] = "volplane"  # That of the plugin, once it is one.',
        'distribution: ClassVar[str] = "%%distribution%%"',
    ),
)
"""What the cloud that is written is called, and what the one of the how-to."""


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


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("directory", marks=pytest.mark.more),
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("http", "cloud")),
    ],
)
def test_a_new_backend_is_built_installed_and_passes_its_tests(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my_disks", "--kind", kind]) == 0
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

    shown = python("-m", "volplane", "plugins", "--config", "volplane.yaml", cwd=made, PYTHONPATH=str(site))
    assert "volplane-my-disks 0.1.0" in shown
    assert "my-disks.example.com" in shown


@pytest.mark.parametrize("kind", [Kind.HTTP, Kind.CLOUD])
def test_a_backend_of_each_kind_is_judged_at_once_by_its_name(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `pip install` leaves it: the package, and the metadata with its entry points."""
    name = f"tried_{kind}"
    for path, text in distribution_files(name, kind).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "src" / f"volplane_{name}-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    points = [f"[{group}]\n{name} = {of[name]}\n" for group, of in project["entry-points"].items()]
    (metadata / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(str(tmp_path / "src"))

    skipped = {"crash", "long", "strange", "outlives", "once", "odd"}  # what takes long: the soak test judges all
    rules = [rule.name for rule in RULES if not skipped & set(rule.name.split("-"))]
    assert main(["check", name, *(part for each in rules for part in ("--rule", each))]) == 0
    where, result = capsys.readouterr().out.splitlines()
    assert where.startswith(f"{name} is judged on its storage for tests, volplane_{name}.testing:subject")
    assert re.fullmatch(r"\d+ kept, \d+ not applicable", result)
    parse_configuration((tmp_path / "volplane.yaml").read_text(), "volplane.yaml")
    assert [each["kind"] for each in yaml.safe_load_all((tmp_path / "dev.yaml").read_text())] == [
        "StorageClass",
        "PersistentVolumeClaim",
        "Pod",
    ]


def test_the_cloud_that_is_written_is_the_one_of_the_how_to() -> None:
    for ours, theirs in (("backend.py", "volplane_cumulus.py"), ("fake.py", "fake_cumulus.py")):
        text = (CUMULUS / theirs).read_text("utf-8")
        for old, new in RENAMED:
            text = text.replace(old, new)
        template = resources.files("volplane_testing.cli") / "templates" / "cloud" / f"{ours}.tmpl"
        assert template.read_text("utf-8") == text


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("name", ["disks", "my-disks", "a1_b2", "x" * 40])
def test_every_file_is_whole(name: str, kind: Kind) -> None:
    files = distribution_files(name, kind)
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
