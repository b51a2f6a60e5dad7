"""Intents: the durable record that an operation may have had side effects. Pure but for the key.

On a claim the record is sealed, because tenants may write claims: HMAC-SHA-256 over the claim's uid and the content,
with a key from a Secret of our namespace. A missing or broken seal reads as "outcome unknown", never as "nothing was
done". Volumes are written by administrators and controllers only; their record carries no seal.
"""

from __future__ import annotations

import functools
import hmac
import re
from typing import Any, TypeVar

import msgspec

__all__ = [
    "INTENT_VERSION",
    "AttachmentIntent",
    "ChangeIntent",
    "ClaimIntent",
    "DeleteIntent",
    "NamedInRecord",
    "RecycleIntent",
    "Sealer",
    "named_in_record",
    "read_attachment_intent",
    "read_change_intent",
    "read_delete_intent",
    "read_recycle_intent",
    "write_intent",
]

INTENT_VERSION = 1
"""Written; this and the version before are read. Raise it when a field changes its meaning, not when one is added.

Anything else counts as unreadable: what the record says is then found out from the backend.
"""
_KEPT_OPEN = 1024
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The name of a namespace."""


class ClaimIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provisioning was begun with, and must go on with.

    generation: which asset of this claim, part of client tokens; rises only when the former one is proven absent.
    segment: the place chosen, kept over retries; {} = wherever the driver likes, None = none is chosen. state: what the
    last `InProgress` of `provision` returned; None = there was none. discard: the asset is being deleted, and the state
    that the last `InProgress` of `delete` returned; None = it is not. fence: the term (`volplane.Fence`) under which it
    is worked on; "" = nobody was elected.
    """

    v: int
    driver: str
    generation: int = 1
    segment: dict[str, str] | None = None
    state: dict[str, Any] | None = None
    discard: dict[str, Any] | None = None
    fence: str = ""

    def same_asset(self, other: ClaimIntent | None) -> bool:
        """Whether both lead to one asset of the claim."""
        return other is not None and (self.driver, self.generation) == (other.driver, other.generation)


class _Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    """by: namespace of the installation that has sealed it. Nothing vouches for it: it serves messages and delays."""

    intent: msgspec.Raw
    seal: str
    by: str = ""


class Sealer:
    """Seals and opens the intents of claims with one key (32 bytes)."""

    def __init__(self, key: bytes, installation: str = "") -> None:
        """installation: the namespace that holds the key; "" = nobody else may seal."""
        self.installation = installation
        if len(key) < 16:
            raise ValueError(f"a sealing key has at least 16 bytes, this one {len(key)}")
        self._keyed = hmac.new(key, digestmod="sha256")
        # Every decision about a claim opens its intent, and so does its operation: that would cost more than deciding.
        self._opened = functools.lru_cache(_KEPT_OPEN)(self._open)

    def _mark(self, claim_uid: str, content: bytes) -> str:
        mark = self._keyed.copy()
        mark.update(claim_uid.encode() + b"\0" + content)
        return mark.hexdigest()

    def sign(self, subject: str, content: bytes) -> str:
        """The seal of any other record of ours. subject: what it is about, a uid with a prefix of its kind."""
        return self._mark(subject, content)

    def signed(self, subject: str, content: bytes, seal: str) -> bool:
        """Whether this cluster's volplane made the seal."""
        return hmac.compare_digest(seal.encode(), self._mark(subject, content).encode())

    def seal(self, claim_uid: str, intent: ClaimIntent) -> str:
        """The annotation value."""
        content = msgspec.json.encode(intent, order="sorted")
        sealed = _Sealed(msgspec.Raw(content), self._mark(claim_uid, content), self.installation)
        return msgspec.json.encode(sealed).decode()

    def other_author(self, claim_uid: str, text: str | None) -> str:
        """Namespace of the other installation that seems to have sealed this; "" if none does.

        One that names our own was sealed with a key that is lost, or is damaged.
        """
        if not text or not self.installation or self.open(claim_uid, text) is not None:
            return ""
        try:
            author = msgspec.json.decode(text, type=_Sealed).by
        except (msgspec.MsgspecError, UnicodeError, TypeError):
            return ""
        return author if author != self.installation and _LABEL.fullmatch(author) else ""

    def open(self, claim_uid: str, text: str | None) -> ClaimIntent | None:
        """The intent, or None if there is none that this cluster's volplane wrote for this very claim."""
        return self._opened(claim_uid, text) if text else None

    def _open(self, claim_uid: str, text: str) -> ClaimIntent | None:
        try:
            sealed = msgspec.json.decode(text, type=_Sealed)
            content = bytes(sealed.intent)
            if not hmac.compare_digest(sealed.seal, self._mark(claim_uid, content)):
                return None
            intent = msgspec.json.decode(content, type=ClaimIntent)
        except (msgspec.MsgspecError, UnicodeError, TypeError):
            return None
        return intent if _is_known(intent.v) else None


