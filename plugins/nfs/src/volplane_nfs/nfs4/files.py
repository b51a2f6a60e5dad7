"""Directories, symbolic links and small files, by the handle of a directory and names below it.

A path is a tuple of names. Each is a LOOKUP of its own, and no server follows a symbolic link in one: a path with a
link in it is `NotADirectory`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from volplane_nfs.nfs4.attributes import DIRECTORY, MODE, RDATTR_ERROR, TYPE, mask_of
from volplane_nfs.nfs4.client import Compounds, values_of
from volplane_nfs.nfs4.errors import NfsError, TransportError
from volplane_nfs.nfs4.operations import (
    CLOSE,
    CREATE,
    GETATTR,
    GETFH,
    LOOKUP,
    OPEN,
    OPEN_CONFIRM,
    PUTFH,
    PUTROOTFH,
    READ,
    READDIR,
    READLINK,
    REMOVE,
    RENAME,
    SAVEFH,
    SETCLIENTID,
    SETCLIENTID_CONFIRM,
    WRITE,
    Entry,
    Reply,
    Request,
)
from volplane_nfs.nfs4.status import Status

Path = tuple[bytes, ...]

ANONYMOUS: Final = (0, bytes(12))
"""The stateid of a client that has opened nothing."""
_CURRENT: Final = (1, bytes(12))
"""In 4.1: the stateid that the operation before returned."""
MISSING: Final = frozenset({Status.NOENT})
NO_SPACE: Final = frozenset({Status.NOSPC, Status.DQUOT})
FULL: Final = frozenset({Status.NOTEMPTY, Status.EXIST})
"""What a directory answers that holds something, or that is exported or mounted, when it shall be removed."""
_NO_DIRECTORY: Final = frozenset({Status.NOTDIR, Status.SYMLINK, Status.WRONG_TYPE, Status.BADTYPE})
_VERIFIER: Final = bytes(8)
_PAGE_BYTES: Final = 1 << 16
_FILE_SYNC: Final = 2
MOST_ENTRIES = 1_000_000
"""Of a directory that is listed whole. None of the driver's own has as many."""
_FIRST: Final = 8
_MOST: Final = 512
"""Operations that are sent before the first is answered, as long as nothing is known of the server, and at most."""
_LONG: Final = 0.25
"""Seconds that they shall take at most."""
_OPERATION: Final = 1 << 13
"""Bytes of a file that take about as long as an operation."""
_WRITE_ONLY, _NO_DELEGATION = 2, 0x0400
_CONFIRM: Final = 2


class NotADirectory(Exception):
    """A component of the path is a symbolic link or a file. name: which."""

    def __init__(self, name: bytes) -> None:
        super().__init__(f"{name.decode(errors='backslashreplace')!r} is no directory")
        self.name = name


def walk(handle: bytes, path: Path) -> list[Request]:
    """Return the operations that lead from a directory to what lies below it."""
    return [PUTFH(handle), *[LOOKUP(name) for name in path]]


def directory_handle(client: Compounds, handle: bytes, path: Path) -> bytes | None:
    """Return the handle of a directory; None if it does not exist. Raises NotADirectory."""
    found = read_attributes(client, handle, path, mask_of(TYPE))
    if found is None:
        return None
    if found[0][TYPE] != DIRECTORY:
        raise NotADirectory(path[-1] if path else b"")
    return found[1]


def root_handle(client: Compounds, path: Path) -> bytes:
    """Return the handle of a directory below the server's root.

    Raises NotADirectory, NfsError (NOENT: it is missing).
    """
    try:
        attributes, handle = client.compound(
            PUTROOTFH(), *[LOOKUP(name) for name in path], GETATTR(mask_of(TYPE)), GETFH()
        )[-2:]
    except NfsError as error:
        if error.status in _NO_DIRECTORY:
            raise NotADirectory(path[max(0, error.index - 2)] if path else b"") from error
        raise
    if attributes[TYPE] != DIRECTORY:
        raise NotADirectory(path[-1] if path else b"")
    return bytes(handle)


def read_attributes(client: Compounds, handle: bytes, path: Path, mask: int) -> tuple[dict[int, Any], bytes] | None:
    """Return the attributes and handle of what is at the path, a link itself; None if nothing is.

    Raises NotADirectory.
    """
    try:
        values = client.compound(*walk(handle, path), GETATTR(mask), GETFH())
    except NfsError as error:
        if error.operation == "LOOKUP" and error.status in MISSING:
            return None
        if error.operation == "LOOKUP" and error.status in _NO_DIRECTORY:
            raise NotADirectory(path[max(0, error.index - 2)]) from error
        raise
    return values[-2], bytes(values[-1])


