"""The promises that every backend makes, judged on directories of this machine, with crashes of real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import Asset
from volplane_hostpath import listing, snapshots
from volplane_hostpath.testing import subject_below
from volplane_testing import BackendConformance, Subject


def path_of(asset: Asset) -> Path:
    return Path(asset.source.fields["path"])


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


@pytest.fixture(scope="session")
def may_mount(tmp_path_factory: pytest.TempPathFactory) -> bool:
    if os.geteuid() != 0:
        return False
    directory = tmp_path_factory.mktemp("mounted")
    tried = subprocess.run(["mount", "--bind", str(directory), str(directory)], check=False, capture_output=True)
    return tried.returncode == 0 and subprocess.run(["umount", str(directory)], check=False).returncode == 0


def subject(tmp_path: Path, *, may_mount: bool, **options: Any) -> Subject:
    return replace(subject_below(tmp_path, **options), use=mounted if may_mount else None)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    monkeypatch.setattr(snapshots, "PAGE", 3)


@pytest.fixture(autouse=True)
def quiet_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The free space stays as it is, whatever other processes write to the same file system meanwhile."""
    figures = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "fstatvfs", lambda _fd: figures)


class TestHostPath(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path, may_mount: bool) -> Subject:
        return subject(tmp_path, may_mount=may_mount)


class TestSharedHostPath(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path, may_mount: bool) -> Subject:
        return subject(tmp_path, may_mount=may_mount, shared=True)
