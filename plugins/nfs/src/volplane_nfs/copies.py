"""Copies of directories on one share: where they are made, and how they share it with everything else.

<share>/.volplane/copies/<key>/copy    what is copied, and since when, until it is whole
<share>/.volplane/copies/<key>/data    the copy
<share>/.volplane/copies/<key>/links   files with several names, by their numbers

Nobody sees a copy before it is whole and renamed to its place. What is there of it tells how far it is; the hint that
is kept with the claim only saves time. At most one thread works on a copy of a share at once, for half a second at a
time, and not while something is deleted from the share.
"""

from __future__ import annotations

import errno
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from volplane import Context, InProgress, ResourceExhausted, Unavailable, Unsupported
from volplane.directory import (
    CopyCounts,
    CopyParameters,
    CorruptMarker,
    TreeCopy,
    Trees,
    copy_progress,
    encode_fields,
    require_unchanged,
)
from volplane.directory.local_trees import OLD, boot_id
from volplane_nfs.copy_trees import DATA, LINKS, NfsTrees
from volplane_nfs.delete import SLICE, empty_trash
from volplane_nfs.errors import printable
from volplane_nfs.local_copies import LocalShare, local_share
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.attributes import TIME_METADATA, TIME_MODIFY_SET, mask_of
from volplane_nfs.nfs4.copying import Offloads, changed_at
from volplane_nfs.nfs4.files import (
    ANONYMOUS,
    FULL,
    MISSING,
    NO_SPACE,
    Path,
    create_directory,
    create_link,
    directory_handle,
    entries,
    make_directory,
    rename,
)
from volplane_nfs.nfs4.operations import CLONE, GETATTR, GETFH, LOOKUP, PUTFH, REMOVE, SETATTR
from volplane_nfs.share import Handles, Share
from volplane_nfs.space import free_bytes
from volplane_nfs.tree_removal import TreeRemoval
from volplane_nfs.volumes import read_fields

COPIES: Final = b"copies"
COPY: Final = b"copy"
_OLD: Final = OLD.encode()
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_CALL: Final = 5.0
"""Seconds of copying in one call while nothing else waits."""
_BUSY_AGAIN: Final = 1.0
_TELL: Final = 30.0
"""Seconds after which it is logged, and recorded, how far a copy is: a record is a write to the API."""
_RESERVE: Final = 0.05
"""Part of the free space that a copy leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be copied."""

    key: bytes
    """Name of the directory in which it is made."""
    source: bytes
    """Handle of the directory."""
    path: Path
    """Where it is, below the share."""
    made_for: Mapping[str, Any]
    """What the copy is made of and for, as JSON values: one that was begun for something else is begun again."""
    parameters: CopyParameters
    label: str
    """Of the source, for messages."""
    whole: CopyCounts | None = None
    """What is in it, as far as that is known."""


def control_directory(share: Share, handles: Handles, name: bytes, *, make: bool) -> bytes | None:
    """Return the handle of a directory in `.volplane` that earlier versions do not have; None = it is missing."""
    handle = directory_handle(share.client, handles.control, (name,))
    if handle is None and make:
        make_directory(share.client, handles.control, name, 0o700)
        handle = directory_handle(share.client, handles.control, (name,))
    return handle


