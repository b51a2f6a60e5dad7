"""What hooks returned and no object holds yet: one record for each claim, volume and attachment in work.

Losing a record costs a repeated, idempotent call, never correctness: what the contract of the hooks promises over a
restart is written to the object. Records are created, changed and forgotten here only. Decisions read them. The handler
of an operation takes the record in the turn of the decision and keeps it: if the record is forgotten meanwhile, what
the operation still writes to it is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from volplane.assets import Asset
from volplane.errors import AlreadyDeleted, BackendError, OutcomeUnknown
from volplane.state.records import ClaimIntent

__all__ = [
    "Attached",
    "Attaching",
    "AttachmentFailure",
    "AttachmentProgress",
    "BackendErased",
    "ChangeProgress",
    "Changed",
    "Changing",
    "ClaimProgress",
    "Deleted",
    "Deleting",
    "Detached",
    "Detaching",
    "Discarded",
    "Discarding",
    "Erasing",
    "Full",
    "Leftover",
    "LongCall",
    "Made",
    "Pending",
    "Progress",
    "Refused",
    "ScrubPlan",
    "Untouched",
    "VolumeProgress",
]


class LongCall(msgspec.Struct, frozen=True):
    """A hook answered `InProgress`: it is called again at `due` (loop time) with `state`.

    given: the recorded state that the call was made with; None = there was none.
    """

    state: Mapping[str, Any]
    due: float
    given: Mapping[str, Any] | None = None

    def to_record(self, recorded: Mapping[str, Any] | None) -> bool:
        """Whether the state is to be written over the recorded one.

        Where that has changed since the call was made, another process has called the hook later: its state counts.
        """
        return recorded == self.given and recorded != self.state


class Pending(LongCall, frozen=True):
    """Of `provision`."""


class Made(msgspec.Struct, frozen=True):
    """`provision` made this asset; no volume stands for it yet, or one without our annotations."""

    asset: Asset


class Full(msgspec.Struct, frozen=True):
    """The backend has no room in the segment and left nothing there: another node may be chosen."""


class Discarding(msgspec.Struct, frozen=True):
    """The unwanted asset is being deleted. call: of `delete`, which goes on; None = it was not called yet."""

    asset: Asset
    call: LongCall | None = None


class Discarded(msgspec.Struct, frozen=True):
    """It is proven that no asset of the claim's intent is left."""


class ClaimProgress(msgspec.Struct):
    """Of one claim.

    step: how far the asset is. intent: the last sealed record that was seen on the claim, whatever a tenant does to it
    since. attempted: loop time of the end of the last `provision`, or of the first look since; `find` proves absence
    only `settle_seconds` after that. None while a call may still be under way.
    """

    step: Pending | Made | Full | Discarding | Discarded | None = None
    intent: ClaimIntent | None = None
    attempted: float | None = None

    def intent_seen(self, intent: ClaimIntent) -> None:
        """The claim carries this record. After a discard one of another generation is about another asset.

        Where the term is another one, another leader has worked on it since: what was known counts no more.
        """
        if self.intent is not None and intent.fence != self.intent.fence:
            self.step, self.attempted = None, None
        if isinstance(self.step, Discarded) and not intent.same_asset(self.intent):
            self.step = None
        self.intent = intent

    def provision_began(self) -> None:
        if isinstance(self.step, Discarded):
            self.step = None
        self.attempted = None

    def provision_made(self, asset: Asset, now: float) -> None:
        self.step, self.attempted = Made(asset), now

    def provision_pending(
        self, state: Mapping[str, Any], due: float, now: float, *, given: Mapping[str, Any] | None = None
    ) -> None:
        """given: see `LongCall`."""
        self.step, self.attempted = Pending(dict(state), due, given), now

    def provision_failed(self, error: BackendError, now: float) -> None:
        """A call whose outcome is unknown may still be under way, so its end cannot be dated."""
        if isinstance(error, AlreadyDeleted):
            self.discarded()
        elif not isinstance(error, OutcomeUnknown):
            self.attempted = now

    def segment_full(self) -> None:
        self.step = Full()

    def node_cleared(self) -> None:
        """The claim has no selected node any more."""
        if isinstance(self.step, Full):
            self.step = None

    def volume_seen(self, *, complete: bool) -> None:
        """The claim's own volume exists: it holds the asset.

        complete: whether it shows what was made; else that is still known here alone.
        """
        if complete or not isinstance(self.step, Made):
            self.step = None

    def absence_seen(self, now: float) -> float:
        """`find` answered `Absent`. Returns since when: the end of the last attempt, else the first look."""
        if self.attempted is None:
            self.attempted = now
        return self.attempted

    def discard_began(self, asset: Asset) -> None:
        """This asset is deleted from now on."""
        if not isinstance(self.step, Discarding):
            self.step = Discarding(asset)

    def discard_pending(
        self, asset: Asset, state: Mapping[str, Any], due: float, *, given: Mapping[str, Any] | None = None
    ) -> None:
        """given: see `LongCall`."""
        self.step = Discarding(asset, LongCall(dict(state), due, given))

    def discarded(self) -> None:
        self.step, self.attempted = Discarded(), None


