"""The driver: its options, its operations, and the hooks that are not those of every cloud's disks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from volplane import (
    Absent,
    Asset,
    Done,
    FindRequest,
    InvalidArgument,
    NodeIdentity,
    OwnsRequest,
    ParameterSchema,
    Predecessor,
    ProbeRequest,
    ValidateRequest,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.cloud import LABELS, DiskBackend, DiskOperations, Fences, NodeNames, Zones, ZoneStates, csi_source
from volplane_gce_pd.api import ComputeClient, Connect, connect
from volplane_gce_pd.attach import Attacher
from volplane_gce_pd.change import Changer
from volplane_gce_pd.compute import SETTLE_SECONDS, Compute, refuse_incomplete
from volplane_gce_pd.create import Provisioner
from volplane_gce_pd.delete import Deleter
from volplane_gce_pd.disk_types import LARGEST_GIB
from volplane_gce_pd.errors import to_backend_error
from volplane_gce_pd.operations import LongOperations
from volplane_gce_pd.ownership import adopt, inspect, list_page
from volplane_gce_pd.parameters import PARAMETERS, ClassParameters
from volplane_gce_pd.resources import asset_from, disk_key_from, disk_name, instance_key
from volplane_gce_pd.settings import ZONE_LABELS, Settings, check_labels
from volplane_gce_pd.snapshot_parameters import PARAMETERS as SNAPSHOT_PARAMETERS
from volplane_gce_pd.snapshots import Snapshotter, list_snapshots

_UP = ("UP",)


class GcePdBackend(DiskBackend):
    """Disks of Google Compute Engine, mounted by the node plugin of the official CSI driver."""

    default_driver_name: ClassVar[str] = "pd.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)
    distribution: ClassVar[str] = "volplane-gce-pd"
    class_parameters: ClassVar[ParameterSchema] = PARAMETERS
    snapshot_parameters: ClassVar[ParameterSchema] = SNAPSHOT_PARAMETERS
    clones: ClassVar[Literal["", "in place", "anywhere"]] = "in place"
    settle_seconds: ClassVar[float] = SETTLE_SECONDS
    largest_gib: ClassVar[int] = LARGEST_GIB
    predecessor: ClassVar[Predecessor] = Predecessor(
        # Pods of the node plugin have the same label, but come from a DaemonSet.
        pods="app=gcp-compute-persistent-disk-csi-driver,pod-template-hash",
        unseen="outside of the cluster, where GKE runs it",
    )

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
        settings = self._options = read_parameters(Settings, options)
        compute = self._compute = Compute(settings, ComputeClient(settings, connect_to), clock)
        nodes, fences, operations = NodeNames(self._machine_of), Fences(LABELS), LongOperations(compute)
        deleter = Deleter(compute, operations, fences, nodes)
        attacher = Attacher(compute, operations, fences, nodes)
        changer = Changer(compute, operations, fences)
        snapshotter = Snapshotter(compute, operations, fences)
        super().__init__(
            options,
            settings=settings,
            operations=DiskOperations(
                provision=Provisioner(compute, operations).provision,
                delete=deleter.delete,
                scrub=deleter.scrub,
                expand=changer.expand,
                modify=changer.modify,
                attach=attacher.attach,
                detach=attacher.detach,
                create_snapshot=snapshotter.create,
                delete_snapshot=snapshotter.delete,
                find_snapshot=snapshotter.find,
                list_snapshots=partial(list_snapshots, compute),
                list_page=partial(list_page, compute),
                inspect=partial(inspect, compute),
                adopt=partial(adopt, compute, fences),
                error=to_backend_error,
                close=compute.close,
            ),
            zones=Zones(self._read_zones, wanted=settings.zones, up=_UP, assets="disks", clock=clock),
            nodes=nodes,
            clock=clock,
        )

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Make a cheap call."""
        with self.translating_errors(f"use Compute Engine in project {self._options.project}"):
            self._compute.check()
        return Done()

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Check which parameters can be combined, with each other and with the options."""
        parameters = read_parameters(ClassParameters, request.parameters)
        check_labels({**self._options.labels, **parameters.labels}, "parameter labels, with those of the options")
        return Done()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """Return whether it is a csi source of `csi_driver_name` that names a disk of this project and region.

        It never is the in-tree source, which names neither.
        """
        fields = request.source.fields
        if request.source.kind != "csi" or fields.get("driver") != self._options.csi_driver_name:
            return False
        key = disk_key_from(str(fields.get("volumeHandle")), self._options.project)
        where = key[0].partition("/")[2] if key is not None else ""
        return where == self._options.region or self._options.in_region(where)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Find the disk by its name in all zones of the region, in any state, by calls that begin now."""
        with self.translating_errors(f"look for the disk of {request.name}"):
            found = self._compute.named_now(disk_name(request.owner))
        for disk in found.found:
            if LABELS.owner(disk.labels, request.owner.cluster_id) == request.owner and disk.state != "DELETING":
                fs_type = read_parameters(ClassParameters, request.parameters).fs_type
                handle = disk.handle(self._options.project)
                source = csi_source(self._options, handle, VolumeMode.FILESYSTEM, fs_type)
                return asset_from(self._options, disk, source, driver=request.context.driver)
        refuse_incomplete(found.unread)
        return Absent()

    def _machine_of(self, node: NodeIdentity) -> str | None:
        """Return the name of a node's virtual machine."""
        vm = instance_key(node, self._options.project)
        return vm[1] if vm is not None else None

    def _read_zones(self) -> ZoneStates:
        zones = self._compute.zones()
        if not zones:
            raise InvalidArgument(
                f"option region: project {self._options.project} has no zone in {self._options.region!r}; look at "
                "its spelling"
            )
        return ZoneStates(zones, zones, {key: {zone: zone for zone in zones} for key in ZONE_LABELS})
