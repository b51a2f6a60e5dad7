"""Archives whose time is over, removed in the order of their times, as the driver's probes have time for it.

The name of an archive ends with its time, so that its marker is read only when it seems to be due. Archives of earlier
versions are read once, and get such names.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import Final

from volplane.directory import CONTROL, CorruptMarker, decode_fields, expires_at, named_until, renamed_until
from volplane_nfs.archive import DATA, MARKER
from volplane_nfs.delete import SLICE, empty_trash
from volplane_nfs.errors import printable
from volplane_nfs.nfs4 import NfsError, values_of
from volplane_nfs.nfs4.files import MISSING, NO_SPACE, directory_handle, entries, rename, several
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, READLINK, REMOVE, Entry
from volplane_nfs.share import Handles, Share
from volplane_nfs.tree_removal import TreeRemoval
from volplane_nfs.volumes import read_fields

MOST_AT_ONCE = 1000
"""Archives that one call removes, at most."""
_PART: Final = 500
_LOOK_AGAIN: Final = 3600.0
"""Seconds after which archives are listed again, for those that others made."""


class Expiry:
    """The archives of a share that are due. Each call of `work` goes on where the one before it ended."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._listing: Iterator[Entry] | None = None
        self._due: list[tuple[float, bytes]] = []
        self._lock = threading.Lock()

    def work(self, handles: Handles, log: logging.Logger, deadline: float) -> None:
        """Find what is due, then remove it, that with the earliest time first. deadline: monotonic.

        Nothing if another thread is about it.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._work(handles, log, deadline)
            finally:
                self._lock.release()

    def _work(self, handles: Handles, log: logging.Logger, deadline: float) -> None:
        share = self._share
        if self._listing is None and not self._due and share.archives_due <= time.time():
            share.archives_due = time.time() + _LOOK_AGAIN
            self._listing = entries(share.client, handles.archive)
        while self._listing is not None:
            try:
                part = [entry.name for entry in islice(self._listing, _PART)]
                self._look(handles, part, log)
            except BaseException:
                self._listing, self._due, share.archives_due = None, [], 0.0
                raise
            if len(part) < _PART:
                self._listing = None
                self._due.sort()
            elif time.monotonic() >= deadline:
                return
        for _ in range(min(MOST_AT_ONCE, len(self._due))):
            if time.monotonic() >= deadline:
                return
            name = self._due.pop(0)[1]
            with share.skipping(log, f"archive/{printable(name)}"):
                self._remove(handles, name)

    def _look(self, handles: Handles, names: list[bytes], log: logging.Logger) -> None:
        client = self._share.client
        unknown: list[bytes] = []
        for name in names:
            known, until = named_until(os.fsdecode(name))
            if known:
                self._remember(name, until)
            else:
                unknown.append(name)
        reads = [[PUTFH(handles.archive), LOOKUP(name), LOOKUP(MARKER), READLINK()] for name in unknown]
        for name, reply in zip(unknown, several(client, reads), strict=True):
            try:
                until = expires_at(decode_fields(values_of(reply)[-1]))
            except (CorruptMarker, NfsError) as error:
                label = f"{self._share}/{CONTROL}/archive/{printable(name)}"
                self._share.reports.warn(log, label, f"it is no archive: {error}")
            else:
                self._remember(self._renamed(handles, name, until), until)

    def _renamed(self, handles: Handles, name: bytes, until: float | None) -> bytes:
        """Give an archive the name that tells its time; the name that it has now."""
        new = os.fsencode(renamed_until(os.fsdecode(name), until))
        if new == name:
            return name
        (reply,) = self._share.client.pipeline([rename(handles.archive, name, handles.archive, new)])
        return name if reply.status else new

    def _remember(self, name: bytes, until: float | None) -> None:
        if until is not None and until <= time.time():
            self._due.append((until, name))
        elif until is not None:
            self._share.archives_due = min(self._share.archives_due, until)

    def _remove(self, handles: Handles, name: bytes) -> None:
        share = self._share
        container = directory_handle(share.client, handles.archive, (name,))
        fields = None if container is None else read_fields(share, container, MARKER)
        if container is None:
            return
        if fields is None:
            (reply,) = share.client.pipeline([[PUTFH(handles.archive), REMOVE(name)]])
            if reply.status not in {0, *MISSING}:
                raise CorruptMarker("it has no marker, so it is kept: a person has to remove it")
            return
        until = expires_at(fields)
        if until is None or until > time.time():
            self._remember(self._renamed(handles, name, until), until)
            return
        # Not the volume's: another one of that name may live, whose trash this is not.
        key = f"expired-{secrets.token_hex(8)}".encode()
        (reply,) = share.client.pipeline([rename(handles.archive, name, handles.trash, key)])
        if reply.status in NO_SPACE:
            self._remove_in_place(handles, name, container)
        elif reply.status not in MISSING:
            values_of(reply)
        empty_trash(share, handles, key, printable(name))

    def _remove_in_place(self, handles: Handles, name: bytes, container: bytes) -> None:
        client = self._share.client
        data = directory_handle(client, container, (DATA,))
        deadline = time.monotonic() + SLICE
        if data is not None and not TreeRemoval(client, data, label=printable(name), deadline=deadline).clear():
            self._due.insert(0, (0.0, name))
            return
        # The marker goes last: without it nobody would know when the rest may go.
        (reply,) = client.pipeline([[PUTFH(container), REMOVE(DATA)]])
        if reply.status not in MISSING:
            values_of(reply)
        client.pipeline([[PUTFH(container), REMOVE(MARKER), PUTFH(handles.archive), REMOVE(name)]])
