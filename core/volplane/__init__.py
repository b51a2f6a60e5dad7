"""Volplane: a storage control plane for Kubernetes. These are the names that an author of a backend needs.

Each is imported when it is first used: the command line starts, and ends at Ctrl-C, without importing them.
"""

from importlib import import_module

TYPE_CHECKING = False
"""True for type checkers, as `typing.TYPE_CHECKING`, whose module takes longer to import than all of this."""

if TYPE_CHECKING:
    from volplane.assets import *
    from volplane.errors import *
    from volplane.hookspecs import *
    from volplane.requests import *
    from volplane.schemas import *
    from volplane.secret import *

__all__ = [
    "Absent",
    "AccessMode",
    "AdoptRequest",
    "AlreadyDeleted",
    "AlreadyExists",
    "Asset",
    "AssetPage",
    "AttachRequest",
    "AttachedElsewhere",
    "Attachment",
    "BackendError",
    "BackendSpec",
    "Capacity",
    "CapacityRequest",
    "ClaimIdentity",
    "Context",
    "Declined",
    "DeleteGroupSnapshotRequest",
    "DeleteRequest",
    "DeleteSnapshotRequest",
    "DescribeRequest",
    "DetachRequest",
    "Done",
    "DriverInfo",
    "Erased",
    "ExpandRequest",
    "Fence",
    "Fenced",
    "FindGroupSnapshotRequest",
    "FindRequest",
    "FindSnapshotRequest",
    "GroupSnapshot",
    "GroupSnapshotRequest",
    "HookRequest",
    "InProgress",
    "InspectRequest",
    "InvalidArgument",
    "ListRequest",
    "ListSnapshotsRequest",
    "ListedArchive",
    "ListedAsset",
    "ModifyRequest",
    "NodeIdentity",
    "NotFound",
    "OutOfRange",
    "Ownership",
    "OwnsRequest",
    "Param",
    "Parameter",
    "ParameterKind",
    "ParameterSchema",
    "PermissionDenied",
    "PodScrub",
    "Predecessor",
    "ProbeRequest",
    "ProvisionRequest",
    "RecycleRequest",
    "ResourceExhausted",
    "Secret",
    "Segment",
    "Snapshot",
    "SnapshotIdentity",
    "SnapshotOwnership",
    "SnapshotPage",
    "SnapshotRequest",
    "StartRequest",
    "StopRequest",
    "Throttled",
    "Unavailable",
    "Unsupported",
    "ValidateRequest",
    "VolplaneError",
    "VolumeIdentity",
    "VolumeInUse",
    "VolumeMode",
    "VolumeSource",
    "hookimpl",
    "read_parameters",
    "redacted",
]

_HOMES = ("assets", "errors", "hookspecs", "requests", "schemas", "secret")


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"{__name__}.{home}")
            if hasattr(module, name):
                value: object = getattr(module, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
