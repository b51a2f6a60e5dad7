"""The hooks about snapshots: make, find, list and delete them. Their names are unique in a project.

A snapshot is made by `snapshots.insert`: with `disks.createSnapshot` it can be READY before it is made
(gcp-compute-persistent-disk-csi-driver, issue 1857). Its moment has passed when it leaves CREATING; its upload goes on.
"""

from __future__ import annotations

from typing import Any

from volplane import (
    Absent,
    AlreadyExists,
    Context,
    DeleteSnapshotRequest,
    Done,
    FindSnapshotRequest,
    ListSnapshotsRequest,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    SnapshotRequest,
    Unavailable,
    read_parameters,
)
from volplane.cloud import GIB, LABELS, Fences, HookCall, RetryLater, SnapshotLooks, StateAges, refuse_other_snapshot
from volplane_gce_pd.api import GceError, Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.errors import ALREADY_EXISTS, NOT_FOUND, code_of
from volplane_gce_pd.operations import LongOperations, Outcome
from volplane_gce_pd.ownership import OFFICIAL, refuse_foreign, snapshot_marks
from volplane_gce_pd.resources import (
    IMAGES,
    SNAPSHOTS,
    Disk,
    DiskKey,
    DiskSnapshot,
    SnapshotKey,
    disk_key,
    existing,
    resource_name,
    snapshot_key_from,
    unix_time,
)
from volplane_gce_pd.snapshot_parameters import SnapshotParameters

_CUT_POLL = 1.0
_GONE_POLL = 2.0
_LONGEST_CUT_POLL = 10.0
_STUCK_SECONDS = 600.0
_STUCK_RETRY = 60.0
_INSERT = {SNAPSHOTS: Method.SNAPSHOTS_INSERT, IMAGES: Method.IMAGES_INSERT}
_DELETE = {SNAPSHOTS: Method.SNAPSHOTS_DELETE, IMAGES: Method.IMAGES_DELETE}


def seen(snapshot: DiskSnapshot, context: Context) -> Snapshot:
    """Return the snapshot as the contract has it."""
    failed = f"Compute Engine could not make {snapshot.name}; delete it and make another one"
    marks = snapshot_marks(snapshot)
    return Snapshot(
        handle=snapshot.handle,
        size_bytes=snapshot.size * GIB,
        ready=snapshot.state == "READY",
        created_at=unix_time(snapshot.created),
        source=snapshot.disk,
        owner=LABELS.snapshot_owner(marks, context.cluster_id, official=OFFICIAL.replaced_by(context)),
        name=snapshot.name,
        state="" if snapshot.state in ("READY", "FAILED") else snapshot.state,
        failed=failed if snapshot.state == "FAILED" else "",
    )


def list_snapshots(compute: Compute, request: ListSnapshotsRequest) -> SnapshotPage:
    """Return one page of the project's snapshots, then images, with marks of any cluster.

    A driver with the official one's name also lists those of that one, which have no label: it reads all. Raises
    GceError.
    """
    official = OFFICIAL.replaced_by(request.context)
    label = LABELS.snapshot if official is None else ""
    found, following = compute.marked_snapshots(label, request.page, request.max_entries)
    shown = [seen(each, request.context) for each in found if each.state != "DELETING"]
    return SnapshotPage(snapshots=tuple(each for each in shown if label or each.owner), next_page=following)


