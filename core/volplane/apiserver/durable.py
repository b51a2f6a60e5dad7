"""Durability: objects in SQLite (write-ahead log), one committed transaction per acknowledged write.

Only the newest state is kept, not the log of changes: after a restart a watch or page from an older version is
answered with 410, as by a server whose history was compacted.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from volplane.apiserver.store import Stored

__all__ = ["DataDirInUse", "SqliteJournal"]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (
    storage TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (storage, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO counters VALUES ('version', 0), ('format', 1);
"""
_FORMAT: Final = 1
_CACHE_KIB: Final = 8 * 1024


class DataDirInUse(Exception):
    """Another process serves this data directory, or it cannot be used; the text says which and what to do."""


class SqliteJournal:
    """The journal of a data directory; made with mode 0700 where absent. Owned by one process until `close`.

    Every write is on stable storage when `record` returns (`synchronous=FULL`).
    """

    def __init__(self, directory: Path) -> None:
        """Raises DataDirInUse, also for a directory that cannot be written or holds another format."""
        self._lock = _lock(directory)
        try:
            self._connection = _open(directory / "store.db")
        except (sqlite3.Error, DataDirInUse) as why:
            os.close(self._lock)
            raise DataDirInUse(f"data directory {directory} cannot be used: {why}") from None

    def load(self) -> tuple[int, Iterable[tuple[str, Stored]]]:
        """The version counter and every object."""
        (version,) = self._connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        rows = self._connection.execute("SELECT storage, key, version, data FROM objects ORDER BY storage, key")
        return version, ((storage, Stored(key, at, data)) for storage, key, at, data in rows)

    def record(self, storage: str, key: str, version: int, data: bytes | None) -> None:
        """Write (data) or remove (None) an object. Raises OSError; then nothing is written."""
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            if data is None:
                execute("DELETE FROM objects WHERE storage = ? AND key = ?", (storage, key))
            else:
                execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (storage, key, version, data))
            execute("UPDATE counters SET value = ? WHERE name = 'version'", (version,))
            execute("COMMIT")
        except sqlite3.Error as why:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise OSError(str(why)) from why

    def close(self) -> None:
        """Give the directory back. May be called again."""
        if self._lock < 0:
            return
        self._connection.close()
        os.close(self._lock)
        self._lock = -1


def _lock(directory: Path) -> int:
    """A descriptor that holds the directory's lock; the kernel gives it back if the process is killed."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as why:
        raise DataDirInUse(f"data directory {directory} cannot be used: {why}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        by = f" (process {holder})" if holder else ""
        message = (
            f"data directory {directory} is in use by another volplane API server{by}: stop it or take another one"
        )
        raise DataDirInUse(message) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        path.chmod(0o600)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        connection.executescript(_SCHEMA)
        _check_format(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_format(connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("SELECT value FROM counters WHERE name = 'format'").fetchone()
    if found != _FORMAT:
        raise DataDirInUse(f"its format is {found}, this version reads {_FORMAT}")
