"""The driver: its options, its operations, and the hooks that are not those of every cloud's disks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from volplane import (
    Absent,
    Asset,
    FindRequest,
    InvalidArgument,
    NodeIdentity,
    OwnsRequest,
    ParameterSchema,
    Predecessor,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.cloud import (
    LABELS,
    DiskAccount,
    DiskBackend,
    DiskOperations,
    Fences,
    NodeNames,
    Zones,
    ZoneStates,
    csi_source,
)
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
    assumes: ClassVar[str] = "impersonate-service-account"
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
        nodes, fences = NodeNames(self._machine_of), Fences(LABELS)

        def connected(given: Settings) -> DiskAccount:
            return _connected(Compute(given, ComputeClient(given, connect_to), clock), nodes, fences)

        super().__init__(options, settings=settings, connect=connected, nodes=nodes, clock=clock)

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

    def _machine_of(self, node: NodeIdentity) -> str | None:
        """Return the name of a node's virtual machine."""
        vm = instance_key(node, self._options.project)
        return vm[1] if vm is not None else None


def _connected(compute: Compute, nodes: NodeNames, fences: Fences) -> DiskAccount:
    """Return the operations of one account."""
    settings, operations = compute.settings, LongOperations(compute)
    deleter = Deleter(compute, operations, fences, nodes)
    attacher = Attacher(compute, operations, fences, nodes)
    changer = Changer(compute, operations, fences)
    snapshotter = Snapshotter(compute, operations, fences)
    hooks = DiskOperations(
        provision=Provisioner(compute, operations).provision,
        find=partial(_find, compute),
        validate=partial(_validate, settings),
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
        probe=compute.check,
    )
    read = partial(_read_zones, compute)
    return DiskAccount(hooks, Zones(read, wanted=settings.zones, up=_UP, assets="disks", clock=compute.clock))


def _validate(settings: Settings, parameters: Mapping[str, Any]) -> None:
    given = read_parameters(ClassParameters, parameters)
    check_labels({**settings.labels, **given.labels}, "parameter labels, with those of the options")


def _find(compute: Compute, request: FindRequest) -> Asset | Absent:
    """Find the disk by its name in all zones of the region, in any state, by calls that begin now."""
    settings, found = compute.settings, compute.named_now(disk_name(request.owner))
    for disk in found.found:
        if LABELS.owner(disk.labels, request.owner.cluster_id) == request.owner and disk.state != "DELETING":
            fs_type = read_parameters(ClassParameters, request.parameters).fs_type
            source = csi_source(settings, disk.handle(settings.project), VolumeMode.FILESYSTEM, fs_type)
            return asset_from(settings, disk, source, driver=request.context.driver)
    refuse_incomplete(found.unread)
    return Absent()


def _read_zones(compute: Compute) -> ZoneStates:
    zones = compute.zones()
    if not zones:
        settings = compute.settings
        raise InvalidArgument(
            f"option region: project {settings.project} has no zone in {settings.region!r}; look at its spelling"
        )
    return ZoneStates(zones, zones, {key: {zone: zone for zone in zones} for key in ZONE_LABELS})
