"""Copies of directories while they are made: `.volplane/copies/<key>/data`, beside what is needed until it is whole.

A call works for a slice. What is done is read from the tree, so the next process goes on with it. Another machine, or
one that has started anew, begins it again: files may have their attributes and not yet their contents then.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from volplane import BackendError, Context, InProgress, NotFound, ResourceExhausted, Unavailable
from volplane.directory import (
    CONTROL,
    CopyCounts,
    CopyParameters,
    CorruptMarker,
    TreeCopy,
    copy_progress,
    decode_fields,
    dirfd,
    encode_fields,
    human,
)
from volplane.directory.dirfd import (
    closing,
    create_file,
    entry_exists,
    open_directory,
    read_file,
)
from volplane.directory.local_trees import DATA, LINKS, OLD, LocalTrees, Pair, boot_id
from volplane.directory.snapshots import CONTENT
from volplane_hostpath import subvolumes
from volplane_hostpath.capacity import Space
from volplane_hostpath.disk_waits import syncs_whole
from volplane_hostpath.errors import NO_SPACE, to_backend_error
from volplane_hostpath.locks import Deadline, locked_file, thread_lock
from volplane_hostpath.root import COPIES, LOCKS, Root
from volplane_hostpath.trash import empty_trash, remove_or_move

COPY = "copy"
"""File in the directory of a copy: what it is of. Its ctime is when the copy was begun."""
_SLICE: Final = 0.5
_SLICE_OF_OTHERS: Final = 0.05
"""Of a slice while something is being deleted."""
_TURN: Final = 0.7
"""Seconds to wait for the slice of another copy."""
_AGAIN: Final = 0.2
_TOLD: Final = 30.0
"""Seconds after which it is logged, and recorded, how far a copy is: a record is a write to the API."""
_KEPT: Final = 1_000
_ABANDONED: Final = 86_400.0
"""Seconds after which a copy counts as abandoned that no volume stands for."""
_RESERVE: Final = 20
"""So much of the file system, as a divisor, has to stay free."""
_COARSE: Final = 5
"""CLOCK_REALTIME_COARSE, by which the kernel stamps files."""
_LONGEST_TICK: Final = 0.02


@dataclass(frozen=True, slots=True)
class Source:
    """What is copied: an open directory."""

    fd: int
    handle: str
    label: str
    """Its path, for people."""
    size_bytes: int
    """What a copy has to have at least."""
    segment: Mapping[str, str]
    """Where it is; empty = everywhere."""
    open_again: Callable[[], int]
    """Opens what is in its place now."""
    whole: CopyCounts | None = None
    """What is in it, as far as that is known."""

    def require_there(self) -> None:
        """Raise `NotFound` unless the directory is still in its place, from where a deletion takes it first.

        Once that has begun, what was copied last may not be all of it.
        """
        with suppress(FileNotFoundError), closing(self.open_again()) as there:
            if os.path.samestat(os.fstat(there), os.fstat(self.fd)):
                return
        raise NotFound(f"{self.label} was deleted while it was copied")


@dataclass(slots=True)
class _Work:
    """A copy that this process works on, between slices."""

    since: int
    """When it was begun: one that was begun again is another."""
    copy: TreeCopy[Pair]
    told: float
    """When its place was recorded (monotonic)."""
    state: Mapping[str, Any]
    """What was recorded."""


class Copies:
    """The copies of one driver. Safe for threads; what it keeps in memory only saves time."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._works: dict[str, _Work] = {}
        self._counting = threading.Lock()
        self._deleting = 0

    @contextmanager
    def deleting(self) -> Iterator[None]:
        """Let copies wait for the end of the block: what gives space back goes first."""
        with self._counting:
            self._deleting += 1
        try:
            yield
        finally:
            with self._counting:
                self._deleting -= 1

    def work(
        self, root: Root, key: str, source: Source, parameters: CopyParameters, context: Context
    ) -> CopyCounts | InProgress:
        """Work on a copy for a slice; it was begun. Counts = it is whole. Raises OSError."""
        with ExitStack() as held:
            try:
                held.enter_context(thread_lock(self._turn, _TURN))
                held.enter_context(locked_file(COPIES, root.directory(LOCKS), _TURN))
            except Unavailable:
                return self._later(key, context, source)
            _refuse_full(root, source.label)
            container = held.enter_context(open_copy(root, key))
            os.utime(container)  # It is not abandoned.
            durable = not syncs_whole(root)
            trees = LocalTrees(source.fd, container, root.mount, label=source.label, durable=durable)
            copy = self._kept(key, trees, container, parameters, context)
            start = time.monotonic()

            def should_stop() -> bool:
                longest = _SLICE_OF_OTHERS if self._deleting else _SLICE
                return time.monotonic() - start >= longest or context.cancelled()

            if not copy.work(should_stop):
                return self._later(key, context, source)
        self.forget(key)
        if copy.counts.mended:
            text = "%d entries of the copy of %s were wrong, and copied again"
            context.log.warning(text, copy.counts.mended, source.label)
        return copy.counts

    def _kept(
        self, key: str, trees: LocalTrees, container: int, parameters: CopyParameters, context: Context
    ) -> TreeCopy[Pair]:
        """Return the copy as this process knows it, or as another one left it."""
        since = os.stat(COPY, dir_fd=container).st_ctime_ns
        work = self._works.get(key)
        if work is None or work.since != since:
            hint = context.state.get("copy")
            hint = hint if isinstance(hint, Mapping) else None
            copy = TreeCopy(trees, since=since, hint=hint, contents=parameters.verify == CONTENT)
            work = _Work(since, copy, time.monotonic(), dict(context.state))
            if len(self._works) >= _KEPT:
                self._works.clear()
            self._works[key] = work
        work.copy.trees = trees
        return work.copy

    def _later(self, key: str, context: Context, source: Source) -> InProgress:
        work = self._works.get(key)
        if work is None:
            return InProgress(retry_after=_AGAIN, state=context.state)
        now, progress = time.monotonic(), copy_progress(work.copy, source.whole)
        if now - work.told >= _TOLD:
            context.log.info("%s: %s", key, progress)
            work.told, work.state = now, {"copy": work.copy.hint}
        return InProgress(retry_after=_AGAIN, state=work.state, progress=progress)

    def forget(self, key: str) -> None:
        """Forget a copy that is removed."""
        self._works.pop(key, None)


