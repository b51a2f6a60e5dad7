"""Two directory trees of one file system, as the engine for copies walks them (volplane.directory).

The source is a tenant's, who may change it meanwhile: each component of a path is opened by itself, no link is
followed, no mount is entered, and nothing but what was proven to be a plain file is opened for reading. A driver that
opened a device could set off what the tenant may not.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from volplane.directory import dirfd
from volplane.directory.copies import Copied, Entry, EntryKind, Item, Outcome, Page, Side
from volplane.directory.dirfd import MountIdentity, NotADirectory, closing, open_directory, suppress_errno

__all__ = ["DATA", "LINKS", "OLD", "LocalTrees", "Pair", "boot_id"]

DATA, LINKS, OLD = "data", "links", "old"
"""In the directory of a copy: the copy, files with several names, and what was taken out of the copy."""
_MAKING: Final = 0o200
"""Mode of a file that is being made. After a crash it tells that from one that is done, should their times be equal."""
_MAKING_DIRECTORY: Final = 0o1700
_PART: Final = 16 << 20
"""Bytes that are copied before the next look at the clock."""
_BLOCK: Final = 1 << 20
_TRIES: Final = 3
_FICLONE: Final = 0x40049409
_CANNOT: Final = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EPERM, errno.ETXTBSY, errno.EBADF}
)
"""Of FICLONE and copy_file_range(2): the next way is tried."""
_NEVER: Final = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS})
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRY: Final = struct.Struct("=QqHB")
"""struct linux_dirent64: inode, offset of the next entry, length of this one, type; then the name."""
_ATTRIBUTES: Final = ("user.", "system.posix_acl_", "security.capability")
_KINDS: Final = {
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFLNK: EntryKind.LINK,
}
_LIBC = ctypes.CDLL(None, use_errno=True)
_getdents = getattr(_LIBC, "getdents64", None) or _LIBC.getdents  # glibc from 2.30, musl
_getdents.restype = ctypes.c_ssize_t
_getdents.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)


class Pair:
    """An open directory of the source and that of the copy."""

    __slots__ = ("copy", "source")

    def __init__(self, source: int, copy: int) -> None:
        self.source = source
        self.copy = copy

    def fd(self, side: Side) -> int:
        return self.source if side is Side.SOURCE else self.copy


class LocalTrees:
    """The trees below two open directories, which the caller keeps open.

    container: of the copy; it has the directory `DATA`. mount: of the root. durable: each file is to be on the disk
    when it is copied, because syncfs(2) does not do that.
    """

    open_pairs = 16

    def __init__(self, source: int, container: int, mount: MountIdentity, *, label: str, durable: bool = False) -> None:
        self._source = source
        self._container = container
        self._mount = mount
        self._label = label
        self._durable = durable
        self._quiet = _without_access_times(source)
        self._owners = os.geteuid() == 0
        self._clones = True
        self._ranges = True
        self.shared = 0
        """Bytes of files whose blocks are shared with the source."""

    # --- directories ---------------------------------------------------------------------------------------------

    def top(self) -> Pair:
        source = os.open(".", _DIRECTORY | self._quiet, dir_fd=self._source)
        return self._pair(source, DATA, self._container)

    def links(self) -> Pair:
        with suppress(FileExistsError):
            os.mkdir(LINKS, 0o700, dir_fd=self._container)
        fd = open_directory(LINKS, self._container, self._mount, label=self._label)
        return Pair(fd, fd)

    def enter(self, above: Pair, name: bytes) -> Pair | None:
        label = f"{self._label}/{os.fsdecode(name)}"
        try:
            source = open_directory(os.fsdecode(name), above.source, self._mount, label=label, access=self._quiet)
        except (FileNotFoundError, NotADirectory):
            return None
        return self._pair(source, os.fsdecode(name), above.copy)

    def _pair(self, source: int, name: str, above: int) -> Pair:
        try:
            return Pair(source, open_directory(name, above, self._mount, label=self._label))
        except BaseException:
            os.close(source)
            raise

    def leave(self, pair: Pair) -> None:
        os.close(pair.source)
        if pair.copy != pair.source:
            os.close(pair.copy)

    def page(self, pair: Pair, side: Side, cookie: int, limit: int) -> Page:
        fd = pair.fd(side)
        os.lseek(fd, cookie, os.SEEK_SET)
        names, following = _read_names(fd, max(512, 32 * limit))
        entries = [entry for name in names if (entry := self._entry(fd, name)) is not None]
        return Page(entries, following)

    def look(self, pair: Pair, side: Side, names: Sequence[bytes]) -> Mapping[bytes, Entry]:
        fd = pair.fd(side)
        return {name: entry for name in names if (entry := self._entry(fd, name)) is not None}

    def status(self, pair: Pair, side: Side) -> Entry:
        return self._entry_of(b"", os.fstat(pair.fd(side)))

    def make_directories(self, pair: Pair, names: Sequence[bytes]) -> None:
        self._make_writable(pair)
        for name in names:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=pair.copy)
                os.chmod(name, _MAKING_DIRECTORY, dir_fd=pair.copy)

    def finish(self, pair: Pair, entry: Entry) -> None:
        self._set_attributes(pair.copy, entry.own, pair.source)

    def discard(self, pair: Pair, names: Sequence[bytes]) -> None:
        self._make_writable(pair)
        for name in names:
            try:
                os.unlink(name, dir_fd=pair.copy)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in {errno.EISDIR, errno.EPERM}:
                    raise
                self._set_aside(name, pair.copy)

    def _set_aside(self, name: bytes, parent: int) -> None:
        with suppress(FileExistsError):
            os.mkdir(OLD, 0o700, dir_fd=self._container)
        with closing(open_directory(OLD, self._container, self._mount, label=self._label)) as old:
            os.rename(name, os.urandom(8).hex(), src_dir_fd=parent, dst_dir_fd=old)

    def _entry(self, parent: int, name: bytes) -> Entry | None:
        try:
            return self._entry_of(name, os.stat(name, dir_fd=parent, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _entry_of(self, name: bytes, status: os.stat_result) -> Entry:
        mode = status.st_mode
        kind = _KINDS.get(stat.S_IFMT(mode), EntryKind.SPECIAL)
        making = _MAKING_DIRECTORY if kind is EntryKind.DIRECTORY else _MAKING
        return Entry(
            name=name,
            kind=kind,
            stamp=self._stamp(kind, status),
            changed=status.st_ctime_ns,
            size=status.st_size if kind is EntryKind.FILE else 0,
            file_id=status.st_ino,
            links=1 if kind is EntryKind.DIRECTORY else status.st_nlink,
            unfinished=mode & 0o7777 == making,
            own=status,
        )

    def _stamp(self, kind: EntryKind, status: os.stat_result) -> Hashable:
        what: Hashable = status.st_size
        if kind is EntryKind.DIRECTORY:
            what = 0
        elif kind is EntryKind.SPECIAL:
            what = (stat.S_IFMT(status.st_mode), status.st_rdev)
        if not self._owners:
            return what, status.st_mtime_ns
        return what, status.st_mtime_ns, status.st_mode & 0o7777, status.st_uid, status.st_gid

    # --- what is no directory ------------------------------------------------------------------------------------

    def copy(self, items: Sequence[Item[Pair]], offset: int, changed: int, should_stop: Callable[[], bool]) -> Copied:
        outcomes: list[Outcome] = []
        for item in items:
            if outcomes and should_stop():
                break
            if item.entry.kind is EntryKind.FILE:
                made = self._copy_file(item, offset, changed, should_stop)
                if isinstance(made, Copied):
                    return Copied(outcomes, made.offset, made.changed)
                outcomes.append(made)
            else:
                outcomes.append(self._copy_other(item))
            offset = changed = 0
        return Copied(outcomes)

    def _copy_file(
        self, item: Item[Pair], offset: int, changed: int, should_stop: Callable[[], bool]
    ) -> Outcome | Copied:
        """Copy a file; Copied = stopped at that offset."""
        source = self._open_file(item.entry.name, item.pair.source)
        if source is None:
            with suppress(FileNotFoundError):
                os.unlink(item.name, dir_fd=item.into.copy)
            return Outcome.GONE
        with closing(source), closing(self._open_copy(item)) as copy:
            return self._fill(source, copy, offset, changed, should_stop)

    def _open_copy(self, item: Item[Pair]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(item.name, flags, _MAKING, dir_fd=item.into.copy)
        except PermissionError:
            try:
                os.chmod(item.name, _MAKING, dir_fd=item.into.copy)
            except FileNotFoundError:
                self._make_writable(item.into)
        return os.open(item.name, flags, _MAKING, dir_fd=item.into.copy)

    def _make_writable(self, pair: Pair) -> None:
        """Let entries come to a directory of the copy, or go, that has its attributes: it gets them again after that.

        Only root needs no mode for that.
        """
        mode = stat.S_IMODE(os.fstat(pair.copy).st_mode)
        if not self._owners and mode & 0o300 != 0o300:
            os.fchmod(pair.copy, mode | 0o700)

    def _fill(
        self, source: int, copy: int, offset: int, changed: int, should_stop: Callable[[], bool]
    ) -> Outcome | Copied:
        for attempt in range(1 if offset else _TRIES):
            before = os.fstat(source)
            if attempt or not offset:
                offset, changed = 0, before.st_ctime_ns
                # Not without need: ext4 writes a file that was cut to nothing to the disk when it is closed.
                _set_size(copy, 0)
            offset = self._copy_contents(source, copy, before, offset, should_stop)
            if offset < before.st_size:
                return Copied((), offset, changed)
            after = os.fstat(source)
            if (after.st_ctime_ns, after.st_size) == (before.st_ctime_ns, before.st_size):
                break
        # What was copied in several slices while it changed is to look different.
        self._set_attributes(copy, before, source, modified=None if changed == before.st_ctime_ns else changed)
        if self._durable:
            os.fsync(copy)
        return Outcome.DONE

    def _open_file(self, name: bytes, parent: int) -> int | None:
        """Open a plain file for reading; None = there is none."""
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            if dirfd.AVAILABLE:
                path = dirfd.open_beneath(os.fsdecode(name), parent, flags)
            else:
                path = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ELOOP}:
                raise
            return None
        with closing(path):
            if not stat.S_ISREG(os.fstat(path).st_mode):
                return None
            return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_CLOEXEC | self._quiet)

    def _copy_contents(
        self, source: int, copy: int, status: os.stat_result, offset: int, should_stop: Callable[[], bool]
    ) -> int:
        """Copy what a file has from an offset on, up to its size in `status`, and give it that; how far it came."""
        size = status.st_size
        if not size:
            return 0
        if not offset and self._clones and self._cloned(source, copy, size):
            self.shared += size
            return size
        has_holes = status.st_blocks * 512 < size
        while offset < size:
            end = min(size, offset + _PART)
            if has_holes:
                start = _seek(source, offset, os.SEEK_DATA, size)
                if start > offset:
                    offset = start
                    continue
                end = min(end, _seek(source, offset, os.SEEK_HOLE, size))
            done = self._copy_range(source, copy, offset, end - offset)
            offset = offset + done if done else size  # It has been cut short: what has changed is seen after this.
            if offset < size and should_stop():
                return offset
        _set_size(copy, size)
        return size

    def _cloned(self, source: int, copy: int, size: int) -> bool:
        try:
            fcntl.ioctl(copy, _FICLONE, source)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self._clones = error.errno not in _NEVER
            return False
        _set_size(copy, size)
        return True

    def _copy_range(self, source: int, copy: int, offset: int, count: int) -> int:
        """Copy bytes at the same offset; how many, 0 = the file ends here."""
        if self._ranges:
            try:
                return os.copy_file_range(source, copy, count, offset, offset)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._ranges = error.errno not in _NEVER
        block = os.pread(source, min(count, _BLOCK), offset)
        written = 0
        while written < len(block):
            written += os.pwrite(copy, block[written:], offset + written)
        return written

    def _copy_other(self, item: Item[Pair]) -> Outcome:
        status: os.stat_result = item.entry.own
        self._make_writable(item.into)
        into = item.into.copy
        if item.entry.kind is EntryKind.LINK:
            try:
                target = os.readlink(item.entry.name, dir_fd=item.pair.source)
            except OSError as error:
                if error.errno not in {errno.ENOENT, errno.EINVAL}:
                    raise
                return Outcome.GONE
            os.symlink(target, item.name, dir_fd=into)
        else:
            try:
                os.mknod(item.name, stat.S_IFMT(status.st_mode) | _MAKING, status.st_rdev, dir_fd=into)
            except PermissionError:
                return Outcome.LEFT_OUT
        self._chown(item.name, status, into)
        if item.entry.kind is not EntryKind.LINK:
            os.chmod(item.name, self._mode(status), dir_fd=into)
        os.utime(item.name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=into, follow_symlinks=False)
        return Outcome.DONE

    def link(self, items: Sequence[Item[Pair]]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for item in items:
            self._make_writable(item.into)
            try:
                os.link(
                    item.entry.name,
                    item.name,
                    src_dir_fd=item.pair.copy,
                    dst_dir_fd=item.into.copy,
                    follow_symlinks=False,
                )
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                outcomes.append(Outcome.LEFT_OUT)
            else:
                outcomes.append(Outcome.DONE)
        return outcomes

    def compare(self, items: Sequence[Item[Pair]], offset: int, should_stop: Callable[[], bool]) -> Copied:
        outcomes: list[Outcome] = []
        for item in items:
            if outcomes and should_stop():
                break
            source = self._open_file(item.entry.name, item.pair.source)
            if source is None:
                outcomes.append(Outcome.GONE)
                continue
            with (
                closing(source),
                closing(os.open(item.name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=item.into.copy)) as copy,
            ):
                size = min(item.entry.size, os.fstat(source).st_size)
                outcome = Outcome.DONE
                while offset < size and outcome is Outcome.DONE:
                    # What is a hole in both is equal: a tenant can make one of terabytes.
                    offset = min(_seek(each, offset, os.SEEK_DATA, size) for each in (source, copy))
                    count = min(_BLOCK, size - offset)
                    if os.pread(source, count, offset) != os.pread(copy, count, offset):
                        outcome = Outcome.DIFFERENT
                    offset += count
                    if offset < size and should_stop():
                        return Copied(outcomes, offset)
                outcomes.append(outcome)
            offset = 0
        return Copied(outcomes)

    # --- attributes ----------------------------------------------------------------------------------------------

    def _set_attributes(self, copy: int, status: os.stat_result, source: int, *, modified: int | None = None) -> None:
        """Give an open file or directory those of the source, the time of its last change (or `modified`) last."""
        self._chown(copy, status)
        wanted = [name for name in _attributes_of(source) if name.startswith(_ATTRIBUTES)]
        for name in set(_attributes_of(copy)) - set(wanted):
            with suppress_errno(errno.ENODATA, errno.EPERM, errno.ENOTSUP, errno.EACCES):
                if name.startswith(_ATTRIBUTES):
                    os.removexattr(copy, name)
        for name in wanted:
            with suppress_errno(errno.ENODATA, errno.EPERM, errno.ENOTSUP):
                os.setxattr(copy, name, os.getxattr(source, name))
        # After fchown, which clears the set-id bits, and the access list, whose mask these are.
        os.fchmod(copy, self._mode(status))
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns if modified is None else modified))

    def _mode(self, status: os.stat_result) -> int:
        """Return the mode for a copy, whose owner is set. A file that is the driver's runs as nobody but its caller."""
        mode = stat.S_IMODE(status.st_mode)
        return mode if self._owners or stat.S_ISDIR(status.st_mode) else mode & ~(stat.S_ISUID | stat.S_ISGID)

    def _chown(self, what: int | bytes, status: os.stat_result, parent: int | None = None) -> None:
        if not self._owners:
            return
        try:
            if parent is None:
                os.chown(what, status.st_uid, status.st_gid)
            else:
                os.chown(what, status.st_uid, status.st_gid, dir_fd=parent, follow_symlinks=False)
        except PermissionError:
            self._owners = False  # Without the right to, all files are the driver's.


