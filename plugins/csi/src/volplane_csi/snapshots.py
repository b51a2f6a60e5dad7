"""Snapshots, and groups of them. CSI finds none by its name: what an unknown attempt has made is found by the same
request again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from volplane import (
    Absent,
    AlreadyExists,
    BackendError,
    Context,
    DeleteGroupSnapshotRequest,
    DeleteSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    FindSnapshotRequest,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    NotFound,
    Snapshot,
    SnapshotIdentity,
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
from volplane_csi.volumes import LONGEST_ID, MOST_PAGES

_READY_SECONDS: Final = 5.0
"""Until the next look at a snapshot that is not ready."""
_LATEST: Final = 2**63 / 1e9
"""Unix time that the API can keep."""
_SECRETS: Final = frozenset(
    f"csi.storage.k8s.io/{role}-{part}"
    for role in (
        "snapshotter-secret",
        "snapshotter-list-secret",
        "group-snapshotter-secret",
        "group-snapshotter-get-secret",
    )
    for part in ("name", "namespace")
)
_METADATA: Final = "csi.storage.k8s.io/volume"
_GROUPS: Final = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
_GROUP_PREFIX: Final = "groupsnapshot"
"""Begins the names of groups, as those of csi-snapshotter without its option --groupsnapshot-name-prefix."""


class _Making:
    """Sends the saved request of a method that makes snapshots, as often as it takes."""

    def __init__(self, calls: Calls, settings: Settings, method: str, kind: str) -> None:
        """kind: of Kubernetes' objects, as in the keys of their metadata."""
        self._calls = calls
        self._settings = settings
        self._method = method
        self._kind = kind
        self._attempts = Attempts()

    def make(
        self, request: SnapshotRequest | GroupSnapshotRequest, version: str, build_request: Callable[[], Any]
    ) -> tuple[Any, Mapping[str, Any]] | InProgress:
        """Save the request; once it is saved, send it. Returns the answer, and the state.

        build_request: returns the message without its parameters; raises BackendError. version: of the driver.
        """
        if not request.context.state:
            saved = self._demand(request, version, build_request)
            self._attempts.saved(saved)
            return InProgress(retry_after=0.0, state=saved.state())
        saved = SavedRequest.read(request.context.state)
        content = self._calls.secrets.add_to(message(f"{self._method}Request").FromString(saved.content))
        nothing = self._attempts.begin(saved)
        try:
            return self._calls.send(self._method, content, request.context), saved.state()
        except CallError as error:
            raise self._refusal(error, request.name, saved, nothing=nothing) from None

    def _demand(
        self, request: SnapshotRequest | GroupSnapshotRequest, version: str, build_request: Callable[[], Any]
    ) -> SavedRequest:
        try:
            content = build_request()
            told = request.snapshot if isinstance(request, SnapshotRequest) else request.group
            content.parameters.update(self._parameters(request.parameters, told))
            saved = SavedRequest(content=content.SerializeToString(deterministic=True), driver_version=version)
            saved.require_fits()
        except BackendError as error:
            error.nothing_done = True
            raise
        return saved

    def _parameters(self, given: Mapping[str, Any], told: SnapshotIdentity) -> Mapping[str, str]:
        found = for_driver({key: value for key, value in keys_of(given).items() if key not in _SECRETS})
        if self._settings.extra_create_metadata:
            of = f"{_METADATA}{self._kind}"
            found |= {f"{of}/name": told.name, f"{of}/namespace": told.namespace, f"{of}content/name": told.content}
        return found

    def _refusal(self, error: CallError, name: str, saved: SavedRequest, *, nothing: bool) -> BackendError:
        found: BackendError = self._calls.failed(error, f"make the snapshot {name}", Purpose.SNAPSHOT)
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


