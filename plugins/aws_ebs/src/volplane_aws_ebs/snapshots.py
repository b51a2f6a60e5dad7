"""The hooks about snapshots: make, find, list and delete them.

CreateSnapshot has no client token. It is therefore repeated only when a first snapshot is certain not to exist. The
moment of a snapshot has passed when the call is answered; its contents are read from the volume later.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

from volplane import (
    Absent,
    AlreadyExists,
    Context,
    DeleteSnapshotRequest,
    Done,
    FindSnapshotRequest,
    InProgress,
    ListSnapshotsRequest,
    Snapshot,
    SnapshotOwnership,
    SnapshotPage,
    SnapshotRequest,
    VolumeIdentity,
    VolumeInUse,
    read_parameters,
)
from volplane.cloud import GIB, TAGS, BoundedCache, Fences, HookCall, RetryLater, SnapshotLooks, refuse_other_snapshot
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsError
from volplane_aws_ebs.ec2 import SETTLE_SECONDS, Ec2
from volplane_aws_ebs.errors import NOT_FOUND, is_throttled, outcome_unknown
from volplane_aws_ebs.ownership import page_size
from volplane_aws_ebs.resources import Ec2Snapshot, Ec2Volume, existing, snapshot_id_from, volume_id
from volplane_aws_ebs.settings import Settings, check_tag_count
from volplane_aws_ebs.snapshot_parameters import SnapshotParameters
from volplane_aws_ebs.snapshot_steps import SnapshotSteps
from volplane_aws_ebs.state_waits import StateWaits

STARTED = "begun"
_LONGEST_PAUSE = 5.0
_STEPS_LOOK = 1.0
_IN_USE = "InvalidSnapshot.InUse"
_MOST_IMAGES = 5
_LOCKED_RETRY = 3_600.0

Key = tuple[str, str]


def seen(settings: Settings, snapshot: Ec2Snapshot, context: Context) -> Snapshot:
    """Return the snapshot as the contract has it; it is ready when EC2 can make a volume from it."""
    state = {
        "completed": "it is in the archive tier; restore it from there first" if snapshot.archived else "",
        "recoverable": "it was deleted and is in the Recycle Bin; restore it from there",
        "recovering": "it is coming back from the Recycle Bin",
        "error": "",
    }.get(snapshot.state, f"{snapshot.state}, {snapshot.progress or 'no progress'}")
    failed = f"EC2 could not make it: {snapshot.message or 'it does not say why'}; delete it and make another one"
    official = ownership_tags.OFFICIAL.replaced_by(context)
    name = snapshot.tags.get(ownership_tags.SNAPSHOT) or snapshot.tags.get(ownership_tags.OFFICIAL.snapshot)
    return Snapshot(
        handle=snapshot.id,
        size_bytes=snapshot.size * GIB,
        ready=snapshot.state == "completed" and not snapshot.archived,
        created_at=snapshot.started or None,
        source=snapshot.volume,
        owner=TAGS.snapshot_owner(snapshot.tags, context.cluster_id, official=official),
        name=name or snapshot.tags.get("Name", snapshot.id),
        state=state,
        failed=failed if snapshot.state == "error" else "",
        node_affinity=({settings.zone_label: snapshot.zone},) if snapshot.zone and not settings.zone_ids else (),
    )


def list_snapshots(ec2: Ec2, request: ListSnapshotsRequest) -> SnapshotPage:
    """Return one page of the account's snapshots in the region with marks of any cluster.

    Snapshots that others make of our volumes can carry copies of the volumes' tags: those are not listed. Those of the
    official driver are listed by a driver of its name. Raises AwsError.
    """
    token = {"NextToken": request.page} if request.page else {}
    official = ownership_tags.OFFICIAL.replaced_by(request.context)
    keys = [TAGS.snapshot, *([official.snapshot] if official is not None else [])]
    answer = ec2.read(
        Action.DESCRIBE_SNAPSHOTS,
        OwnerIds=["self"],
        Filters=[{"Name": "tag-key", "Values": keys}],
        MaxResults=page_size(request.max_entries),
        **token,
    )
    found = [Ec2Snapshot.of(response) for response in answer.get("Snapshots", ())]
    return SnapshotPage(
        snapshots=tuple(seen(ec2.settings, each, request.context) for each in found if each.state != "recoverable"),
        next_page=answer.get("NextToken") or None,
    )


class Snapshotter:
    """The hooks about single snapshots of one driver. Safe for threads; what it keeps in memory only saves calls."""

    def __init__(self, ec2: Ec2, fences: Fences, waits: StateWaits) -> None:
        self._ec2 = ec2
        self._fences = fences
        self._waits = waits
        self._steps = SnapshotSteps(ec2)
        self._looks = SnapshotLooks(ec2.batches.snapshots, ec2.clock)
        self._uncertain_until: BoundedCache[Key, float] = BoundedCache()
        """By name: until when an empty Describe does not prove that there is no snapshot."""
        self._made: BoundedCache[str, tuple[Ec2Snapshot, float]] = BoundedCache()
        """By id: what CreateSnapshot answered, and when. EC2 may not show it yet."""
        self._missing_since: BoundedCache[str, float] = BoundedCache()
        """By id: since when EC2 has not shown a snapshot that is to be deleted. -inf = this process has deleted it."""

    # --- make ---------------------------------------------------------------------------------------------------

    def create(self, request: SnapshotRequest, call: HookCall) -> Snapshot | InProgress:
        """Raises RetryLater, AwsError and the errors of the contract."""
        source = volume_id(request.volume)
        wanted = read_parameters(SnapshotParameters, request.parameters)
        check_tag_count(self._ec2.settings.tags, wanted.tags.keys())
        key = (request.context.cluster_id, request.name)
        found = self._ec2.snapshots_named(*key)
        if not found and ownership_tags.OFFICIAL.replaced_by(request.context) is not None:
            found = self._ec2.snapshots_named(ownership_tags.OFFICIAL.name, request.name)
        if found:
            return self._existing(request, found, source, wanted)
        if not request.context.state.get(STARTED):
            self.begin(key)
            return InProgress(retry_after=0.0, state={STARTED: True})
        return self._create(request, self.source(request.volume, call.context), key, call, wanted)

    def _existing(
        self, request: SnapshotRequest, found: tuple[Ec2Snapshot, ...], source: str, wanted: SnapshotParameters
    ) -> Snapshot:
        """Return the oldest one, if it is of this volume and owner; that of the official driver counts as such.

        Where something is to be reached, only `find_snapshot` says that it is ready.
        """
        if len(found) > 1:
            ids = ", ".join(each.id for each in found)
            request.context.log.warning("several snapshots are called %s: %s; the oldest is used", request.name, ids)
        shown = self.shown(found[0], request.context)
        belongs = self.belongs(found[0], request.owner, request.context)
        refuse_other_snapshot(shown, request, source, belongs=belongs)
        return replace(shown, ready=False, retry_after=_STEPS_LOOK) if shown.ready and wanted.steps else shown

    @staticmethod
    def belongs(snapshot: Ec2Snapshot, owner: SnapshotOwnership, context: Context) -> bool:
        """Return whether the marks are those of the owner."""
        return TAGS.snapshot_belongs(snapshot.tags, owner, official=ownership_tags.OFFICIAL.replaced_by(context))

    def source(self, asked: VolumeIdentity, context: Context) -> Ec2Volume:
        """Return the volume, if it is ours and EC2 makes snapshots of it now. Raises RetryLater, too."""
        id_ = volume_id(asked)
        recent = self._ec2.recent_volume(id_)
        usable = recent is not None and recent.state != "creating"
        volume = existing(recent if usable else self._ec2.volume(id_), asked)
        if asked.owner is not None:
            ownership_tags.refuse_foreign(volume.id, volume.tags, asked.owner)
        self._fences.refuse_former_leader(volume.id, volume.tags, context)
        if volume.state == "creating":
            self._waits.creating(volume, after=0.5)
        return volume

    def _create(
        self, request: SnapshotRequest, volume: Ec2Volume, key: Key, call: HookCall, wanted: SnapshotParameters
    ) -> Snapshot:
        answer = self.make(
            Action.CREATE_SNAPSHOT,
            key,
            call,
            resource=("snapshots", volume.id),
            VolumeId=volume.id,
            Description=f"volplane snapshot {request.name} of {request.volume.name}",
            TagSpecifications=ownership_tags.tag_specifications("snapshot", self._tags(request, wanted)),
            **({"OutpostArn": wanted.outpost} if wanted.outpost else {}),
        )
        return self._existing(request, (self.remember(answer),), volume.id, wanted)

    def begin(self, key: Key) -> None:
        """Note that nothing of this name was made before: this process sees its first call."""
        self._uncertain_until.setdefault(key, 0.0)

    def make(
        self, action: Action, key: Key, call: HookCall, *, resource: Hashable, **parameters: Any
    ) -> Mapping[str, Any]:
        """Make snapshots by an action without client token, once it is certain that none of this name exist."""
        now = self._ec2.clock()
        uncertain_until = self._uncertain_until.setdefault(key, self._ec2.started_at + SETTLE_SECONDS)
        if uncertain_until > now:
            raise RetryLater(min(uncertain_until - now, _LONGEST_PAUSE))
        try:
            answer = self._ec2.change(action, key[1], call, resource=resource, **parameters)
        except AwsError as error:
            self._ec2.batches.snapshot_names.invalidate(key)
            # A limit is found before anything is made; of other calls that is not as sure.
            if outcome_unknown(error) and not error.code.endswith("LimitExceeded"):
                self._uncertain_until.put(key, self._ec2.clock() + SETTLE_SECONDS)
                raise
            failure = self._ec2.backend_error(error, f"make snapshot {key[1]}")
            failure.nothing_done = True  # Nor has an earlier call made anything, as it would be shown by now.
            raise failure from error
        self._ec2.batches.snapshot_names.invalidate(key)
        self._uncertain_until.put(key, self._ec2.clock() + SETTLE_SECONDS)
        return answer

    def remember(self, answer: Mapping[str, Any]) -> Ec2Snapshot:
        """Return the snapshot that was made; EC2 may not show it yet."""
        made = Ec2Snapshot.of(answer)
        self._ec2.batches.account = made.account
        self._made.put(made.id, (made, self._ec2.clock()))
        return made

    def _tags(self, request: SnapshotRequest, wanted: SnapshotParameters) -> Mapping[str, str]:
        return {
            "Name": request.name,
            **self._ec2.settings.tags,
            **wanted.rendered_tags(request.snapshot),
            **ownership_tags.snapshot_tags(request.owner, request.name, request.snapshot),
            **TAGS.of_term(request.context),
        }

    # --- find ---------------------------------------------------------------------------------------------------

    def find(self, request: FindSnapshotRequest, call: HookCall) -> Snapshot | Absent:
        """Raises AwsError."""
        found = self.by_handle(request.handle) if request.handle else self._by_name(request)
        if found is None:
            return Absent()
        shown, wanted = self.shown(found, request.context), read_parameters(SnapshotParameters, request.parameters)
        owner = shown.owner
        ours = owner is not None and owner.cluster_id in (request.context.cluster_id, ownership_tags.OFFICIAL.name)
        return self._steps.taken(shown, wanted, call) if ours and not shown.failed else shown

    def by_handle(self, handle: str) -> Ec2Snapshot | None:
        """Return it, also if another account shares it, or it is too new to be shown."""
        id_ = snapshot_id_from(handle)
        found = self._ec2.snapshot(id_) if id_ is not None else None
        made = self._made.get(handle) if found is None else None
        return made[0] if made is not None and self._ec2.clock() - made[1] < SETTLE_SECONDS else found

    def _by_name(self, request: FindSnapshotRequest) -> Ec2Snapshot | None:
        """Return the oldest one of the owner, by calls that begin now."""
        context = request.context
        cluster = context.cluster_id if request.owner is None else request.owner.cluster_id
        official = ownership_tags.OFFICIAL.replaced_by(context)
        for whose in (cluster, *([official.name] if official is not None else [])):
            for snapshot in self._ec2.snapshots_named_now(whose, request.name):
                if request.owner is None or self.belongs(snapshot, request.owner, context):
                    return snapshot
        return None

    def shown(self, snapshot: Ec2Snapshot, context: Context) -> Snapshot:
        """Return the snapshot as the contract has it, with the time of the next look."""
        return self._looks.paced(seen(self._ec2.settings, snapshot, context), snapshot.id)

    # --- delete -------------------------------------------------------------------------------------------------

    def delete(self, request: DeleteSnapshotRequest, call: HookCall) -> Done:
        """Raises RetryLater, AwsError and the errors of the contract."""
        id_ = snapshot_id_from(request.handle)
        if id_ is None:
            request.context.log.warning("handle %r is no snapshot of EBS: there is nothing to delete", request.handle)
            return Done()
        snapshot = self._ec2.batches.snapshots.fetch_now(id_).value
        if snapshot is None:
            self._require_gone(id_)
            return Done()
        if snapshot.shared:
            raise AlreadyExists(
                f"snapshot {id_} belongs to account {snapshot.account}, which shares it: it is not touched; set the "
                "content's deletionPolicy to Retain"
            )
        official = ownership_tags.OFFICIAL.replaced_by(request.context)
        TAGS.refuse_foreign_snapshot(f"snapshot {id_}", snapshot.tags, request, official=official)
        self._fences.refuse_former_leader(id_, snapshot.tags, call.context)
        try:
            self._ec2.change(Action.DELETE_SNAPSHOT, id_, call, SnapshotId=id_)
        except AwsError as error:
            if error.code not in NOT_FOUND:
                self._refused(id_, error)
                raise
        self._ec2.batches.snapshots.invalidate(id_)
        self._made.drop(id_)
        self._missing_since.put(id_, -math.inf)
        return Done()

    def _refused(self, id_: str, error: AwsError) -> None:
        """Raise VolumeInUse that says what to do if an image is made of the snapshot, or it is locked."""
        if is_throttled(error):
            return
        try:
            images = self._images_of(id_) if error.code == _IN_USE else []
            lock = self._lock_of(id_) if error.code != _IN_USE else ""
        except AwsError:
            return
        if images:
            raise VolumeInUse(
                f"snapshot {id_} is part of the image {', '.join(images)}: deregister that (AMI) first; it is tried "
                "again",
                code=error.code,
            ) from error
        if lock:
            raise VolumeInUse(
                f"snapshot {id_} is {lock}: it can be deleted after that; it is tried again every hour",
                code=error.code,
                retry_after=_LOCKED_RETRY,
            ) from error

    def _images_of(self, id_: str) -> list[str]:
        filters = [{"Name": "block-device-mapping.snapshot-id", "Values": [id_]}]
        found = self._ec2.read(Action.DESCRIBE_IMAGES, Owners=["self"], Filters=filters).get("Images", ())
        return sorted(each["ImageId"] for each in found)[:_MOST_IMAGES]

    def _lock_of(self, id_: str) -> str:
        """Return how the snapshot is locked, as in "locked in mode governance until …"; "" if it is not.

        The code by which EC2 refuses to delete a locked one is not documented.
        """
        for lock in self._ec2.read(Action.DESCRIBE_LOCKED_SNAPSHOTS, SnapshotIds=[id_]).get("Snapshots", ()):
            state, expires = lock.get("LockState"), lock.get("LockExpiresOn")
            if state != "expired":
                until = f" until {expires:%Y-%m-%d %H:%M} UTC" if expires is not None else ""
                unlocked = "" if state == "compliance" else ", or until somebody unlocks it"
                return f"locked in mode {state}{until}{unlocked}"
        return ""

    def _require_gone(self, id_: str) -> None:
        """Raise RetryLater while EC2 may not show the snapshot yet: only its long absence proves that it is gone.

        `create_snapshot` returns as soon as EC2 has accepted the snapshot, which Describe calls show later.
        """
        now = self._ec2.clock()
        elapsed = now - self._missing_since.setdefault(id_, now)
        if elapsed < SETTLE_SECONDS:
            raise RetryLater(min(max(elapsed, 1.0), SETTLE_SECONDS - elapsed))
