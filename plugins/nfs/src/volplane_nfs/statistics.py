"""What is used of volumes, where the server counts the space of each directory by itself (`space.py` says how)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from volplane import Context
from volplane.directory import Usage, UsageReport
from volplane_nfs.listing import read_markers
from volplane_nfs.markers import is_deleting
from volplane_nfs.nfs4 import NfsError, values_of
from volplane_nfs.nfs4.attributes import (
    FILES_FREE,
    FILES_TOTAL,
    QUOTA_AVAIL_HARD,
    QUOTA_USED,
    SPACE_AVAIL,
    SPACE_TOTAL,
    mask_of,
)
from volplane_nfs.nfs4.files import names, several, walk
from volplane_nfs.nfs4.operations import GETATTR, PUTFH
from volplane_nfs.share import Handles, Share

_MASK: Final = mask_of(FILES_FREE, FILES_TOTAL, QUOTA_AVAIL_HARD, QUOTA_USED, SPACE_AVAIL, SPACE_TOTAL)


def measure_volumes(share: Share, report: UsageReport, context: Context, handles: Handles) -> None:
    """Measure some volumes of a share for the metrics. Raises NfsError, TransportError."""

    def volumes() -> list[str]:
        return [os.fsdecode(name) for name in names(share.client, handles.volumes) if not is_deleting(name)]

    def measure(some: Sequence[str]) -> dict[str, Usage]:
        found = read_markers(share, handles, [os.fsencode(name) for name in some])
        markers = [marker for _, marker in found if marker is not None]
        looks = [[*walk(handles.root, marker.components), GETATTR(_MASK)] for marker in markers]
        whole, *replies = several(share.client, [[PUTFH(handles.root), GETATTR(_MASK)], *looks])
        figures: dict[str, Usage] = {}
        for marker, reply in zip(markers, replies, strict=True):
            if not reply.status and (usage := usage_of(values_of(reply)[-1], values_of(whole)[-1])) is not None:
                figures[marker.name] = usage
        return figures

    try:
        report.work(context.driver, str(share), volumes, measure)
    except NfsError as error:
        share.reports.warn(context.log, f"measuring the volumes of {share}", error)


def usage_of(own: Mapping[int, Any], whole: Mapping[int, Any]) -> Usage | None:
    """Return what is used of a directory; None if its server counts it with the rest of the share."""
    inodes = None
    if own.get(FILES_TOTAL, 0) < whole.get(FILES_TOTAL, 0):
        inodes = max(0, int(own[FILES_TOTAL]) - int(own.get(FILES_FREE, 0))) if FILES_TOTAL in own else None
    quotas = [(each.get(QUOTA_USED), each.get(QUOTA_AVAIL_HARD)) for each in (own, whole)]
    if None not in quotas[0] and quotas[0] != quotas[1]:
        return Usage(int(own[QUOTA_USED]), inodes)
    free = int(own.get(SPACE_AVAIL, 0))
    if SPACE_TOTAL not in own or own[SPACE_TOTAL] >= whole.get(SPACE_TOTAL, 0) or free >= whole.get(SPACE_AVAIL, 0):
        return (
            None  # The limit is no own one, or the share has no more room than the limit leaves, which tells nothing.
        )
    return Usage(max(0, int(own[SPACE_TOTAL]) - free), inodes)
