"""The hooks of the driver. The work is in the modules of the operations: create, delete, attach, change, snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
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
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    ExpandRequest,
    FindRequest,
    InProgress,
    InvalidArgument,
    ListRequest,
    ModifyRequest,
    NodeIdentity,
    OwnsRequest,
    ParameterSchema,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    Snapshot,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.cloud import LABELS, BoundedCache, HookCall, Zones, ZoneStates, in_turns
from volplane_gce_pd.api import ComputeClient, Connect, connect
from volplane_gce_pd.attach import Attacher
from volplane_gce_pd.change import Changer
from volplane_gce_pd.compute import SETTLE_SECONDS, Compute
from volplane_gce_pd.create import Provisioner
from volplane_gce_pd.delete import Deleter
from volplane_gce_pd.disk_types import LARGEST_GIB
from volplane_gce_pd.operations import LongOperations
from volplane_gce_pd.ownership import Fencing, adopt, list_page
from volplane_gce_pd.parameters import PARAMETERS, ClassParameters
from volplane_gce_pd.resources import (
    GIB,
    asset_from,
    disk_key_from,
    disk_name,
    instance_key,
    new_source,
)
from volplane_gce_pd.scrub import let_a_pod_scrub
from volplane_gce_pd.settings import Settings, check_labels
from volplane_gce_pd.snapshots import Snapshotter

__all__ = ["GcePdBackend"]

_UP = ("UP",)


class GcePdBackend(BackendSpec):
    """Disks of Google Compute Engine, mounted by the node plugin of the official CSI driver."""

    default_driver_name: ClassVar[str] = "pd.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        connect_to: Connect = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the options; raises `InvalidArgument`.

        connect_to: makes the client of a service, for tests. clock: seconds, never going back.
        """
        super().__init__(options)
        self._settings = read_parameters(Settings, options)
        self._clock = clock
        self._compute = Compute(self._settings, ComputeClient(self._settings, connect_to), clock)
        self._nodes: BoundedCache[str, str] = BoundedCache()
        operations = LongOperations(self._compute)
        fencing = self._fencing = Fencing(self._compute)
        self._provisioner = Provisioner(self._compute, operations)
        self._deleter = Deleter(self._compute, operations, fencing, self._node_name)
        self._attacher = Attacher(self._compute, operations, fencing, self._node_name)
        self._changer = Changer(self._compute, operations, fencing)
        self._snapshotter = Snapshotter(self._compute, operations)
        self._zones = Zones(self._read_zones, wanted=self._settings.zones, up=_UP, assets="disks", clock=clock)

    # --- the driver ---------------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Some hyperdisks can be written, and copies read, by several nodes; everything else is for one."""
        return DriverInfo(
            version=version("volplane-gce-pd"),
            parameters=PARAMETERS,
            topology_keys=(self._settings.zone_label,),
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset(VolumeMode),
            csi_driver_name=self._settings.csi_driver_name,
            attach_required=self._settings.attach,
            node_expansion_required=True,
            supports_mount_options=True,
            settle_seconds=SETTLE_SECONDS,
            minimum_bytes=GIB,
            maximum_bytes=LARGEST_GIB * GIB,
            max_attached_per_node=self._settings.attach_limit or None,
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Connect, and read the region's zones."""
        with self._compute.translating_errors(f"ask for the zones of {self._settings.region}"):
            self._zones.load(request.context)
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Close the connections."""
        self._compute.close()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """A cheap call."""
        with self._compute.translating_errors(f"use Compute Engine in project {self._settings.project}"):
            self._compute.check()
        return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Check which parameters can be combined, with each other and with the options."""
        parameters = read_parameters(ClassParameters, request.parameters)
        check_labels({**self._settings.labels, **parameters.labels}, "parameter labels, with those of the options")
        return Done()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """A csi source of `csi_driver_name` that names a disk of this project and region.

        Never the in-tree source, which names neither.
        """
        fields = request.source.fields
        if request.source.kind != "csi" or fields.get("driver") != self._settings.csi_driver_name:
            return False
        key = disk_key_from(str(fields.get("volumeHandle")), self._settings.project)
        where = key[0].partition("/")[2] if key is not None else ""
        return where == self._settings.region or self._settings.in_region(where)

    # --- volumes ------------------------------------------------------------------------------------------------

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Find the disk by its name, insert it, wait until it is ready."""
        with self._compute.translating_errors(f"make a disk for {request.name}"):
            self._zones.refresh(request.context)
            return in_turns(
                request.context, self._clock, lambda call: self._provisioner.provision(request, call, self._zones.names)
            )

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Find the disk by its name in all zones of the region, in any state, by calls that begin now."""
        with self._compute.translating_errors(f"look for the disk of {request.name}"):
            found = self._compute.named_now(disk_name(request.owner))
        for disk in found:
            if LABELS.owner(disk.labels, request.owner.cluster_id) == request.owner and disk.state != "DELETING":
                fs_type = read_parameters(ClassParameters, request.parameters).fs_type
                handle = disk.handle(self._settings.project)
                source = new_source(self._settings, handle, VolumeMode.FILESYSTEM, fs_type)
                return asset_from(self._settings, disk, source, driver=request.context.driver)
        return Absent()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Check that it is ours and not attached, delete it, wait until it is gone."""
        with self._compute.translating_errors(f"delete {request.volume.handle} of {request.volume.name}"):
            return in_turns(request.context, self._clock, lambda call: self._deleter.delete(request, call))

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub | InProgress:
        """Check that it is ours and not attached; a pod on Linux empties or overwrites it."""
        with self._compute.translating_errors(f"scrub {request.volume.handle} of {request.volume.name}"):
            return in_turns(
                request.context, self._clock, lambda _call: let_a_pod_scrub(self._compute, request, self._node_name)
            )

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        """Grow the disk online; the node plugin grows the file system."""
        with self._compute.translating_errors(f"grow {request.volume.handle} of {request.volume.name}"):
            return in_turns(request.context, self._clock, lambda call: self._changer.expand(request, call))

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        """Change IOPS and throughput."""
        with self._compute.translating_errors(f"change {request.volume.handle} of {request.volume.name}"):
            return in_turns(request.context, self._clock, lambda call: self._changer.modify(request, call))

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """All disks of the region with ownership labels, of any cluster."""
        with self._compute.translating_errors("list the disks"):
            return list_page(self._compute, request)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Replace the labels of the former owner."""
        with self._compute.translating_errors(f"mark {request.volume.handle} of {request.volume.name}"):
            call = HookCall(request.context, self._clock, self._clock())
            return adopt(self._compute, self._fencing, request, call)

    # --- attachments --------------------------------------------------------------------------------------------

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        """Attach to the virtual machine of the node's providerID."""
        self._remember_node(request.node)
        with self._compute.translating_errors(f"attach {request.volume.handle} to {request.node.name}"):
            return in_turns(request.context, self._clock, lambda call: self._attacher.attach(request, call))

    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        """Detach from that virtual machine only, and only the attachment that was found."""
        self._remember_node(request.node)
        with self._compute.translating_errors(f"detach {request.volume.handle} from {request.node.name}"):
            return in_turns(request.context, self._clock, lambda call: self._attacher.detach(request, call))

    # --- snapshots ----------------------------------------------------------------------------------------------

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Create a snapshot; `ready` once a disk can be made from it."""
        with self._compute.translating_errors(f"make the snapshot {request.name}"):
            return in_turns(request.context, self._clock, lambda call: self._snapshotter.create(request, call))

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """Delete a snapshot that carries this cluster's label."""
        with self._compute.translating_errors(f"delete the snapshot {request.handle}"):
            return in_turns(request.context, self._clock, lambda call: self._snapshotter.delete(request, call))

    # --- common -------------------------------------------------------------------------------------------------

    def _read_zones(self) -> ZoneStates:
        zones = self._compute.zones()
        if not zones:
            raise InvalidArgument(
                f"option region: project {self._settings.project} has no zone in {self._settings.region!r}; look at "
                "its spelling"
            )
        return ZoneStates(zones, zones)

    def _remember_node(self, node: NodeIdentity) -> None:
        """Remember the node of a virtual machine, for messages about it in later calls."""
        vm = instance_key(node, self._settings.project)
        if vm is not None:
            self._nodes.put(vm[1], node.name)

    def _node_name(self, vm: str) -> str:
        return self._nodes.get(vm) or vm
