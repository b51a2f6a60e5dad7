"""What hooks returned and no object holds yet: one record for each claim, volume, change and attachment in work.

Losing a record costs a repeated, idempotent call, never correctness: what the contract of the hooks promises over a
restart is written to the object. Only this module creates, changes and drops records; decisions read them. The handler
of an operation gets the record in the same turn of the loop as the decision, and keeps it: what it writes after the
record was dropped is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from volplane.assets import Asset, Segment
from volplane.errors import AlreadyDeleted, BackendError, OutcomeUnknown
from volplane.kube.objects import Claim
from volplane.state.records import ClaimIntent, ScrubPlan


class LongCall(msgspec.Struct, frozen=True):
    """A hook answered `InProgress`: it is called again at `due` (loop time) with `state`."""

    state: Mapping[str, Any]
    due: float
    given: Mapping[str, Any] | None = None
    """The recorded state that the call was made with; None = there was none."""
    progress: str = ""
    """How far it is, for people."""
    told: float = 0.0
    """Loop time of the last event that says so; before the first, of the first answer."""

    def unrecorded(self, recorded: Mapping[str, Any] | None) -> bool:
        """Return whether the state must be written to the object. recorded: the one that it has, None if it has none.

        An empty state is recorded too: that there is a record tells the next process that the backend is at work.
        """
        # If the record has changed since the call was made, another process called the hook later: its state counts.
        return recorded == self.given and recorded != self.state

    def said(self, text: str) -> str:
        return f"{text}: {self.progress}" if self.progress else text

    def left(self, now: float) -> float:
        """Return the seconds until the call is due. now: loop time."""
        return max(self.due - now, 0.0)


class Pending(LongCall, frozen=True):
    """`provision` goes on."""


class Planned(msgspec.Struct, frozen=True):
    """`provision` has said what belongs into the record, and made nothing."""

    intent: ClaimIntent


class Made(msgspec.Struct, frozen=True):
    """`provision` made this asset; its volume does not exist yet, or lacks our annotations."""

    asset: Asset


class Full(msgspec.Struct, frozen=True):
    """The backend has no room in the segment and left nothing there: another node may be chosen."""


class Discarding(msgspec.Struct, frozen=True):
    """The unwanted asset is being deleted."""

    asset: Asset
    call: LongCall | None = None
    """The `delete` that goes on; None = it has not been called yet."""


class Discarded(msgspec.Struct, frozen=True):
    """It is proven that no asset of the claim's intent is left."""


ClaimStep = Planned | Pending | Made | Full | Discarding | Discarded


class FoundSource(msgspec.Struct, frozen=True):
    """The driver has the snapshot of which the volume is to be made. places: where that can be; empty = everywhere."""

    handle: str
    places: tuple[Segment, ...]


