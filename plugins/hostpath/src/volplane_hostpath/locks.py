"""Locks between threads and processes, and the deadline of a call."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from volplane import Context, Unavailable
from volplane.directory.dirfd import closing
from volplane_hostpath.errors import NO_FILE, NO_SPACE

STRIPES = 256
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST_CALL = 15.0
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class Deadline:
    """Until when a call works: half of its timeout, at most 15 s, so that it ends before the core gives it up."""

    def __init__(self, context: Context, longest: float = _LONGEST_CALL) -> None:
        self._cancelled = context.cancelled
        self._end = time.monotonic() + min(context.timeout / 2, longest)

    def remaining(self) -> float:
        """Return the seconds to wait for a lock; at least 1, so that a call at its deadline can still finish."""
        return max(1.0, self._end - time.monotonic())

    def expired(self) -> bool:
        """Return whether the deadline is over or the call was cancelled."""
        return time.monotonic() >= self._end or self._cancelled()


class Locks:
    """Locks by name: flock(2) on files in a directory. The kernel releases them if a process dies.

    Threads of one process wait on a lock in memory first; locks of other processes are polled for.
    """

    def __init__(self) -> None:
        self._queues = {str(stripe): threading.Lock() for stripe in range(STRIPES)}

    def stripe(self, name: str) -> str:
        """Return the lock file of a name; several names may share one."""
        return str(zlib.crc32(os.fsencode(name)) % STRIPES)

    @contextmanager
    def hold(self, name: str, directory: int, timeout: float) -> Iterator[None]:
        """Hold the lock of a name; raises `Unavailable` if it is not free within `timeout` seconds."""
        file = self.stripe(name)
        with thread_lock(self._queues[file], timeout), locked_file(file, directory, timeout):
            yield


@contextmanager
def thread_lock(lock: threading.Lock, timeout: float) -> Iterator[None]:
    """Hold a lock between threads; raises `Unavailable` after `timeout` seconds."""
    if not lock.acquire(timeout=timeout):
        raise Unavailable("another call on the same volume or root takes too long; this one will be repeated")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_file(name: str, directory: int, timeout: float) -> Iterator[None]:
    """Hold the lock on a file, which is made if missing.

    What can have none, as there is no space for it or something else has its name, shares the lock on the directory.
    So who makes the file holds that lock as well: while another process works without the file, nobody gets to make it.
    """
    with ExitStack() as held:
        try:
            fd = os.open(name, _FILE, dir_fd=directory)
        except OSError as error:
            if error.errno not in NO_FILE | {errno.ENOENT}:
                raise
            above = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
            held.callback(os.close, above)
            _flock(above, timeout)
            try:
                fd = os.open(name, _FILE | os.O_CREAT, 0o600, dir_fd=directory)
            except OSError as failure:
                if failure.errno not in NO_SPACE | NO_FILE:
                    raise
                yield
                return
        with closing(fd):
            _flock(fd, timeout)
            held.close()
            yield


@contextmanager
def locked(fd: int, timeout: float) -> Iterator[None]:
    """Hold the lock on an open file. Threads that use the same descriptor share the lock: they need another one."""
    _flock(fd, timeout)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _flock(fd: int, timeout: float) -> None:
    end = time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() + pause >= end:
                raise Unavailable(
                    "another process works on the same volume or root and takes too long; this call will be repeated"
                ) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        else:
            return
