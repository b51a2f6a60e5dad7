"""What every backend promises: with image files for everybody, with loop devices for root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from volplane_loopfiles import LoopFilesBackend
from volplane_loopfiles.backend import NODE

from volplane import Asset
from volplane_testing import BackendConformance, Subject

MIB = 1 << 20


def has_loop_devices() -> bool:
    return os.geteuid() == 0 and os.access("/dev/loop-control", os.R_OK | os.W_OK)


def path_of(asset: Asset) -> Path:
    return Path(asset.source.fields["path"])


def fill(asset: Asset) -> None:
    with path_of(asset).open("r+b") as contents:
        contents.write(b"of the last claim" * 1000)
        contents.flush()
        os.fsync(contents.fileno())


def is_empty(asset: Asset) -> bool:
    with path_of(asset).open("rb") as contents:
        return not any(any(block) for block in iter(lambda: contents.read(MIB), b""))


@contextmanager
def in_use(asset: Asset) -> Iterator[None]:
    """As a mount holds it: exclusively."""
    fd = os.open(path_of(asset), os.O_RDWR | os.O_EXCL)
    try:
        yield
    finally:
        os.close(fd)


def subject(root: Path, **options: Any) -> Subject:
    def inspect() -> object:
        files = (path for path in root.rglob("*") if path.name != "lock")
        return sorted((str(path), path.lstat().st_ino, path.lstat().st_size) for path in files)

    return Subject(
        LoopFilesBackend,
        {"root": str(root), "node_name": "node-a", "page": 3, **options},
        capacity_bytes=8 * MIB,
        other_parameters={"fsType": "xfs"},
        segments=({NODE: "node-a"},),
        inspect=inspect,
        fill=fill,
        is_empty=is_empty,
        use=in_use if options["devices"] else None,
        real_crashes=True,
        crash_points=24,
    )


class TestImageFiles(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Subject:
        return subject(tmp_path, devices=False)


@pytest.mark.skipif(not has_loop_devices(), reason="needs root and loop devices")
class TestLoopDevices(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Subject:
        return subject(tmp_path, devices=True)
