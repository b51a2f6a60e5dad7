"""The driver on a directory of its own, for `volplane check` and `volplane sim`: `volplane_hostpath.testing:subject`.

It needs the testing kit, which the extra `volplane-hostpath[testing]` installs. The kit is imported when a subject is
made.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from volplane import Asset, VolumeSource
from volplane_hostpath.backend import HostPathBackend

if TYPE_CHECKING:
    from volplane_testing import Subject

__all__ = ["FakeQuotas", "fill", "subject", "subject_below", "tree"]

HOSTNAME: Final = "kubernetes.io/hostname"
MEMORY: Final = "/dev/shm"  # noqa: S108 -- a directory with a random name is made below it
_CHANGING: Final = frozenset({"copies", "locks", "ledger"})
"""Entries of `.volplane` that the driver may create or change in any call."""


@contextmanager
def subject(**options: Any) -> Iterator[Subject]:
    """Yield the driver on a new root, in memory if possible, until the block ends. options: of the driver."""
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="volplane-", dir=memory) as directory:
        yield subject_below(Path(directory), **options)


@contextmanager
def _unmounted(root: Path) -> Iterator[None]:
    """Take the root away while the block runs, as a disk that is not mounted."""
    away = root.rename(root.with_name("away"))
    try:
        yield
    finally:
        away.rename(root)


def subject_below(directory: Path, **options: Any) -> Subject:
    """Return the driver on a root in this empty directory, with a foreign directory beside it. options: of the driver.

    Raises ModuleNotFoundError without the testing kit.
    """
    subject_type = _subject_type()
    root = directory / "root"
    root.mkdir()
    (directory / "elsewhere").mkdir()
    shared = bool(options.get("shared"))
    return subject_type(
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
        inspect=lambda: tree(root),
        outage=lambda: _unmounted(root),
        fill=fill,
        is_empty=lambda asset: not list(_path_of(asset).iterdir()),
        real_crashes=True,
        crash_points=4 if shared else 24,
    )


def _subject_type() -> type[Subject]:
    try:
        from volplane_testing import Subject  # noqa: PLC0415 - the extra `testing`
    except ModuleNotFoundError as error:
        if error.name != "volplane_testing":
            raise
        raise ModuleNotFoundError(
            'subject() needs the testing kit of volplane: pip install "volplane-hostpath[testing]"', name=error.name
        ) from None
    return Subject


class FakeQuotas:
    """Project quotas in memory, of one file system. fails: the errno of each call; 0 = none. enforced: as mounted."""

    def __init__(self, *, fails: int = 0, enforced: bool = True) -> None:
        self.fails = fails
        self.enforced = enforced
        self.projects: dict[int, int] = {}
        """Directories, by their inodes, and their projects."""
        self.limits: dict[int, int] = {}

    def set_project(self, fd: int, number: int) -> None:
        self._check()
        self.projects[os.fstat(fd).st_ino] = number

    def used(self, fd: int, number: int) -> tuple[int, int]:
        self._check()
        size = inodes = 0
        for above, _, files in os.walk(f"/proc/self/fd/{fd}/."):
            if self.projects.get(Path(above).stat().st_ino) == number:
                inodes += 1 + len(files)
                size += sum(Path(above, name).lstat().st_size for name in files)
        return size, inodes

    def set_limit(self, fd: int, number: int, size: int) -> None:
        self._check()
        self.limits[number] = size

    def size_of(self, fd: int) -> int:
        limit = self.limits.get(self.projects.get(os.fstat(fd).st_ino, 0), 0)
        return limit if self.enforced and limit else 1 << 50

    def limit_of(self, path: Path) -> int | None:
        """Return the limit of a directory; None = it has none."""
        return self.limits.get(self.projects.get(path.stat().st_ino, 0)) or None

    def _check(self) -> None:
        if self.fails:
            raise OSError(self.fails, os.strerror(self.fails))


def tree(root: Path) -> dict[str, Any]:
    """Return every path below the root with the contents of files and the modes of directories, without locks and
    caches. What other threads remove or move meanwhile is left out.
    """
    found: dict[str, Any] = {}
    for above, directories, files in os.walk(root):
        if Path(above).name == ".volplane":
            directories[:] = [name for name in directories if name not in _CHANGING]
        for name in files:
            if name not in _CHANGING:
                with suppress(FileNotFoundError):
                    found[f"{above}/{name}"] = Path(above, name).read_bytes()
        with suppress(FileNotFoundError):
            found[above] = Path(above).stat().st_mode
    return found


def fill(asset: Asset) -> None:
    """Write files into the volume as a pod would, hidden ones too."""
    below = _path_of(asset) / "a" / ".b"
    below.mkdir(parents=True, exist_ok=True)
    (below / "file").write_text("of the last claim")
    (_path_of(asset) / ".hidden").write_text("of the last claim")


def _path_of(asset: Asset) -> Path:
    return Path(asset.source.fields["path"])
