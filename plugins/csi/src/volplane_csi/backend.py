"""The hooks of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    Asset,
    AssetPage,
    Attachment,
    AttachRequest,
    BackendSpec,
    Capacity,
    CapacityRequest,
    DeleteGroupSnapshotRequest,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    ExpandRequest,
    FindGroupSnapshotRequest,
    FindSnapshotRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    InspectRequest,
    ListedAsset,
    ListRequest,
    ModifyRequest,
    OwnsRequest,
    Parameter,
    ParameterKind,
    ParameterSchema,
    Predecessor,
    ProbeRequest,
    ProvisionRequest,
    Snapshot,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.csi.client import Channel, SocketChannel
from volplane_csi.attachments import Attachments
from volplane_csi.calls import Calls
from volplane_csi.settings import Settings
from volplane_csi.snapshots import Groups, Snapshots
from volplane_csi.volumes import Volumes

_EVERY_KEY = ParameterSchema(
    parameters=(
        Parameter(
            name="",
            kind=ParameterKind.KEYS,
            doc="Any parameter of the CSI driver, and those of its sidecars, which begin with csi.storage.k8s.io/.",
        ),
    )
)


class CsiBackend(BackendSpec):
    """Volumes of the CSI driver whose name the driver has."""

    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)

    def __init__(self, options: Mapping[str, Any], *, connect_to: Callable[[Path], Channel] = SocketChannel) -> None:
        """Check the options; raises `InvalidArgument`. connect_to: opens the connection to a socket, for tests."""
        super().__init__(options)
        self._settings = read_parameters(Settings, options)
        self._calls = Calls(connect_to(self._settings.path), self._settings)
        self._volumes = Volumes(self._calls, self._settings)
        self._attachments = Attachments(self._calls, self._volumes.inspect)
        self._snapshots = Snapshots(self._calls, self._settings)
        self._groups = Groups(self._calls, self._settings)

    # --- the driver ---------------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Return what the options say. CSI tells neither access modes nor volume modes: the driver refuses them."""
        return DriverInfo(
            version=version("volplane-csi"),
            parameters=_EVERY_KEY,
            topology_keys=self._settings.topology_keys,
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset(VolumeMode),
            csi_driver_name=self._settings.csi_driver(request.context.driver),
            attach_required=self._settings.attach,
            attaches_by="csi node",
            node_expansion_required=True,
            supports_mount_options=True,
            snapshot_parameters=_EVERY_KEY,
            clones="in place",
            marks=False,
            plans_first=True,
            predecessor=Predecessor(
                pods=self._settings.controller_pods,
                programs=self._settings.sidecars,
                excludes=self._settings.csi_driver(request.context.driver) == request.context.driver,
                unseen="in pods that do not name it, or outside the cluster",
                leases=self._settings.leases(request.context.driver),
            ),
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Learn who answers on the socket and what it can do."""
        self._calls.connect(request.context)
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Close the connection."""
        self._calls.close()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Ask the driver whether it is ready, and what it can do: it may have been upgraded."""
        self._calls.connect(request.context)
        return Done()

    # --- volumes ------------------------------------------------------------------------------------------------

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Save the exact request, and then send it, as often as it takes."""
        return self._volumes.provision(request)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        """Delete the volume of this id."""
        return self._volumes.delete(request)

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        """Grow the volume."""
        return self._volumes.expand(request)

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done:
        """Change its mutable parameters."""
        return self._volumes.modify(request)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """Own volumes of the CSI driver of this name."""
        fields = request.source.fields
        handle = fields.get("volumeHandle")
        of_driver = fields.get("driver") == self._settings.csi_driver(request.context.driver)
        return request.source.kind == "csi" and of_driver and isinstance(handle, str) and handle != ""

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """Look at the volume of this id."""
        return self._volumes.inspect(request)

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """List all volumes, as those of nobody."""
        return self._volumes.list_page(request)

    @hookimpl
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """Return the free capacity of a place."""
        return self._volumes.capacity(request)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """There are no marks to be replaced."""
        return Done()

    # --- attachments --------------------------------------------------------------------------------------------

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        """Publish the volume to the node."""
        return self._attachments.attach(request)

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        """Unpublish the volume from the node."""
        return self._attachments.detach(request)

    # --- snapshots ----------------------------------------------------------------------------------------------

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Save the exact request, and then send it."""
        return self._snapshots.create(request)

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done:
        """Delete the snapshot of this id."""
        return self._snapshots.delete(request)

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        """Look at the snapshot of this id."""
        return self._snapshots.find(request)

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot | InProgress:
        """Save the exact request, and then send it."""
        return self._groups.create(request)

    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done:
        """Delete the snapshots of the group of this id."""
        return self._groups.delete(request)

    @hookimpl
    def find_group_snapshot(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """Look at the group of this id."""
        return self._groups.find(request)
