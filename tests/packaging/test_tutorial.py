"""The tutorial and the README's backend do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from volplane import (
    Asset,
    BackendSpec,
    ClaimIdentity,
    Context,
    DeleteRequest,
    Done,
    Ownership,
    ProvisionRequest,
    VolumeIdentity,
)
from volplane.controller.config import parse_configuration
from volplane.loading.building import build_driver
from volplane.loading.contract import Plugin

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
TUTORIAL = REPOSITORY / "docs" / "tutorial" / "write-a-backend.md"
EXAMPLE = REPOSITORY / "examples" / "folders"
CONTEXT = Context(driver="folders.example.com", cluster_id="test")
OWNER = Ownership(cluster_id="test", claim_uid="5a1e", volume_name="pvc-5a1e")
CLAIM = ClaimIdentity(namespace="default", name="data", uid="5a1e")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)


def named_files(page: Path) -> dict[str, str]:
    """Blocks that stand below the name of the file they are."""
    found = re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    return dict(found)


def test_the_backend_of_the_readme_makes_and_deletes_volumes(tmp_path: Path) -> None:
    [code] = blocks(README, "python")
    assert len(code.splitlines()) <= 25
    names: dict[str, Any] = {}
    exec(compile(code, str(README), "exec"), names)
    [backend] = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, BackendSpec)][1:]
    plugin = Plugin(kind="backend", name="folders", factory=backend)
    driver = build_driver("folders.example.com", plugin, {"root": str(tmp_path)})

    demand = ProvisionRequest(context=CONTEXT, name="pvc-5a1e", capacity_bytes=5, owner=OWNER, claim=CLAIM)
    asset = driver.provision(demand)
    assert isinstance(asset, Asset)
    assert driver.provision(demand) == asset
    [made] = [path for path in tmp_path.iterdir() if path.is_dir()]
    (made / "file").write_text("contents")

    volume = VolumeIdentity(
        name="pvc-5a1e", uid="77", handle=asset.handle, source=asset.source, capacity_bytes=5, owner=OWNER
    )
    for _ in range(2):
        assert driver.delete(DeleteRequest(context=CONTEXT, volume=volume)) == Done()
    assert list(tmp_path.iterdir()) == []


def test_the_tutorial_works_word_for_word(tmp_path: Path) -> None:
    for name, text in named_files(TUTORIAL).items():
        assert (EXAMPLE / name).read_text("utf-8") == text, "the example is the tutorial's files"
        (tmp_path / name).write_text(text)
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", str(target)]
    environment = {**os.environ, "PYTHONPATH": str(target), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    volplane = [sys.executable, "-m", "volplane", "plugins"]
    said = {}
    for command in (
        [*pip, "--no-deps", "--no-build-isolation", "."],
        [sys.executable, "-m", "pytest", "test_folders.py"],
        [*volplane, "--config", "volplane.yaml"],
        [*volplane, "show", "folders"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said[command[-1]] = done.stdout
        (tmp_path / "volplane_folders.py").unlink(missing_ok=True)
    assert "folders.example.com" in said["volplane.yaml"]
    assert "colour: text" in said["folders"]


def test_the_configuration_of_the_tutorial_is_valid() -> None:
    text = named_files(TUTORIAL)["volplane.yaml"]
    [driver] = parse_configuration(text, "volplane.yaml").drivers or ()
    assert (driver.name, driver.backend) == ("folders.example.com", "folders")
    assert yaml.safe_load(text)["drivers"][0]["options"] == driver.options
