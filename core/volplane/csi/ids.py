"""Names, ids and tokens of CSI, and ours. What is given out once keeps its meaning in all versions.

An id of a volume or a snapshot is the backend's handle.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from typing import Final

from volplane.assets import Ownership, SnapshotOwnership
from volplane.controller.config import CSI_SUFFIX
from volplane.csi.codes import CsiError

LONGEST_NAME: Final = 128
"""Bytes, as the specification has it."""
LONGEST_ID: Final = 1024
"""Characters of a handle."""
LONGEST_MAP: Final = 4096
LONGEST_NODE: Final = 256
_PLAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_HASHED: Final = re.compile(r"csi-[0-9a-f]{48}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def cluster_of(given: str) -> str:
    """Return the cluster id of a bridge, which no controllers have. given: the name of the cluster that it serves."""
    return given.removesuffix(CSI_SUFFIX) + CSI_SUFFIX


def asset_name(name: str) -> str:
    """Return the name of the asset, or snapshot, for a name that a caller chose: itself if backends take it.

    Different names have different ones. Raises CsiError for what CSI does not allow.
    """
    if not name:
        raise CsiError("INVALID_ARGUMENT", "name is empty")
    if len(name.encode()) > LONGEST_NAME or _CONTROL.search(name):
        raise CsiError("INVALID_ARGUMENT", f"name has control characters, or more than {LONGEST_NAME} bytes")
    if _PLAIN.fullmatch(name) and not _HASHED.fullmatch(name):
        return name
    return f"csi-{hashlib.sha256(name.encode()).hexdigest()[:48]}"


def owner_of(asset: str, cluster_id: str, generation: int) -> Ownership:
    """Return the marks of the asset of this name."""
    return Ownership(
        cluster_id=cluster_id, claim_uid=asset.removeprefix("pvc-"), volume_name=asset, generation=generation
    )


def snapshot_owner_of(snapshot: str, cluster_id: str) -> SnapshotOwnership:
    """Return the marks of the snapshot of this name."""
    uid = snapshot.removeprefix("snapshot-")
    return SnapshotOwnership(cluster_id=cluster_id, snapshot_uid=uid, content_name=f"snapcontent-{uid}")


def group_owner_of(group: str, cluster_id: str) -> SnapshotOwnership:
    """Return the marks of the snapshots of the group of this name."""
    uid = group.removeprefix("groupsnapshot-")
    return SnapshotOwnership(cluster_id=cluster_id, snapshot_uid=uid, content_name=f"groupsnapcontent-{uid}")


def required_id(value: str, field: str, longest: int = LONGEST_ID) -> str:
    """Return an id that must be given. Raises CsiError."""
    if not value:
        raise CsiError("INVALID_ARGUMENT", f"{field} is empty")
    if len(value) > longest or _CONTROL.search(value):
        raise CsiError("INVALID_ARGUMENT", f"{field} has control characters, or more than {longest} characters")
    return value


def token_of(page: str | None, after: str) -> str:
    """Return the token of the rest of a backend's page: what comes behind the handle `after`."""
    return base64.urlsafe_b64encode(json.dumps([page, after]).encode()).decode()


def read_token(token: str) -> tuple[str | None, str]:
    """Return page and handle of a token; the beginning for "". Raises CsiError for any other text."""
    if not token:
        return None, ""
    try:
        page, after = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError, RecursionError):
        page = after = 0
    if not (page is None or isinstance(page, str)) or not isinstance(after, str):
        raise CsiError("ABORTED", "starting_token is none of this driver; list from the beginning")
    return page, after
