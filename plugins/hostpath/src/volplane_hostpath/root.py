"""The root directory: its layout, its marker, the first start on it, and the check that every call makes."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Self

from volplane import Context, Unavailable
from volplane.directory import CONTROL, RETAINED, CorruptMarker
from volplane.directory.dirfd import MountIdentity, create_file, names_in, open_directory, read_file, sync
from volplane_hostpath.locks import Deadline, locked
from volplane_hostpath.markers import RootMarker
from volplane_hostpath.mounts import MountTable, parse_fstab, read_mounts
from volplane_hostpath.project_quotas import KernelQuotas, ProjectQuotas
from volplane_hostpath.settings import Settings

ROOT_MARKER = "root.json"
INDEX = "ledger"
"""Lock and counters of the index (index.py)."""
LOCKS = "locks"
ARCHIVE_FOLDER = "archive"
"""Made with the first archive."""
COPIES = "copies"
PARENTS = "parents"
SNAPSHOTS = "snapshots"
TMP = "tmp"
TRASH = "trash"
VOLUMES = "volumes"
SUBDIRECTORIES = (COPIES, LOCKS, PARENTS, RETAINED, SNAPSHOTS, TMP, TRASH, VOLUMES)


class Root:
    """The root, open for a call: descriptors of it and of the driver's directories. id: empty until it is checked.

    Calls open it again, so that an unmounted or exchanged disk is noticed, and so that it can be unmounted. Those that
    run at the same time share one (`OpenRoots`).
    """

    def __init__(self, path: str, mounts: MountTable, quotas: ProjectQuotas | None = None) -> None:
        """Open the directory; raises `Unavailable` if there is none. quotas: the kernel's if None."""
        self.path = path
        self.id = ""
        self.mounts = mounts
        self.quotas = quotas or KernelQuotas()
        self._opening = threading.Lock()
        self._opened: dict[str, int] = {}
        self._stack = ExitStack()
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Unavailable(
                f"root {path} does not exist: mount its disk or make the directory (or set the option create_root)"
            ) from None
        except NotADirectoryError:
            raise Unavailable(f"root {path} is no directory") from None
        self._stack.callback(os.close, self.fd)
        try:
            self.mount = MountIdentity.of(self.fd)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all descriptors."""
        self._stack.close()

    @cached_property
    def kind(self) -> str:
        """Return the type of the file system, "" if it is not known. It stays the same while the root is open."""
        return self.mounts.kind(self.mount)

    @property
    def control(self) -> int:
        """Return the descriptor of `.volplane`; raises FileNotFoundError."""
        return self._open(CONTROL, self.fd, f"{self.path}/{CONTROL}")

    def directory(self, name: str) -> int:
        """Return the descriptor of a directory in `.volplane`, kept until the root is closed."""
        known = self._opened.get(name)
        return known if known is not None else self._open(name, self.control, f"{self.path}/{CONTROL}/{name}")

    def file(self, name: str) -> int:
        """Return the descriptor of a file in `.volplane`, which is made if missing, kept until the root is closed."""
        fd = self._opened.get(name)
        if fd is None:
            control = self.control
            with self._opening:
                fd = self._opened.get(name)
                if fd is None:
                    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                    fd = self._keep(name, os.open(name, flags, 0o600, dir_fd=control))
        return fd

    def _open(self, name: str, parent: int, label: str) -> int:
        fd = self._opened.get(name)
        if fd is None:
            with self._opening:
                fd = self._opened.get(name)
                if fd is None:
                    fd = self._keep(name, open_directory(name, parent, self.mount, label=label))
        return fd

    def _keep(self, name: str, fd: int) -> int:
        self._stack.callback(os.close, fd)
        self._opened[name] = fd
        return fd

    def read_marker(self) -> RootMarker | None:
        """Return the marker of the root, None if there is none; raises `Unavailable` if it cannot be decoded."""
        try:
            return RootMarker.decode(read_file(ROOT_MARKER, self.control))
        except FileNotFoundError:
            return None
        except CorruptMarker as error:
            raise Unavailable(
                f"{self.path}/{CONTROL}/{ROOT_MARKER} cannot be used: {error}; restore it from a backup"
            ) from error

    def require_writable(self) -> None:
        """Raise `Unavailable` if the file system is read-only, as ext4 becomes after disk errors."""
        if os.fstatvfs(self.fd).f_flag & os.ST_RDONLY:
            raise Unavailable(
                f"root {self.path} is on a read-only file system: look in the kernel log for disk errors and mount it "
                "writable again",
                code="EROFS",
            )


def reason_unusable(marker: RootMarker | None, known_id: str, settings: Settings, context: Context) -> str:
    """Return why this root cannot be used, "" if it can. known_id: the id that it must have, "" = any."""
    if marker is None:
        return (
            f"root {settings.root} carries no {CONTROL}/{ROOT_MARKER}: its disk is not mounted; mount it "
            "(volplane goes on by itself)"
        )
    if known_id and marker.root_id != known_id:
        return (
            f"root {settings.root} has the id {marker.root_id}, not {known_id}: another disk is mounted there; mount "
            "the right one, or change option root_id and restart volplane if it was exchanged on purpose"
        )
    if marker.driver != context.driver:
        return (
            f"root {settings.root} belongs to the driver {marker.driver!r}; give every driver its own root, or set "
            "adopt_root once if the driver was renamed"
        )
    if marker.cluster_id != context.cluster_id:
        return (
            f"root {settings.root} belongs to the cluster {marker.cluster_id!r}, this one is {context.cluster_id!r}; "
            "use another root, or set adopt_root once to take it over"
        )
    return ""


_Signature = tuple[int, int, int, int, int]


class OpenRoots:
    """The root of a driver, opened once for all calls that run at the same time, and closed after the last of them."""

    def __init__(self, settings: Settings, mounts: MountTable, quotas: ProjectQuotas | None = None) -> None:
        self._settings = settings
        self._mounts = mounts
        self._quotas = quotas
        self._lock = threading.Lock()
        self._users: dict[Root, int] = {}
        self._last: tuple[int, int, Root] | None = None
        self._marker: tuple[_Signature, RootMarker] | None = None

    @contextmanager
    def checked(self, known_id: str, context: Context, *, of_any_cluster: bool = False) -> Iterator[Root]:
        """Yield the root, after a check of its marker; raises `Unavailable` if the root cannot be used.

        of_any_cluster: for a look that tells another cluster what it may not touch.
        """
        root = self._acquire()
        try:
            marker = self._read_marker(root)
            caller = replace(context, cluster_id=marker.cluster_id) if marker and of_any_cluster else context
            reason = reason_unusable(marker, known_id, self._settings, caller)
            if marker is None or reason:
                raise Unavailable(reason)
            root.id = marker.root_id
            yield root
        finally:
            self._release(root)

    def _acquire(self) -> Root:
        """Open what lies at the path now: after an exchange of the disk it is another root than before."""
        try:
            found = os.stat(self._settings.root)  # noqa: PTH116
        except OSError:
            found = None  # `Root` reports what is wrong.
        with self._lock:
            if found is not None and self._last is not None:
                device, inode, root = self._last
                if (device, inode) == (found.st_dev, found.st_ino):
                    self._users[root] += 1
                    return root
        root = Root(self._settings.root, self._mounts, self._quotas)
        status = os.fstat(root.fd)
        with self._lock:
            self._users[root] = 1
            self._last = (status.st_dev, status.st_ino, root)
        return root

    def _release(self, root: Root) -> None:
        with self._lock:
            self._users[root] -= 1
            if self._users[root]:
                return
            del self._users[root]
            if self._last is not None and self._last[2] is root:
                self._last = None
        root.close()

    def _read_marker(self, root: Root) -> RootMarker | None:
        """Return the marker, which is decoded again only if its file has changed."""
        try:
            status = os.stat(ROOT_MARKER, dir_fd=root.control, follow_symlinks=False)
        except FileNotFoundError:
            return None
        signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = self._marker
        if known is not None and known[0] == signature:
            return known[1]
        marker = root.read_marker()
        self._marker = None if marker is None else (signature, marker)
        return marker


_ROOT_MODE = 0o711
_CONTROL_MODE = 0o700
_FSTAB = "/etc/fstab"
_IGNORED = frozenset({CONTROL, "lost+found"})


def initialise(settings: Settings, known_id: str, mounts: MountTable, context: Context) -> RootMarker:
    """Mark a new root, or check the marker of a known one; returns the marker. It can be repeated after any crash.

    known_id: the id of the root if this process has used it before. Raises `Unavailable`.
    """
    expected = known_id or settings.root_id
    if settings.create_root and not expected and not os.path.lexists(settings.root):
        _refuse_unmounted(settings.root)
        os.makedirs(settings.root, mode=_ROOT_MODE)  # noqa: PTH103
    with Root(settings.root, mounts) as root:
        root.require_writable()
        marker = root.read_marker()
        reason = reason_unusable(marker, expected, settings, context)
        wrong_disk = bool(expected) and (marker is None or marker.root_id != expected)
        if reason and not wrong_disk and (marker is None or settings.adopt_root):
            if marker is None:
                _check_new(root, settings)
            marker = _mark(root, context, settings)
            reason = reason_unusable(marker, expected, settings, context)
        if marker is None or reason:
            raise Unavailable(reason)
        _make_directories(root)
        return marker


def _check_new(root: Root, settings: Settings) -> None:
    _refuse_unmounted(settings.root)
    foreign = _contents(root)
    if foreign and not settings.adopt_root:
        raise Unavailable(
            f"root {settings.root} is neither empty nor marked by volplane (it holds {foreign!r}): use an empty "
            "directory, or set adopt_root to use this one beside what is in it"
        )


def _contents(root: Root) -> str:
    """Return an entry of the root that is not ours, "" if there is none."""
    found = sorted(set(names_in(root.fd)) - _IGNORED)
    if found:
        return found[0]
    with suppress(FileNotFoundError):
        if names_in(root.directory(VOLUMES)):
            return f"{CONTROL}/{VOLUMES}"
    return ""


def _refuse_unmounted(path: str) -> None:
    try:
        with open(_FSTAB, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            points = parse_fstab(file.read())
    except OSError:
        return
    missing = unmounted_above(os.path.realpath(path), points, [mount.point for mount in read_mounts()])
    if missing:
        raise Unavailable(f"root {path} is not marked, and {missing} of {_FSTAB} is not mounted: mount it first")


def unmounted_above(path: str, points: list[str], mounted: list[str]) -> str:
    """Return the mount point of fstab on or above the path that is not mounted now, "" if there is none."""
    for point in sorted(points, key=len, reverse=True):
        above = point.rstrip("/") + "/"
        if f"{path}/".startswith(above) and point not in mounted:
            return point
    return ""


def _mark(root: Root, context: Context, settings: Settings) -> RootMarker:
    with suppress(FileExistsError):
        os.mkdir(CONTROL, _CONTROL_MODE, dir_fd=root.fd)
    with locked(root.file(INDEX), Deadline(context).remaining()):
        # Another replica may have marked it while this one waited.
        existing = root.read_marker()
        if existing is not None and not settings.adopt_root:
            return existing
        marker = RootMarker(
            root_id=existing.root_id if existing else uuid.uuid4().hex,
            driver=context.driver,
            cluster_id=context.cluster_id,
            created_at=existing.created_at if existing else time.time(),
        )
        staged = f"{ROOT_MARKER}.new"
        create_file(staged, root.control, marker.encode(), durable=True)
        os.rename(staged, ROOT_MARKER, src_dir_fd=root.control, dst_dir_fd=root.control)
        sync(root.control)
        sync(root.fd)
    context.log.info("root %s is marked with id %s", root.path, marker.root_id)
    return marker


def _make_directories(root: Root) -> None:
    for name in SUBDIRECTORIES:
        with suppress(FileExistsError):
            os.mkdir(name, _CONTROL_MODE, dir_fd=root.control)
    sync(root.control)
