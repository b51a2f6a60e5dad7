"""Removal of directory trees that a hostile client may have made and may still change.

A directory that is not empty is emptied where it is if it holds no others, else renamed to the top of the tree and
emptied there. So nothing that is still to be done is deeper than three levels: memory is flat for any width and depth,
and a removal goes on after a crash as if nothing had happened. Directories are named by handles, no link is followed,
and what is of another file system or export is neither entered nor renamed. Names are removed without a look at what
they are: REMOVE takes files, links and empty directories, and refuses the others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from volplane import BackendError, PermissionDenied, VolumeInUse
from volplane_nfs.nfs4 import Compounds, NfsError, Status, done, name_of_status, values_of
from volplane_nfs.nfs4.attributes import FILEID, FSID, MODE, MOUNTED_ON_FILEID, mask_of
from volplane_nfs.nfs4.files import (
    ANONYMOUS,
    FULL,
    NO_SPACE,
    Pace,
    batches,
    directory_handle,
    page_of_names,
    read_page,
    walk,
)
from volplane_nfs.nfs4.operations import GETATTR, GETFH, LOOKUP, PUTFH, REMOVE, RENAME, SAVEFH, SETATTR, Reply, Request

_AT_ONCE: Final = 8
"""COMPOUNDs that are sent before the first is answered."""
_DIRECTORIES: Final = 32
"""Directories that are read together, at most."""
_BATCH: Final = 40
_MOST_GIVEN: Final = 10_000
_MAXIMUM_IDLE: Final = 8
"""Listings in a row of which nothing could be removed."""
_MOST_PASSED: Final = 16
"""Pages of a listing that are passed because nothing of them could be removed: a server may list without end."""
_GONE: Final = frozenset({Status.NOENT})
_DENIED: Final = frozenset({Status.PERM, Status.ACCESS})
_NO_DIRECTORY: Final = frozenset({Status.NOTDIR, Status.SYMLINK, Status.WRONG_TYPE})
_Place = tuple[int, bytes]
"""In the listing of a directory: cookie and verifier of READDIR."""
_START: Final[_Place] = (0, bytes(8))
_IDENTITY: Final = mask_of(FSID, FILEID, MOUNTED_ON_FILEID)
_LOST_PLACE: Final = frozenset({Status.BAD_COOKIE, Status.NOT_SAME})
_Work = tuple[bytes, bytes]
"""A directory's handle and a name in it."""


@dataclass(frozen=True, slots=True)
class _Pages:
    """What a page of each of some directories says, each directory by the handle of its parent and its name."""

    entries: list[_Work] = field(default_factory=list)
    whole: list[_Work] = field(default_factory=list)
    """Directories of which that is all."""
    more: dict[_Work, _Place] = field(default_factory=dict)
    """The others, with the place behind their page."""
    refused: list[_Work] = field(default_factory=list)
    """Those that may not be read or are mounted."""