def _attributes_of(fd: int) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError as error:
        if error.errno not in {errno.ENOTSUP, errno.EPERM}:
            raise
        return []


def boot_id() -> str:
    """Return what tells one run of this machine from another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _without_access_times(directory: int) -> int:
    """Return the flag that leaves times of access as they are, 0 if this process may not use it."""
    try:
        os.close(os.open(".", _DIRECTORY | os.O_NOATIME, dir_fd=directory))
    except PermissionError:
        return 0
    return os.O_NOATIME


def _set_size(fd: int, size: int) -> None:
    if os.fstat(fd).st_size != size:
        os.ftruncate(fd, size)


def _seek(fd: int, offset: int, whence: int, size: int) -> int:
    """Return where data or a hole begins, at most `size`."""
    try:
        return min(os.lseek(fd, offset, whence), size)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def _read_names(fd: int, size: int) -> tuple[list[bytes], int | None]:
    """Return some names of a directory, from its position on, and the position behind them; None = there are none."""
    buffer = ctypes.create_string_buffer(size)
    count = _getdents(fd, ctypes.addressof(buffer), size)
    if count < 0:
        number = ctypes.get_errno()
        if number == errno.ENOENT:  # It was removed.
            return [], None
        raise OSError(number, os.strerror(number))
    content = buffer.raw[:count]
    names: list[bytes] = []
    following: int | None = None
    start = 0
    while start < count:
        _, following, length, _ = _ENTRY.unpack_from(content, start)
        name = content[start + _ENTRY.size : start + length].split(b"\0", 1)[0]
        if name not in {b".", b".."}:
            names.append(name)
        start += length
    return names, following
