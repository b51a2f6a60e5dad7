"""Writes the log of one container in the format of the container runtime interface, in two files of bounded size."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

_LONGEST_LINE: Final = 16 * 1024


class ContainerLog:
    """Writes lines `<time> stdout <F|P> <text>`; P marks a partial line. Only opening raises OSError."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._rest = b""
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        out = bytearray()
        now = _timestamp()
        for line in lines:
            while len(line) > _LONGEST_LINE:
                out += b"%s stdout P %s\n" % (now, line[:_LONGEST_LINE])
                line = line[_LONGEST_LINE:]  # noqa: PLW2901
            out += b"%s stdout F %s\n" % (now, line)
        while len(self._rest) >= _LONGEST_LINE:
            out += b"%s stdout P %s\n" % (now, self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]
        self._append(out)

    def close(self) -> None:
        if self._rest:
            self._append(b"%s stdout F %s\n" % (_timestamp(), self._rest))
        os.close(self._fd)

    def _append(self, out: bytes | bytearray) -> None:
        # On a full disk lines are lost, so that the command does not block.
        with contextlib.suppress(OSError):
            if self._size + len(out) > self._limit and self._size:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                os.close(self._fd)
                self._open()
            self._size += os.write(self._fd, out)


def _timestamp() -> bytes:
    nanos = time.time_ns()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(nanos // 10**9))}.{nanos % 10**9:09d}Z".encode()
