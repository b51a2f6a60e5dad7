"""The driver on a directory of its own, as `volplane check` and `volplane sim` take it: `volplane_hostpath.testing:subject`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from volplane import Asset, VolumeSource
from volplane_hostpath.backend import HostPathBackend
from volplane_testing import Subject

__all__ = ["fill", "picture", "subject", "subject_below"]

HOSTNAME: Final = "kubernetes.io/hostname"
MEMORY: Final = "/dev/shm"  # noqa: S108 -- a directory with a random name is made below it
CHANGING: Final = frozenset({"locks", "ledger"})
"""What the driver keeps beside its records, and may make anew at any time."""


@contextmanager
def subject(**options: Any) -> Iterator[Subject]:
    """A fresh root on a file system in memory, where there is one, removed afterwards. options: of the driver."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="volplane-", dir=memory) as directory:
        yield subject_below(Path(directory), **options)


def subject_below(directory: Path, **options: Any) -> Subject:
    """The driver with its root, and what is not its own, in an empty directory."""
    root = directory / "root"
    root.mkdir()
    (directory / "elsewhere").mkdir()
    shared = bool(options.get("shared"))
    return Subject(
        HostPathBackend,
        {"root": str(root), "node_name": "node-a", "overcommit_percent": 100_000, **options},
        other_parameters={"mode": "0700"},
        segments=() if shared else ({HOSTNAME: "node-a"},),
        static_source=VolumeSource(kind="hostPath", fields={"path": f"{root}/by-hand"}),
        foreign_sources=(
            VolumeSource(kind="hostPath", fields={"path": str(directory / "elsewhere")}),
            VolumeSource(kind="hostPath", fields={"path": f"{root}-too/by-hand"}),
            VolumeSource(kind="hostPath", fields={"path": f"{root}/../elsewhere"}),
            VolumeSource(kind="hostPath", fields={"path": str(root)}),
        ),
        inspect=lambda: picture(root),
        fill=fill,
        is_empty=lambda asset: not list(_path_of(asset).iterdir()),
        real_crashes=True,
        crash_points=4 if shared else 24,
    )


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
    """Leave files in it, as a pod would, hidden ones too."""
    below = _path_of(asset) / "a" / ".b"
    below.mkdir(parents=True, exist_ok=True)
    (below / "file").write_text("of the last claim")
    (_path_of(asset) / ".hidden").write_text("of the last claim")


def _path_of(asset: Asset) -> Path:
    return Path(asset.source.fields["path"])