class NamedInRecord(msgspec.Struct, frozen=True):
    """What the record on a claim says without its seal, which anybody may have written."""

    driver: str = ""
    segment: dict[str, str] | None = None


class _Unsealed(msgspec.Struct):
    intent: NamedInRecord


def named_in_record(text: str | None) -> NamedInRecord:
    """What stands there in the clear; no seal is checked. Nothing, if it is no record."""
    try:
        return msgspec.json.decode(text or "", type=_Unsealed).intent
    except (msgspec.MsgspecError, UnicodeError):
        return NamedInRecord()


def _is_known(version: int) -> bool:
    return INTENT_VERSION - 1 <= version <= INTENT_VERSION


class RecycleIntent(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How far the scrub of a released volume is.

    fence: the term (`volplane.Fence`) under which it is worked on; "" = nobody was elected.
    claim: uid of the claim it was released from. attempt: from 1, survives restarts. pod: uid of the scrubber pod that
    may start, "" before. erased: contents are gone and verified. failed: why the last attempt failed. given_up: no
    further attempt is made until a person removes the annotation. strangers: uids of pods that were removed from the
    scrubber's name in this attempt, because we did not make them or they ran without a permit. held_by: uid of the
    claim of the scrub that the volume refers to meanwhile, "" = none. released: namespace/name of the claim that it
    referred to before. installation: namespace of the volplane that works on it, whose pods are there; "" = unknown.
    """

    v: int
    claim: str
    attempt: int = 1
    pod: str = ""
    erased: bool = False
    failed: str = ""
    given_up: bool = False
    fence: str = ""
    strangers: tuple[str, ...] = ()
    held_by: str = ""
    released: str = ""
    not_before: float = 0.0
    """Unix time before which the next attempt does not start."""
    state: dict[str, Any] | None = None
    """What the last `InProgress` of `recycle` returned in this attempt."""
    installation: str = ""

    def same_scrub(self, other: RecycleIntent | None) -> bool:
        """Whether both are about one attempt after one release: what was erased for the one is erased for the other."""
        return other is not None and (self.claim, self.attempt) == (other.claim, other.attempt)


class DeleteIntent(msgspec.Struct, frozen=True, rename="camel"):
    """The state that a long `delete` returned, kept on the terminating volume."""

    v: int
    delete_state: dict[str, Any]


class ChangeIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state that a long `expand` or `modify` returned, kept on the volume.

    target: what the call is for: the size in bytes as a number, or the name of the VolumeAttributesClass. Of a class
    that may have been applied before the claim named another one the state may be empty. former: further classes that
    may have been applied, the last one at the end.
    """

    v: int
    target: str
    state: dict[str, Any]
    former: tuple[str, ...] = ()


class AttachmentIntent(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """On an attachment: what its driver was asked to attach and where, enough to detach it without volume and node.

    driver: name of ours. asset: what operations exclude each other by. volume, uid, handle, source, fields, capacity,
    access_modes, volume_mode: of the volume. generation: of the asset, 0 for one that is not marked as ours.
    attributes: as hooks get them. node_uid: of the Node; its id for the backend is the annotation `names.NODE_ID`.
    shared: it may be on several nodes at once. state: what the last `InProgress` of `hook` returned.
    """

    v: int
    driver: str
    asset: str
    volume: str
    uid: str
    handle: str
    source: str
    fields: dict[str, Any]
    capacity: int
    generation: int = 0
    access_modes: list[str] = []
    volume_mode: str = "Filesystem"
    attributes: dict[str, str] = {}
    node_uid: str = ""
    shared: bool = False
    hook: str = ""
    state: dict[str, Any] | None = None


_IntentT = TypeVar("_IntentT", RecycleIntent, DeleteIntent, ChangeIntent, AttachmentIntent)


def _read(text: str | None, kind: type[_IntentT]) -> _IntentT | None:
    if not text:
        return None
    try:
        intent = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    return intent if _is_known(intent.v) else None


def read_recycle_intent(text: str | None) -> RecycleIntent | None:
    """The intent, or None if absent or unreadable (then the scrub starts anew: that is always safe)."""
    return _read(text, RecycleIntent)


def read_delete_intent(text: str | None) -> DeleteIntent | None:
    """The intent, or None if absent or unreadable (then the backend is called without a state: it is idempotent)."""
    return _read(text, DeleteIntent)


def read_change_intent(text: str | None) -> ChangeIntent | None:
    """The intent, or None if absent or unreadable (then the backend is called without a state: it is idempotent)."""
    return _read(text, ChangeIntent)


def read_attachment_intent(text: str | None) -> AttachmentIntent | None:
    """The intent, or None if absent or unreadable (then it is made anew from the volume)."""
    return _read(text, AttachmentIntent)


def write_intent(intent: RecycleIntent | DeleteIntent | ChangeIntent | AttachmentIntent) -> str:
    """The annotation value."""
    return msgspec.json.encode(intent, order="sorted").decode()
