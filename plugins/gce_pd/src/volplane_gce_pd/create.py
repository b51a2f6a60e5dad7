"""The hook `provision`: find the disk by its name, insert it, wait until it is ready.

Disk names are functions of the owner, so that a second disk cannot come to be. What must survive the process is the
name of the running operation, the number of the attempt, and which zones had no capacity.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from volplane import (
    AlreadyExists,
    Asset,
    BackendError,
    InProgress,
    InvalidArgument,
    NotFound,
    ProvisionRequest,
    ResourceExhausted,
    Unavailable,
)
from volplane.cloud import LABELS, BoundedCache, HookCall, RetryLater, StateAges, csi_source, refuse_unusable, zones_for
from volplane_gce_pd.api import GceError, Method
from volplane_gce_pd.compute import SETTLE_SECONDS, Compute
from volplane_gce_pd.copies import zones_of_copy
from volplane_gce_pd.disk_spec import DiskSpec
from volplane_gce_pd.errors import ALREADY_EXISTS, code_of, outcome_unknown, to_backend_error
from volplane_gce_pd.operations import LongOperations, Outcome
from volplane_gce_pd.ownership import refuse_foreign
from volplane_gce_pd.parameters import DISK_TYPE_LABEL
from volplane_gce_pd.resources import Disk, DiskKey, asset_from, disk_key_from, disk_name, snapshot_key_from
from volplane_gce_pd.snapshots import seen

_FULL = "full"
_STUCK_SECONDS = 600.0
_STUCK_RETRY = 60.0


class Provisioner:
    """The hook `provision` of one driver. Safe for threads; what it keeps in memory only saves calls."""

    def __init__(self, compute: Compute, operations: LongOperations) -> None:
        self._compute = compute
        self._operations = operations
        self._ages = StateAges(compute.clock)
        self._uncertain_until: BoundedCache[str, float] = BoundedCache()
        """By name of the disk: before this, an unanswered insert may still arrive."""

    def provision(self, request: ProvisionRequest, call: HookCall, region: Sequence[str]) -> Asset | InProgress:
        """region: zones for disks for which neither a node nor the class names one.

        Raises RetryLater, GceError and the errors of the contract.
        """
        spec = DiskSpec.of(request, self._compute.settings)
        zones = self._zones(request, spec, region)
        name = disk_name(request.owner)
        saved = self._operations.saved(call)
        chosen, place = self._chosen(request, spec, zones)
        key = (saved[0] if saved is not None else place, name)
        try:
            outcome = self._operations.outcome(call, Method.DISKS_INSERT, key)
        except GceError as error:
            allowed = zones if request.source_volume is None else chosen[:1]
            return self._failed(request, error, key, allowed, spec=spec, from_operation=True)
        disk = self._compute.disk(key) if outcome is not Outcome.NONE else self._existing(key)
        if disk is None:
            if outcome is not Outcome.NONE:
                raise RetryLater(0.0, self._operations.next_attempt(call.context))
            try:
                self._refuse_unusable(request, spec)
                if request.source_volume is not None:
                    source = self._source(request)
                    spec = DiskSpec.of(request, self._compute.settings, like=source)
                    zones = zones_of_copy(source, spec, zones, selected=request.segment is not None)
                    chosen, place = self._chosen(request, spec, zones)
            except BackendError as failure:
                failure.nothing_done = self._absent(key)
                raise
            return self._insert(request, spec, (place, name), call, zones=chosen, allowed=zones)
        spec = DiskSpec.of(request, self._compute.settings, like=disk)
        self._refuse_other(request, spec, disk, zones)
        return self._ready(request, spec, disk, call)

    # --- places -------------------------------------------------------------------------------------------------

    def _zones(self, request: ProvisionRequest, spec: DiskSpec, region: Sequence[str]) -> tuple[str, ...]:
        settings = self._compute.settings
        count = 2 if spec.parameters.regional else 1
        zones = zones_for(request, settings.zone_label, region, count=count)
        outside = [zone for zone in zones if not settings.in_region(zone)]
        if outside:
            raise InvalidArgument(f"zone {outside[0]!r} is not in region {settings.region!r} of the driver")
        pools = spec.parameters.pools
        if pools:
            zones = tuple(zone for zone in zones if zone in pools)
            if not zones:
                raise InvalidArgument(
                    f"parameter storage-pools has none in the zones that the disk may be in; it has {', '.join(pools)}"
                )
        return zones

    def _chosen(self, request: ProvisionRequest, spec: DiskSpec, zones: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """Return the first zones that are not known to be full, the first of all if every one is; and the place."""
        full = _texts(request.context.state.get(_FULL))
        count = 2 if spec.parameters.regional else 1
        ordered = [zone for zone in zones if zone not in full] + [zone for zone in zones if zone in full]
        if spec.parameters.regional and request.segment is not None:
            ordered = [zones[0], *(zone for zone in ordered if zone != zones[0])]
        place = f"regions/{self._compute.settings.region}" if spec.parameters.regional else f"zones/{ordered[0]}"
        return tuple(ordered[:count]), place

    def _refuse_unusable(self, request: ProvisionRequest, spec: DiskSpec) -> None:
        """Raise unless the snapshot that the disk is made from, if any, can be restored now."""
        handle = request.source_snapshot
        key = snapshot_key_from(handle) if handle is not None else None
        if handle is None or key is None:
            return
        found = self._compute.snapshot(key)
        refuse_unusable(seen(found, request.context) if found is not None else None, handle, spec.size)

    def _source(self, request: ProvisionRequest) -> Disk:
        """Return the disk that is to be copied. Raises RetryLater, NotFound."""
        key = disk_key_from(request.source_volume or "", self._compute.settings.project)
        source = self._compute.disk(key) if key is not None else None
        if source is None or source.state == "DELETING":
            raise NotFound(f"the disk {request.source_volume}, which is to be copied, does not exist (any more)")
        if request.source_asset is not None and request.source_asset.owner is not None:
            refuse_foreign(source, request.source_asset.owner)
        return source

    # --- the disk -----------------------------------------------------------------------------------------------

    def _existing(self, key: DiskKey) -> Disk | None:
        """Return the disk of this name in any place of the region: an earlier demand may have chosen another one."""
        named = self._compute.named(key[1])
        if not named.found and named.lacks(key[0]):
            raise Unavailable(f"the disks of {key[0]} cannot be read now: it is not known whether there is {key[1]}")
        return named.found[0] if named.found else None

    def _refuse_other(self, request: ProvisionRequest, spec: DiskSpec, disk: Disk, zones: Sequence[str]) -> None:
        """Raise AlreadyExists unless the disk was made for this owner and an equal demand."""
        refuse_foreign(disk, request.owner)
        if LABELS.recorded_demand(disk.labels) != spec.digest:
            raise AlreadyExists(
                f"{disk.name} was made for {request.name} by another demand: "
                f"{spec.difference(disk) or 'it was asked for with other parameters'}"
            )
        if not set(disk.zones) <= set(zones):
            raise AlreadyExists(
                f"{disk.name} was made for {request.name} in {', '.join(disk.zones)}, but {', '.join(zones)} is asked "
                "for"
            )

    def _insert(
        self,
        request: ProvisionRequest,
        spec: DiskSpec,
        key: DiskKey,
        call: HookCall,
        *,
        zones: Sequence[str],
        allowed: Sequence[str],
    ) -> InProgress:
        settings, (place, name) = self._compute.settings, key
        regional = spec.parameters.regional
        kind, _, where = place.partition("/")
        labels = {
            **settings.labels,
            **spec.parameters.labels,
            **LABELS.of(request.owner),
            LABELS.demand: spec.digest,
            **LABELS.of_term(request.context),
        }
        message: dict[str, Any] = {
            **spec.message(settings.project, zones[0]),
            "name": name,
            "description": spec.description(request),
            "labels": labels,
            "type_": f"projects/{settings.project}/{place}/diskTypes/{spec.parameters.disk_type}",
        }
        if regional:
            message["replica_zones"] = [f"projects/{settings.project}/zones/{zone}" for zone in zones]
        method = Method.REGION_DISKS_INSERT if regional else Method.DISKS_INSERT
        kept = {_FULL: full} if (full := sorted(_texts(request.context.state.get(_FULL)))) else {}
        owner = request.owner
        # A requestId stands for one body: another leader's fence, or other labels of the options, make another request.
        body = json.dumps(message, sort_keys=True)
        identity = (owner.cluster_id, owner.claim_uid, owner.volume_name, owner.generation, place, body)
        fields = {kind.removesuffix("s"): where, "disk_resource": message}
        source = next(iter(spec.source.values()), None)
        try:
            raise self._operations.begin(call, method, key, *identity, state=kept, queue=source, **fields)
        except GceError as error:
            return self._failed(request, error, key, allowed, spec=spec, from_operation=False)

    def _failed(
        self,
        request: ProvisionRequest,
        error: GceError,
        key: DiskKey,
        zones: Sequence[str],
        *,
        spec: DiskSpec,
        from_operation: bool,
    ) -> InProgress:
        """Raise the error of an insert, unless another look or another zone helps.

        A call with the requestId of a failed operation does nothing, so that nothing is left of it.
        """
        now = self._compute.clock()
        if code_of(error) in ALREADY_EXISTS:
            raise RetryLater(
                self._compute.disks.next_poll(("", key[1])),
                self._operations.next_attempt(request.context) if from_operation else None,
            )
        if not from_operation and outcome_unknown(error):
            self._uncertain_until.put(key[1], now + SETTLE_SECONDS)
        place = key[0].partition("/")[2]
        failure = to_backend_error(error, f"make a disk for {request.name} in {place}")
        if self._absent(key, certain=from_operation):
            failure.nothing_done = True
            if isinstance(failure, ResourceExhausted) and failure.reschedule:
                return self._elsewhere(request, failure, place, zones, spec)
        raise failure

    def _absent(self, key: DiskKey, *, certain: bool = False) -> bool:
        """Return whether there is no such disk and none can appear. certain: no insert without an answer is left."""
        uncertain_until = self._uncertain_until.setdefault(key[1], self._compute.started_at + SETTLE_SECONDS)
        return (certain or self._compute.clock() >= uncertain_until) and self._compute.disk_now(key) is None

    def _elsewhere(
        self, request: ProvisionRequest, failure: BackendError, zone: str, zones: Sequence[str], spec: DiskSpec
    ) -> InProgress:
        """Try another zone that the disk may be in. Raises the failure if there is none."""
        full = {*_texts(request.context.state.get(_FULL)), zone}
        if spec.parameters.regional or all(other in full for other in zones):
            raise failure
        request.context.log.warning("%s; another zone is tried", failure)
        return InProgress(
            retry_after=0.0, state={**self._operations.next_attempt(request.context), _FULL: sorted(full)}
        )

    def _ready(self, request: ProvisionRequest, spec: DiskSpec, disk: Disk, call: HookCall) -> Asset:
        settings = self._compute.settings
        if disk.making:
            seconds = self._ages.seconds(disk.key, "making")
            if seconds > _STUCK_SECONDS:
                raise Unavailable(
                    f"Compute Engine has been making {disk.name} in {disk.place} for {seconds / 60:.0f} minutes, which "
                    "usually takes seconds: look at the Google Cloud Service Health dashboard; volplane waits for it",
                    code=disk.state,
                    retry_after=_STUCK_RETRY,
                )
            raise RetryLater(self._compute.disks.next_poll(disk.key, after=min(seconds / 4, 10.0)))
        if disk.state == "DELETING":
            known = self._operations.saved(call) is not None
            state = self._operations.next_attempt(call.context) if known else None
            raise RetryLater(self._compute.disks.next_poll(disk.key, after=1.0), state)
        if disk.state == "FAILED":
            method = Method.REGION_DISKS_DELETE if spec.parameters.regional else Method.DISKS_DELETE
            kind, _, where = disk.place.partition("/")
            fields = {kind.removesuffix("s"): where, "disk": disk.name}
            raise self._operations.begin(call, method, disk.key, disk.id, "failed", state={}, **fields)
        self._ages.reset(disk.key, "making")
        source = csi_source(settings, disk.handle(settings.project), request.volume_mode, spec.parameters.fs_type)
        asset = asset_from(settings, disk, source, driver=request.context.driver, attributes=spec.attributes)
        if not spec.parameters.type_topology:
            return asset
        takes = {DISK_TYPE_LABEL + disk.disk_type: "true"}
        return replace(asset, node_affinity=tuple({**place, **takes} for place in asset.node_affinity))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list | tuple) else ()
