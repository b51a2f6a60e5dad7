"""A directory for a kubelet, and whether this process may mount there."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.csi.pods import points
from volplane.csi.mounts import Targets
from volplane.csi.sources import Directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for a root and a kubelet, in memory if possible. What a test leaves mounted goes."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="node-", dir=memory) as made:
        below = Path(made)
        (below / "kubelet" / "pods" / "a").mkdir(parents=True)
        (below / "disk").mkdir()
        try:
            yield below
        finally:
            for point in sorted(points(below), reverse=True):
                subprocess.run(["umount", "--lazy", point], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def mounting(directory: Path) -> None:
    """Skip a test where this process may not mount."""
    source, target = directory / "source", directory / "kubelet" / "try"
    source.mkdir()
    try:
        Targets(directory / "kubelet").publish(Directory(str(source)), str(target), read_only=True, alone=False)
    except OSError as error:
        pytest.skip(f"no mounts here: {error.strerror}")
    Targets(directory / "kubelet").unpublish(str(target))
