"""The contract between volplane and its plugins.

A backend subclasses `BackendSpec` and marks what it implements with `@hookimpl`. Hooks are plain functions: they may
block, they run in worker threads of their driver, several at once for different assets, never two for the same one
(several where multi-attach is allowed). Each takes one frozen request and returns one frozen result; none returns None.

What makes or destroys must be idempotent: any call may be repeated after a crash or a timeout, by another process too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pluggy

from volplane.assets import (
    Absent,
    Asset,
    AssetPage,
    Attachment,
    Capacity,
    Done,
    Erased,
    InProgress,
    PodScrub,
    Snapshot,
)
from volplane.requests import (
    AdoptRequest,
    AttachRequest,
    CapacityRequest,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    ExpandRequest,
    FindRequest,
    ListRequest,
    ModifyRequest,
    OwnsRequest,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
)
from volplane.schemas import DriverInfo, ParameterSchema

__all__ = ["PROJECT", "REQUIRED_HOOKS", "BackendSpec", "hookimpl", "hookspec"]

PROJECT = "volplane"
REQUIRED_HOOKS = frozenset({"describe", "provision", "delete"})

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method as the implementation of the hook that has its name. `@hookimpl(wrapper=True)` marks a wrapper, in
extensions alone: pluggy's `HookimplMarker`."""


class BackendSpec:
    """What a storage backend promises. One instance serves one driver.

    The class, or any callable, stands in the entry point group `volplane.backends`; it is called with the driver's
    options, checked and typed by `options_schema`.
    """

    default_driver_name: ClassVar[str] = ""
    """Driver name without a configuration file, a DNS subdomain; empty = only by configuration."""
    options_schema: ClassVar[ParameterSchema] = ParameterSchema()
    """The driver options in the configuration file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep the options. Do no I/O here: that is what `start` is for."""

    @hookspec(firstresult=True)
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Tell what this driver is and can. Must not touch the storage. Required."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Make the asset called `request.name`. Required.

        Idempotent by name: an equal demand returns the same asset, another demand raises `AlreadyExists`.
        """
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Destroy the asset. What is gone is `Done`; what is in use raises `VolumeInUse`. Required."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def find(self, request: FindRequest) -> Asset | Absent:
        """Find the asset by name and owner, after an attempt whose outcome is unknown."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def owns(self, request: OwnsRequest) -> bool:
        """Say whether a volume that a person made belongs to this driver: a path under my root, my server, my driver.

        Asked about one source at a time. The answer is kept until the volume is gone or the driver starts anew. A
        driver that takes longer than a second is not waited for where another driver owns the source.
        """
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def recycle(self, request: RecycleRequest) -> PodScrub | Erased | InProgress:
        """Erase the contents, or say how a scrubber pod shall do it."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        """Attach to the node. Already there = `Attachment`; on another node raises `AttachedElsewhere`."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def detach(self, request: DetachRequest) -> Done | InProgress:
        """Detach from the node. Not attached there, or no such asset or node = `Done`."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        """Grow the asset."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        """Change mutable parameters."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def list_assets(self, request: ListRequest) -> AssetPage:
        """List every asset in reach, for the leak check. An asset that exists during the whole listing is in it."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def adopt(self, request: AdoptRequest) -> Done:
        """Put this cluster's marks on an asset that carries those of the cluster it was restored from."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """Tell how much room there is."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def validate(self, request: ValidateRequest) -> Done:
        """Check class parameters beyond the schema. Must not change anything."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Make a snapshot, idempotent by name."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """Destroy a snapshot."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def start(self, request: StartRequest) -> Done:
        """Open what the driver needs. An error keeps the driver unavailable; `start` is then tried again."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def stop(self, request: StopRequest) -> Done:
        """Close what `start` opened."""
        raise AssertionError(request)

    @hookspec(firstresult=True)
    def probe(self, request: ProbeRequest) -> Done:
        """Say whether the storage can be used now; asked every 30 s for /readyz and metrics."""
        raise AssertionError(request)
