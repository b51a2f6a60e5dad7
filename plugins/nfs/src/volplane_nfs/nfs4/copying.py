"""Copies of files within a server: by CLONE where it shares blocks, else by COPY, else by READ here and WRITE back.

Which of them a server does is tried, not asked, and what it refuses is remembered for the share (`Offloads`). A file is
made new, filled, and gets its mode and time of modification last: until then nobody takes it for a copy. The server may
keep data in memory until it is committed at the end: if it was restarted in between, what it had is copied again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from volplane_nfs.nfs4.attributes import (
    ACL,
    CHANGE,
    FILEID,
    MODE,
    NUMLINKS,
    OWNER,
    OWNER_GROUP,
    SIZE,
    SPACE_USED,
    TIME_METADATA,
    TIME_MODIFY,
    TIME_MODIFY_SET,
    TYPE,
    mask_of,
)
from volplane_nfs.nfs4.client import Compounds, values_of
from volplane_nfs.nfs4.errors import NfsError, TransportError
from volplane_nfs.nfs4.files import ANONYMOUS, MISSING, Pace, several
from volplane_nfs.nfs4.operations import (
    CLONE,
    CLOSE,
    COMMIT,
    COPY,
    GETATTR,
    GETFH,
    LOOKUP,
    OPEN,
    PUTFH,
    READ,
    REMOVE,
    SAVEFH,
    SEEK,
    SETATTR,
    SETXATTR,
    WRITE,
    Operation,
    Reply,
    Request,
)
from volplane_nfs.nfs4.status import Status

Attributes = Mapping[int, Any]
ShouldStop = Callable[[], bool]

COPIED: Final = mask_of(
    *(TYPE, CHANGE, SIZE, FILEID, MODE, NUMLINKS, OWNER, OWNER_GROUP, SPACE_USED, TIME_METADATA, TIME_MODIFY)
)
"""Attributes that are looked at before an entry is copied."""
_NEEDED: Final = (SIZE, MODE, TIME_METADATA, TIME_MODIFY)
_STABLE: Final = (CHANGE, SIZE, TIME_MODIFY)
_AFTER: Final = mask_of(*_STABLE)
_CURRENT: Final = (1, bytes(12))
_UNSTABLE, _FILE_SYNC = 0, 2
_DATA, _HOLE = 0, 1
_GUARDED: Final = 1
_WRITE_ONLY, _NO_DELEGATION = 2, 0x0400
NEW_MODE: Final = 0o200
"""Of a file that is not finished: a file of anybody else has it hardly ever."""
_SET_ID: Final = 0o6000
_ATTEMPTS: Final = 3
"""How often a file is copied that changes meanwhile."""
_AT_ONCE: Final = 8
"""READs and as many WRITEs that are under way."""
_WEIGHT: Final = 64
"""Operations of a `Pace` that one READ and one WRITE of the largest size count for."""
_OF_CLONE, _OF_WRITE = 9, 5
"""Operations by which a small file is cloned, and by which it is written."""
_CLONED: Final = 1 << 30
"""Bytes of one CLONE, at most: all file systems share blocks in parts of this size."""
_FIRST_COPY: Final = 1 << 23
_MOST_COPY: Final = 1 << 30
_LONG: Final = 0.25
"""Seconds of one COPY, at most."""
_LARGEST_SMALL: Final = 1 << 17
_PAGE: Final = 4096
_HOLE_BYTES: Final = 1 << 16
"""Of holes, at least, that a file has to have to be looked at for them."""
_NEVER: Final = frozenset({Status.NOTSUPP, Status.OP_ILLEGAL, Status.UNION_NOTSUPP})
"""The server, or the file system, does not know the operation at all."""
_NOT_THIS: Final = frozenset({Status.INVAL, Status.XDEV, Status.OFFLOAD_NO_REQS, Status.WRONG_TYPE, Status.BAD_STATEID})
"""It does not do it with this file."""
GONE: Final = frozenset({Status.STALE, Status.NOENT, Status.FHEXPIRED})
"""What a server answers about a handle of a file that nobody has any more."""


@dataclass(slots=True)
class Offloads:
    """What the server of a share refused. Threads may share it."""

    refused: set[Operation] = field(default_factory=set)
    pieces: int = _FIRST_COPY
    """Bytes that the next COPY asks for."""
    cloned: bool = False
    """Whether CLONE has shared blocks."""
    acls: bool = False
    """Whether it has the attribute ACL."""
    xattrs: bool = False
    """Whether it has extended attributes of users."""
    link_times: bool = True
    """Whether symbolic links can have the times of others."""

    @property
    def mask(self) -> int:
        """Return the attributes that are looked at before an entry is copied."""
        return COPIED | (mask_of(ACL) if self.acls else 0)


@dataclass(frozen=True, slots=True)
class Job:
    """A file to be copied: its handle and attributes (`COPIED`), and where to: a directory's handle, and a name."""

    source: bytes
    attributes: Attributes
    directory: bytes
    name: bytes
    xattrs: Sequence[tuple[bytes, bytes]] = ()
    """Extended attributes of users, which only `copy_large` copies."""


