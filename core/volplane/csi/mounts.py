"""Mounts below a directory of the kubelet. Nothing else of volplane mounts.

A path is followed from an open directory, and no symbolic link in it: tenants write into what lies near. What is
mounted is read from the kernel each time, so that nothing need be remembered. A mount is made apart, set read-only, and
only then put into its place, so that it is never seen half made.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from volplane.csi.codes import CsiError
from volplane.csi.loops import Loops
from volplane.csi.sources import Opened, Source
from volplane.csi.syscalls import OF_DIRECTORY, Mount, mount_id, mounts, open_below, put, unmount

_SUBPATHS: Final = "/volume-subpaths/"
"""In paths where a kubelet mounts a part of a volume for the same pod."""
MOST_STACKED: Final = 100
"""Mounts on top of each other that an unpublishing takes away."""


@dataclass(frozen=True, slots=True)
class Published:
    """A mounted volume, open for a look."""

    fd: int
    volume: Opened


class Targets:
    """The places below one directory of a kubelet (or of Nomad) where volumes are mounted. All calls may hang."""

    def __init__(self, directory: Path, driver: str = "") -> None:
        """driver: whose loop devices are attached and detached here."""
        self._directory = directory
        self.loops = Loops(driver)
        self._looked_at: list[str] = []
        """Places that calls of this process have open, which may hang."""
        self._devices = threading.Lock()
        """Held from the choice of a loop device until it is mounted, and while those are detached that are not."""

    def check(self, path: str, field: str, code: str = "INVALID_ARGUMENT") -> str:
        """Return a path below the directory. Raises CsiError for any other one."""
        if os.path.normpath(path) != path or not path.startswith(f"{self._directory}/") or "\0" in path:
            raise CsiError(code, f"{field} is {path!r}, expected a path below {self._directory} (--kubelet-dir)")
        return path

    def publish(self, source: Source, target: str, *, read_only: bool, alone: bool) -> None:
        """Mount a volume at `target`, which is made; nothing if it is mounted there.

        alone: nowhere else than there. Raises CsiError, and OSError where a next attempt may do better.
        """
        with ExitStack() as stack:
            volume = source.opened(stack)
            parent, name = self._parent(target, stack)
            undoing = stack.enter_context(ExitStack())
            with suppress(FileExistsError):
                _make_place(parent, name, device=volume.is_device)
                undoing.callback(_give_up_place, parent, name)
            present = mounts()
            if volume.is_remote and (there := [each for each in present if each.point == _place(parent, name)]):
                # Its server may be gone, and what is not opened cannot hang.
                _require_same(volume, -1, there[-1], target, read_only=read_only)
                return
            point = self._point(parent, name, target, stack, device=volume.is_device)
            if mount_id(point) != mount_id(parent):
                _require_same(volume, point, _mount_of(point, present), target, read_only=read_only)
                return
            if alone and (others := self._others(volume, present)):
                raise CsiError("FAILED_PRECONDITION", f"the volume is for a single pod, and {others[0]} has it")
            with self._devices if volume.is_device else nullcontext():
                put(volume.mounted(stack), point, target, read_only=read_only)
            undoing.pop_all()

    def unpublish(self, target: str) -> None:
        """Unmount all that is mounted at `target`, and remove it; nothing if it is gone. No content is removed."""
        with ExitStack() as stack:
            try:
                parent, name = self._parent(target, stack)
            except FileNotFoundError:
                return
            # What is mounted is not opened: its server may be gone.
            path = _place(parent, name)
            for _ in range(MOST_STACKED):
                if all(each.point != path for each in mounts()):
                    break
                # A look of ours at what a dead server has mounted there must not keep the pod from ending.
                unmount(parent, name, target, busy=target in self._looked_at)
            try:
                was_device = _remove_place(parent, name)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                text = f"{target} is no mount, and no empty directory or file either: it is kept"
                raise CsiError("FAILED_PRECONDITION", text) from None
            if was_device:
                with self._devices:
                    self.loops.detach_unused(mounts())

    def is_mounted(self, target: str) -> bool:
        """Tell whether something is mounted at a place. Raises CsiError, OSError."""
        try:
            with ExitStack() as stack:
                place = _place(*self._parent(target, stack))
                return any(each.point == place for each in mounts())
        except FileNotFoundError:
            return False

    def is_device(self, path: str) -> bool:
        """Tell whether there is a block device, or a place for one. Raises CsiError, OSError."""
        self.check(path, "volume_path", "NOT_FOUND")
        try:
            with ExitStack() as stack:
                self._look_at(path, stack)
                parent, name = self._parent(path, stack)
                return not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            raise CsiError("NOT_FOUND", f"{path} does not exist") from None

    @contextmanager
    def published(self, source: Source, path: str) -> Iterator[Published]:
        """Open a place where the volume is mounted. Raises CsiError if it is not mounted there, OSError."""
        with ExitStack() as stack:
            self._look_at(path, stack)
            volume = source.opened(stack)
            try:
                parent, name = self._parent(path, stack)
                point = self._point(parent, name, path, stack, device=volume.is_device)
            except FileNotFoundError:
                raise CsiError("NOT_FOUND", f"{path} does not exist") from None
            if mount_id(point) == mount_id(parent) or not volume.is_at(point, _mount_of(point, mounts())):
                raise CsiError("NOT_FOUND", f"the volume is not mounted at {path}")
            yield Published(point, volume)

    def _look_at(self, path: str, stack: ExitStack) -> None:
        self._looked_at.append(path)
        stack.callback(self._looked_at.remove, path)

    # --- parts ------------------------------------------------------------------------------------------------------

    def _parent(self, target: str, stack: ExitStack) -> tuple[int, str]:
        """Open the directory above a target, and return the target's name in it."""
        path, name = os.path.split(os.path.relpath(target, self._directory))
        top = os.open(self._directory, OF_DIRECTORY)
        stack.callback(os.close, top)
        try:
            parent = open_below(top, path or ".")
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                text = f"{target} leads through what is no directory, or a link"
                raise CsiError("FAILED_PRECONDITION", text) from None
            raise
        stack.callback(os.close, parent)
        return parent, name

    @staticmethod
    def _point(parent: int, name: str, target: str, stack: ExitStack, *, device: bool) -> int:
        """Open the target itself, which is what is mounted there if something is."""
        point = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        stack.callback(os.close, point)
        mode = os.fstat(point).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode) if device else stat.S_ISDIR(mode)):
            kind = "file" if device else "directory"
            raise CsiError("FAILED_PRECONDITION", f"{target} is no {kind}: it is not touched")
        return point

    def _others(self, volume: Opened, present: list[Mount]) -> list[str]:
        """Return all places below the directory where the volume is mounted."""
        below = f"{os.path.realpath(self._directory)}/"
        places = (each.point for each in volume.places(present))
        return [each for each in places if each.startswith(below) and _SUBPATHS not in each]


