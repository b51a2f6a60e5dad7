"""Free space of a share, and the limit of a volume, as far as the server tells them.

A limit is set on the server, as a quota of its file system for the directory; NFS has no operation for that. It can be
seen in two ways: in the quota attributes (RFC 8881 section 5.8.2.28 to 30), and in the space attributes, which ext4 and
XFS count by the project quota of the directory that is asked about. A limit of the driver's user shows on the share's
root as well as below it: that one is no limit of the volume. In mode export the driver is on the server's machine, and
looks there too.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final

from volplane import Unavailable
from volplane.directory import CopyCounts
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4 import values_of
from volplane_nfs.nfs4.attributes import FSID, QUOTA_AVAIL_HARD, QUOTA_USED, SPACE_AVAIL, SPACE_TOTAL, mask_of
from volplane_nfs.nfs4.files import walk
from volplane_nfs.nfs4.operations import GETATTR, PUTFH, Reply, Request
from volplane_nfs.parameters import REQUIRED
from volplane_nfs.share import Handles, Share
from volplane_nfs.volumes import text

_MASK: Final = mask_of(QUOTA_AVAIL_HARD, QUOTA_USED, SPACE_AVAIL, SPACE_TOTAL)
_ROUNDING: Final = 1 << 16
"""Bytes by which a server may show less than the limit that was set: it counts in blocks."""
_LIMIT_RETRY: Final = 10.0


def space_request(handles: Handles) -> list[Request]:
    """Return the operations that ask for the space of the share; `free_space` reads the reply."""
    return [PUTFH(handles.root), GETATTR(_MASK)]


def free_space(reply: Reply) -> int | None:
    """Return the bytes that may still be used, from the answer to `space_request` and more; None if the server does not
    tell.
    """
    if len(reply.results) < 2 or reply.results[1].status:
        values_of(reply)
    attributes = reply.results[1].value
    known = [int(attributes[QUOTA_AVAIL_HARD])] if QUOTA_AVAIL_HARD in attributes else []
    if attributes.get(SPACE_TOTAL):
        known.append(int(attributes.get(SPACE_AVAIL, 0)))
    return min(known, default=None)


def free_bytes(share: Share, handles: Handles) -> int | None:
    """Free bytes of a share, asked of its server; None if the server does not tell. Raises NfsError, TransportError."""
    return free_space(share.client.pipeline([space_request(handles)])[0])


def used_counts(share: Share, directory: bytes) -> CopyCounts | None:
    """Return what is in a directory, by the bytes that are counted for its quota; None if the server does not tell.

    directory: its handle.
    """
    used = share.client.compound(PUTFH(directory), GETATTR(mask_of(QUOTA_USED)))[-1].get(QUOTA_USED)
    return None if used is None else CopyCounts(bytes=int(used))


def file_system_of(share: Share, handles: Handles) -> Hashable:
    """Return what is equal for shares that have one space: server, file system, and size, which a quota changes."""
    attributes = share.client.compound(PUTFH(handles.root), GETATTR(mask_of(FSID, SPACE_TOTAL)))[1]
    return share.address.server, attributes.get(FSID, handles.root), attributes.get(SPACE_TOTAL)


def limit_of(share: Share, handles: Handles, marker: VolumeMarker) -> int | None:
    """Return the bytes that a volume's directory can hold at most; None if nothing limits it.

    Raises NfsError, TransportError.
    """
    values = share.client.compound(*space_request(handles), *walk(handles.root, marker.components), GETATTR(_MASK))
    whole, own = values[1], values[-1]
    limits = []
    if _quota(own) is not None and _quota(own) != _quota(whole):
        limits.append(_quota(own))
    if own.get(SPACE_TOTAL, 0) < whole.get(SPACE_TOTAL, 0):
        limits.append(int(own[SPACE_TOTAL]) if SPACE_TOTAL in own else None)
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(attributes: Mapping[int, Any]) -> int | None:
    if QUOTA_AVAIL_HARD not in attributes or QUOTA_USED not in attributes:
        return None
    return int(attributes[QUOTA_AVAIL_HARD]) + int(attributes[QUOTA_USED])


def require_limit(share: Share, handles: Handles, marker: VolumeMarker, exports: Exports | NoExports) -> None:
    """Raise `Unavailable` while a volume whose class demands a limit has none, or one below its size."""
    if marker.demand.get("quota") != REQUIRED:
        return
    limit = limit_of(share, handles, marker) or exports.limit(marker)
    label = text(share, marker.components)
    if limit is None:
        raise Unavailable(
            f"{label} has no limit, which quota: required of its class demands: set a quota of "
            f"{marker.capacity_bytes} bytes for the directory on the server, or leave quota out of the class",
            retry_after=_LIMIT_RETRY,
        )
    if limit + _ROUNDING <= marker.capacity_bytes:
        raise Unavailable(
            f"{label} is limited to {limit} bytes, and {marker.capacity_bytes} are promised: raise its quota on the "
            "server",
            retry_after=_LIMIT_RETRY,
        )