class _Read(NamedTuple):
    """A small file that was read. attributes: that it had before; None = it is gone. same: it had them afterwards."""

    job: Job
    attributes: Attributes | None
    data: bytes
    same: bool


class FileCopier:
    """Copies files by one client. owners: whether copies get the owners of their sources, or are the client's own."""

    def __init__(
        self,
        client: Compounds,
        offloads: Offloads,
        clock: Callable[[], float] = time.monotonic,
        *,
        owners: bool = True,
    ) -> None:
        self.client = client
        self.offloads = offloads
        self.clock = clock
        self._owner = os.urandom(8)
        self._owners = owners
        self.pace = Pace(clock)

    @property
    def largest_small(self) -> int:
        """Return the size up to which files are copied many at a time."""
        return min(self.client.data_bytes, _LARGEST_SMALL)

    # --- many small files -----------------------------------------------------------------------------------------

    def copy_small(self, jobs: Sequence[Job], should_stop: ShouldStop) -> Iterator[bool]:
        """Yield for each file, in their order, whether it was copied (False = it is gone), until should_stop.

        Every file has at most `largest_small` bytes. One that changes meanwhile is copied three times at most. At least
        one is copied. Raises NfsError.
        """
        done = 0
        while CLONE not in self.offloads.refused and done < len(jobs):
            part = jobs[done : done + max(1, self.pace.operations // _OF_CLONE)]
            yield from self._cloned(part)
            done += len(part)
            if should_stop():
                return
        if done < len(jobs):
            yield from self._read_and_written(jobs[done:], should_stop)

    def _cloned(self, jobs: Sequence[Job]) -> Iterator[bool]:
        """Copy by CLONE, as far as the server does it; the rest by READ and WRITE."""
        replies = several(self.client, [self._clone(job) for job in jobs], self.pace)
        for job, reply in zip(jobs, replies, strict=True):
            failed = reply.results[-1].operation if reply.results else None
            if not reply.status:
                self.offloads.cloned |= bool(job.attributes[SIZE])
                after = reply.results[-1].value
                same = all(after.get(key) == job.attributes.get(key) for key in _STABLE)
                yield same or self._copied_whole(job)
                continue
            self._close(job, reply)
            if failed is CLONE and reply.status in _NEVER:
                self.offloads.refused.add(CLONE)
            if failed in {CLONE, OPEN} and reply.status in _NEVER | _NOT_THIS | {Status.EXIST}:
                yield from self._read_and_written([job], _always)
            elif reply.status in GONE and failed in {PUTFH, GETATTR, CLONE}:
                self._remove(job)
                yield False
            else:
                raise _failure(job, reply)

    def _clone(self, job: Job) -> list[Request]:
        share = [CLONE(ANONYMOUS, ANONYMOUS, 0, 0, 0)] if job.attributes[SIZE] else []
        return [
            PUTFH(job.source),
            SAVEFH(),
            PUTFH(job.directory),
            self._create(job, job.attributes),
            *share,
            SETATTR(ANONYMOUS, final_attributes(job.attributes, owners=self._owners)),
            CLOSE(0, _CURRENT),
            PUTFH(job.source),
            GETATTR(_AFTER),
        ]

    def _read_and_written(self, jobs: Sequence[Job], should_stop: ShouldStop) -> Iterator[bool]:
        """Read a part of the files while the part before it is written."""
        left = iter(jobs)
        average = 1 + sum(job.attributes[SIZE] for job in jobs) // len(jobs)
        waiting: list[_Read] = []
        while True:
            most = max(1, min(self.pace.operations // _OF_WRITE, _AT_ONCE * self.client.data_bytes // average))
            part = [] if waiting and should_stop() else list(islice(left, most))
            writes = [self._write(read) for read in waiting if read.attributes is not None]
            replies = several(self.client, [*writes, *map(self._read, part)], self.pace)
            answers = iter(replies[: len(writes)])
            for read in waiting:
                if read.attributes is None:
                    self._remove(read.job)
                yield read.attributes is not None and self._is_written(read, next(answers))
            waiting = [_read_answer(job, reply) for job, reply in zip(part, replies[len(writes) :], strict=True)]
            if not waiting:
                return

    def _read(self, job: Job) -> list[Request]:
        size = job.attributes[SIZE]
        read = [READ(ANONYMOUS, 0, size)] if size else []
        return [PUTFH(job.source), GETATTR(self.offloads.mask), *read, GETATTR(_AFTER)]

    def _write(self, read: _Read) -> list[Request]:
        job, attributes, data, _ = read
        known = attributes or {}
        fill: list[Request] = []
        if data and known.get(SPACE_USED, len(data)) < len(data) and not data.strip(b"\0"):
            fill = [SETATTR(_CURRENT, {SIZE: len(data)})]
        elif data:
            fill = [WRITE(_CURRENT, 0, _FILE_SYNC, data)]
        end = SETATTR(ANONYMOUS, final_attributes(known, owners=self._owners))
        return [PUTFH(job.directory), self._create(job, known), *fill, end, CLOSE(0, _CURRENT)]

    def _is_written(self, read: _Read, reply: Reply) -> bool:
        job = read.job
        if reply.status == Status.EXIST and reply.results[-1].operation is OPEN:
            self._remove(job)
            (reply,) = self.client.pipeline([self._write(read)])
        if reply.status:
            self._close(job, reply)
            raise _failure(job, reply)
        written = [each.value.count for each in reply.results if each.operation is WRITE]
        if written and sum(written) < len(read.data):
            return self._copied_whole(job)  # the server takes less at once
        return read.same or self._copied_whole(job)

    def _copied_whole(self, job: Job) -> bool:
        """Copy a file that changed meanwhile; False = it is gone."""
        return self.copy_large(job, 0, 0, lambda: False) is not None

    def _create(self, job: Job, attributes: Attributes) -> Request:
        how = (1, (_GUARDED, {MODE: NEW_MODE, **(owners_of(attributes) if self._owners else {})}))
        return OPEN(0, _WRITE_ONLY | _NO_DELEGATION, 0, (0, self._owner), how, (0, job.name))

    def _close(self, job: Job, reply: Reply) -> None:
        """Close a file that operations behind OPEN left open."""
        opened = next((each for each in reply.results if each.operation is OPEN and not each.status), None)
        if opened is not None and not any(each.operation is CLOSE and not each.status for each in reply.results):
            self.client.pipeline([[PUTFH(job.directory), LOOKUP(job.name), CLOSE(0, opened.value.stateid)]])

    def _remove(self, job: Job) -> None:
        (reply,) = self.client.pipeline([[PUTFH(job.directory), REMOVE(job.name)]])
        if reply.status not in MISSING:
            values_of(reply)

    # --- one large file -------------------------------------------------------------------------------------------

    def copy_large(self, job: Job, offset: int, changed: int, should_stop: ShouldStop) -> tuple[int, int] | None:
        """Copy a file of any size, or a part of it. Returns how far it is done, and when it was changed before its
        first byte was copied (`changed_at`); (-1, 0) = it is whole; None = it is gone.

        offset, changed: of the part before, else 0. A file that changes while it is copied in one part is copied three
        times at most. One of several parts is copied once, and then has another time of modification than its source.
        Raises NfsError.
        """
        for _ in range(_ATTEMPTS):
            (reply,) = self.client.pipeline([[PUTFH(job.source), GETATTR(self.offloads.mask)]])
            if reply.status in GONE:
                self._remove(job)
                return None
            attributes = require_known(values_of(reply)[-1])
            target = self._target(job) if offset else None
            if target is None:
                target, offset, changed = self._new_target(job, attributes), 0, changed_at(attributes)
            begun, size = offset, int(attributes[SIZE])
            offset = self._filled(job, target, offset, attributes, should_stop)
            if offset < size:
                return offset, changed
            if begun and changed != changed_at(attributes):
                attributes = {**attributes, TIME_MODIFY: (changed // 10**9, changed % 10**9)}
            (reply,) = self.client.pipeline(
                [
                    [
                        PUTFH(target),
                        SETATTR(ANONYMOUS, {SIZE: size}),
                        SETATTR(ANONYMOUS, final_attributes(attributes, owners=self._owners)),
                        PUTFH(job.source),
                        GETATTR(_AFTER),
                    ]
                ]
            )
            if reply.status not in GONE:
                after = values_of(reply)[-1]
                if begun or should_stop() or all(after.get(key) == attributes.get(key) for key in _STABLE):
                    break
            offset = 0
        return -1, 0

    def _filled(self, job: Job, target: bytes, offset: int, attributes: Attributes, should_stop: ShouldStop) -> int:
        """Copy the contents from an offset on, until should_stop; how far it came: all that is on the server's disk."""
        size = int(attributes[SIZE])
        while offset < size:
            reached = _Part(self, job, target, size, sparse=_is_sparse(attributes)).copy(offset, should_stop)
            offset = offset if reached is None else reached
            if reached is not None and should_stop():
                break
        return offset

    def _target(self, job: Job) -> bytes | None:
        """Return the handle of the file that an earlier part was copied into, if it is still there."""
        (reply,) = self.client.pipeline([[PUTFH(job.directory), LOOKUP(job.name), GETFH()]])
        return None if reply.status in MISSING else bytes(values_of(reply)[-1])

    def _new_target(self, job: Job, attributes: Attributes) -> bytes:
        make = [PUTFH(job.directory), self._create(job, attributes), CLOSE(0, _CURRENT), GETFH()]
        (reply,) = self.client.pipeline([make])
        if reply.status == Status.EXIST and reply.results[-1].operation is OPEN:
            self._remove(job)
            (reply,) = self.client.pipeline([make])
        if reply.status:
            self._close(job, reply)
            raise _failure(job, reply)
        target = bytes(reply.results[-1].value)
        for name, value in job.xattrs:
            self.client.compound(PUTFH(target), SETXATTR(0, name, value))
        return target


class _Part:
    """A part of a file that is copied in one go and committed at its end."""

    def __init__(self, copier: FileCopier, job: Job, target: bytes, size: int, *, sparse: bool) -> None:
        self._client = copier.client
        self._offloads = copier.offloads
        self._clock = copier.clock
        self._pace = copier.pace
        self._job = job
        self._target = target
        self._size = size
        self._sparse = sparse
        self._verifiers: set[bytes] = set()

    def copy(self, offset: int, should_stop: ShouldStop) -> int | None:
        """Copy until should_stop; the offset up to which everything is on the server's disk. None = the server was
        restarted, and may have lost what it had not written.
        """
        steps: list[tuple[Operation, Callable[[int], int | None]]] = [(CLONE, self._clone), (COPY, self._copy)]
        for operation, step in steps:
            while offset < self._size and operation not in self._offloads.refused:
                reached = step(offset)
                if reached is None:
                    break
                offset = reached
                if should_stop():
                    return self._committed(offset)
        if offset < self._size:
            offset = self._read_and_write(offset, should_stop)
        return self._committed(offset)

    def _committed(self, offset: int) -> int | None:
        if self._verifiers:
            self._verifiers.add(bytes(self._client.compound(PUTFH(self._target), COMMIT(0, 0))[1]))
        return offset if len(self._verifiers) <= 1 else None

    def _note(self, committed: int, verifier: bytes) -> None:
        if committed != _FILE_SYNC:
            self._verifiers.add(bytes(verifier))

    def _offloaded(self, request: Request) -> Reply | None:
        """Do CLONE or COPY; None if the server does not do it with this file."""
        (reply,) = self._client.pipeline([[PUTFH(self._job.source), SAVEFH(), PUTFH(self._target), request]])
        if reply.status and reply.results[-1].operation.number == request.operation.number:
            if reply.status in _NEVER:
                self._offloads.refused.add(request.operation)
            if reply.status in _NEVER | _NOT_THIS:
                return None
        if reply.status:
            raise _failure(self._job, reply)
        return reply

    def _clone(self, offset: int) -> int | None:
        last = offset + _CLONED >= self._size
        reply = self._offloaded(CLONE(ANONYMOUS, ANONYMOUS, offset, offset, 0 if last else _CLONED))
        if reply is None:
            return None
        self._offloads.cloned = True
        return self._size if last else offset + _CLONED

    def _copy(self, offset: int) -> int | None:
        start, end = self._data(offset)
        if start >= self._size:
            return self._size
        count = min(end - start, self._offloads.pieces)
        begun = self._clock()
        reply = self._offloaded(COPY(ANONYMOUS, ANONYMOUS, start, start, count, True, True, []))
        if reply is None:
            return None
        copied = reply.results[-1].value
        if copied.callbacks or not 0 < copied.count <= count:
            self._offloads.refused.add(COPY)  # it would be done later, or the file is shorter now
            return None
        took = self._clock() - begun
        if took > _LONG:
            self._offloads.pieces = max(1 << 20, int(copied.count * _LONG / (2 * took)))
        elif took < _LONG / 2:
            self._offloads.pieces = min(_MOST_COPY, 2 * self._offloads.pieces)
        self._note(copied.committed, copied.verifier)
        return int(start + copied.count)

    def _data(self, offset: int) -> tuple[int, int]:
        """Return begin and end of the next data behind an offset; holes are left out if the server tells them.

        NFS-Ganesha 4.3 answers every SEEK with 0: a server that answers so is not asked again.
        """
        if self._sparse and SEEK not in self._offloads.refused:
            start = self._sought(offset, _DATA)
            end = self._size if start == self._size else None if start is None else self._sought(start, _HOLE)
            if start is not None and end is not None and offset <= start and (start < end or start == self._size):
                return start, end
            self._offloads.refused.add(SEEK)
        return offset, self._size

    def _sought(self, offset: int, what: int) -> int | None:
        """Return where the next data or hole begins, at most the size; None = the server does not tell."""
        (reply,) = self._client.pipeline([[PUTFH(self._job.source), SEEK(ANONYMOUS, offset, what)]])
        if reply.status == Status.NXIO:
            return self._size
        if reply.status in _NEVER | _NOT_THIS:
            return None
        if reply.status:
            raise _failure(self._job, reply)
        found = reply.results[-1].value
        return self._size if found.eof and what == _DATA else min(self._size, int(found.offset))

    def _parts(self, offset: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of what is read at once."""
        most = self._client.data_bytes
        while offset < self._size:
            start, end = self._data(offset)
            for at in range(start, end, most):
                yield at, min(end, at + most)
            offset = end

    def _read_and_write(self, offset: int, should_stop: ShouldStop) -> int:
        """Read here and write back, each part while the one before it is written; how far it came."""
        parts = self._parts(offset)
        reads: list[tuple[int, int]] = []
        writes: list[tuple[int, bytes]] = []
        begun, through, late = offset, False, False
        while True:
            late = late or (offset > begun and should_stop())
            if not reads and not late and not through:
                reads = list(islice(parts, max(1, min(_AT_ONCE, self._pace.operations // _WEIGHT))))
                through = not reads
            if not reads and not writes:
                return self._size if through else offset
            sent = [[PUTFH(self._target), WRITE(ANONYMOUS, at, _UNSTABLE, data)] for at, data in writes]
            asked = [[PUTFH(self._job.source), READ(ANONYMOUS, at, end - at)] for at, end in reads]
            replies = several(self._client, [*sent, *asked], self._pace)
            offset = max([offset, *(end for _, end in reads)])
            left = [self._rest(*write, reply) for write, reply in zip(writes, replies, strict=False)]
            found = [self._answer(*read, reply) for read, reply in zip(reads, replies[len(sent) :], strict=True)]
            writes = [write for write in left if write[1]]
            for (at, data), _ in found:
                writes += _filled_parts(at, data) if self._sparse else [(at, data)] if data else []
            reads = [rest for _, rest in found if rest[0] < rest[1]]

    def _rest(self, at: int, data: bytes, reply: Reply) -> tuple[int, bytes]:
        """Return what is left of a WRITE."""
        if reply.status:
            raise _failure(self._job, reply)
        written = reply.results[-1].value
        if not 0 < written.count <= len(data):
            raise NfsError(Status.IO, f"WRITE of {_text(self._job)}", 1)
        self._note(written.committed, written.verifier)
        return at + written.count, data[written.count :]

    def _answer(self, at: int, end: int, reply: Reply) -> tuple[tuple[int, bytes], tuple[int, int]]:
        """Return what is to be written of a READ, and what is left of it."""
        if reply.status:
            raise _failure(self._job, reply)
        answer = reply.results[-1].value
        data = answer.data[: end - at]
        following = end if answer.eof or not data else at + len(data)
        return (at, data), (following, end)


def _filled_parts(at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of data that are not pages of zeros."""
    start = 0
    for page in range(0, len(data) + _PAGE, _PAGE):
        block = data[page : page + _PAGE]
        if not block.strip(b"\0"):
            if start < page:
                yield at + start, data[start:page]
            start = page + _PAGE


def _read_answer(job: Job, reply: Reply) -> _Read:
    if reply.status in GONE:
        return _Read(job, None, b"", True)
    if reply.status:
        raise _failure(job, reply)
    before, after = require_known(reply.results[1].value), reply.results[-1].value
    data = reply.results[2].value.data if job.attributes[SIZE] else b""
    same = len(data) == before[SIZE] and all(before.get(key) == after.get(key) for key in _STABLE)
    return _Read(job, before, data, same)


def copied_mode(attributes: Attributes, *, owners: bool) -> int:
    """Return the mode of a file's copy.

    owners: it has the owner of its source; else it is the driver's own, and runs as nobody but its caller.
    """
    mode: int = attributes[MODE]
    return mode if owners else mode & ~_SET_ID


def final_attributes(attributes: Attributes, *, owners: bool = True) -> dict[int, Any]:
    """Return what is set last: a copy with these is finished."""
    wanted: dict[int, Any] = {MODE: copied_mode(attributes, owners=owners)}
    if any(who not in {b"OWNER@", b"GROUP@", b"EVERYONE@"} for *_, who in attributes.get(ACL, ())):
        wanted[ACL] = attributes[ACL]
    wanted[TIME_MODIFY_SET] = (1, attributes[TIME_MODIFY])
    return wanted


def require_known(attributes: Attributes) -> Attributes:
    """Return attributes with which an entry can be copied. Raises TransportError if the server does not tell them."""
    unknown = [number for number in _NEEDED if number not in attributes]
    if unknown:
        raise TransportError(
            f"the server does not tell attribute {unknown[0]} of its files, without which none is copied"
        )
    return attributes


def owners_of(attributes: Attributes) -> dict[int, Any]:
    """Return owner and group, to be set before the mode: a server clears set-id bits when they change."""
    return {key: attributes[key] for key in (OWNER, OWNER_GROUP) if key in attributes}


def changed_at(attributes: Attributes) -> int:
    """Return when an entry was last changed in any way, by the server's clock, in nanoseconds."""
    seconds, nanoseconds = attributes[TIME_METADATA]
    return int(seconds * 10**9 + nanoseconds)


def _is_sparse(attributes: Attributes) -> bool:
    return int(attributes.get(SPACE_USED, attributes[SIZE])) + _HOLE_BYTES <= int(attributes[SIZE])


def _failure(job: Job, reply: Reply) -> NfsError:
    operation = reply.results[-1].operation.name if reply.results else "COMPOUND"
    return NfsError(reply.status, f"{operation} of {_text(job)}", max(0, len(reply.results) - 1))


def _text(job: Job) -> str:
    return repr(job.name.decode(errors="backslashreplace"))


def _always() -> bool:
    return True
