"""Intents: the durable record that an operation may have had side effects.

On a claim the record is sealed, because tenants may write claims: HMAC-SHA-256 over the claim's uid and the content,
with a key from a Secret of our namespace. A missing or broken seal reads as "outcome unknown", never as "nothing was
done". Volumes and attachments are written by administrators and controllers only; their records carry no seal.

`RecordConflicts` remembers what the caches show of writes over our records, which the API server does not refuse.
`volplane.intents.record` names those who make them, and decides what to do.
"""

from __future__ import annotations

import functools
import hmac
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from volplane._delays import RECORD_OVERWRITTEN
from volplane.kube import names
from volplane.kube.objects import Volume, VolumeAttachment

NEVER: Final = datetime.max.replace(tzinfo=UTC)
INTENT_VERSION = 1
"""The version that is written; this one and the one before are read, others are unreadable: then the backend is asked.

Raise it when a field changes its meaning, not when one is added.
"""
_READABLE = (INTENT_VERSION - 1, INTENT_VERSION)
_INTENTS_KEPT_OPEN = 1024
_LONGEST_KEPT_OPEN = 2_048
_LONGEST_RECORD = 65_536
"""Characters. Ours have two states of at most 4 KiB and a place; tenants write up to 256 KiB, which is not read."""
TAKEOVER_GRACE = 10.0
"""Seconds for which no hook is called after our record has replaced another installation's.

If that is at work, it writes its own record again meanwhile.
"""
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Intent(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What every record has. v: its version."""

    v: int


class SourceRecord(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """What the asset is made of, by its handle: each try asks for the same, whatever becomes of the objects."""

    snapshot: str = ""
    volume: str = ""
    of: str = ""
    """Name of the PersistentVolume of `volume`."""


class ClaimIntent(Intent, frozen=True):
    """What a provisioning was started with, and must go on with."""

    driver: str
    generation: int = 1
    """Which asset of this claim; part of client tokens. It rises only when the former asset is proven absent."""
    segment: dict[str, str] | None = None
    """The place, kept over retries; {} = the driver chooses, None = none is chosen yet."""
    state: dict[str, Any] | None = None
    """What the last `InProgress` of `provision` returned; None = there was none."""
    discard: dict[str, Any] | None = None
    """The asset is being deleted; what the last `InProgress` of `delete` returned. None = it is not being deleted."""
    fence: str = ""
    """The term (`volplane.Fence`) in which it is worked on; "" = without an election."""
    source: SourceRecord | None = None
    """None = the asset is to be empty."""
    size: int = 0
    """Bytes that it was asked for, as a claim that took another volume may grow meanwhile. 0 = not recorded."""


class _Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    intent: msgspec.Raw
    seal: str
    by: str = ""
    """Namespace of the installation that sealed it. The seal does not cover it: it serves messages and delays only."""


class Sealer:
    """Seals and opens the intents of claims with one key of at least 16 bytes."""

    def __init__(
        self, key: bytes, installation: str = "", nodes: Sealer | None = None, on_nodes: Collection[str] = ()
    ) -> None:
        """installation: the namespace that holds the key; "" = there are no other installations. nodes: has the key of
        the processes of nodes, which is believed about the drivers `on_nodes` alone.
        """
        self.installation = installation
        self._nodes = nodes
        self._on_nodes = frozenset(on_nodes)
        if len(key) < 16:
            raise ValueError(f"a sealing key has at least 16 bytes, this one {len(key)}")
        self._keyed = hmac.new(key, digestmod="sha256")
        # Every decision about a claim opens its intent, and so does its operation. The HMAC would cost more than they.
        self._opened = functools.lru_cache(_INTENTS_KEPT_OPEN)(self._open)

    def sign(self, subject: str, content: bytes) -> str:
        """Return the seal of this content. subject: what it is about: a claim's uid, or a kind and a name."""
        mark = self._keyed.copy()
        mark.update(subject.encode() + b"\0" + content)
        return mark.hexdigest()

    def same_as(self, other: Sealer) -> bool:
        return self._marks() == other._marks()

    def _marks(self) -> list[str]:
        return [each.sign("", b"") for each in (self, self._nodes) if each is not None]

    def signed(self, subject: str, content: bytes, seal: str) -> bool:
        """Return whether this cluster's volplane made the seal."""
        return hmac.compare_digest(seal.encode(), self.sign(subject, content).encode())

    def seal(self, claim_uid: str, intent: ClaimIntent) -> str:
        if self._nodes is not None and intent.driver in self._on_nodes:
            return self._nodes.seal(claim_uid, intent)
        content = msgspec.json.encode(intent, order="sorted")
        sealed = _Sealed(msgspec.Raw(content), self.sign(claim_uid, content), self.installation)
        return msgspec.json.encode(sealed).decode()

    def other_author(self, claim_uid: str, text: str | None) -> str:
        """Return the namespace of the other installation that seems to have sealed this; "" if none does.

        A record that names our own namespace was sealed with a key that is lost, or is damaged.
        """
        if not text or not self.installation or self.open(claim_uid, text) is not None:
            return ""
        sealed = _decoded(_Sealed, text)
        author = sealed.by if sealed is not None else ""
        return author if author != self.installation and _NAMESPACE.fullmatch(author) else ""

    def open(self, claim_uid: str, text: str | None) -> ClaimIntent | None:
        """Return the intent; None if this cluster's volplane did not write it for this very claim."""
        if not text or len(text) > _LONGEST_RECORD:
            return None
        return (self._opened if len(text) <= _LONGEST_KEPT_OPEN else self._open)(claim_uid, text)

    def sealed_formerly(self, claim_uid: str, text: str | None) -> bool:
        """Return whether it is about a driver on nodes, whose processes cannot open it: they once had our own key."""
        if self._nodes is None or (intent := self.open(claim_uid, text)) is None:
            return False
        return intent.driver in self._on_nodes and self._nodes.open(claim_uid, text) is None

    def _open(self, claim_uid: str, text: str) -> ClaimIntent | None:
        if self._nodes is not None and (theirs := self._nodes.open(claim_uid, text)) is not None:
            return theirs if theirs.driver in self._on_nodes else None
        sealed = _decoded(_Sealed, text)
        if sealed is None or not self.signed(claim_uid, bytes(sealed.intent), sealed.seal):
            return None
        return read_intent(ClaimIntent, bytes(sealed.intent))


class NamedInRecord(msgspec.Struct, frozen=True):
    """What the record on a claim says, read without its seal: a tenant may have written it."""

    driver: str = ""
    segment: dict[str, str] | None = None


class _Unsealed(msgspec.Struct):
    intent: NamedInRecord


def named_in_record(text: str | None) -> NamedInRecord:
    """Return what the record says, without a check of its seal; empty fields, if it is no record."""
    record = _decoded(_Unsealed, text)
    return record.intent if record is not None else NamedInRecord()


class ScrubPlan(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The backend wants a scrubber pod."""

    volume: Mapping[str, Any] | None
    """The pod volume to mount instead of the usual one."""
    sub_path: str = ""
    """The part of it to erase."""


class RecycleIntent(Intent, frozen=True):
    """How far the scrub of a released volume is."""

    claim: str
    """Uid of the claim that the volume was released from."""
    attempt: int = 1
    """Counts from 1, over restarts."""
    pod: str = ""
    """Uid of the scrubber pod that may start."""
    erased: bool = False
    """The contents are gone, and that is verified."""
    failed: str = ""
    """Why the last attempt failed."""
    given_up: bool = False
    """No further attempt is made until a person removes the annotation."""
    fence: str = ""
    """The term (`volplane.Fence`) in which it is worked on; "" = without an election."""
    strangers: tuple[str, ...] = ()
    """Uids of pods that had the scrubber's name in this attempt and were removed: they were not ours, or not permitted
    to start."""
    held_by: str = ""
    """Uid of the claim of the scrub that the volume refers to meanwhile."""
    released: str = ""
    """Namespace/name of the claim that it referred to before."""
    not_before: float = 0.0
    """Unix time before which the next attempt does not start."""
    state: dict[str, Any] | None = None
    """What the last `InProgress` of `recycle` returned in this attempt; None = there was none."""
    asked: bool = False
    """Nobody uses the volume: the process of its node is to call `recycle`. Of drivers that those processes serve."""
    plan: ScrubPlan | None = None
    """What that answered: a pod is to erase this."""
    installation: str = ""
    """Namespace of the volplane that works on it, where its pods are; "" = unknown."""

    def same_scrub(self, other: RecycleIntent | None) -> bool:
        return other is not None and (self.claim, self.attempt) == (other.claim, other.attempt)


class DeleteIntent(Intent, frozen=True):
    """The state that a long `delete` returned, kept on the terminating volume."""

    delete_state: dict[str, Any]


class TrashRecord(Intent, frozen=True):
    """A released volume is in the trash."""

    claim: str
    """Uid of the claim that it was released from: the record is about no other release."""
    until: str
    """When it may be destroyed, in the format of RFC 3339. An administrator may change it."""
    since: str = ""
    """When it was released."""
    released: str = ""
    """Namespace/name of that claim."""


class ChangeIntent(Intent, frozen=True):
    """The state that a long `expand` or `modify` returned, kept on the volume."""

    target: str
    """The size in bytes, or the name of the VolumeAttributesClass."""
    state: dict[str, Any]
    """Empty also for a class that may have been applied before the claim named another one."""
    former: tuple[str, ...] = ()
    """Further classes that may have been applied, the last one at the end."""


class AttachmentIntent(Intent, frozen=True):
    """What a driver was asked to attach, and where: enough to detach it when volume and node are gone."""

    driver: str
    asset: str
    """The name by which operations exclude each other."""
    volume: str
    """Name of the volume, as uid, handle, source, fields, capacity, access modes and volume mode are the volume's."""
    uid: str
    handle: str
    source: str
    fields: dict[str, Any]
    capacity: int
    generation: int = 0
    """Of the asset; 0 = it is not marked as ours."""
    access_modes: list[str] = []
    volume_mode: str = "Filesystem"
    attributes: dict[str, str] = {}
    node_uid: str = ""
    """Uid of the Node; its id for the backend is the annotation `names.NODE_ID`."""
    csi_node: bool = False
    """That is the id of its CSI node plugin, not of the machine."""
    shared: bool = False
    """The asset may be on several nodes at once."""
    hook: str = ""
    """The hook that returned `state`."""
    state: dict[str, Any] | None = None


_IntentT = TypeVar("_IntentT", bound=Intent)
_T = TypeVar("_T")


def _decoded(kind: type[_T], text: str | bytes | None) -> _T | None:
    try:
        return msgspec.json.decode(text, type=kind) if text else None
    except (msgspec.MsgspecError, UnicodeError):
        return None


def read_intent(kind: type[_IntentT], text: str | bytes | None) -> _IntentT | None:
    """Return the intent in this annotation; None if it is absent or unreadable.

    What is unreadable counts as lost: the backend is called without a state, a scrub begins again. Both are safe.
    """
    intent = _decoded(kind, text)
    return intent if intent is not None and intent.v in _READABLE else None


def recycle_intent_of(volume: Volume) -> RecycleIntent | None:
    """Return the record of the volume's scrub; None if there is none, or it is unreadable."""
    return read_intent(RecycleIntent, volume.annotation(names.INTENT))


def trashed(volume: Volume) -> TrashRecord | None:
    """Return the record of a volume that is in the trash, with the time until when; None if it is not there.

    Under another policy than Delete nothing is postponed. A record that is unreadable names no claim and no time.
    """
    text = volume.annotation(names.TRASHED)
    if text is None or volume.spec.persistent_volume_reclaim_policy != "Delete":
        return None
    return read_intent(TrashRecord, text) or TrashRecord(v=INTENT_VERSION, claim="", until="")


def may_be_kept(volume: Volume) -> bool:
    """Return whether the volume has anything to do with the trash: most have not."""
    annotations = volume.metadata.annotations
    return annotations is not None and (names.TRASH in annotations or names.TRASHED in annotations)


def attachment_intent_of(attachment: VolumeAttachment) -> AttachmentIntent | None:
    """Return the record of what is attached; None if there is none, or it is unreadable."""
    return read_intent(AttachmentIntent, attachment.annotation(names.INTENT))


def time_of(text: str | None, otherwise: datetime) -> datetime:
    """Return a time of the server or of a record; one without a zone is UTC."""
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return otherwise
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def write_intent(intent: Intent) -> str:
    return msgspec.json.encode(intent, order="sorted").decode()


class RecordConflict(msgspec.Struct):
    """What is known of the conflict over the record of one object."""

    other: str = ""
    """Namespace of the installation whose record is on the object, or was there before ours; "" = none is known."""
    since: float = 0.0
    """Loop time of the last change of the record."""
    was_ours: bool = False
    """A record of ours counted, before it was overwritten."""
    overwrites: int = 0
    """How often in a row that happened."""
    taking_over: bool = False
    """The record is ours, and replaced that of the other installation."""
    undone_takeovers: int = 0
    """How often the other installation wrote its own again within `TAKEOVER_GRACE`."""

    def overwritten(self, now: float) -> None:
        """Note that the record was ours, and is not any more. now: loop time."""
        if self.taking_over and now < self.since + TAKEOVER_GRACE:
            self.undone_takeovers += 1
        else:
            again = self.overwrites and now < self.since + RECORD_OVERWRITTEN.forget_after
            self.overwrites = self.overwrites + 1 if again else 1
            self.was_ours = True
        self.since, self.taking_over = now, False

    def written(self, now: float) -> None:
        """Note that the record is ours now, and was not before. now: loop time."""
        self.since, self.taking_over = now, bool(self.other) and not self.was_ours