def create_directory(name: bytes, mode: int) -> Request:
    """Return the operation that makes a directory in the current one and makes it the current file handle.

    mode: permission bits. The server answers EXIST if anything has that name.
    """
    return CREATE((DIRECTORY, None), name, {MODE: mode})


def create_link(name: bytes, content: bytes) -> Request:
    """Return the operation that makes a symbolic link in the current directory and makes it the current file handle.

    content: its target, written as it is. The server answers EXIST if anything has that name.
    """
    return CREATE((5, content), name, {})


def make_directory(client: Compounds, handle: bytes, name: bytes, mode: int) -> bool:
    """Make a directory; False if there is something of that name."""
    try:
        client.compound(PUTFH(handle), create_directory(name, mode))
    except NfsError as error:
        if error.status == Status.EXIST:
            return False
        raise
    return True


def read_link(client: Compounds, handle: bytes, name: bytes) -> bytes | None:
    """Return the target of a symbolic link; None if it does not exist.

    Raises NfsError (INVAL, WRONG_TYPE) for others.
    """
    try:
        return bytes(client.compound(PUTFH(handle), LOOKUP(name), READLINK())[-1])
    except NfsError as error:
        if error.operation == "LOOKUP" and error.status in MISSING:
            return None
        raise


def remove(client: Compounds, handle: bytes, name: bytes) -> bool:
    """Remove a file, a link or an empty directory; False if there was none."""
    try:
        client.compound(PUTFH(handle), REMOVE(name))
    except NfsError as error:
        if error.operation == "REMOVE" and error.status in MISSING:
            return False
        raise
    return True


def rename(old_directory: bytes, old: bytes, new_directory: bytes, new: bytes) -> list[Request]:
    """Return the operations that rename."""
    return [PUTFH(old_directory), SAVEFH(), PUTFH(new_directory), RENAME(old, new)]


def page_of_names(client: Compounds, handle: bytes) -> list[bytes]:
    """Return the names of the first entries of a directory; empty = it is empty."""
    (_, page) = client.compound(PUTFH(handle), read_page(0, _VERIFIER, 0))
    return [entry.name for entry in page.entries]