class ClaimProgress(msgspec.Struct):
    step: ClaimStep | None = None
    """How far the asset is."""
    intent: ClaimIntent | None = None
    """The last sealed record that was seen on the claim, whatever a tenant has done to it since."""
    attempted: float | None = None
    """Loop time of the end of the last `provision`, or of the first `find` since; None while a call may be running.
    `find` proves absence only `settle_seconds` after that."""
    source: FoundSource | None = None
    given_back: bool = False
    """A node was selected for it and taken away again, though its source says where it can be."""
    begun: bool = False
    """This process called `provision`, no volume was seen since, and what was made is not proven absent."""

    def last_intent(self) -> ClaimIntent | None:
        """Return `intent` with the state that the last hook returned since: a tenant may have removed the record."""
        if self.intent is None:
            return None
        match self.step:
            case Pending(state=state):
                return replace(self.intent, state=dict(state))
            case Discarding(call=LongCall(state=state)):
                return replace(self.intent, discard=dict(state))
        return self.intent

    def intent_seen(self, intent: ClaimIntent) -> None:
        if self.intent is not None and intent.fence != self.intent.fence:
            # Another leader has worked on the claim since.
            self.step, self.attempted = None, None
        self.intent = intent

    def provision_began(self) -> None:
        if isinstance(self.step, Discarded):
            self.step = None
        self.attempted, self.begun = None, True

    def reached(self, step: ClaimStep, now: float | None = None) -> None:
        """Note how far the asset is. now: loop time of the end of the `provision` or `find` that showed it.

        A deletion that begins changes nothing about one that goes on, whose asset is not looked up again.
        """
        if isinstance(step, Discarding) and step.call is None and isinstance(self.step, Discarding):
            return
        self.step = step
        self.begun = self.begun and not isinstance(step, Full | Discarded)
        if now is not None or isinstance(step, Discarded):
            self.attempted = now

    def provision_failed(self, error: BackendError, now: float) -> None:
        """Note the end of a call that failed. If the outcome is unknown the call may be running: no end is noted."""
        self.begun = self.begun and not error.nothing_left
        if isinstance(error, AlreadyDeleted):
            self.reached(Discarded())
        elif not isinstance(error, OutcomeUnknown):
            self.attempted = now

    def node_cleared(self) -> None:
        if isinstance(self.step, Full):
            self.step = None

    def volume_seen(self, *, complete: bool) -> None:
        """Note that the claim's own volume exists and holds the asset. complete: it has our annotations, too."""
        self.begun = False
        if complete or not isinstance(self.step, Made):
            self.step = None

    def absence_seen(self, now: float, settle_seconds: float) -> float:
        """Note that `find` returned `Absent`. Return the seconds until that is proof: `settle_seconds` after the last
        attempt, or after the first look.
        """
        if self.attempted is None:
            self.attempted = now
        return self.attempted + settle_seconds - now


class Deleting(LongCall, frozen=True):
    """`delete` goes on."""


class Deleted(msgspec.Struct, frozen=True):
    """The asset is gone."""


class Unused(msgspec.Struct, frozen=True):
    """Nobody uses the volume: the process of its node may be asked to erase it."""


class Erasing(LongCall, frozen=True):
    """`recycle` goes on."""


class BackendErased(msgspec.Struct, frozen=True):
    """The backend erased the contents itself."""


VolumeStep = Deleting | Deleted | Unused | ScrubPlan | Erasing | BackendErased


class VolumeProgress(msgspec.Struct):
    step: VolumeStep | None = None
    """How far its deletion or scrub is."""
    recycling: bool = False
    """A call of `recycle` was started, and is not known to have ended."""
    unreported_failure: str = ""
    """Why the last `delete` or `recycle` failed, until a write has shown it. Each failure is shown once: another leader
    may have others to show."""
    found_on: str = ""
    """Uid of the Node, created again since, on whose storage the asset is."""
    missing_on: str = ""
    """Uid of the Node, created again since, on whose storage the asset is not."""
    in_the_way: str = ""
    """Uid of the claim that it was released from, if it has to leave the trash: a claim needs the room."""

    def succeeded(self, step: VolumeStep) -> None:
        self.step, self.recycling, self.unreported_failure = step, False, ""

    def status_seen(self, message: str) -> None:
        if message == self.unreported_failure:
            self.unreported_failure = ""


class Changing(LongCall, frozen=True, kw_only=True):
    """`expand` or `modify` goes on."""

    target: str


class Changed(msgspec.Struct, frozen=True):
    """`expand` or `modify` is done."""

    target: str
    capacity_bytes: int = 0
    """The size of the asset, after `expand`."""
    on_node: bool | None = None
    """`Asset.node_expansion_required`."""


class Refused(msgspec.Struct, frozen=True):
    """The backend refused the target and did nothing: the user may ask for another one. message: why."""

    target: str
    message: str


class Untouched(msgspec.Struct, frozen=True):
    """The last call towards the target failed and did nothing, though a later one may succeed."""

    target: str


ChangeStep = Changing | Changed | Refused | Untouched


class ChangeProgress(msgspec.Struct):
    """The record of one `expand` or `modify` of one volume."""

    step: ChangeStep | None = None
    """How far it is; the target of the step says towards what."""

    def for_target(self, target: str) -> ChangeStep | None:
        return self.step if self.step is not None and self.step.target == target else None


