"""Snapshots. CSI finds none by its name: what an unknown attempt has made is found by the same request again."""

from __future__ import annotations

from typing import Any, Final

from volplane import (
    Absent,
    AlreadyExists,
    BackendError,
    Context,
    DeleteSnapshotRequest,
    Done,
    FindSnapshotRequest,
    InProgress,
    NotFound,
    Snapshot,
    SnapshotRequest,
)
from volplane.csi.client import CallError
from volplane.csi.wire import build, message
from volplane_csi.calls import Calls
from volplane_csi.classes import for_driver
from volplane_csi.demands import keys_of, name_of
from volplane_csi.errors import FINAL, REFUSED, Purpose
from volplane_csi.saved import Attempts, SavedRequest
from volplane_csi.settings import Settings
from volplane_csi.volumes import LONGEST_ID

_READY_SECONDS: Final = 5.0
"""Until the next look at a snapshot that is not ready."""
_LATEST: Final = 2**63 / 1e9
"""Unix time that the API can keep."""
_SECRETS: Final = frozenset(
    f"csi.storage.k8s.io/{role}-{part}"
    for role in ("snapshotter-secret", "snapshotter-list-secret")
    for part in ("name", "namespace")
)
_METADATA: Final = "csi.storage.k8s.io/volumesnapshot"


class Snapshots:
    """The snapshots of a driver."""

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self._calls = calls
        self._settings = settings
        self._attempts = Attempts()

    def create(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Save the request; once it is saved, send it."""
        known = self._calls.require("CREATE_DELETE_SNAPSHOT", request.context, "makes no snapshots")
        if not request.context.state:
            saved = self._demand(request, known.version)
            self._attempts.saved(saved)
            return InProgress(retry_after=0.0, state=saved.state())
        saved = SavedRequest.read(request.context.state)
        content = self._calls.secrets.add_to(message("CreateSnapshotRequest").FromString(saved.content))
        nothing = self._attempts.begin(saved)
        try:
            answer = self._calls.send("CreateSnapshot", content, request.context)
        except CallError as error:
            raise self._refusal(error, request, saved, nothing=nothing) from None
        found = _snapshot(answer.snapshot, request.volume.handle)
        if found.ready or self._sees(request.context):
            return found
        # Only this call tells when it is ready.
        return InProgress(retry_after=_READY_SECONDS, state=saved.state())

    def _demand(self, request: SnapshotRequest, version: str) -> SavedRequest:
        try:
            given = {key: value for key, value in keys_of(request.parameters).items() if key not in _SECRETS}
            parameters = for_driver(given)
            if self._settings.extra_create_metadata:
                told = request.snapshot
                parameters |= {
                    f"{_METADATA}/name": told.name,
                    f"{_METADATA}/namespace": told.namespace,
                    f"{_METADATA}content/name": told.content,
                }
            content = build(
                "CreateSnapshotRequest",
                source_volume_id=request.volume.handle,
                name=name_of(self._settings.snapshot_name_prefix, request.owner.snapshot_uid),
                parameters=parameters,
            ).SerializeToString(deterministic=True)
            saved = SavedRequest(content=content, driver_version=version)
            saved.require_fits()
        except BackendError as error:
            error.nothing_done = True
            raise
        return saved

    def _refusal(
        self, error: CallError, request: SnapshotRequest, saved: SavedRequest, *, nothing: bool
    ) -> BackendError:
        found: BackendError = self._calls.failed(error, f"make the snapshot {request.name}", Purpose.SNAPSHOT)
        known = self._calls.latest
        same = known is not None and known.version == saved.driver_version
        if nothing and (error.code in FINAL or not error.sent):
            self._attempts.left_nothing(saved)
            found.nothing_done = True
        elif error.code in REFUSED and same:
            found.nothing_done = True
        elif isinstance(found, AlreadyExists | NotFound):
            # Of a source that is gone by now a snapshot may have been made.
            return BackendError(
                f"{found.message}; an attempt before, whose answer was lost, may have made it", code=error.code
            )
        return found

    def delete(self, request: DeleteSnapshotRequest) -> Done:
        """Delete the snapshot of this id."""
        self._calls.require("CREATE_DELETE_SNAPSHOT", request.context, "deletes no snapshots")
        content = self._calls.secrets.add_to(build("DeleteSnapshotRequest", snapshot_id=request.handle))
        doing = f"delete the snapshot {request.handle[:60]}"
        self._calls.make("DeleteSnapshot", content, request.context, Purpose.UNSNAPSHOT, doing)
        return Done()

    def find(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        """Look at the snapshot of this id.

        By name there is none: what was begun is followed by the saved request (`DriverInfo.marks`).
        """
        if not request.handle:
            return Absent()
        known = self._calls.require("CREATE_DELETE_SNAPSHOT", request.context, "has no snapshots")
        doing = f"look at the snapshot {request.handle[:60]}"
        if known.can("GET_SNAPSHOT"):
            content = self._calls.secrets.add_to(build("GetSnapshotRequest", snapshot_id=request.handle))
            try:
                answer = self._calls.make("GetSnapshot", content, request.context, Purpose.READ, doing)
            except NotFound:
                return Absent()
            found = answer.snapshot
        elif known.can("LIST_SNAPSHOTS"):
            content = self._calls.secrets.add_to(build("ListSnapshotsRequest", snapshot_id=request.handle))
            try:
                answer = self._calls.make("ListSnapshots", content, request.context, Purpose.READ, doing)
            except NotFound:
                return Absent()
            entries = [each.snapshot for each in answer.entries if each.snapshot.snapshot_id == request.handle]
            if not entries:
                return Absent()
            found = entries[0]
        else:
            # As for csi-snapshotter: a driver that shows no snapshots is believed to have it.
            return Snapshot(handle=request.handle, size_bytes=0, ready=True)
        if found.snapshot_id != request.handle:
            raise BackendError(
                f"the CSI driver shows {found.snapshot_id[:60]!r}, {request.handle[:60]!r} was asked for"
            )
        return _snapshot(found)

    def _sees(self, context: Context) -> bool:
        known = self._calls.known(context)
        return known.can("GET_SNAPSHOT") or known.can("LIST_SNAPSHOTS")


def _snapshot(found: Any, source: str = "") -> Snapshot:
    """Return what the driver shows. source: the handle that was asked for."""
    if not 0 < len(found.snapshot_id) <= LONGEST_ID:
        raise BackendError(f"the CSI driver gave a snapshot an id of {len(found.snapshot_id)} characters")
    created = found.creation_time.seconds + found.creation_time.nanos / 1e9 if found.HasField("creation_time") else 0.0
    return Snapshot(
        handle=found.snapshot_id,
        size_bytes=max(found.size_bytes, 0),
        ready=found.ready_to_use,
        created_at=created if 0 < created < _LATEST else None,
        source=found.source_volume_id[:LONGEST_ID] or source,
        retry_after=_READY_SECONDS,
    )
