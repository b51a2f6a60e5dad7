"""The contract between volplane and its plugins.

A backend subclasses `BackendSpec` and marks the hooks that it implements with `@hookimpl`. Hooks are plain functions
that may block. They run in worker threads of their driver: several at once for different assets, one at a time for the
same asset (several where multi-attach is allowed). Each takes one frozen request and returns one frozen result, never
None. Hooks that create or destroy must be idempotent: any call may be repeated after a crash or a timeout, also by
another process.
"""

# pluggy calls only implementations, so the hooks of the specification have no bodies.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pluggy

from volplane import requests
from volplane.assets import (
    Absent,
    Asset,
    AssetPage,
    Attachment,
    Capacity,
    Done,
    Erased,
    GroupSnapshot,
    InProgress,
    ListedAsset,
    PodScrub,
    Snapshot,
    SnapshotPage,
)
from volplane.schemas import DriverInfo, ParameterSchema

PROJECT = "volplane"
REQUIRED_HOOKS = frozenset({"describe", "provision", "delete"})

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method as the implementation of the hook of its name (pluggy's `HookimplMarker`). In extensions
`@hookimpl(wrapper=True)` marks a wrapper."""


class BackendSpec:
    """The base class of storage backends. One instance serves one driver.

    An entry point of the group `volplane.backends` names the class, or another callable. It is called with the driver's
    options, checked and typed by `options_schema`.
    """

    default_driver_name: ClassVar[str] = ""
    """Driver name without a configuration file, a DNS subdomain; empty = only by configuration."""
    options_schema: ClassVar[ParameterSchema] = ParameterSchema()
    """The driver options in the configuration file."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep the options. Do I/O in `start`, not here."""

    @hookspec(firstresult=True)
    def describe(self, request: requests.DescribeRequest) -> DriverInfo:
        """Return the properties of this driver. Must not access the storage. Required."""

    @hookspec(firstresult=True)
    def provision(self, request: requests.ProvisionRequest) -> Asset | InProgress:
        """Make the asset called `request.name`. Required.

        Idempotent by name: an equal request returns the same asset, a different one raises `AlreadyExists`. If the
        asset was deleted since, make it again or raise `AlreadyDeleted`.
        """

    @hookspec(firstresult=True)
    def delete(self, request: requests.DeleteRequest) -> Done | InProgress:
        """Destroy the asset. Return `Done` if it is already gone; raise `VolumeInUse` if it is in use. Required."""

    @hookspec(firstresult=True)
    def find(self, request: requests.FindRequest) -> Asset | Absent:
        """Find the asset by name and owner, after an attempt whose outcome is unknown; or look whether it is there."""

    @hookspec(firstresult=True)
    def inspect(self, request: requests.InspectRequest) -> ListedAsset | Absent:
        """Look at the asset with this handle, and change nothing. Of text that is no handle return `Absent`.

        Asked where nothing but a handle is known (`volplane csi`), before the asset is deleted or changed. It returns
        what `list_assets` returns, and the source too. Raise `Unavailable` if the storage that has it is away.
        """

    @hookspec(firstresult=True)
    def owns(self, request: requests.OwnsRequest) -> bool:
        """Return whether the source of a static volume belongs to this driver, such as a path below its root.

        Called for one source at a time. The answer is kept until the volume is gone or the driver is started again. If
        a call takes longer than one second, volumes of other drivers do not wait for it.
        """

    @hookspec(firstresult=True)
    def recycle(self, request: requests.RecycleRequest) -> PodScrub | Erased | InProgress:
        """Erase the contents, or return how a scrubber pod is to erase them."""

    @hookspec(firstresult=True)
    def attach(self, request: requests.AttachRequest) -> Attachment | InProgress:
        """Attach to the node; idempotent. Raise `AttachedElsewhere` if it is attached to another node."""

    @hookspec(firstresult=True)
    def detach(self, request: requests.DetachRequest) -> Done | InProgress:
        """Detach from the node. Return `Done` also if it is not attached there, or asset or node do not exist."""

    @hookspec(firstresult=True)
    def expand(self, request: requests.ExpandRequest) -> Asset | InProgress:
        """Grow the asset."""

    @hookspec(firstresult=True)
    def modify(self, request: requests.ModifyRequest) -> Done | InProgress:
        """Change mutable parameters."""

    @hookspec(firstresult=True)
    def list_assets(self, request: requests.ListRequest) -> AssetPage:
        """List every asset that the driver can reach. An asset that exists during the whole listing must be in it.

        For the leak check, and to compare attached assets with VolumeAttachments.
        """

    @hookspec(firstresult=True)
    def adopt(self, request: requests.AdoptRequest) -> Done:
        """Replace the marks of a former cluster on the asset by those of this cluster."""

    @hookspec(firstresult=True)
    def get_capacity(self, request: requests.CapacityRequest) -> Capacity:
        """Return the free capacity."""

    @hookspec(firstresult=True)
    def validate(self, request: requests.ValidateRequest) -> Done:
        """Check class parameters beyond the schema. Must not change anything."""

    @hookspec(firstresult=True)
    def create_snapshot(self, request: requests.SnapshotRequest) -> Snapshot | InProgress:
        """Make the snapshot called `request.name`, idempotent by name; return it as soon as its moment has passed.

        An equal request returns the same snapshot, one of another asset raises `AlreadyExists`. `InProgress` means that
        the moment may lie ahead, so that the source is still needed; what goes on by itself is found, or over after
        `settle_seconds`. Steps that follow (upload, lock, fast restore) are left to `Snapshot.ready`. Backends with
        this hook have `delete_snapshot` and `find_snapshot`, and make assets of `ProvisionRequest.source_snapshot`.
        """

    @hookspec(firstresult=True)
    def delete_snapshot(self, request: requests.DeleteSnapshotRequest) -> Done | InProgress:
        """Destroy a snapshot. Return `Done` if it is already gone; raise `AlreadyExists` if its marks are others."""

    @hookspec(firstresult=True)
    def find_snapshot(self, request: requests.FindSnapshotRequest) -> Snapshot | Absent:
        """Find a snapshot by its handle, or by name and owner after an attempt whose outcome is unknown.

        Takes the next step of a snapshot that is not ready, if it needs one. Must not make or delete a snapshot.
        """

    @hookspec(firstresult=True)
    def list_snapshots(self, request: requests.ListSnapshotsRequest) -> SnapshotPage:
        """List every snapshot that this driver has made, of all clusters, for the leak check.

        A snapshot that exists during the whole listing must be in it.
        """

    @hookspec(firstresult=True)
    def create_group_snapshot(self, request: requests.GroupSnapshotRequest) -> GroupSnapshot | InProgress:
        """Make snapshots of all `request.volumes` at one moment, idempotent by name; all of them, or none.

        Volumes that cannot be cut at one moment are refused before anything is made, with what is in the way: as
        `Unsupported`, or as `Unavailable` where pods or time can change it. An equal request returns the same
        snapshots, one of other volumes raises `AlreadyExists`. Backends with this hook have all others of snapshots,
        which take the members' handles, too.
        """

    @hookspec(firstresult=True)
    def delete_group_snapshot(self, request: requests.DeleteGroupSnapshotRequest) -> Done | InProgress:
        """Destroy all snapshots of a group. Return `Done` if they are gone; raise `AlreadyExists` if the marks of one
        are others: then none is destroyed.
        """

    @hookspec(firstresult=True)
    def find_group_snapshot(self, request: requests.FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """Find the snapshots of a group; `Absent` if there is none of them. As `find_snapshot` otherwise."""

    @hookspec(firstresult=True)
    def start(self, request: requests.StartRequest) -> Done:
        """Open connections and the like. After an error the driver is unavailable, and `start` is called again."""

    @hookspec(firstresult=True)
    def stop(self, request: requests.StopRequest) -> Done:
        """Close all that `start` opened."""

    @hookspec(firstresult=True)
    def probe(self, request: requests.ProbeRequest) -> Done:
        """Check that the storage can be used now. Called every 30 s, for /readyz and metrics."""