def _require_same(volume: Opened, point: int, mount: Mount, target: str, *, read_only: bool) -> None:
    if not volume.is_at(point, mount):
        raise CsiError("ALREADY_EXISTS", f"something else is mounted at {target}: it is not touched")
    if mount.read_only != read_only:
        there = "writable" if read_only else "read-only"
        raise CsiError("ALREADY_EXISTS", f"the volume is mounted at {target}, but {there}")


def _mount_of(point: int, present: list[Mount]) -> Mount:
    number = mount_id(point)
    found = next((each for each in present if each.number == number), None)
    if found is None:
        raise OSError(errno.EAGAIN, "the mounts have changed meanwhile", f"mount {number}")
    return found


def _place(parent: int, name: str) -> str:
    """Return the path of a name in an open directory, as the kernel tells it."""
    return f"{os.readlink(f'/proc/self/fd/{parent}')}/{name}"  # noqa: PTH115


def _make_place(parent: int, name: str, *, device: bool) -> None:
    if device:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent))
    else:
        os.mkdir(name, 0o750, dir_fd=parent)


def _remove_place(parent: int, name: str) -> bool:
    """Remove an empty directory or file; return whether it was a file. Raises OSError: ENOTDIR for another one."""
    try:
        os.rmdir(name, dir_fd=parent)
    except NotADirectoryError:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_size:
            raise
        os.unlink(name, dir_fd=parent)
        return True
    return False


def _give_up_place(parent: int, name: str) -> None:
    with suppress(OSError):
        _remove_place(parent, name)
