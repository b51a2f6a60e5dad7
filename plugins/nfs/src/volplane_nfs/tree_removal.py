"""Removal of directory trees that a hostile client may have made and may still change.

A directory that is not empty is renamed to the top of the tree and emptied there. So nothing is ever deeper than two
levels: memory is flat for any width and depth, everything that is still to be done is in one listing, and a removal
goes on after a crash as if nothing had happened. Directories are named by handles, no link is followed, and a rename
never leads into another file system. Names are removed without a look at what they are: REMOVE takes files, links and
empty directories, and refuses the others.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from volplane import BackendError, PermissionDenied, VolumeInUse
from volplane_nfs.nfs4 import Compounds, NfsError, Status, done, name_of_status, values_of
from volplane_nfs.nfs4.attributes import MODE
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
from volplane_nfs.nfs4.operations import GETFH, LOOKUP, PUTFH, REMOVE, RENAME, SAVEFH, SETATTR, Reply, Request

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
_LOST_PLACE: Final = frozenset({Status.BAD_COOKIE, Status.NOT_SAME})
_Work = tuple[bytes, bytes]
"""A directory's handle and a name in it."""


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
            while stubborn:
                part = stubborn[: min(_DIRECTORIES, 1 + self._pace.operations // 8)]
                if not self._empty_several([name for _, name in part]):
                    return False
                del stubborn[: len(part)]
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

    def _empty_several(self, names: list[bytes]) -> bool:
        """Empty directories at the top, a page of each at a time, and remove them; False = the time is up."""
        passed, left, places = 0, names, dict.fromkeys(names, _START)
        while left:
            before = self.removed
            reads = [[PUTFH(self._top), LOOKUP(name), GETFH(), read_page(*places[name], 0)] for name in left]
            replies = self._pace.run(self._client, reads)
            work: list[_Work] = []
            through: list[bytes] = []
            more: dict[bytes, _Place] = {}
            for name, reply in zip(left, replies, strict=True):
                self._take_page(name, reply, work, through, more)
            for handle, name in self._remove(work):
                self._hoist(handle, name)
            full = [name for _, name in self._remove([(self._top, name) for name in through])]
            left = [*more, *full]
            if self._late():
                return False
            if self.removed == before:
                # Nothing of these pages can be removed, but what is behind them may be.
                self._stuck.update(full if passed < _MOST_PASSED else left)
                passed, left, places = passed + 1, list(more) if passed < _MOST_PASSED else [], more
        return True

    def _take_page(
        self, name: bytes, reply: Reply, work: list[_Work], through: list[bytes], more: dict[bytes, _Place]
    ) -> None:
        """Sort a directory: its entries to `work`; its name to `through` if these are all, else to `more`, with the
        place behind them.
        """
        if reply.status in _GONE:
            return
        if reply.status in _NO_DIRECTORY | _LOST_PLACE:
            through.append(name)
            return
        if reply.status in _DENIED:
            if self._granted(self._top, name):
                more[name] = _START
            else:
                self._stuck.add(name)
                self._note(name, reply.status)
            return
        values = values_of(reply)
        work += [(values[-2], entry.name) for entry in values[-1].entries]
        if values[-1].eof or not values[-1].entries:
            through.append(name)
        else:
            more[name] = _behind(values[-1])

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
                    rest
                    for batch, reply in zip(pending, replies, strict=True)
                    if (rest := self._left(batch, reply, stubborn))
                ]
        return stubborn

    def _left(self, batch: list[_Work], reply: Reply, stubborn: list[_Work]) -> list[_Work]:
        """Return what of a batch is still to be done after this answer."""
        count = sum(result.operation is REMOVE and not result.status for result in reply.results)
        self.removed += count
        if not reply.status:
            return []
        failed = reply.results[-1].operation if reply.results else None
        if failed is REMOVE and reply.status in FULL:
            stubborn.append(batch[count])
        elif failed is REMOVE and reply.status in _GONE:
            pass  # another call did it
        elif failed is PUTFH and reply.status == Status.STALE:
            pass  # its directory is gone, and with it the entry
        elif failed is REMOVE and reply.status in _DENIED:
            if self._granted(batch[count][0]):
                return batch[count:]
            self._note(batch[count][1], reply.status)
        else:
            raise NfsError(reply.status, failed.name if failed is not None else "COMPOUND", done(reply))
        return batch[count + 1 :]

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