class Deleting(LongCall, frozen=True):
    """Of `delete`."""


class Deleted(msgspec.Struct, frozen=True):
    """The asset is gone."""


class ScrubPlan(msgspec.Struct, frozen=True):
    """The backend wants a scrubber pod; volume: the pod volume to mount instead of the usual one; sub_path: the part
    of it to erase.
    """

    volume: Mapping[str, Any] | None
    sub_path: str = ""


class Erasing(LongCall, frozen=True):
    """Of `recycle`."""


class BackendErased(msgspec.Struct, frozen=True):
    """The backend erased the contents itself."""


class VolumeProgress(msgspec.Struct):
    """Of one volume.

    step: how far its deletion or scrub is. recycling: a call of `recycle` has begun, and is not known to have ended.
    failure: why the last `delete` or `recycle` failed; unreported: no write has shown that yet. Each failure is shown
    once: another leader may have others to show. found_on, missing_on: uid of the Node, made again since, on whose
    storage the asset is, or is not.
    """

    step: Deleting | Deleted | ScrubPlan | Erasing | BackendErased | None = None
    recycling: bool = False
    failure: str = ""
    unreported: bool = False
    found_on: str = ""
    missing_on: str = ""

    @property
    def unreported_failure(self) -> str:
        """Why the last `delete` or `recycle` failed, if that is still to be written; else ""."""
        return self.failure if self.unreported else ""

    def succeeded(self, step: Deleting | Deleted | ScrubPlan | Erasing | BackendErased) -> None:
        """`delete` or `recycle` answered."""
        self.step, self.recycling, self.failure, self.unreported = step, False, "", False

    def failed(self, message: str) -> None:
        self.failure, self.unreported = message, True

    def status_seen(self, message: str) -> None:
        """The volume's status has this message."""
        if message == self.failure:
            self.unreported = False


class Changing(LongCall, frozen=True, kw_only=True):
    """Of `expand` or `modify`."""

    target: str


class Changed(msgspec.Struct, frozen=True):
    """`expand` or `modify` is done. capacity_bytes: the size of the asset, after `expand`."""

    target: str
    capacity_bytes: int = 0


class Refused(msgspec.Struct, frozen=True):
    """The backend refused the target and did nothing: a person may ask for another one. message: why."""

    target: str
    message: str


class Untouched(msgspec.Struct, frozen=True):
    """The last call towards the target failed and did nothing, though a later one may succeed."""

    target: str


class ChangeProgress(msgspec.Struct):
    """Of one `expand` or `modify` of one volume. step: how far it is; its target says for what."""

    step: Changing | Changed | Refused | Untouched | None = None

    def for_target(self, target: str) -> Changing | Changed | Refused | Untouched | None:
        """The step, unless it is about another target."""
        return self.step if self.step is not None and self.step.target == target else None


class Attaching(LongCall, frozen=True):
    """Of `attach`."""


class Attached(msgspec.Struct, frozen=True):
    """`attach` is done; the status of the attachment may not show it yet."""

    metadata: Mapping[str, str]


class Detaching(LongCall, frozen=True):
    """Of `detach`."""


class Detached(msgspec.Struct, frozen=True):
    """`detach` is done: nothing of this attachment is left on the backend."""


