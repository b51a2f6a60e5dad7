"""From codes of gRPC to the errors of the contract, by one table: code, what was called for, class.

It believes less than the sidecars do: CSI's specification lists the codes of each call, and a code that is not among
them proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from volplane import (
    AlreadyExists,
    BackendError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Throttled,
    Unavailable,
    Unsupported,
    VolumeInUse,
)
from volplane.csi.client import CallError

__all__ = ["DONE", "FINAL", "REFUSED", "TABLE", "Purpose", "error_of", "told"]

_LONGEST: Final = 800
"""Characters of a driver's text that are shown."""


class Purpose(StrEnum):
    """What a call is made for."""

    PROVISION = "provision"
    DELETE = "delete"
    ATTACH = "attach"
    DETACH = "detach"
    EXPAND = "expand"
    MODIFY = "modify"
    SNAPSHOT = "snapshot"
    UNSNAPSHOT = "unsnapshot"
    READ = "read"


_ALWAYS: Final[Mapping[str, type[BackendError]]] = {
    "UNAVAILABLE": Unavailable,
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": OutOfRange,
    "ALREADY_EXISTS": AlreadyExists,
    "NOT_FOUND": NotFound,
    "FAILED_PRECONDITION": Unavailable,
    "RESOURCE_EXHAUSTED": Throttled,
    "PERMISSION_DENIED": PermissionDenied,
    "UNAUTHENTICATED": PermissionDenied,
    "UNIMPLEMENTED": Unsupported,
}
_FULL: Final[Mapping[str, type[BackendError]]] = {"RESOURCE_EXHAUSTED": ResourceExhausted}
TABLE: Final[Mapping[Purpose, Mapping[str, type[BackendError]]]] = MappingProxyType(
    {
        **dict.fromkeys(Purpose, _ALWAYS),
        Purpose.PROVISION: {**_ALWAYS, **_FULL},
        Purpose.DELETE: {**_ALWAYS, "FAILED_PRECONDITION": VolumeInUse},
        # The name of the node to which it is attached has to be found out: `attachments.elsewhere`.
        Purpose.ATTACH: {**_ALWAYS, **_FULL},
        Purpose.EXPAND: {
            **_ALWAYS,
            **_FULL,
            "FAILED_PRECONDITION": VolumeInUse,
        },
        Purpose.SNAPSHOT: {**_ALWAYS, **_FULL},
        Purpose.UNSNAPSHOT: {**_ALWAYS, "FAILED_PRECONDITION": VolumeInUse},
    }
)
"""Purpose -> code -> class. Any other code is a `BackendError`: the call may have taken effect."""

DONE: Final = frozenset({(each, "NOT_FOUND") for each in (Purpose.DELETE, Purpose.DETACH, Purpose.UNSNAPSHOT)})
"""Errors that say that the wanted state is reached."""
FINAL: Final = frozenset(
    {
        *("INVALID_ARGUMENT", "OUT_OF_RANGE", "ALREADY_EXISTS", "NOT_FOUND", "RESOURCE_EXHAUSTED"),
        *("UNIMPLEMENTED", "UNAUTHENTICATED"),
    }
)
"""Codes by which a driver says that this call has made nothing. They say nothing of an earlier one."""
REFUSED: Final = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE"})
"""Codes for a request that can be met by no volume: a driver of the same version has never made one for it."""


def error_of(error: CallError, doing: str, purpose: Purpose, *, reschedule: bool = False, scope: str = "") -> Any:
    """Return the `BackendError`. doing: as in "make a volume for pvc-1". reschedule, scope: of `ResourceExhausted`."""
    text = f"cannot {doing}: {told(error.message) or error.code}"
    kind = TABLE[purpose].get(error.code, BackendError)
    found = (
        ResourceExhausted(text, scope=scope or error.code, reschedule=reschedule, code=error.code)
        if kind is ResourceExhausted
        else kind(text, code=error.code)
    )
    if not error.sent:
        found.proves_nothing_done = True
    return found


def told(text: str) -> str:
    """Return what a driver says as the end of a sentence: one line, not too long, without a dot."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
