"""Exclusion between threads and between processes: a late duplicate of a call may run anywhere."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from volplane import Context, Unavailable

__all__ = ["STRIPES", "Locks", "TimeSlice"]

STRIPES = 256
_LONGEST_SLICE = 15.0
_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05


class TimeSlice:
    """How long a call may work before it hands back what it has, well before the core gives it up."""

    def __init__(self, context: Context) -> None:
        self._cancelled = context.cancelled
        self._end = time.monotonic() + min(context.timeout / 2, _LONGEST_SLICE)

    def left(self) -> float:
        """Seconds to wait for a lock; at least one, so that a call that has worked long can still finish."""
        return max(1.0, self._end - time.monotonic())

    def over(self) -> bool:
        """Time to stop: it is up, or nobody waits any more."""
        return time.monotonic() >= self._end or self._cancelled()


class Locks:
    """flock(2) on files in a directory. flock goes with the open file, so the kernel frees it if a process dies.

    Threads of one process queue on a lock in memory first; only other processes are polled for.
    """

    def __init__(self) -> None:
        self._queues = {str(stripe): threading.Lock() for stripe in range(STRIPES)}

    def stripe(self, name: str) -> str:
        """The lock file for a name; names may share one."""
        return str(zlib.crc32(name.encode()) % STRIPES)

    @contextmanager
    def hold(self, name: str, directory: int, patience: float) -> Iterator[None]:
        """Hold the lock of a name; raises `Unavailable` if it is not had within `patience` seconds."""
        file = self.stripe(name)
        with queued(self._queues[file], patience), locked_file(file, directory, patience):
            yield


@contextmanager
def queued(lock: threading.Lock, patience: float) -> Iterator[None]:
    """Take a lock between threads."""
    if not lock.acquire(timeout=patience):
        raise Unavailable("another call on the same volume or root takes too long; this one will be repeated")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_file(name: str, directory: int, patience: float) -> Iterator[int]:
    """Take the lock on a file, made if missing; yields its descriptor, open for reading and writing."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=directory)
    try:
        _flock(fd, patience)
        yield fd
    finally:
        os.close(fd)


def _flock(fd: int, patience: float) -> None:
    end = time.monotonic() + patience
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
