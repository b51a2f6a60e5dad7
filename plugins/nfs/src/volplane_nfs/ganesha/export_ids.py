"""Export_Ids of a server, 16 bits: who has which is kept on the share, and a freed one rests before it is given again.

`exports/<id>` names the volume that has the id. `exports/<id>.free` says when it was freed. Each step is one operation
that only one process can win: making a link that is not there, or renaming one away.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Final

from volplane import ResourceExhausted
from volplane.directory import CorruptMarker, encode_fields
from volplane_nfs.nfs4 import NfsError, Status, values_of
from volplane_nfs.nfs4.files import MISSING, NO_SPACE, create_link, names, rename
from volplane_nfs.nfs4.operations import LOOKUP, PUTFH, REMOVE
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import read_fields

_FREED: Final = b".free"
_GUESSES: Final = 4
_TAKEN: Final = 4
"""Number of results if the id was taken, and is not resting."""


def allocate(
    share: Share,
    handles: Handles,
    owner: str,
    *,
    first: int,
    last: int,
    quarantine: float,
    used: Callable[[int], bool],
) -> int:
    """Return an id that no volume has, or had for `quarantine` seconds. owner: `<volume>@<generation>`.

    used: whether the server has an export with an id, of which the share may not know. Raises `ResourceExhausted`.
    """
    for _ in range(_GUESSES):
        guess = random.randint(first, last)  # noqa: S311 - so that processes do not try the same ones
        if not used(guess) and _take(share, handles, guess, owner):
            return guess
    known = set(names(share.client, handles.exports))
    for export_id in _candidates(first, last, known):
        name = str(export_id).encode()
        if used(export_id):
            continue
        if name + _FREED in known and not _take_freed(share, handles, name, quarantine):
            continue
        if _take(share, handles, export_id, owner):
            return export_id
    raise ResourceExhausted(
        f"all Export_Ids from {first} to {last} are in use, or were until {quarantine:.0f} s ago: raise "
        "last_export_id, or delete volumes",
        scope=str(share),
    )


def _take(share: Share, handles: Handles, export_id: int, owner: str) -> bool:
    """Take an id that no volume has and that does not rest; False if it is not such a one."""
    name = str(export_id).encode()
    (reply,) = share.client.pipeline(
        [
            [
                PUTFH(handles.exports),
                create_link(name, encode_fields({"owner": owner})),
                PUTFH(handles.exports),
                LOOKUP(name + _FREED),
            ]
        ]
    )
    if len(reply.results) == _TAKEN and reply.status in MISSING:
        return True
    if not reply.status:
        share.client.pipeline([[PUTFH(handles.exports), REMOVE(name)]])
    elif reply.status != Status.EXIST:
        values_of(reply)
    return False


def _candidates(first: int, last: int, known: set[bytes]) -> Iterator[int]:
    """Yield ids that were never used, from a random one on; then those that were freed."""
    start = random.randint(first, last)  # noqa: S311 - as above
    order = [*range(start, last + 1), *range(first, start)]
    taken = [each for each in order if str(each).encode() not in known]
    yield from (each for each in taken if str(each).encode() + _FREED not in known)
    yield from (each for each in taken if str(each).encode() + _FREED in known)


def _take_freed(share: Share, handles: Handles, name: bytes, quarantine: float) -> bool:
    """Remove the note that the id was freed, if it is old enough; True for exactly one process."""
    try:
        fields = read_fields(share, handles.exports, name + _FREED)
        freed_at = math.inf if fields is None else float(fields.get("freed_at", 0.0))
    except (CorruptMarker, TypeError, ValueError):
        return False
    if time.time() < freed_at + quarantine:
        return False
    new = f"freed.{secrets.token_hex(8)}".encode()
    (reply,) = share.client.pipeline([rename(handles.exports, name + _FREED, handles.tmp, new)])
    if reply.status:
        return False
    share.client.pipeline([[PUTFH(handles.tmp), REMOVE(new)]])
    return True


def release(share: Share, handles: Handles, export_id: int, owner: str) -> None:
    """Free the id of a volume that is deleted. If another one has it, or nobody can say which, it stays."""
    name = str(export_id).encode()
    try:
        fields = read_fields(share, handles.exports, name)
    except CorruptMarker:
        return
    if fields is None or fields.get("owner") != owner:
        return
    note = create_link(name + _FREED, encode_fields({"freed_at": round(time.time(), 3), "owner": owner}))
    (reply,) = share.client.pipeline([[PUTFH(handles.exports), note]])
    if reply.status in NO_SPACE:
        return  # `free_unused` does it once there is space.
    if reply.status and reply.status != Status.EXIST:
        raise NfsError(reply.status, "CREATE", 1)
    (reply,) = share.client.pipeline([[PUTFH(handles.exports), REMOVE(name)]])
    if reply.status and reply.status not in MISSING:
        raise NfsError(reply.status, "REMOVE", 1)


def free_unused(share: Share, handles: Handles, name: bytes) -> None:
    """Free an id whose volume does not exist: a crash came before its marker. name: of the id's entry.

    Raises `CorruptMarker`.
    """
    owner = str((read_fields(share, handles.exports, name) or {}).get("owner", ""))
    volume = owner.partition("@")[0]
    if volume and not any(_exists(share, handles.volumes, file) for file in (owner, volume)):
        release(share, handles, int(name), owner)


def _exists(share: Share, directory: bytes, name: str) -> bool:
    (reply,) = share.client.pipeline([[PUTFH(directory), LOOKUP(name.encode())]])
    if reply.status and reply.status not in MISSING:
        values_of(reply)
    return not reply.status