def clone(root: Root, key: str, source: Source, deadline: Deadline, *, read_only: bool) -> None:
    """Make the directory of a copy of a subvolume of btrfs, which is whole at once: it is of one moment."""
    if not discard(root, key, deadline):
        raise Unavailable(f"what an earlier attempt left of {key} is being removed")
    os.mkdir(key, 0o700, dir_fd=root.directory(COPIES))
    with open_copy(root, key) as container:
        subvolumes.snapshot(source.fd, container, DATA, read_only=read_only)


def begin(
    root: Root,
    key: str,
    source: str,
    deadline: Deadline,
    *,
    strict: bool = False,
    prepare: Callable[[int], None] = lambda _: None,
) -> None:
    """Make the directory of a copy, unless an earlier call has begun it.

    key: its name. source: what it is of. strict: no change may be missed. prepare: called with open directories, into
    which nothing was copied, such as to set limits.
    """
    copies = root.directory(COPIES)
    label = f"{root.path}/{CONTROL}/{COPIES}/{key}"
    wanted = {"source": source, "boot": boot_id()}
    with suppress(FileNotFoundError):
        with open_copy(root, key) as container:
            try:
                known = decode_fields(read_file(COPY, container))
            except (CorruptMarker, FileNotFoundError):
                known = {}
        if {name: known.get(name) for name in wanted} == wanted:
            return
        discard(root, key, deadline)
    os.mkdir(key, 0o700, dir_fd=copies)
    with open_copy(root, key) as container:
        os.mkdir(DATA, 0o700, dir_fd=container)
        prepare(container)
        with closing(open_directory(DATA, container, root.mount, label=label)) as data:
            prepare(data)
        create_file(COPY, container, encode_fields(wanted), durable=False)
        _wait_until_later(container)
        if strict and syncs_whole(root):
            # Only the first write to a page that is on the disk, through a memory map, changes the times of its file.
            dirfd.syncfs(root.fd)


def _wait_until_later(container: int) -> None:
    """Wait until what changes gets a later time than that at which the copy was begun."""
    began = os.stat(COPY, dir_fd=container).st_ctime_ns
    end = time.monotonic() + _LONGEST_TICK
    while time.clock_gettime_ns(_COARSE) <= began and time.monotonic() < end:
        time.sleep(0.001)


@contextmanager
def open_copy(root: Root, key: str) -> Iterator[int]:
    """Yield the directory of a copy."""
    label = f"{root.path}/{CONTROL}/{COPIES}/{key}"
    with closing(open_directory(key, root.directory(COPIES), root.mount, label=label)) as container:
        yield container


def take_away_leftovers(root: Root, container: int, deadline: Deadline) -> None:
    """Remove what only the making of a copy needed; what cannot be removed now is in the trash."""
    for name in (LINKS, OLD):
        if entry_exists(name, container):
            key = f"copy-{os.urandom(8).hex()}"
            if remove_or_move(root, name, container, key, deadline):
                empty_trash(root, key, deadline)


def discard(root: Root, key: str, deadline: Deadline) -> bool:
    """Remove the directory of a copy with all that is in it; False = not finished. It may be missing."""
    trash = f"copy-{os.urandom(8).hex()}"
    copies = root.directory(COPIES)
    if not entry_exists(key, copies):
        return True
    return remove_or_move(root, key, copies, trash, deadline) and empty_trash(root, trash, deadline)


def without_space(root: Root, error: OSError, *, doing: str, removed: bool) -> BackendError:
    """Return the error of a copy that failed. removed: nothing is left of it."""
    return to_backend_error(error, root=root.path, doing=doing, nothing_done=removed and error.errno in NO_SPACE)


def is_abandoned(root: Root, key: str) -> bool:
    """Return whether nobody has worked on a copy for long."""
    try:
        touched = os.stat(key, dir_fd=root.directory(COPIES), follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return time.time() - touched > _ABANDONED


def _refuse_full(root: Root, of: str) -> None:
    space = Space.of(root.fd)
    if space.available < space.total // _RESERVE:
        raise OSError(
            errno.ENOSPC,
            f"{human(space.available)} of {human(space.total)} are free, a copy of {of} leaves a twentieth free",
        )


def refuse_too_large(root: Root, used: int, of: str) -> None:
    """Raise `ResourceExhausted` if what is known to be in a directory cannot fit, unless blocks may be shared."""
    space = Space.of(root.fd)
    free = space.available - space.total // _RESERVE
    if used > free and root.kind not in {"xfs", "btrfs", "bcachefs", "zfs"}:
        raise ResourceExhausted(
            f"{of} has {human(used)} in it, and root {root.path} has room for {human(max(0, free))}: free space on it "
            "or grow it",
            scope=root.path,
            reschedule=True,
            nothing_done=True,
        )
