"""The promises that every backend makes, judged on directories of this machine, with crashes of real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane import Asset, VolumeSource
from volplane.testing import BackendConformance, Subject
from volplane_hostpath import HostPathBackend, listing

GIB = 1 << 30
CHANGING = {"locks", "ledger"}


def path_of(asset: Asset) -> Path:
    return Path(asset.source.fields["path"])


def picture(root: Path) -> dict[str, Any]:
    """Every name below the root, with what is in the files; but for locks and the sum of promises, which are a cache."""
    found: dict[str, Any] = {}
    for above, directories, files in os.walk(root):
        if Path(above).name == ".volplane":
            directories[:] = [name for name in directories if name not in CHANGING]
        for name in files:
            if name not in CHANGING:
                found[f"{above}/{name}"] = Path(above, name).read_bytes()
        found[above] = Path(above).stat().st_mode
    return found


def fill(asset: Asset) -> None:
    below = path_of(asset) / "a" / ".b"
    below.mkdir(parents=True, exist_ok=True)
    (below / "file").write_text("of the last claim")
    (path_of(asset) / ".hidden").write_text("of the last claim")


@contextmanager
def mounted(asset: Asset) -> Iterator[None]:
    """As a kubelet does for a pod."""
    point = path_of(asset).parent.parent / f"mount of {path_of(asset).name}"
    point.mkdir()
    try:
        subprocess.run(["mount", "--bind", str(path_of(asset)), str(point)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", str(point)], check=True)
    finally:
        point.rmdir()


def may_mount(directory: Path) -> bool:
    if os.geteuid() != 0:
        return False
    tried = subprocess.run(["mount", "--bind", str(directory), str(directory)], check=False, capture_output=True)
    return tried.returncode == 0 and subprocess.run(["umount", str(directory)], check=False).returncode == 0


def subject(tmp_path: Path, **options: Any) -> Subject:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "elsewhere").mkdir()
    shared = bool(options.get("shared"))
    return Subject(
        HostPathBackend,
        {"root": str(root), "node_name": "node-a", "overcommit_percent": 100_000, **options},
        other_parameters={"mode": "0700"},
        segments=() if shared else ({"kubernetes.io/hostname": "node-a"},),
        static_source=VolumeSource(kind="hostPath", fields={"path": f"{root}/by-hand"}),
        foreign_sources=(
            VolumeSource(kind="hostPath", fields={"path": str(tmp_path / "elsewhere")}),
            VolumeSource(kind="hostPath", fields={"path": f"{root}-too/by-hand"}),
            VolumeSource(kind="hostPath", fields={"path": f"{root}/../elsewhere"}),
            VolumeSource(kind="hostPath", fields={"path": str(root)}),
        ),
        inspect=lambda: picture(root),
        fill=fill,
        is_empty=lambda asset: not list(path_of(asset).iterdir()),
        use=mounted if may_mount(tmp_path) else None,
        real_crashes=True,
        crash_points=4 if shared else 24,
    )


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)


class TestHostPath(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Subject:
        return subject(tmp_path)


class TestSharedHostPath(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Subject:
        return subject(tmp_path, shared=True)