class Attaching(LongCall, frozen=True):
    """`attach` goes on."""


class Attached(msgspec.Struct, frozen=True):
    """`attach` is done; the status of the attachment may not show it yet."""

    metadata: Mapping[str, str]
    node_uid: str = ""
    """Of the Node that it was called for."""


class Detaching(LongCall, frozen=True):
    """`detach` goes on."""


class Detached(msgspec.Struct, frozen=True):
    """`detach` is done: nothing of this attachment is left on the backend."""


class AttachmentFailure(msgspec.Struct, frozen=True):
    hook: str
    """"attach" or "detach"."""
    message: str
    code: int | None = None
    """The gRPC code."""


class AttachmentProgress(msgspec.Struct):
    step: Attaching | Attached | Detaching | Detached | None = None
    """How far it is."""
    unreported: AttachmentFailure | None = None
    """The failure that its status does not show yet."""
    lost: bool = False
    """The status says attached and the backend does not, so `attach` is called again."""
    uncertain: bool | None = None
    """Whether an `attach` that failed may have had an effect; None = no call has shown it in this process."""

    def succeeded(self, step: Attaching | Attached | Detaching | Detached) -> None:
        self.step, self.unreported, self.uncertain = step, None, False
        if isinstance(step, Attached):
            self.lost = False


class UnrecordedAttachment(msgspec.Struct, frozen=True):
    """A volume that its backend listed twice at a node of ours for which there is no VolumeAttachment."""

    volume: str
    """Name of the PersistentVolume."""
    uid: str
    driver: str
    """The driver whose marks the asset carries."""
    node: str
    node_uid: str
    seen: float
    """Loop time of the second listing."""


K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


@dataclass(slots=True)
class ProgressTable(Generic[K, R]):
    """Records of one kind by key, the uid of their object."""

    empty: Callable[[], R]
    """Makes the record of what nothing is known of."""
    records: dict[K, R] = field(default_factory=dict)

    def get(self, key: K) -> R:
        """Return what is known; if that is nothing, an empty record that is not kept."""
        return self.records.get(key) or self.empty()

    def track(self, key: K) -> R:
        """Return the record, created if there is none. The cache must hold its object, whose deletion drops it."""
        return self.records.setdefault(key, self.empty())

    def forget(self, key: K) -> None:
        """Drop the record: its object is gone, or shows what the record says."""
        self.records.pop(key, None)


@dataclass(slots=True)
class Progress:
    claims: ProgressTable[str, ClaimProgress] = field(default_factory=lambda: ProgressTable(ClaimProgress))
    vanished: dict[str, Claim] = field(default_factory=dict)
    """By uid, without their records, the claims that are gone although what was begun for them had not ended."""
    volumes: ProgressTable[str, VolumeProgress] = field(default_factory=lambda: ProgressTable(VolumeProgress))
    attachments: ProgressTable[str, AttachmentProgress] = field(
        default_factory=lambda: ProgressTable(AttachmentProgress)
    )
    changes: ProgressTable[tuple[str, str], ChangeProgress] = field(
        default_factory=lambda: ProgressTable(ChangeProgress)
    )
    """By uid of the volume and verb."""
    unrecorded: dict[str, UnrecordedAttachment] = field(default_factory=dict)
    """By name of the attachment that each should have."""

    def intent_seen(self, claim_uid: str, intent: ClaimIntent) -> None:
        """Take over the record that a claim carries now; what hooks return of another asset than that one's is lost."""
        known = self.claims.track(claim_uid)
        former = known.intent or intent
        if (intent.driver, intent.generation) != (former.driver, former.generation):
            known = self.claims.records[claim_uid] = ClaimProgress(begun=known.begun)
        known.intent_seen(intent)

    def __len__(self) -> int:
        return sum(len(table.records) for table in (self.claims, self.volumes, self.changes, self.attachments))
