"""The hooks `expand` and `modify`: resize, and update of provisioned IOPS and throughput."""

from __future__ import annotations

from volplane import Asset, Done, ExpandRequest, ModifyRequest, OutOfRange, VolumeIdentity
from volplane.cloud import Fences, HookCall, RetryLater, size_in_gib
from volplane_gce_pd.api import Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.disk_types import DISK_TYPES, check_least_performance, check_performance, least_performance
from volplane_gce_pd.operations import LongOperations, Outcome
from volplane_gce_pd.ownership import refuse_foreign, write_term
from volplane_gce_pd.parameters import attributes_of
from volplane_gce_pd.resources import FORCE_ATTACH, Disk, asset_from, disk_key, existing


class Changer:
    """The hooks `expand` and `modify` of one driver. Safe for threads."""

    def __init__(self, compute: Compute, operations: LongOperations, fences: Fences) -> None:
        self._compute = compute
        self._operations = operations
        self._fences = fences

    def expand(self, request: ExpandRequest, call: HookCall) -> Asset:
        """Raises RetryLater, GceError and the errors of the contract."""
        size = size_in_gib(request.capacity_bytes)
        disk, outcome = self._disk(request.volume, Method.DISKS_RESIZE, call)
        if disk.size >= size:
            kept = {key: text for key, text in request.volume.attributes.items() if key == FORCE_ATTACH}
            return asset_from(
                self._compute.settings,
                disk,
                request.volume.source,
                driver=request.context.driver,
                attributes=kept,
            )
        kind = DISK_TYPES.get(disk.disk_type)
        if kind is not None and size > kind.sizes[1]:
            raise OutOfRange(f"{size} GiB: disks of type {disk.disk_type} have at most {kind.sizes[1]} GiB")
        self._require_turn(disk, outcome, call)
        raise self._grow(disk, size, call)

    def _grow(self, disk: Disk, size: int, call: HookCall) -> RetryLater:
        """Start growing; returns what to raise. A hyperdisk gets what one of the new size has at least, by `update`."""
        regional = disk.place.startswith("regions/")
        iops, throughput = least_performance(disk.disk_type, size)
        raised = {"provisioned_iops": iops} if iops > (disk.iops or 0) else {}
        raised |= {"provisioned_throughput": throughput} if throughput > (disk.throughput or 0) else {}
        if raised:
            return self._operations.update(call, disk, {"size_gb": size, **raised})
        method = Method.REGION_DISKS_RESIZE if regional else Method.DISKS_RESIZE
        message = "region_disks_resize_request_resource" if regional else "disks_resize_request_resource"
        return self._operations.begin_on(call, disk, method, size, **{message: {"size_gb": size}})

    def modify(self, request: ModifyRequest, call: HookCall) -> Done:
        """Raises RetryLater, GceError and the errors of the contract."""
        wanted = attributes_of(request.parameters)
        disk, outcome = self._disk(request.volume, Method.DISKS_UPDATE, call)
        found = {"provisioned_iops": disk.iops, "provisioned_throughput": disk.throughput}
        if all(found[name] == value for name, value in wanted.items()):
            return Done()
        if disk.disk_type in DISK_TYPES:
            demand = (wanted.get("provisioned_iops"), wanted.get("provisioned_throughput"))
            check_performance(disk.disk_type, disk.size, *demand)
            check_least_performance(disk.disk_type, disk.size, *demand)
        self._require_turn(disk, outcome, call)
        raise self._operations.update(call, disk, wanted)

    def _disk(self, identity: VolumeIdentity, method: Method, call: HookCall) -> tuple[Disk, Outcome]:
        key = disk_key(identity, self._compute.settings)
        outcome = self._operations.outcome(call, method, key)
        disk = existing(self._compute.disk(key), identity)
        refuse_foreign(disk, identity.owner)
        return disk, outcome

    def _require_turn(self, disk: Disk, outcome: Outcome, call: HookCall) -> None:
        """Raise unless the disk can be changed now, by this leader."""
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        self._fences.refuse_former_leader(disk.asset, disk.labels, call.context)
        if disk.making:
            raise RetryLater(self._compute.disks.next_poll(disk.key, after=0.5))
        write_term(self._compute, self._fences, disk, call)