def read_page(cookie: int, verifier: bytes, mask: int) -> Request:
    """RDATTR_ERROR is always asked for: an entry whose attributes cannot be read must not fail the page."""
    return READDIR(cookie, verifier, _PAGE_BYTES // 4, _PAGE_BYTES, mask | mask_of(RDATTR_ERROR))


def entries(client: Compounds, handle: bytes, mask: int = 0) -> Iterator[Entry]:
    """Yield all entries of a directory, page by page.

    Raises TransportError if the server repeats a page, or lists more than `MOST_ENTRIES`.
    """
    cookie, verifier, count = 0, _VERIFIER, 0
    asked: set[int] = set()
    without_end = "the server lists a directory without end"
    while cookie not in asked:
        asked.add(cookie)
        (_, page) = client.compound(PUTFH(handle), read_page(cookie, verifier, mask))
        count += len(page.entries)
        if count > MOST_ENTRIES:
            raise TransportError(f"{without_end}: more than {MOST_ENTRIES} entries")
        yield from page.entries
        if page.eof or not page.entries:
            return
        cookie, verifier = page.entries[-1].cookie, page.verifier
    raise TransportError(f"{without_end}: it answers READDIR with cookie {cookie} again")


def names(client: Compounds, handle: bytes) -> list[bytes]:
    """Return all names in a directory."""
    return [entry.name for entry in entries(client, handle)]


def read_file(client: Compounds, handle: bytes, name: bytes, maximum: int = 1 << 16) -> bytes | None:
    """Return the content of a small file; None if there is none. At most `maximum` bytes are read."""
    try:
        values = client.compound(PUTFH(handle), LOOKUP(name), READ(ANONYMOUS, 0, maximum))
    except NfsError as error:
        if error.operation == "LOOKUP" and error.status in MISSING:
            return None
        raise
    return bytes(values[-1].data)


def write_file(client: Compounds, handle: bytes, name: bytes, data: bytes) -> None:
    """Make or overwrite a small file: it is on the server's disk when this returns."""
    how = (1, (0, {MODE: 0o644}))
    owner = os.urandom(8)
    opened = OPEN(0, _WRITE_ONLY | _NO_DELEGATION, 0, (0, owner), how, (0, name))
    (reply,) = client.pipeline([[PUTFH(handle), opened, WRITE(_CURRENT, 0, _FILE_SYNC, data), CLOSE(0, _CURRENT)]])
    if not reply.status or client.minor != 0:
        values_of(reply)
        return
    _write_in_40(client, [PUTFH(handle)], (how, (0, name)), owner, data)


def _write_in_40(
    client: Compounds, directory: list[Request], how_and_claim: tuple[Any, Any], owner: bytes, data: bytes
) -> None:
    """4.0 has no current stateid, and wants a client id and confirmed owners."""
    callback = (0x40000000, (b"tcp", b"0.0.0.0.0.0"))
    (made,) = client.compound(SETCLIENTID((os.urandom(8), b"volplane " + owner), callback, 0))
    client.compound(SETCLIENTID_CONFIRM(made.clientid, made.verifier))
    opened = OPEN(0, _WRITE_ONLY, 0, (made.clientid, owner), *how_and_claim)
    values = client.compound(*directory, opened, GETFH())
    stateid, seqid, file = values[1].stateid, 1, values[2]
    if values[1].flags & _CONFIRM:
        stateid, seqid = client.compound(PUTFH(file), OPEN_CONFIRM(stateid, seqid))[1], 2
    client.compound(PUTFH(file), WRITE(stateid, 0, _FILE_SYNC, data), CLOSE(seqid, stateid))


class Pace:
    """How much is sent at once: twice as much while answers come soon, less when they do not.

    A server that takes long for each operation does what is sent to it before anything else on the connection, and
    must not seem dead. clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.operations = _FIRST
        """How many operations the next call shall have; data counts too, see `data_of`."""

    def run(self, client: Compounds, compounds: Sequence[Sequence[Request]]) -> list[Reply]:
        """Do several COMPOUNDs, and learn from how long that takes. Raises TransportError."""
        begun = self._clock()
        replies = client.pipeline(compounds)
        took = self._clock() - begun
        count = sum(len(each) + data_of(each) // _OPERATION for each in compounds)
        if took > _LONG:
            self.operations = max(1, int(count * _LONG / (2 * took)))
        elif took < _LONG / 2:
            self.operations = min(_MOST, max(self.operations, 2 * count))
        return replies


def data_of(requests: Sequence[Request]) -> int:
    """Return how many bytes of files these send or ask for."""
    size = 0
    for operation, arguments in requests:
        if operation is READ:
            size += arguments[2]
        elif operation is WRITE:
            size += len(arguments[3])
    return size


def several(client: Compounds, groups: Sequence[Sequence[Request]], pace: Pace | None = None) -> list[Reply]:
    """Do groups of operations, each by itself, in as few calls as the server takes; their answers, failed ones too.

    Each group begins with its own file handle, has at most as many operations and as much data as a COMPOUND may have,
    and is not in one COMPOUND with others of which only one changes something: its answer may be too large to be kept.
    Groups that send much come before those that ask for much: the server sends nothing while the client does.
    """
    pace = pace or Pace()
    answers: dict[int, Reply] = {}
    waiting = list(range(len(groups)))
    sizes = [(len(group), data_of(group), any(each[0].changes for each in group)) for group in groups]
    most_data = client.data_bytes
    while waiting:
        compounds: list[list[int]] = [[]]
        left, room, data_room, kind = pace.operations, client.operations, most_data, False
        for number in waiting:
            size, data, changes = sizes[number]
            left -= size + data // _OPERATION
            if left < 0 and compounds[0]:
                break
            if compounds[-1] and (size > room or data > data_room or changes is not kind):
                compounds.append([])
                room, data_room = client.operations, most_data
            compounds[-1].append(number)
            room, data_room, kind = room - size, data_room - data, changes
        replies = pace.run(client, [[each for number in part for each in groups[number]] for part in compounds])
        for part, reply in zip(compounds, replies, strict=True):
            results = reply.results
            for number in part:
                own, results = results[: len(groups[number])], results[len(groups[number]) :]
                failed = bool(reply.status) and not results and (not own or bool(own[-1].status))
                answers[number] = Reply(reply.status if failed else 0, own)
                if failed:
                    break  # those behind it were not done
        waiting = [number for number in waiting if number not in answers]
    return [answers[number] for number in range(len(groups))]


def batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield parts of at most `size` items."""
    for start in range(0, len(items), max(1, size)):
        yield items[start : start + max(1, size)]
