"""Which code of gRPC a caller gets for an error, and which codes callers take for a proof that nothing was made.

The callers are the sidecars of Kubernetes; Nomad and others believe no more than they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from volplane import errors
from volplane.errors import BackendError

__all__ = ["CALLERS", "CODES", "NOT_FINAL", "PROVEN", "CsiError", "code_of", "is_final"]

ANY: Final = "*"
"""Every method that a row does not name."""

CODES: Final[Mapping[type[BackendError], Mapping[str, str]]] = MappingProxyType(
    {
        errors.OutOfRange: {ANY: "OUT_OF_RANGE"},
        errors.InvalidArgument: {ANY: "INVALID_ARGUMENT"},
        # Foreign marks, where nothing is made: the call is refused, and never answered as done.
        errors.AlreadyExists: {
            ANY: "FAILED_PRECONDITION",
            "CreateVolume": "ALREADY_EXISTS",
            "CreateSnapshot": "ALREADY_EXISTS",
            "CreateVolumeGroupSnapshot": "ALREADY_EXISTS",
        },
        # The bridge itself goes on with the next generation.
        errors.AlreadyDeleted: {ANY: "ABORTED"},
        # UNIMPLEMENTED says that a method is missing, not that this volume is of the wrong kind.
        errors.Unsupported: {ANY: "INVALID_ARGUMENT"},
        errors.NotFound: {ANY: "NOT_FOUND"},
        errors.VolumeInUse: {ANY: "FAILED_PRECONDITION"},
        errors.AttachedElsewhere: {ANY: "FAILED_PRECONDITION"},
        errors.ResourceExhausted: {ANY: "RESOURCE_EXHAUSTED"},
        errors.PermissionDenied: {ANY: "PERMISSION_DENIED"},
        errors.Throttled: {ANY: "UNAVAILABLE"},
        errors.Fenced: {ANY: "UNAVAILABLE"},
        errors.Unavailable: {ANY: "UNAVAILABLE"},
        errors.Declined: {ANY: "ABORTED"},
        errors.OutcomeUnknown: {ANY: "ABORTED"},
    }
)
"""Class -> method -> code. A class that is not here has the row of the nearest one above it, else ABORTED."""

CALLERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "CreateVolume": "external-provisioner",
        "DeleteVolume": "external-provisioner",
        "ControllerPublishVolume": "external-attacher",
        "ControllerUnpublishVolume": "external-attacher",
        "ControllerExpandVolume": "external-resizer",
        "ControllerModifyVolume": "external-resizer",
        "CreateSnapshot": "external-snapshotter",
        "DeleteSnapshot": "external-snapshotter",
        "NodePublishVolume": "kubelet",
        "NodeExpandVolume": "kubelet",
        "CreateVolumeGroupSnapshot": "external-snapshotter",
        "DeleteVolumeGroupSnapshot": "external-snapshotter",
    }
)
"""Method that changes something -> who calls it."""

_GOES_ON: Final = frozenset({"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "ABORTED"})
NOT_FINAL: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "external-provisioner": _GOES_ON,
        "external-attacher": _GOES_ON | {"RESOURCE_EXHAUSTED"},
        "external-resizer": _GOES_ON | {"RESOURCE_EXHAUSTED"},
        "external-snapshotter": _GOES_ON | {"RESOURCE_EXHAUSTED"},
        "kubelet": _GOES_ON | {"RESOURCE_EXHAUSTED"},
    }
)
"""Caller -> the codes after which it still counts with what it asked for. After any other one it forgets."""

PROVEN: Final = frozenset({"CreateVolume", "CreateSnapshot", "CreateVolumeGroupSnapshot"})
"""The methods whose final codes make a caller forget what they may have made, so that nobody would delete it."""


class CsiError(Exception):
    """An answer that is an error. Its text is for people and holds no secret."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def code_of(error: BackendError, method: str, *, nothing_there: bool) -> str:
    """Return the code for an error of a hook.

    nothing_there: it is proven that no earlier attempt has left anything either. Without that proof no code is sent
    that the caller takes for final, but for ALREADY_EXISTS: that one says that something is there.
    """
    row = next((CODES[each] for each in type(error).__mro__ if each in CODES), {ANY: "ABORTED"})
    code = row.get(method, row[ANY])
    if method in PROVEN and is_final(code, method) and not nothing_there and code != "ALREADY_EXISTS":
        return "ABORTED"
    return code


def is_final(code: str, method: str) -> bool:
    """Tell whether the caller of the method takes this code for the end of its attempt."""
    return code not in NOT_FINAL[CALLERS[method]]
