"""The hooks of the driver. The work is in the modules of the operations: create, delete, attach, modify, snapshots."""

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
from volplane.cloud import BoundedCache, HookCall, Zones, ZoneStates, in_turns
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsClient, AwsError, Connect, connect
from volplane_aws_ebs.attach import Attacher
from volplane_aws_ebs.ceilings import Ceilings
from volplane_aws_ebs.create import Provisioner
from volplane_aws_ebs.delete import Deleter
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.modify import Modifier
from volplane_aws_ebs.ownership import Fencing, adopt, list_page
from volplane_aws_ebs.parameters import PARAMETERS, ClassParameters
from volplane_aws_ebs.resources import GIB, IN_TREE, asset_from, instance_id, new_source, volume_id_from
from volplane_aws_ebs.scrub import let_a_pod_scrub
from volplane_aws_ebs.settings import Settings, check_tag_count
from volplane_aws_ebs.snapshots import Snapshotter
from volplane_aws_ebs.state_waits import StateWaits
from volplane_aws_ebs.volume_types import LARGEST_GIB

__all__ = ["AwsEbsBackend"]

_USUAL_ZONE = "availability-zone"
_AVAILABLE = ("available", "information")
"""States of a zone in which volumes can be made (Amazon EC2 API reference, AvailabilityZone); others are impaired,
unavailable and constrained."""


