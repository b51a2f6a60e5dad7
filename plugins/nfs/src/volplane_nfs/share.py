"""A share: how it is marked and opened, and the check that every use of it makes."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from volplane import BackendError, Unavailable
from volplane.directory import CONTROL, CorruptMarker, Reports, decode_fields, encode_fields
from volplane_nfs.errors import LOST_HANDLE, STORAGE_ERRORS, to_backend_error
from volplane_nfs.nfs4 import Compounds, NfsError, OutcomeUnknown, Status, TransportError, values_of
from volplane_nfs.nfs4.files import (
    NotADirectory,
    create_link,
    directory_handle,
    make_directory,
    read_link,
    remove,
    root_handle,
)
from volplane_nfs.nfs4.operations import PUTFH
from volplane_nfs.settings import ShareAddress

_DIRECTORIES: Final = ("volumes", "trash", "parents", "archive", "exports", "tmp")
_OF_COPIES: Final = ("copies", "snapshots")
"""Which a share of an earlier version gets when they are needed: it may be full."""
_ATTEMPTS: Final = 4
_TURN: Final = b"turn"
_TURN_SECONDS: Final = 1.0
_ENDED: Final = 60.0
"""Seconds after which a process is taken for ended whose turn does not end. A turn takes as long as some calls."""
_CONTROL: Final = CONTROL.encode()
_ID_DIGITS: Final = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handles:
    """File handles of a share and of the driver's directories in it."""

    share_id: str
    """Of its marker."""
    root: bytes
    control: bytes
    volumes: bytes
    trash: bytes
    parents: bytes
    archive: bytes
    exports: bytes
    tmp: bytes


