"""Reads the logs of containers for `kubectl logs` (pkg/kubelet/kuberuntime/logs)."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from volplane_embedded.apiserver.errors import bad_request

_LONGEST_AGO: Final = 10 * 365 * 86_400
_POLL_SECONDS: Final = 0.1
_CHUNK: Final = 256 * 1024


class LogQuery(Protocol):
    """The query parameters of a GET of pods/log."""

    def text(self, name: str) -> str: ...

    def flag(self, name: str) -> bool: ...

    def number(self, name: str) -> int | None: ...


@dataclass(frozen=True, slots=True)
class LogOptions:
    """v1.PodLogOptions. tail: lines. since: in the format of the lines' times, "" = all. limit: bytes, None = all."""

    tail: int | None = None
    since: str = ""
    timestamps: bool = False
    limit: int | None = None
    previous: bool = False


def read_log_options(query: LogQuery, now: datetime) -> LogOptions:
    """Read the options from the query. Raises StatusError (400)."""
    seconds, moment = query.number("sinceSeconds"), query.text("sinceTime")
    since = ""
    if seconds is not None:
        since = _mark(now - timedelta(seconds=min(max(seconds, 0), _LONGEST_AGO)))
    elif moment:
        try:
            since = _mark(datetime.fromisoformat(moment))
        except (ValueError, OverflowError):
            raise bad_request(f"sinceTime {moment!r} is no time in RFC 3339") from None
    tail, limit = query.number("tailLines"), query.number("limitBytes")
    for name, value in (("tailLines", tail), ("limitBytes", limit)):
        if value is not None and value < 0:
            raise bad_request(f"{name} must not be negative")
    return LogOptions(
        tail=tail, since=since, timestamps=query.flag("timestamps"), limit=limit, previous=query.flag("previous")
    )


def _mark(moment: datetime) -> str:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def parse_lines(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Parse whole lines of a CRI log into (time, text); the text of a partial line has no newline."""
    # Nothing else ends a line: a command may write carriage returns, and with them what looks like another line.
    for line in data.removesuffix(b"\n").split(b"\n") if data else ():
        time, _, rest = line.partition(b" ")
        _stream, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        yield time.decode(errors="replace"), text if tag == b"P" else text + b"\n"


def filter_lines(lines: Iterable[tuple[str, bytes]], wanted: LogOptions) -> list[bytes]:
    """Return the lines that the options select. `limit` is not applied."""
    shown = (f"{time} ".encode() + text if wanted.timestamps else text for time, text in lines if time >= wanted.since)
    return list(shown) if wanted.tail is None else list(deque(shown, maxlen=wanted.tail))


async def read_logs(log: Path, wanted: LogOptions, *, runs: Callable[[], bool] | None) -> AsyncIterator[bytes]:
    """Yield the log. runs: whether the container still runs; while it does, new lines are waited for. None: do not
    wait.
    """
    left = wanted.limit
    position = _Position(log)
    async with aclosing(_chunks(position, wanted, runs)) as chunks:
        async for chunk in chunks:
            piece = chunk if left is None else chunk[:left]
            yield piece
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    return


async def _chunks(
    position: _Position, wanted: LogOptions, runs: Callable[[], bool] | None
) -> AsyncGenerator[bytes, None]:
    shown = filter_lines(parse_lines(await asyncio.to_thread(position.read_all)), wanted)
    yield b"".join(shown)
    later = LogOptions(since=wanted.since, timestamps=wanted.timestamps)
    while runs is not None:
        ends = not runs()
        data = await asyncio.to_thread(position.read_on)
        if data:
            yield b"".join(filter_lines(parse_lines(data), later))
        elif ends:
            return
        else:
            await asyncio.sleep(_POLL_SECONDS)


class _Position:
    """How far a log was read. A full log is renamed to `<log>.1` and a new one is begun."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._old = log.with_name(f"{log.name}.1")
        self._inode = 0
        self._offset = 0

    def read_all(self) -> bytes:
        """Return all that was written so far, in whole lines. Blocks."""
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            self._inode = _inode(file)
            older = b""
            with suppress(FileNotFoundError), self._old.open("rb") as old:
                # It is the file itself when the log was renamed after it was opened.
                older = b"" if _inode(old) == self._inode else old.read()
            return older + self._read(file, most=-1)
        return self._old.read_bytes() if self._old.exists() else b""

    def read_on(self) -> bytes:
        """Return a part of what was written after the last read, in whole lines. Blocks."""
        # There is no log for a moment: it is renamed before a new one is made.
        with suppress(FileNotFoundError), self._log.open("rb") as file:
            rest = b""
            # The open file is asked, not the path: the log may be renamed at any moment.
            if _inode(file) != self._inode:
                with suppress(FileNotFoundError), self._old.open("rb") as old:
                    rest = self._read(old, most=-1) if _inode(old) == self._inode else b""
                self._inode, self._offset = _inode(file), 0
            return rest + self._read(file, most=_CHUNK)
        return b""

    def _read(self, file: BinaryIO, *, most: int) -> bytes:
        file.seek(self._offset)
        data = file.read(most)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


def _inode(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_ino