class AwsEbsBackend(BackendSpec):
    """Volumes of Amazon EBS, mounted by the node plugin of the official CSI driver."""

    default_driver_name: ClassVar[str] = "ebs.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        connect_to: Connect = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the options; raises `InvalidArgument`.

        connect_to: gives what makes boto3 clients, for tests. clock: seconds, never going back.
        """
        super().__init__(options)
        self._settings = read_parameters(Settings, options)
        self._clock = clock
        self._ec2 = Ec2(self._settings, AwsClient(self._settings, connect_to), clock)
        self._nodes: BoundedCache[str, str] = BoundedCache()
        fencing = self._fencing = Fencing(self._ec2)
        waits = StateWaits(self._ec2, self._node_name)
        ceilings = Ceilings(self._ec2)
        self._provisioner = Provisioner(self._ec2, waits, ceilings)
        self._deleter = Deleter(self._ec2, fencing, waits, self._node_name, self._provisioner.volume_deleted)
        self._attacher = Attacher(self._ec2, fencing, waits, self._node_name)
        self._modifier = Modifier(self._ec2, fencing, waits, ceilings)
        self._snapshotter = Snapshotter(self._ec2)
        self._zones = Zones(self._read_zones, wanted=self._settings.zones, up=_AVAILABLE, assets="volumes", clock=clock)

    # --- the driver ---------------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Block volumes of type io2 can be attached to several nodes; everything else to one."""
        return DriverInfo(
            version=version("volplane-aws-ebs"),
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
        with self._ec2.translating_errors(f"ask for the zones of {self._settings.region}"):
            self._zones.load(request.context)
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Close the connections."""
        self._ec2.close()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """A dry run of DescribeAvailabilityZones."""
        with self._ec2.translating_errors(f"use EC2 in {self._settings.region}"):
            try:
                self._ec2.read(Action.DESCRIBE_AVAILABILITY_ZONES, DryRun=True)
            except AwsError as error:
                if error.code != "DryRunOperation":
                    raise
        return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Check which parameters can be combined, with each other and with the options."""
        check_tag_count(self._settings.tags, read_parameters(ClassParameters, request.parameters).tags.keys())
        return Done()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """A csi source of `csi_driver_name`, or the in-tree source, which CSI migration gives to that driver."""
        fields = request.source.fields
        if request.source.kind == "csi":
            return (
                fields.get("driver") == self._settings.csi_driver_name
                and volume_id_from(str(fields.get("volumeHandle"))) is not None
            )
        return request.source.kind == IN_TREE and volume_id_from(str(fields.get("volumeID"))) is not None

    # --- volumes ------------------------------------------------------------------------------------------------

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Find the volume by its tags, create it with a client token, wait until it is available."""
        with self._ec2.translating_errors(f"make a volume for {request.name}"):
            self._zones.refresh(request.context)
            return in_turns(
                request.context, self._clock, lambda call: self._provisioner.provision(request, call, self._zones.names)
            )

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Find the volume by its tags, in any state, by a call that begins now."""
        with self._ec2.translating_errors(f"look for the volume of {request.name}"):
            found = self._ec2.volumes_named_now(request.owner.cluster_id, request.name)
        for volume in found:
            if ownership_tags.owner_of(volume.tags) == request.owner:
                fs_type = read_parameters(ClassParameters, request.parameters).fs_type
                source = new_source(self._settings, volume.id, VolumeMode.FILESYSTEM, fs_type)
                return asset_from(self._settings, volume, source, driver=request.context.driver)
        return Absent()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Check that it is ours and not attached, delete it, wait until it is gone."""
        with self._ec2.translating_errors(f"delete {request.volume.handle} of {request.volume.name}"):
            return in_turns(request.context, self._clock, lambda call: self._deleter.delete(request, call))

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub | InProgress:
        """Check that it is ours and not attached; a pod on Linux empties or overwrites it."""
        with self._ec2.translating_errors(f"scrub {request.volume.handle} of {request.volume.name}"):
            return in_turns(
                request.context, self._clock, lambda _call: let_a_pod_scrub(self._ec2, request, self._node_name)
            )

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        """Grow the volume online; the node plugin grows the file system."""
        with self._ec2.translating_errors(f"grow {request.volume.handle} of {request.volume.name}"):
            return in_turns(request.context, self._clock, lambda call: self._modifier.expand(request, call))

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        """Change type, IOPS and throughput."""
        with self._ec2.translating_errors(f"change {request.volume.handle} of {request.volume.name}"):
            return in_turns(request.context, self._clock, lambda call: self._modifier.modify(request, call))

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """All volumes of the region with ownership tags, of any cluster."""
        with self._ec2.translating_errors("list the volumes"):
            return list_page(self._ec2, request)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Replace the tags of the former owner."""
        with self._ec2.translating_errors(f"mark {request.volume.handle} of {request.volume.name}"):
            return adopt(self._ec2, self._fencing, request, HookCall(request.context, self._clock, self._clock()))

    # --- attachments --------------------------------------------------------------------------------------------

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        """Attach to the instance of the node's providerID; the node plugin reads `devicePath` in the metadata."""
        self._remember_node(request.node)
        with self._ec2.translating_errors(f"attach {request.volume.handle} to {request.node.name}"):
            return in_turns(request.context, self._clock, lambda call: self._attacher.attach(request, call))

    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        """Detach from that instance only, and only the attachment that was found."""
        self._remember_node(request.node)
        with self._ec2.translating_errors(f"detach {request.volume.handle} from {request.node.name}"):
            return in_turns(request.context, self._clock, lambda call: self._attacher.detach(request, call))

    # --- snapshots ----------------------------------------------------------------------------------------------

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Create a snapshot; `ready` once a volume can be created from it."""
        with self._ec2.translating_errors(f"make the snapshot {request.name}"):
            return in_turns(request.context, self._clock, lambda call: self._snapshotter.create(request, call))

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """Delete a snapshot that carries this cluster's tag."""
        with self._ec2.translating_errors(f"delete the snapshot {request.handle}"):
            return in_turns(request.context, self._clock, lambda call: self._snapshotter.delete(request, call))

    # --- common ----------------------------------------------------------------------------------------

    def _read_zones(self) -> ZoneStates:
        """Without the option, volumes are made in availability zones alone, not in local ones."""
        zones = self._ec2.read(Action.DESCRIBE_AVAILABILITY_ZONES)["AvailabilityZones"]
        name = "ZoneId" if self._settings.zone_ids else "ZoneName"
        usual = [each[name] for each in zones if each.get("ZoneType", _USUAL_ZONE) == _USUAL_ZONE]
        return ZoneStates({each[name]: str(each.get("State")) for each in zones}, usual)

    def _remember_node(self, node: NodeIdentity) -> None:
        """Remember the node of an instance, for messages about it in later calls."""
        instance = instance_id(node)
        if instance is not None:
            self._nodes.put(instance, node.name)

    def _node_name(self, instance: str) -> str:
        return self._nodes.get(instance) or instance