class Share:
    """One of the driver's shares."""

    def __init__(self, address: ShareAddress, client: Compounds, *, mark: bool, security: str = "") -> None:
        """mark: whether a share that has no marker may be marked. security: mount option of nodes, "" = none."""
        self.address = address
        self.client = client
        self._security = security
        self._mark = mark
        self._lock = threading.Lock()
        self._handles: Handles | None = None
        self._moves = 0
        """Of the client, when the handles were looked up: at another address the share's id is compared first."""
        self._known_id = ""
        self.reports = Reports()
        self.deletions = 0
        """How many deletions are under way: copies wait for them."""
        self._one = threading.Lock()
        self._turn = secrets.token_hex(8)
        self._turns = itertools.count()
        self._seen = (b"", 0.0)
        """Whose turn it was when another's was in the way, and since when."""
        self.archives_due = 0.0
        """When the archives have to be looked at, Unix time."""

    def __str__(self) -> str:
        return str(self.address)

    def mount_options(self, of_class: Sequence[str]) -> tuple[str, ...]:
        """Return what nodes mount volumes with, beside what their class says."""
        port = self.address.server.port
        secured = any(option.startswith("xprtsec=") for option in of_class)
        return tuple(filter(None, ("" if port == 2049 else f"port={port}", "" if secured else self._security)))

    @property
    def known_id(self) -> str:
        """Return the id that the share had when it was used last, else empty."""
        return self._known_id

    @contextmanager
    def skipping(self, log: logging.Logger, entry: str) -> Iterator[None]:
        """Tell once of what is wrong with an entry below `.volplane`, and go on behind the block."""
        try:
            yield
        except (BackendError, NfsError, NotADirectory, CorruptMarker) as error:
            self.reports.warn(log, f"{self}/{CONTROL}/{entry}", error)

    @contextmanager
    def deleting(self) -> Iterator[None]:
        """Let no copy be made while the block runs."""
        with self._lock:
            self.deletions += 1
        try:
            yield
        finally:
            with self._lock:
                self.deletions -= 1

    @contextmanager
    def alone(self, handles: Handles) -> Iterator[None]:
        """Let no other call, of any process, be in such a block. Raises `Unavailable`, to be repeated.

        The link of a process that ended in one is removed once it was seen unchanged for a while.
        """
        if not self._one.acquire(timeout=_TURN_SECONDS):
            raise Unavailable(f"{self}: other calls have their turn", retry_after=_TURN_SECONDS)
        try:
            self._take_turn(handles)
            try:
                yield
            finally:
                with suppress(NfsError, TransportError):  # The next turn finds its own link.
                    remove(self.client, handles.control, _TURN)
        finally:
            self._one.release()

    def _take_turn(self, handles: Handles) -> None:
        turn = f"{self._turn}.{next(self._turns)}".encode()
        (made,) = self.client.pipeline([[PUTFH(handles.control), create_link(_TURN, turn)]])
        if not made.status:
            return
        if made.status != Status.EXIST:
            values_of(made)
        there, now = read_link(self.client, handles.control, _TURN) or b"", time.monotonic()
        if there.startswith(self._turn.encode()):
            return
        if there != self._seen[0]:
            self._seen = (there, now)
        elif now - self._seen[1] > _ENDED:
            remove(self.client, handles.control, _TURN)
        raise Unavailable(f"{self}: another process has its turn", retry_after=_TURN_SECONDS)

    def work(self, doing: str, step: Callable[[Handles], T]) -> T:
        """Run a step with the handles of the share; every `BackendError` it can lead to is raised as one.

        A step looks at what is there before it changes anything. So it is run again if handles are stale or the outcome
        of a call is unknown.
        """
        try:
            for _ in range(_ATTEMPTS - 1):
                try:
                    return step(self.handles())
                except OutcomeUnknown:
                    continue
                except NfsError as error:
                    if error.status not in LOST_HANDLE:
                        raise
                    self._handles = None
            return step(self.handles())
        except STORAGE_ERRORS as error:
            raise to_backend_error(error, share=str(self), doing=doing) from error

    def handles(self) -> Handles:
        """Open the share, or return what is known. Raises NfsError, TransportError, `Unavailable`."""
        handles, moves = self._handles, self.client.moves
        if handles is not None and moves == self._moves:
            return handles
        opened = self._open()
        with self._lock:
            if self._known_id and opened.share_id != self._known_id:
                raise Unavailable(
                    f"{self} has the id {opened.share_id} and had {self._known_id}: its disk was exchanged, or another "
                    "is mounted on the server; nothing is touched until it is back, or volplane is started again"
                )
            self._known_id = opened.share_id
            self._handles, self._moves = opened, moves
        return opened

    def _open(self) -> Handles:
        try:
            root = root_handle(self.client, self.address.path)
        except NfsError as error:
            if error.status == Status.NOENT:
                raise Unavailable(
                    f"{self} does not exist on the server, or it is not exported to this host; check the option shares "
                    "and the exports"
                ) from error
            raise
        except NotADirectory as error:
            raise Unavailable(f"{self}: {error}") from error
        control = directory_handle(self.client, root, (_CONTROL,))
        content = None if control is None else read_link(self.client, control, b"share")
        if control is None or content is None:
            control, content = self._initialise(root)
        return self._with_directories(root, control, _share_id(content))

    def _initialise(self, root: bytes) -> tuple[bytes, bytes]:
        """Mark the share. Several processes may do it at once: one marker wins, as a link is made in one operation."""
        if not self._mark:
            raise Unavailable(
                f"{self} carries no mark ({CONTROL}/share), and the option mark_shares is false: it is not used; is "
                "its disk mounted on the server?"
            )
        make_directory(self.client, root, _CONTROL, 0o700)
        control = directory_handle(self.client, root, (_CONTROL,))
        if control is None:
            raise Unavailable(f"{self}: {CONTROL} vanished while it was made")
        for name in (*_DIRECTORIES, *_OF_COPIES):
            make_directory(self.client, control, name.encode(), 0o700)
        marker = encode_fields({"share_id": secrets.token_hex(_ID_DIGITS // 2), "created_at": round(time.time(), 3)})
        try:
            self.client.compound(PUTFH(control), create_link(b"share", marker))
        except NfsError as error:
            if error.status != Status.EXIST:
                raise
        content = read_link(self.client, control, b"share")
        if content is None:
            raise Unavailable(f"{self}: its marker vanished while it was made")
        return control, content

    def _with_directories(self, root: bytes, control: bytes, share_id: str) -> Handles:
        found: dict[str, bytes] = {}
        for name in _DIRECTORIES:
            handle = directory_handle(self.client, control, (name.encode(),))
            if handle is None:
                make_directory(self.client, control, name.encode(), 0o700)
                handle = directory_handle(self.client, control, (name.encode(),))
            if handle is None:
                raise Unavailable(f"{self}: {CONTROL}/{name} vanished while it was made")
            found[name] = handle
        return Handles(share_id=share_id, root=root, control=control, **found)


def _share_id(content: bytes) -> str:
    share_id = str(decode_fields(content).get("share_id", ""))
    if len(share_id) != _ID_DIGITS or set(share_id) - set("0123456789abcdef"):
        raise CorruptMarker(f"share_id {share_id!r}")
    return share_id