class Copies:
    """The copies of a share.

    owners: whether the driver's user may give files away. local: where the share is on this machine, "" = elsewhere.
    clock: monotonic seconds.
    """

    def __init__(
        self, share: Share, *, owners: bool, local: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share = share
        self._owners = owners
        self._local = local
        self._clock = clock
        self._offloads = Offloads()
        self._lock = threading.Lock()
        self._others = False
        """Whether another call wanted to copy while this one did."""
        self._running: dict[bytes, TreeCopy[Any]] = {}
        """By their keys, those that this process works on."""
        self._told: dict[bytes, float] = {}

    def work(self, handles: Handles, wanted: Wanted, context: Context, *, check_space: bool) -> CopyCounts | InProgress:
        """Begin a copy, or go on with it; what is in it once it is whole.

        Raises `ResourceExhausted`, `VolumeInUse`, `Unsupported`.
        """
        if self._share.client.minor == 0:
            raise Unsupported(
                f"{self._share}: copies are made by NFSv4.1 or later, through the client that is built in: this is 4.0"
            )
        if not self._lock.acquire(blocking=False):
            self._others = True
            return InProgress(retry_after=_BUSY_AGAIN, state=context.state)
        self._others = False
        try:
            client, source = self._share.client, wanted.source
            with local_share(self._local, handles.share_id, client, source=source, source_path=wanted.path) as local:
                return self._work(handles, wanted, context, local, check_space=check_space)
        except (NfsError, OSError) as error:
            full = error.status in NO_SPACE if isinstance(error, NfsError) else error.errno in _NO_SPACE
            if not full and isinstance(error, OSError):
                text = f"cannot copy {wanted.label} in {self._local} of this machine: {error.strerror or error}"
                raise Unavailable(text, code=errno.errorcode.get(error.errno or 0, "")) from error
            if not full:
                raise
            self.discard(handles, wanted.key)
            raise ResourceExhausted(
                f"{self._share} is full, or a quota on it is used up: what was copied of {wanted.label} is removed",
                scope=str(self._share),
                nothing_done=True,
            ) from error
        finally:
            self._lock.release()

    def _work(
        self, handles: Handles, wanted: Wanted, context: Context, local: LocalShare | None, *, check_space: bool
    ) -> CopyCounts | InProgress:
        if local is None:
            container, since, fresh = self._begun(handles, wanted, check_space=check_space)
            trees = NfsTrees(
                self._share.client,
                self._offloads,
                source=wanted.source,
                container=container,
                trash=handles.trash,
                owners=self._owners,
            )
            return self._filled(handles, wanted, context, trees, since, fresh=fresh)
        # Begun by calls it would be known to the server, and after a crash of this machine it may lack contents.
        wanted = replace(wanted, made_for={**wanted.made_for, "local": boot_id()})
        container, since, fresh = self._begun(handles, wanted, check_space=check_space)
        with local.trees(wanted.key, container) as local_trees:
            made = self._filled(handles, wanted, context, local_trees, since, fresh=fresh)
        data = None if isinstance(made, InProgress) else directory_handle(self._share.client, container, (DATA,))
        if data is not None:
            local.settle(wanted.key, data)
        return made

    def _filled(
        self, handles: Handles, wanted: Wanted, context: Context, trees: Trees[Any], since: int, *, fresh: bool
    ) -> CopyCounts | InProgress:
        copy = None if fresh else self._running.get(wanted.key)
        if copy is None:
            hint = None if fresh else context.state.get("copy")
            contents = wanted.parameters.verify == "content"
            copy = TreeCopy(trees, since=since, hint=hint if isinstance(hint, Mapping) else None, contents=contents)
        copy.trees = trees
        self._running[wanted.key] = copy
        done = self._slices(copy, context)
        if not done:
            progress = copy_progress(copy, wanted.whole)
            if self._records(wanted):
                context.log.info("%s: %s", wanted.label, progress)
                context = replace(context, state={**context.state, "copy": copy.hint})
            return InProgress(retry_after=0.0, state=context.state, progress=progress)
        try:
            require_unchanged(copy.counts, wanted.parameters, wanted.label)
        except BaseException:
            self.discard(handles, wanted.key)
            raise
        return copy.counts

    def _slices(self, copy: TreeCopy[Any], context: Context) -> bool:
        """Copy as long as nothing else waits; whether it is whole."""
        begun = self._clock()

        def waited_for() -> bool:
            return bool(self._share.deletions) or context.cancelled()

        while True:
            end = self._clock() + SLICE
            if copy.work(lambda end=end: self._clock() >= end or waited_for()):  # type: ignore[misc]
                return True
            if waited_for() or self._others or self._clock() >= begun + _CALL:
                return False

    def _records(self, wanted: Wanted) -> bool:
        """Return whether the place of a copy is to be recorded now: at first, where the answer is recorded anyway."""
        now = self._clock()
        if now < self._told.get(wanted.key, -math.inf) + _TELL:
            return False
        self._told[wanted.key] = now
        return True

    # --- where it is made -----------------------------------------------------------------------------------------

    def _begun(self, handles: Handles, wanted: Wanted, *, check_space: bool) -> tuple[bytes, int, bool]:
        """Return the handle of the copy's directory, since when it is made, and whether that is now.

        Its time is renewed: nobody goes on with one that is old.
        """
        client = self._share.client
        container = self.container(handles, wanted.key)
        fields = None
        if container is not None:
            client.pipeline([[PUTFH(container), SETATTR(ANONYMOUS, {TIME_MODIFY_SET: (0, None)})]])
            try:
                fields = read_fields(self._share, container, COPY)
            except CorruptMarker:
                fields = {}
            if fields is not None and fields.get("made_for") == dict(wanted.made_for):
                make_directory(client, container, DATA, 0o1700)  # a call may have ended before that
                return container, int(fields["since"]), False
            if fields is not None:
                self.discard(handles, wanted.key)
                container = None
        if container is None:
            if check_space:
                self._require_space(handles, wanted)
            container = self._new(handles, wanted.key)
        look = [SETATTR(ANONYMOUS, {TIME_MODIFY_SET: (0, None)}), GETATTR(mask_of(TIME_METADATA))]
        # One less, because what changes at the very moment may change after it was copied.
        since = changed_at(client.compound(PUTFH(container), *look)[-1]) - 1
        content = encode_fields({"made_for": dict(wanted.made_for), "since": since})
        client.compound(PUTFH(container), create_link(COPY, content))
        make_directory(client, container, DATA, 0o1700)
        return container, since, True

    def container(self, handles: Handles, key: bytes) -> bytes | None:
        """Return the handle of the directory in which a copy is made; None = there is none."""
        copies = control_directory(self._share, handles, COPIES, make=False)
        return None if copies is None else directory_handle(self._share.client, copies, (key,))

    def _new(self, handles: Handles, key: bytes) -> bytes:
        copies = control_directory(self._share, handles, COPIES, make=True)
        if copies is None:
            raise NfsError(Status.NOENT, "LOOKUP", 1)
        values = self._share.client.compound(PUTFH(copies), create_directory(key, 0o700), GETFH())
        return bytes(values[-1])

    def _require_space(self, handles: Handles, wanted: Wanted) -> None:
        """Raise `ResourceExhausted` if the share has no space for the copy. Shared blocks need none."""
        free = free_bytes(self._share, handles)
        shares = CLONE not in self._offloads.refused and self._offloads.cloned
        if shares or free is None or wanted.whole is None or wanted.whole.bytes <= free * (1 - _RESERVE):
            return
        raise ResourceExhausted(
            f"{self._share} has {free} bytes left, a copy of {wanted.label} needs {wanted.whole.bytes}, and "
            f"{_RESERVE:.0%} are kept free: delete volumes, grow the file system, or set the option check_free_space "
            "to false",
            scope=str(self._share),
            nothing_done=True,
        )

    def end(self, handles: Handles, key: bytes) -> None:
        """Remove what is left of the directory of a copy that is in its place."""
        self.forget(key)
        copies = control_directory(self._share, handles, COPIES, make=False)
        if copies is None:
            return
        (reply,) = self._share.client.pipeline([[PUTFH(copies), LOOKUP(key), REMOVE(COPY), PUTFH(copies), REMOVE(key)]])
        if reply.status in FULL:
            self.discard(handles, key)

    def discard(self, handles: Handles, key: bytes) -> None:
        """Remove a copy, whole or not. The driver's probes go on with that."""
        self.forget(key)
        copies = control_directory(self._share, handles, COPIES, make=False)
        if copies is not None:
            remove_tree(self._share, handles, copies, key)

    def forget(self, key: bytes) -> None:
        """Keep nothing in memory of a copy that is in its place."""
        self._running.pop(key, None)
        self._told.pop(key, None)

    def drop_links(self, handles: Handles, container: bytes) -> None:
        """Remove the other names of files of a whole copy, by which they were linked, and what was taken out of it."""
        for name in (LINKS, _OLD):
            remove_tree(self._share, handles, container, name)

    def remove_abandoned(self, handles: Handles, is_old: Callable[[tuple[int, int] | None], bool]) -> None:
        """Remove the copies that nobody goes on with."""
        copies = control_directory(self._share, handles, COPIES, make=False)
        if copies is None:
            return
        for entry in list(entries(self._share.client, copies, mask_of(TIME_METADATA))):
            if is_old(entry.attributes.get(TIME_METADATA)):
                self.discard(handles, entry.name)


def remove_tree(share: Share, handles: Handles, directory: bytes, name: bytes) -> bool:
    """Move a directory into the trash, or without space for that remove it where it is, for a while.

    It may be missing. False = some of it is left, in the trash for the driver's probes or where it is.
    """
    key = f"copy-{secrets.token_hex(8)}".encode()
    (reply,) = share.client.pipeline([rename(directory, name, handles.trash, key)])
    if reply.status in NO_SPACE:
        handle = directory_handle(share.client, directory, (name,))
        removal = TreeRemoval(share.client, handle or b"", label=printable(name), deadline=time.monotonic() + SLICE)
        if handle is None or not removal.clear():
            return handle is None
        (reply,) = share.client.pipeline([[PUTFH(directory), REMOVE(name)]])
    elif not reply.status:
        return empty_trash(share, handles, key, printable(name))
    if reply.status not in MISSING:
        values_of(reply)
    return True
