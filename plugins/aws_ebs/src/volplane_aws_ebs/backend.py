"""The driver: its options, its operations, and the hooks that are not those of every cloud's disks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from volplane import (
    Absent,
    Asset,
    DeleteGroupSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    FindRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    InvalidArgument,
    OwnsRequest,
    ParameterSchema,
    Predecessor,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.cloud import (
    TAGS,
    DiskAccount,
    DiskBackend,
    DiskOperations,
    Fences,
    NodeNames,
    Zones,
    ZoneStates,
    csi_source,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsClient, AwsError, Connect, connect
from volplane_aws_ebs.attach import Attacher
from volplane_aws_ebs.ceilings import Ceilings
from volplane_aws_ebs.create import Provisioner
from volplane_aws_ebs.delete import Deleter
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.group_snapshots import GroupSnapshotter
from volplane_aws_ebs.modify import Modifier
from volplane_aws_ebs.ownership import adopt, inspect, list_page
from volplane_aws_ebs.parameters import PARAMETERS, ClassParameters
from volplane_aws_ebs.resources import IN_TREE, asset_from, instance_id, volume_id_from
from volplane_aws_ebs.settings import EBS_ZONE_LABEL, ZONE_ID_LABEL, ZONE_LABEL, Settings, check_tag_count
from volplane_aws_ebs.snapshot_parameters import PARAMETERS as SNAPSHOT_PARAMETERS
from volplane_aws_ebs.snapshots import Snapshotter, list_snapshots
from volplane_aws_ebs.state_waits import StateWaits
from volplane_aws_ebs.volume_types import LARGEST_GIB

_USUAL_ZONE = "availability-zone"
_AVAILABLE = ("available", "information")
"""States of a zone in which volumes can be made (Amazon EC2 API reference, AvailabilityZone); others are impaired,
unavailable and constrained."""


class AwsEbsBackend(DiskBackend):
    """Volumes of Amazon EBS, mounted by the node plugin of the official CSI driver."""

    default_driver_name: ClassVar[str] = "ebs.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)
    distribution: ClassVar[str] = "volplane-aws-ebs"
    class_parameters: ClassVar[ParameterSchema] = PARAMETERS
    disk: ClassVar[str] = "volume"
    snapshot_parameters: ClassVar[ParameterSchema] = SNAPSHOT_PARAMETERS
    clones: ClassVar[Literal["", "in place", "anywhere"]] = "in place"
    settle_seconds: ClassVar[float] = SETTLE_SECONDS
    largest_gib: ClassVar[int] = LARGEST_GIB
    assumes: ClassVar[str] = "roleArn"
    predecessor: ClassVar[Predecessor] = Predecessor(pods="app=ebs-csi-controller")

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
        settings = self._options = read_parameters(Settings, options)
        nodes, fences = NodeNames(instance_id), Fences(TAGS)

        def connected(given: Settings) -> DiskAccount:
            return _connected(Ec2(given, AwsClient(given, connect_to), clock), nodes, fences)

        super().__init__(options, settings=settings, connect=connected, nodes=nodes, clock=clock)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """Return whether it is a csi source of `csi_driver_name`, or the in-tree source, which CSI migration gives to
        that driver.
        """
        fields = request.source.fields
        if request.source.kind == "csi":
            return (
                fields.get("driver") == self._options.csi_driver_name
                and volume_id_from(str(fields.get("volumeHandle"))) is not None
            )
        return request.source.kind == IN_TREE and volume_id_from(str(fields.get("volumeID"))) is not None

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot | InProgress:
        """Make snapshots of volumes that are attached to one instance."""
        doing = f"make the snapshots {request.name}"
        names = {self.account_of_snapshot(request.parameters, each) for each in request.volumes}
        if len(names) > 1:
            raise InvalidArgument(f"the volumes of group {request.name} are of several accounts: {sorted(names)}")
        return self.in_turns(
            request.context, doing, names.pop(), lambda account, call: account.more.create(request, call)
        )

    @hookimpl
    def delete_group_snapshot(self, request: DeleteGroupSnapshotRequest) -> Done | InProgress:
        """Check that all snapshots of the group are ours, and delete them."""
        doing = f"delete the snapshots of group {request.handle}"
        question = FindGroupSnapshotRequest(context=request.context, handle=request.handle, snapshots=request.snapshots)
        name = self.shown_by(doing, lambda account: account.more.find(question))[0] if self._options.of_classes else ""
        return self.in_turns(request.context, doing, name, lambda account, call: account.more.delete(request, call))

    @hookimpl
    def find_group_snapshot(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """Look at the snapshots of the group."""
        doing = f"look for the snapshots of group {request.handle or request.name}"
        return self.shown_by(doing, lambda account: account.more.find(request))[1]


def _connected(ec2: Ec2, nodes: NodeNames, fences: Fences) -> DiskAccount:
    """Return the operations of one account."""
    settings, ceilings, waits = ec2.settings, Ceilings(ec2), StateWaits(ec2, nodes)
    provisioner = Provisioner(ec2, waits, ceilings)
    deleter = Deleter(ec2, fences, waits, nodes, provisioner.volume_deleted)
    attacher = Attacher(ec2, fences, waits, nodes)
    modifier = Modifier(ec2, fences, waits, ceilings)
    snapshotter = Snapshotter(ec2, fences, waits)
    operations = DiskOperations(
        provision=provisioner.provision,
        find=partial(_find, ec2),
        validate=partial(_validate, settings),
        delete=deleter.delete,
        scrub=deleter.scrub,
        expand=modifier.expand,
        modify=modifier.modify,
        attach=attacher.attach,
        detach=attacher.detach,
        create_snapshot=snapshotter.create,
        delete_snapshot=snapshotter.delete,
        find_snapshot=snapshotter.find,
        list_snapshots=partial(list_snapshots, ec2),
        list_page=partial(list_page, ec2),
        inspect=partial(inspect, ec2),
        adopt=partial(adopt, ec2, fences),
        error=ec2.backend_error,
        close=ec2.close,
        probe=partial(_probe, ec2),
    )
    read = partial(_read_zones, ec2)
    zones = Zones(read, wanted=settings.zones, up=_AVAILABLE, assets="volumes", clock=ec2.clock)
    return DiskAccount(operations, zones, GroupSnapshotter(ec2, snapshotter))


def _probe(ec2: Ec2) -> None:
    """Make a dry run."""
    try:
        ec2.read(Action.DESCRIBE_AVAILABILITY_ZONES, DryRun=True)
    except AwsError as error:
        if error.code != "DryRunOperation":
            raise


def _validate(settings: Settings, parameters: Mapping[str, Any]) -> None:
    given = read_parameters(ClassParameters, parameters)
    check_tag_count(settings.tags, given.tags.keys())
    given.refuse_key_of_another_region(settings.region)


def _find(ec2: Ec2, request: FindRequest) -> Asset | Absent:
    """Find the volume by its tags, in any state, by a call that begins now."""
    for volume in ec2.volumes_named_now(request.owner.cluster_id, request.name):
        if ownership_tags.owner_of(volume.tags) == request.owner:
            fs_type = read_parameters(ClassParameters, request.parameters).fs_type
            source = csi_source(ec2.settings, volume.id, VolumeMode.FILESYSTEM, fs_type)
            return asset_from(ec2.settings, volume, source, driver=request.context.driver)
    return Absent()


def _read_zones(ec2: Ec2) -> ZoneStates:
    """Return the zones. Without the option, volumes are made in availability zones alone, not in local ones."""
    zones = ec2.read(Action.DESCRIBE_AVAILABILITY_ZONES)["AvailabilityZones"]
    name = "ZoneId" if ec2.settings.zone_ids else "ZoneName"
    usual = [each[name] for each in zones if each.get("ZoneType", _USUAL_ZONE) == _USUAL_ZONE]
    names, ids = ({each[kind]: each[name] for each in zones} for kind in ("ZoneName", "ZoneId"))
    keys = {ZONE_LABEL: names, EBS_ZONE_LABEL: names, ZONE_ID_LABEL: ids}
    return ZoneStates({each[name]: str(each.get("State")) for each in zones}, usual, keys)