class Snapshots:
    """The snapshots of a driver."""

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self._calls = calls
        self._settings = settings
        self._making = _Making(calls, settings, "CreateSnapshot", "snapshot")

    def create(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Save the request; once it is saved, send it."""
        known = self._calls.require("CREATE_DELETE_SNAPSHOT", request.context, "makes no snapshots")
        made = self._making.make(
            request,
            known.version,
            lambda: build(
                "CreateSnapshotRequest",
                source_volume_id=request.volume.handle,
                name=name_of(self._settings.snapshot_name_prefix, request.owner.snapshot_uid),
            ),
        )
        if isinstance(made, InProgress):
            return made
        answer, state = made
        found = _snapshot(answer.snapshot, request.volume.handle)
        if found.ready or self._sees(request.context):
            return found
        # Only this call tells when it is ready.
        return InProgress(retry_after=_READY_SECONDS, state=state)

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


class Groups:
    """The groups of snapshots of a driver. Their members go with them, never alone."""

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self._calls = calls
        self._making = _Making(calls, settings, "CreateVolumeGroupSnapshot", "groupsnapshot")

    def create(self, request: GroupSnapshotRequest) -> GroupSnapshot | InProgress:
        """Save the request; once it is saved, send it."""
        known = self._calls.require(_GROUPS, request.context, "cuts no groups of snapshots")
        made = self._making.make(
            request,
            known.version,
            lambda: build(
                "CreateVolumeGroupSnapshotRequest",
                name=name_of(_GROUP_PREFIX, request.owner.snapshot_uid),
                source_volume_ids=[each.handle for each in request.volumes],
            ),
        )
        return made if isinstance(made, InProgress) else _group(made[0].group_snapshot)

    def find(self, request: FindGroupSnapshotRequest) -> GroupSnapshot | Absent:
        """Look at the group of this id.

        By name there is none: what was begun is followed by the saved request (`DriverInfo.marks`).
        """
        if not request.handle:
            return Absent()
        self._calls.require(_GROUPS, request.context, "has no groups of snapshots")
        members = self._members(request.handle, request.snapshots, request.context)
        content = self._calls.secrets.add_to(
            build("GetVolumeGroupSnapshotRequest", group_snapshot_id=request.handle, snapshot_ids=members)
        )
        doing = f"look at the group {request.handle[:60]}"
        try:
            answer = self._calls.make("GetVolumeGroupSnapshot", content, request.context, Purpose.READ, doing)
        except NotFound:
            return Absent()
        found = _group(answer.group_snapshot)
        if found.handle != request.handle:
            raise BackendError(f"the CSI driver shows {found.handle[:60]!r}, {request.handle[:60]!r} was asked for")
        return found

    def delete(self, request: DeleteGroupSnapshotRequest) -> Done:
        """Delete all snapshots of the group of this id."""
        self._calls.require(_GROUPS, request.context, "deletes no groups of snapshots")
        members = self._members(request.handle, request.snapshots, request.context)
        content = self._calls.secrets.add_to(
            build("DeleteVolumeGroupSnapshotRequest", group_snapshot_id=request.handle, snapshot_ids=members)
        )
        doing = f"delete the group {request.handle[:60]}"
        self._calls.make("DeleteVolumeGroupSnapshot", content, request.context, Purpose.UNSNAPSHOT, doing)
        return Done()

    def _members(self, handle: str, known: Sequence[str], context: Context) -> Sequence[str]:
        """Return the ids of the members, without which drivers may refuse: those that are known, else as listed."""
        if known or not self._calls.known(context).can("LIST_SNAPSHOTS"):
            return known
        found: list[str] = []
        token = ""
        for _ in range(MOST_PAGES):
            content = self._calls.secrets.add_to(build("ListSnapshotsRequest", starting_token=token))
            answer = self._calls.make("ListSnapshots", content, context, Purpose.READ, "list the snapshots")
            found += [each.snapshot.snapshot_id for each in answer.entries if each.snapshot.group_snapshot_id == handle]
            if answer.next_token in ("", token):
                return found
            token = answer.next_token
        raise BackendError(f"the CSI driver lists its snapshots in more than {MOST_PAGES} pages")


def _group(found: Any) -> GroupSnapshot:
    """Return the group that the driver shows."""
    if not 0 < len(found.group_snapshot_id) <= LONGEST_ID:
        raise BackendError(f"the CSI driver gave a group an id of {len(found.group_snapshot_id)} characters")
    return GroupSnapshot(handle=found.group_snapshot_id, snapshots=tuple(_snapshot(each) for each in found.snapshots))


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
