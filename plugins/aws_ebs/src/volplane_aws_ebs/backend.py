"""The hooks. Each opens a turn, leaves the work to others, and says what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, ClassVar, TypeVar

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    Asset,
    AssetPage,
    Attachment,
    AttachRequest,
    BackendSpec,
    Context,
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
    ProbeRequest,
    ProvisionRequest,
    Snapshot,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    ValidateRequest,
    VolumeMode,
    hookimpl,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call, Connect, Gateway, connect
from volplane_aws_ebs.attach import Attaching
from volplane_aws_ebs.create import Provisioning
from volplane_aws_ebs.delete import Deleting
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.hook_calls import Later, Memory, Turn
from volplane_aws_ebs.modify import Modifying
from volplane_aws_ebs.ownership import Fencing, adopt, list_page
from volplane_aws_ebs.parameters import LARGEST_GIB, PARAMETERS, Shape
from volplane_aws_ebs.resources import GIB, IN_TREE, asset_of, instance_of, new_source, volume_in
from volplane_aws_ebs.settings import OPTIONS, Settings
from volplane_aws_ebs.snapshots import Snapshots

__all__ = ["AwsEbsBackend"]

_PROBE_SECONDS = 60.0

T = TypeVar("T")


class AwsEbsBackend(BackendSpec):
    """Volumes of Amazon EBS, mounted by the node plugin of the official CSI driver."""

    default_driver_name: ClassVar[str] = "ebs.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = OPTIONS

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        connect_to: Connect = connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check the options; raises `InvalidArgument`. connect_to: makes clients; clock: seconds, never going back."""
        super().__init__(options)
        self._settings = Settings.of(options)
        self._clock = clock
        self._ec2 = Ec2(self._settings, Gateway(self._settings, connect_to), clock)
        self._nodes: Memory[str, str] = Memory()
        fencing = Fencing(self._ec2)
        self._provisioning = Provisioning(self._ec2)
        self._deleting = Deleting(self._ec2, fencing, self._node_name, self._provisioning.proven_gone)
        self._attaching = Attaching(self._ec2, fencing, self._node_name)
        self._modifying = Modifying(self._ec2)
        self._snapshots = Snapshots(self._ec2)
        self._zones: tuple[str, ...] = ()
        self._probed: float | None = None

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
            supports_mount_options=True,
            settle_seconds=SETTLE_SECONDS,
            minimum_bytes=GIB,
            maximum_bytes=LARGEST_GIB * GIB,
            max_attached_per_node=self._settings.attach_limit or None,
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Connect, and learn the region's zones."""
        with self._ec2.explained(f"ask for the zones of {self._settings.region}"):
            self._learn_zones()
        return Done()

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """Close the connections."""
        self._ec2.close()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """A dry run that EC2 would let through; asked of EC2 once a minute at most, unless the last one failed."""
        now = self._clock()
        if self._probed is not None and now - self._probed < _PROBE_SECONDS:
            return Done()
        self._probed = None
        with self._ec2.explained(f"use EC2 in {self._settings.region}"):
            try:
                self._ec2.read(Call.DESCRIBE_AVAILABILITY_ZONES, DryRun=True)
            except AwsRefusal as refusal:
                if refusal.code != "DryRunOperation":
                    raise
        self._probed = now
        return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """What parameters demand of each other."""
        Shape.of(request.parameters)
        return Done()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """A csi source of our CSI driver, or the in-tree source that nodes hand to the same driver."""
        fields = request.source.fields
        if request.source.kind == "csi":
            return (
                fields.get("driver") == self._settings.csi_driver_name
                and volume_in(str(fields.get("volumeHandle"))) is not None
            )
        return request.source.kind == IN_TREE and volume_in(str(fields.get("volumeID"))) is not None

    # --- volumes ------------------------------------------------------------------------------------------------

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Look by tags, create with the claim's token, watch until it is available."""
        with self._ec2.explained(f"make a volume for {request.name}"):
            if not self._zones:
                self._learn_zones()
            return self._going(request.context, lambda turn: self._provisioning.provision(request, turn, self._zones))

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """By the tags, in a call of its own; also one that is not available yet or has failed."""
        with self._ec2.explained(f"look for the volume of {request.name}"):
            found = self._ec2.named_now(request.owner.cluster_id, request.name)
        for seen in found:
            if ownership_tags.owner_of(seen.tags) == request.owner:
                fs_type = Shape.of(request.parameters).fs_type
                source = new_source(self._settings, seen.id, VolumeMode.FILESYSTEM, fs_type)
                return asset_of(self._settings, seen, source, driver=request.context.driver)
        return Absent()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Prove that it is ours and free, delete it, see it gone."""
        with self._ec2.explained(f"delete {request.volume.handle} of {request.volume.name}"):
            return self._going(request.context, lambda turn: self._deleting.delete(request, turn))

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        """Grow it online; nodes grow the file system."""
        with self._ec2.explained(f"grow {request.volume.handle} of {request.volume.name}"):
            return self._going(request.context, lambda turn: self._modifying.expand(request, turn))

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        """Change type, iops and throughput."""
        with self._ec2.explained(f"change {request.volume.handle} of {request.volume.name}"):
            return self._going(request.context, lambda turn: self._modifying.modify(request, turn))

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """Everything in the region that carries a mark of volplane, of any cluster."""
        with self._ec2.explained("list the volumes"):
            return list_page(self._ec2, request, self._node_name)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Write the new owner's tags over those of the former one."""
        with self._ec2.explained(f"mark {request.volume.handle} of {request.volume.name}"):
            return adopt(self._ec2, request, Turn(request.context, self._clock, self._clock()))

    # --- attachments --------------------------------------------------------------------------------------------

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        """To the instance of the node's providerID; `devicePath` is in the metadata, where the node plugin expects it."""
        self._know(request.node)
        with self._ec2.explained(f"attach {request.volume.handle} to {request.node.name}"):
            return self._going(request.context, lambda turn: self._attaching.attach(request, turn))

    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        """From that instance only, and only the attachment that was looked at."""
        self._know(request.node)
        with self._ec2.explained(f"detach {request.volume.handle} from {request.node.name}"):
            return self._going(request.context, lambda turn: self._attaching.detach(request, turn))

    # --- snapshots ----------------------------------------------------------------------------------------------

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Its moment is that of the call; `ready` once it can be restored."""
        with self._ec2.explained(f"make the snapshot {request.name}"):
            return self._going(request.context, lambda turn: self._snapshots.create(request, turn))

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """If it carries this cluster's mark."""
        with self._ec2.explained(f"delete the snapshot {request.handle}"):
            return self._going(request.context, lambda turn: self._snapshots.delete(request, turn))

    # --- what they share ----------------------------------------------------------------------------------------

    def _going(self, context: Context, work: Callable[[Turn], T]) -> T | InProgress:
        """The result, or InProgress with the same state: then nothing has to be written down meanwhile."""
        try:
            return work(Turn(context, self._clock, self._clock()))
        except Later as later:
            return InProgress(retry_after=later.seconds, state=context.state)

    def _learn_zones(self) -> None:
        shown = self._ec2.read(Call.DESCRIBE_AVAILABILITY_ZONES)["AvailabilityZones"]
        zones = sorted(
            zone["ZoneName"]
            for zone in shown
            if zone.get("State") == "available" and zone.get("ZoneType", "availability-zone") == "availability-zone"
        )
        unknown = [zone for zone in self._settings.zones if zone not in zones]
        if unknown:
            raise InvalidArgument(f"option zones: {unknown[0]!r} is not one of {', '.join(zones)}")
        self._zones = self._settings.zones or tuple(zones)

    def _know(self, node: NodeIdentity) -> None:
        """Remember which node an instance is, for messages that name another one."""
        instance = instance_of(node)
        if instance is not None:
            self._nodes.put(instance, node.name)

    def _node_name(self, instance: str) -> str:
        return self._nodes.get(instance) or instance