class Snapshotter:
    """The hooks about single snapshots of one driver. Safe for threads."""

    def __init__(self, compute: Compute, operations: LongOperations, fences: Fences) -> None:
        self._compute = compute
        self._operations = operations
        self._fences = fences
        self._ages = StateAges(compute.clock)
        self._looks = SnapshotLooks(compute.snapshots, compute.clock)

    # --- make ---------------------------------------------------------------------------------------------------

    def create(self, request: SnapshotRequest, call: HookCall) -> Snapshot:
        """Raises RetryLater, GceError and the errors of the contract."""
        settings = self._compute.settings
        parameters = read_parameters(SnapshotParameters, request.parameters)
        place = disk_key(request.volume, settings)
        parameters.refuse_regional(place[0])
        key = (settings.project, parameters.kind, resource_name(request.name))
        found = self._compute.cuts.current(key)
        if found is not None and found.state != "DELETING":
            return self._existing(request, found, place)
        outcome = self._operations.outcome(call, _INSERT[parameters.kind])
        if found is not None:
            state = self._operations.next_attempt(call.context) if outcome is not Outcome.NONE else None
            raise RetryLater(_GONE_POLL, state)
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        return self._insert(request, parameters, self._source(request, place, call), key, call)

    def _existing(self, request: SnapshotRequest, found: DiskSnapshot, place: DiskKey) -> Snapshot:
        """Return it once its moment has passed, if it is of this disk and owner."""
        source = f"projects/{self._compute.settings.project}/{place[0]}/disks/{place[1]}"
        belongs = self._belongs(found, request.owner, request.context)
        refuse_other_snapshot(seen(found, request.context), request, source, belongs=belongs)
        disk = self._compute.disk(place)
        if disk is not None and found.disk_id and disk.id != found.disk_id:
            raise AlreadyExists(
                f"snapshot {found.name} exists, of an earlier disk that was called {disk.name} too: it is not taken"
            )
        if found.cutting:
            seconds = self._ages.seconds(found.key, found.state)
            if seconds > _STUCK_SECONDS:
                raise Unavailable(
                    f"Compute Engine has been making {found.name} for {seconds / 60:.0f} minutes ({found.state}): look "
                    "at the Google Cloud Service Health dashboard; volplane waits for it",
                    code=found.state,
                    retry_after=_STUCK_RETRY,
                )
            raise RetryLater(self._compute.cuts.next_poll(found.key, after=min(seconds / 4, _LONGEST_CUT_POLL)))
        return self._shown(found, request.context)

    @staticmethod
    def _belongs(snapshot: DiskSnapshot, owner: SnapshotOwnership, context: Context) -> bool:
        official = OFFICIAL.replaced_by(context)
        return LABELS.snapshot_belongs(snapshot_marks(snapshot), owner, official=official)

    def _source(self, request: SnapshotRequest, place: DiskKey, call: HookCall) -> Disk:
        """Return the disk, if it is ours and can be cut now. Raises RetryLater, too."""
        disk = existing(self._compute.disk(place), request.volume)
        if request.volume.owner is not None:
            refuse_foreign(disk, request.volume.owner)
        self._fences.refuse_former_leader(disk.asset, disk.labels, call.context)
        if disk.making:
            raise RetryLater(self._compute.disks.next_poll(disk.key, after=0.5))
        return disk

    def _insert(
        self, request: SnapshotRequest, parameters: SnapshotParameters, disk: Disk, key: SnapshotKey, call: HookCall
    ) -> Snapshot:
        """Start to make it; raises RetryLater."""
        settings = self._compute.settings
        message = parameters.message(request, settings, disk.handle(settings.project), key[2])
        fields: dict[str, Any] = {"snapshot_resource": message}
        if parameters.kind == IMAGES:
            fields = {"image_resource": message, "force_create": True}
        identity = (request.context.cluster_id, *key, disk.id, sorted(message["labels"].items()))
        try:
            raise self._operations.begin(
                call, _INSERT[parameters.kind], key, *identity, state={}, queue=("snapshots", disk.key), **fields
            )
        except GceError as error:
            if code_of(error) in ALREADY_EXISTS:
                raise RetryLater(_CUT_POLL) from None
            raise
        finally:
            self._compute.snapshot_changed(key)

    # --- find ---------------------------------------------------------------------------------------------------

    def find(self, request: FindSnapshotRequest, _call: HookCall) -> Snapshot | Absent:
        """Raises GceError."""
        if request.handle:
            key = snapshot_key_from(request.handle)
            found = self._compute.snapshot(key) if key is not None else None
            return self._shown(found, request.context) if found is not None else Absent()
        given = request.parameters
        for kind in [read_parameters(SnapshotParameters, given).kind] if given else [SNAPSHOTS, IMAGES]:
            found = self._compute.snapshot_now((self._compute.settings.project, kind, resource_name(request.name)))
            if found is None or (request.owner and not self._belongs(found, request.owner, request.context)):
                continue
            return self._shown(found, request.context)
        return Absent()

    def _shown(self, snapshot: DiskSnapshot, context: Context) -> Snapshot:
        return self._looks.paced(seen(snapshot, context), snapshot.key)

    # --- delete -------------------------------------------------------------------------------------------------

    def delete(self, request: DeleteSnapshotRequest, call: HookCall) -> Done:
        """Raises RetryLater, GceError and the errors of the contract."""
        key = snapshot_key_from(request.handle)
        if key is None:
            request.context.log.warning(
                "handle %r is no snapshot of Compute Engine: there is nothing to delete", request.handle
            )
            return Done()
        if key[0] != self._compute.settings.project:
            raise AlreadyExists(
                f"{request.handle} belongs to project {key[0]!r}, not to {self._compute.settings.project!r}: it is not "
                "touched; set the content's deletionPolicy to Retain"
            )
        method = _DELETE[key[1]]
        outcome = self._operations.outcome(call, method)
        found = self._compute.snapshot_now(key)
        if found is None:
            return Done()
        marks = snapshot_marks(found)
        LABELS.refuse_foreign_snapshot(request.handle, marks, request, official=OFFICIAL.replaced_by(request.context))
        self._fences.refuse_former_leader(request.handle, marks, call.context)
        if found.state == "DELETING":
            raise RetryLater(_GONE_POLL)
        if outcome is not Outcome.NONE:
            raise RetryLater(0.0, self._operations.next_attempt(call.context))
        field = {key[1].removesuffix("s"): key[2]}
        try:
            raise self._operations.begin(call, method, key, request.context.cluster_id, found.id, state={}, **field)
        except GceError as error:
            if code_of(error) not in NOT_FOUND:
                raise
            return Done()
        finally:
            self._compute.snapshot_changed(key)
