"""The files below the root: images, marks, links to devices; and the free space."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from volplane import InvalidArgument, Ownership, ResourceExhausted, Unavailable

__all__ = ["Images", "Marks", "disk_errors"]

_BLOCK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The owner and properties of a volume. demand: what `provision` asked for, compared with later calls."""

    owner: Ownership
    capacity_bytes: int
    sparse: bool
    demand: dict[str, Any]


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError of the disk that leaves the block into a `BackendError`. doing: as in "make pvc-1"."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceExhausted(f"no room is left to {doing}: delete volumes or grow the disk") from error
        if error.errno in (errno.EROFS, errno.EIO, errno.ENOENT, errno.ENODEV):
            raise Unavailable(f"cannot {doing}: {error.strerror}; look at the disk and its mount") from error
        raise


class Images:
    """The root directory. reserve_bytes: space to leave free."""

    def __init__(self, root: Path, reserve_bytes: int) -> None:
        self.root = root
        self._reserve = reserve_bytes
        self._images = root / "images"
        self._marks = root / "marks"
        self._devices = root / "devices"

    def prepare(self) -> None:
        """Make missing directories; raises Unavailable if the root does not exist."""
        if not self.root.is_dir():
            raise Unavailable(f"root {self.root} is no directory: mount its disk, or make it")
        for directory in (self._images, self._marks, self._devices):
            directory.mkdir(exist_ok=True)

    def remove_half_made(self) -> None:
        """Remove marks and links that a process which died has not put into their place. Needs the lock."""
        for directory in (self._marks, self._devices):
            for path in directory.glob(".*.new"):
                path.unlink()

    @contextmanager
    def locked(self, doing: str) -> Iterator[None]:
        """Lock the root between all processes. The kernel releases the lock of a process that dies."""
        if not self._marks.is_dir():
            raise Unavailable(f"{self._marks} is not there: the disk of root {self.root} is not mounted")
        with disk_errors(doing), (self.root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # --- marks --------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of volumes with marks, sorted."""
        return sorted(path.name.removesuffix(".json") for path in self._marks.glob("[!.]*.json"))

    def images_without_marks(self) -> list[str]:
        """Return the names of images without marks, sorted."""
        known = set(self.names())
        found = (path.name.removesuffix(".img") for path in self._images.glob("*.img"))
        return sorted(name for name in found if name not in known)

    def read(self, name: str) -> Marks | None:
        """Return the marks of a volume, None if it has none."""
        try:
            fields = json.loads(self._file(self._marks, f"{name}.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return Marks(**{**fields, "owner": Ownership(**fields["owner"])})

    def write(self, name: str, marks: Marks) -> None:
        """Write the marks atomically: complete or not at all after a crash."""
        target = self._file(self._marks, f"{name}.json")
        new = self._marks / f".{name}.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(asdict(marks), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
        _sync(self._marks)

    def remove_marks(self, name: str) -> None:
        """Remove the marks, as the last step of a deletion."""
        self._file(self._marks, f"{name}.json").unlink(missing_ok=True)
        _sync(self._marks)

    # --- images and links ---------------------------------------------------------------------------------------

    def image(self, name: str) -> Path:
        return self._file(self._images, f"{name}.img")

    def link(self, name: str) -> Path:
        return self._file(self._devices, name)

    def fill(self, name: str, marks: Marks) -> None:
        """Set the size of the image, and allocate its blocks unless it is sparse. Its contents stay."""
        with self.image(name).open("ab") as file:
            there = os.fstat(file.fileno())
            if marks.sparse:
                if there.st_size < marks.capacity_bytes:
                    os.truncate(file.fileno(), marks.capacity_bytes)
            elif there.st_size < marks.capacity_bytes or there.st_blocks * _BLOCK < marks.capacity_bytes:
                os.posix_fallocate(file.fileno(), 0, marks.capacity_bytes)
            os.fsync(file.fileno())

    def empty(self, name: str) -> None:
        """Free all blocks of the image."""
        os.truncate(self.image(name), 0)

    def remove(self, name: str) -> None:
        """Remove image and link."""
        self.link(name).unlink(missing_ok=True)
        self.image(name).unlink(missing_ok=True)
        _sync(self._images)

    def set_link(self, name: str, device: Path) -> None:
        """Point the link of a volume to this device."""
        link = self.link(name)
        if link.is_symlink() and link.readlink() == device:
            return
        new = self._devices / f".{name}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(device)
        new.replace(link)

    # --- room ---------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Return the bytes for new volumes: free, not reserved, and not needed for blocks that images still lack."""
        figures = os.statvfs(self.root)
        promised = 0
        for name in self.names():
            marks = self.read(name)
            if marks is not None:
                promised += max(marks.capacity_bytes - self._allocated(name), 0)
        return max(figures.f_bavail * figures.f_frsize - self._reserve - promised, 0)

    def require_room(self, size: int, doing: str) -> None:
        """Raise ResourceExhausted, with nothing done, unless there is room for `size` bytes."""
        room = self.room()
        if size > room:
            raise ResourceExhausted(
                f"{size} bytes are needed to {doing}, root {self.root} has {room}: delete volumes, grow the disk or "
                "lower reserve",
                scope=str(self.root),
                reschedule=True,
                nothing_done=True,
            )

    def _allocated(self, name: str) -> int:
        try:
            return self.image(name).stat().st_blocks * _BLOCK
        except FileNotFoundError:
            return 0

    def _file(self, directory: Path, name: str) -> Path:
        """Return a file in the directory.

        A name can come from any PersistentVolume, so it must not leave the directory.
        """
        if "/" in name or "\0" in name or name.startswith("."):
            raise InvalidArgument(f"{name!r} is no name of a volume of this backend")
        return directory / name


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