class AttachmentFailure(msgspec.Struct, frozen=True):
    """Why the last call failed. hook: "attach" or "detach". code: of gRPC, as a number."""

    hook: str
    message: str
    code: int | None = None


class AttachmentProgress(msgspec.Struct):
    """Of one attachment.

    step: how far it is. unreported: the failure that its status does not show yet. lost: the backend does not show what
    the status shows, so `attach` is called again.
    """

    step: Attaching | Attached | Detaching | Detached | None = None
    unreported: AttachmentFailure | None = None
    lost: bool = False

    def succeeded(self, step: Attaching | Attached | Detaching | Detached) -> None:
        """The hook answered."""
        self.step, self.unreported = step, None
        if isinstance(step, Attached):
            self.lost = False

    def failed(self, failure: AttachmentFailure) -> None:
        self.unreported = failure

    def missed(self) -> None:
        """The backend does not show it as attached, though the status does."""
        self.step, self.lost = None, True

    def reported(self) -> None:
        """The status shows what happened last."""
        self.unreported = None


class Leftover(msgspec.Struct, frozen=True):
    """A volume that its backend showed twice at a node of ours without an attachment.

    volume, uid: of the PersistentVolume. driver: whose marks the asset carries. node, node_uid: of the Node. seen: loop
    time of the second look.
    """

    volume: str
    uid: str
    driver: str
    node: str
    node_uid: str
    seen: float


class Progress:
    """The records of all claims and volumes, by uid."""

    def __init__(self) -> None:
        self._claims: dict[str, ClaimProgress] = {}
        self._volumes: dict[str, VolumeProgress] = {}
        self._attachments: dict[str, AttachmentProgress] = {}
        self._changes: dict[tuple[str, str], ChangeProgress] = {}
        """By uid of the volume and verb."""
        self.leftovers: dict[str, Leftover] = {}
        """By name of the attachment that each should have."""

    def __len__(self) -> int:
        return len(self._claims) + len(self._volumes) + len(self._changes) + len(self._attachments)

    def claim(self, uid: str) -> ClaimProgress:
        """What is known; an empty record, which is not kept, if that is nothing."""
        return self._claims.get(uid) or ClaimProgress()

    def volume(self, uid: str) -> VolumeProgress:
        """What is known; an empty record, which is not kept, if that is nothing."""
        return self._volumes.get(uid) or VolumeProgress()

    def change(self, uid: str, verb: str) -> ChangeProgress:
        """What is known of this `expand` or `modify` of the volume; an empty record, not kept, if that is nothing."""
        return self._changes.get((uid, verb)) or ChangeProgress()

    def track_change(self, uid: str, verb: str) -> ChangeProgress:
        """The record, made if there is none. The volume must be in the cache: its deletion drops the record."""
        return self._changes.setdefault((uid, verb), ChangeProgress())

    def track_claim(self, uid: str) -> ClaimProgress:
        """The record, made if there is none. The claim must be in the cache: its deletion drops the record."""
        return self._claims.setdefault(uid, ClaimProgress())

    def track_volume(self, uid: str) -> VolumeProgress:
        """The record, made if there is none. The volume must be in the cache: its deletion drops the record."""
        return self._volumes.setdefault(uid, VolumeProgress())

    def forget_change(self, uid: str, verb: str) -> None:
        """The volume is gone, or its objects show the change."""
        self._changes.pop((uid, verb), None)

    def attachment(self, uid: str) -> AttachmentProgress:
        """What is known; an empty record, which is not kept, if that is nothing."""
        return self._attachments.get(uid) or AttachmentProgress()

    def track_attachment(self, uid: str) -> AttachmentProgress:
        """The record, made if there is none. The attachment must be in the cache: its deletion drops the record."""
        return self._attachments.setdefault(uid, AttachmentProgress())

    def forget_attachment(self, uid: str) -> None:
        """The attachment is gone."""
        self._attachments.pop(uid, None)

    def forget_claim(self, uid: str) -> None:
        """The claim is gone, or its intent has ended."""
        self._claims.pop(uid, None)

    def forget_volume(self, uid: str) -> None:
        """The volume is gone, its intent has ended, or it is scrubbed anew."""
        self._volumes.pop(uid, None)
