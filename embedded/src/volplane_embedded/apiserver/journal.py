"""Durability: objects in SQLite (write-ahead log), committed before writes are acknowledged.

Only the newest states are kept, not the log of changes. After a restart a watch or page from an older version gets 410,
as after a compaction of etcd.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from volplane_embedded.apiserver.store import Stored

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS objects (
    storage TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (storage, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO counters VALUES ('version', 0), ('format', 1);
"""
_FORMAT: Final = 1
_CACHE_KIB: Final = 8 * 1024

_Row = tuple[str, str, int, bytes | None]
"""Storage key, key, version, data (None: removed)."""


class DataDirInUse(Exception):
    """The data directory is used by another process or cannot be used. The message names the reason and a remedy."""


class SqliteJournal:
    """The journal of a data directory, which is made with mode 0700. One process owns it until `close`.

    Recorded writes are on stable storage when `commit` returns (`synchronous=FULL`).
    """

    def __init__(self, directory: Path) -> None:
        """Raises OSError for a directory that cannot be written, DataDirInUse for one that holds something else."""
        self._lock = _lock(directory)
        try:
            self._connection = _open(directory / "store.db")
        except (sqlite3.Error, DataDirInUse) as why:
            os.close(self._lock)
            advice = "; is its disk full?" if isinstance(why, sqlite3.OperationalError) else ""
            raise DataDirInUse(f"data directory {directory} cannot be used: {why}{advice}") from None
        self._recorded: list[_Row] = []
        """Writes since the last commit. A failed transaction loses all of them; the next one writes them again."""
        self._failed = False

    def load(self) -> tuple[int, Iterable[tuple[str, Stored]]]:
        """Return the version counter and every object."""
        (version,) = self._connection.execute("SELECT value FROM counters WHERE name = 'version'").fetchone()
        rows = self._connection.execute("SELECT storage, key, version, data FROM objects ORDER BY storage, key")
        return version, ((storage, Stored(key, at, data)) for storage, key, at, data in rows)

    def record(self, storage: str, key: str, version: int, data: bytes | None) -> None:
        """Write (data) or remove (None) an object with the next `commit`. Raises OSError; then it is not recorded.

        While commits fail no write is recorded.
        """
        if self._failed:
            self.commit()
        row = (storage, key, version, data)
        with self._transaction():
            self._write(row)
        self._recorded.append(row)

    @property
    def pending(self) -> bool:
        """Whether recorded writes are not on disk yet."""
        return bool(self._recorded)

    def commit(self) -> None:
        """Write all recorded writes to disk. Raises OSError; then none is on disk, and the next call tries again."""
        if not self._recorded:
            return
        self._failed = True
        with self._transaction():
            self._connection.execute("COMMIT")
        self._failed = False
        self._recorded.clear()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Use the open transaction, or begin one with the writes that a failed one lost. OSError: none is open then."""
        try:
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
                for row in self._recorded:
                    self._write(row)
            yield
        except sqlite3.Error as why:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise OSError(str(why)) from why

    def _write(self, row: _Row) -> None:
        storage, key, version, data = row
        execute = self._connection.execute
        if data is None:
            execute("DELETE FROM objects WHERE storage = ? AND key = ?", (storage, key))
        else:
            execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", (storage, key, version, data))
        execute("UPDATE counters SET value = ? WHERE name = 'version'", (version,))

    def close(self) -> None:
        """Commit and release the directory. Idempotent. Raises OSError if pending writes cannot be written."""
        if self._lock < 0:
            return
        try:
            self.commit()
        finally:
            self._release()

    def _release(self) -> None:
        self._connection.close()
        os.close(self._lock)
        self._lock = -1


def _lock(directory: Path) -> int:
    """Return a descriptor that holds the directory's lock. The kernel releases it when the process ends."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_private(directory)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


def _make_private(directory: Path) -> None:
    """Make a directory that is empty or ours readable by its owner alone. Raises DataDirInUse for any other one.

    It holds the token and the key of the certificate: who can write there can be the server.
    """
    found = directory.stat()
    if found.st_uid != os.geteuid():
        why = f"it belongs to user {found.st_uid}, not to {os.geteuid()}: take another one"
        raise DataDirInUse(f"data directory {directory} cannot be used: {why}")
    if not found.st_mode & 0o077:
        return
    if any(directory.iterdir()) and not (directory / "store.db").exists():
        why = f"others may enter it, and it holds files of somebody else's: chmod 700 {directory}, or take another one"
        raise DataDirInUse(f"data directory {directory} cannot be used: {why}")
    directory.chmod(0o700)


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