class TreeRemoval:
    """Empties directories. top: handle of the directory that takes up those that are not empty; the caller removes it.

    deadline: monotonic time after which a call returns unfinished. label: for messages.
    """

    def __init__(
        self,
        client: Compounds,
        top: bytes,
        *,
        label: str,
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._top = top
        self._label = label
        self._deadline = deadline
        self._clock = clock
        self._pace = Pace(clock)
        self.removed = 0
        """How many entries, and directories that were moved to the top."""
        self._stuck: set[bytes] = set()
        """Directories at the top from which nothing more can be removed."""
        self._given: set[tuple[bytes, ...]] = set()
        self._file_system: tuple[int, int] | tuple[()] | None = None
        """FSID of the top; () = the server does not tell, None = not read yet."""
        self._problem: BackendError = VolumeInUse(f"something in {label} cannot be removed; it is tried again")

    def clear(self) -> bool:
        """Remove everything at the top; False = the time is up.

        What cannot be removed keeps nothing else: then `VolumeInUse` or `PermissionDenied` names the last such entry.
        """
        idle, passed, place = 0, 0, _START
        while True:
            (reply,) = self._client.pipeline([[PUTFH(self._top), read_page(*place, 0)]])
            if place != _START and reply.status in _LOST_PLACE:
                idle, place = idle + 1, _START
                continue
            page = values_of(reply)[-1]
            if not page.entries and place == _START:
                return True
            before = self.removed
            names = [entry.name for entry in page.entries if entry.name not in self._stuck]
            stubborn = self._remove([(self._top, name) for name in names])
            for part in self._parts(stubborn):
                left = self._empty(part, in_place=True)
                if left is None:
                    return False
                self._stuck.update(name for _, name in left)
            if self._late():
                return False
            if self.removed > before:
                idle = passed = 0
            elif page.entries and not page.eof and passed < _MOST_PASSED:
                # Nothing of this page can be removed, but what is behind it may be.
                passed, place = passed + 1, _behind(page)
            else:
                # Another call may remove the same entries.
                idle, place = _MAXIMUM_IDLE if passed >= _MOST_PASSED else idle + 1, _START
            if idle >= _MAXIMUM_IDLE:
                raise self._problem

    def _parts(self, directories: list[_Work]) -> Iterator[list[_Work]]:
        """Yield as many directories at a time as the server's pace allows to read."""
        while directories:
            count = min(_DIRECTORIES, 1 + self._pace.operations // 8)
            yield directories[:count]
            directories = directories[count:]

    def _empty(self, directories: list[_Work], *, in_place: bool) -> list[_Work] | None:
        """Empty directories, a page of each at a time, and remove them; returns those that cannot be, None = the time
        is up.

        in_place: directories in them are first emptied where they are; those that hold others move to the top.
        """
        passed, left, places, kept = 0, directories, dict.fromkeys(directories, _START), list[_Work]()
        while left:
            before = self.removed
            reads = [_reading(*directory, places[directory]) for directory in left]
            replies = self._pace.run(self._client, reads)
            pages = _Pages()
            for directory, reply in zip(left, replies, strict=True):
                self._take_page(directory, reply, pages)
            kept += pages.refused
            for part in batches(pages.entries, _BATCH * _AT_ONCE):
                # Not all before the first is emptied: what was only tried is lost when the time is up.
                if not self._clear_deeper(self._remove(part), in_place=in_place):
                    return None
            full = self._remove(pages.whole)
            left = [*pages.more, *full]
            if self._late():
                return None
            if self.removed == before:
                # Nothing of these pages can be removed, but what is behind them may be.
                kept += full if passed < _MOST_PASSED else left
                passed, left, places = passed + 1, list(pages.more) if passed < _MOST_PASSED else [], pages.more
        return kept

    def _clear_deeper(self, directories: list[_Work], *, in_place: bool) -> bool:
        """Empty these if they are leaves, which takes no rename, and move the others to the top; False = the time is
        up.
        """
        for part in self._parts(directories):
            left = self._empty(part, in_place=False) if in_place else part
            if left is None:
                return False
            for directory, name in left:
                self._hoist(directory, name)
        return True

    def _take_page(self, directory: _Work, reply: Reply, pages: _Pages) -> None:
        if reply.status in _GONE | {Status.STALE}:
            return
        if reply.status in _NO_DIRECTORY | _LOST_PLACE:
            pages.whole.append(directory)
            return
        if reply.status in _DENIED:
            if self._granted(*directory):
                pages.more[directory] = _START
            else:
                pages.refused.append(directory)
                self._note(directory[1], reply.status)
            return
        values = values_of(reply) if reply.status != Status.XDEV else None
        if values is None or self._is_mounted(values[2]):
            pages.refused.append(directory)
            self._note(directory[1], Status.XDEV)
            return
        pages.entries.extend((values[3], entry.name) for entry in values[4].entries)
        if values[4].eof or not values[4].entries:
            pages.whole.append(directory)
        else:
            pages.more[directory] = _behind(values[4])

    def _is_mounted(self, attributes: Mapping[int, Any]) -> bool:
        """Return whether a directory is of another file system or export than the top (RFC 8881, section 5.8.2.19)."""
        if self._file_system is None:
            (reply,) = self._client.pipeline([[PUTFH(self._top), GETATTR(_IDENTITY)]])
            self._file_system = values_of(reply)[1].get(FSID, ())
        here = attributes.get(FILEID)
        mounted_on = attributes.get(MOUNTED_ON_FILEID, here)
        return bool(attributes.get(FSID, ()) != self._file_system or mounted_on != here)

    def _remove(self, work: Sequence[_Work]) -> list[_Work]:
        """Remove entries until the time is up; directories with something in them are returned."""
        stubborn: list[_Work] = []
        size = max(1, min(_BATCH, (self._client.operations - 1) // 2))
        start = 0
        while start < len(work) and (not start or not self._late()):
            part = work[start : start + min(self._pace.operations, size * _AT_ONCE)]
            start += len(part)
            pending = [list(batch) for batch in batches(part, size)]
            while pending:
                replies = self._pace.run(self._client, [_removals(batch) for batch in pending])
                pending = [
                    list(rest)
                    for batch, reply in zip(pending, replies, strict=True)
                    for rest in self._left(batch, reply, stubborn)
                ]
        return stubborn

    def _left(self, batch: list[_Work], reply: Reply, stubborn: list[_Work]) -> Iterator[Sequence[_Work]]:
        """Return what of a batch is still to be done after this answer, in parts as long as what could be done.

        Each directory ends its COMPOUND: among directories only, the others would be sent again and again.
        """
        count = sum(result.operation is REMOVE and not result.status for result in reply.results)
        self.removed += count
        if not reply.status:
            return iter(())
        failed, size = reply.results[-1].operation if reply.results else None, max(1, count)
        if failed is REMOVE and reply.status in FULL:
            stubborn.append(batch[count])
        elif failed is REMOVE and reply.status in _GONE:
            pass  # another call did it
        elif failed is PUTFH and reply.status == Status.STALE:
            pass  # its directory is gone, and with it the entry
        elif failed is REMOVE and reply.status in _DENIED:
            if self._granted(batch[count][0]):
                return batches(batch[count:], size)
            self._note(batch[count][1], reply.status)
        else:
            raise NfsError(reply.status, failed.name if failed is not None else "COMPOUND", done(reply))
        return batches(batch[count + 1 :], size)

    def _hoist(self, directory: bytes, name: bytes) -> None:
        """Move a directory that is not empty to the top, if it can be; without space, remove something below it."""
        while not self._moved(directory, name):
            # A mount point is refused before the space is looked at, so this is none: it may be entered.
            found = directory_handle(self._client, directory, (name,))
            before = self.removed
            names = [] if found is None else page_of_names(self._client, found)
            stubborn = [] if found is None else self._remove([(found, each) for each in names])
            if self.removed > before or not stubborn or self._late():
                return
            directory, name = stubborn[0]

    def _moved(self, directory: bytes, name: bytes) -> bool:
        """Move a directory to the top, under a new random name; False: there is no space for that."""
        new = secrets.token_hex(12).encode()
        (reply,) = self._client.pipeline([[PUTFH(directory), SAVEFH(), PUTFH(self._top), RENAME(name, new)]])
        if reply.status in NO_SPACE:
            return False
        if reply.status in _DENIED and self._granted(directory, name):
            return self._moved(directory, name)
        if reply.status in FULL | _DENIED or reply.status == Status.XDEV:
            self._note(name, reply.status)
            return True
        if reply.status and reply.status not in _GONE:
            values_of(reply)
        self.removed += 1
        return True

    def _granted(self, directory: bytes, *below: bytes) -> bool:
        """Give the owner of a directory, who may be the driver's user, all rights; False: no more can be done."""
        if (directory, *below) in self._given:
            return False
        if len(self._given) >= _MOST_GIVEN:
            self._given.clear()
        self._given.add((directory, *below))
        (reply,) = self._client.pipeline([[*walk(directory, below), SETATTR(ANONYMOUS, {MODE: 0o700})]])
        self.removed += not reply.status
        return not reply.status

    def _note(self, name: bytes, status: int) -> None:
        """Keep why an entry cannot be removed."""
        what = f"{name.decode(errors='backslashreplace')!r} in {self._label} cannot be"
        self._problem = (
            PermissionDenied(
                f"{what} removed: the server does not let the driver's user do it (export the share to this host with "
                "no_root_squash, or to nodes with all_squash to that user), or it is immutable (look with lsattr on "
                "the server, then chattr -i)",
                code=name_of_status(status),
            )
            if status in _DENIED
            else VolumeInUse(f"{what} moved: it is exported, or another file system is mounted there on the server")
        )

    def _late(self) -> bool:
        return self._clock() >= self._deadline


def _reading(parent: bytes, name: bytes, place: _Place) -> list[Request]:
    return [PUTFH(parent), LOOKUP(name), GETATTR(_IDENTITY), GETFH(), read_page(*place, 0)]


def _behind(page: Any) -> _Place:
    """Return the place behind what READDIR has answered."""
    return page.entries[-1].cookie, page.verifier


def _removals(batch: Sequence[_Work]) -> list[Request]:
    """Return the operations that remove a batch: PUTFH only where the directory changes."""
    requests: list[Request] = []
    before: bytes | None = None
    for directory, name in batch:
        if directory != before:
            requests.append(PUTFH(directory))
            before = directory
        requests.append(REMOVE(name))
    return requests
