"""What the tables of the page show: a row for an object. Pure.

Every text of the cluster goes through `shown`, so that none can hide, reverse or flood another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from volplane._messages import age_text, one_line, sanitize, shortened, size_text
from volplane.attach.desired import is_ready
from volplane.kube import names
from volplane.kube.events import Event
from volplane.kube.objects import Claim, KubeObject, Lease, Node, Pod, Volume, VolumeAttachment
from volplane.kube.quantity import parse
from volplane.snapshots.objects import VolumeSnapshot
from volplane.state.cluster_state import claims_of_pod
from volplane.state.matching import capacity_of, class_of_claim, held_by, request_of, whole_bytes
from volplane.state.naming import csi_source
from volplane.trash.decide import in_trash
from volplane.ui.told import Told
from volplane.ui.waiting import waits_of_claim, waits_of_volume

Cell = str | dict[str, Any]
"""A text, or {"age": seconds since 1970}, {"due": the same}, or {"to": (kind, key), "text": …} for a link."""

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "waiting": ("kind", "name", "phase", "why", "since", "next"),
    "claims": ("name", "phase", "size", "class", "volume", "age"),
    "volumes": ("name", "phase", "size", "class", "claim", "policy", "driver", "age"),
    "drivers": ("name", "backend", "state", "volumes", "used", "free", "running", "failing", "problem"),
    "operations": ("verb", "name", "driver", "phase", "failures", "problem", "since", "next"),
    "nodes": ("name", "ready", "attached", "free", "age"),
    "segments": ("class", "segment", "free", "largest"),
    "snapshots": ("name", "state", "size", "claim", "problem", "age"),
    "trash": ("volume", "size", "of", "until", "age"),
    "leaks": ("verdict", "driver", "handle", "volume", "size", "why", "age"),
}
"""View -> the columns of its table. The first that names an object is a link to it."""
_TONES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("Bound", "Available", "Running", "Ready", "ready", "True"), "good"),
    **dict.fromkeys(("Lost", "Failed", "broken", "hung", "orphan", "ghost", "NotReady"), "bad"),
}


class Row(msgspec.Struct, frozen=True):
    """A row. id: the same object has the same one. order: the rows are sorted by it, then by the name."""

    id: str
    cells: tuple[Cell, ...]
    tone: str = ""
    """good, bad, or "" for what is in between."""
    order: float = 0.0
    find: str = ""
    """What a search looks through, in lower case."""


def shown(text: object) -> str:
    """Return a text of the cluster as it may be shown: one line, nothing that hides or reverses, not endless."""
    return sanitize(shortened(one_line(text))) if text else ""


def seconds(time: str | None) -> float | None:
    """Return an RFC 3339 time as seconds since 1970; None if it is none."""
    try:
        return datetime.fromisoformat(time or "").timestamp()
    except (ValueError, OverflowError):
        return None


def row(id: str, *cells: Cell, tone: str = "", order: float = 0.0) -> Row:  # noqa: A002 - its name in JSON
    find = "\n".join(str(cell if isinstance(cell, str) else cell.get("text", "")) for cell in cells).lower()
    return Row(id=id, cells=cells, tone=tone, order=order, find=find)


def link(kind: str, key: str) -> Cell:
    return {"to": (kind, key), "text": shown(key)} if key else "-"


def age(time: str | None) -> Cell:
    found = seconds(time)
    return "-" if found is None else {"age": found}


def of_claim(claim: Claim) -> list[Row]:
    phase = phase_of(claim)
    size = size_text(whole_bytes(held_by(claim) or request_of(claim)))
    storage_class = class_of_claim(claim)
    return [
        row(
            claim.key,
            link("claim", claim.key),
            phase,
            size,
            shown("(default)" if storage_class is None else storage_class or "(none)"),
            link("volume", claim.spec.volume_name),
            age(claim.metadata.creation_timestamp),
            tone=_TONES.get(phase, ""),
        )
    ]


def of_volume(volume: Volume) -> list[Row]:
    reference = volume.spec.claim_ref
    phase = "Trash" if in_trash(volume) is not None else phase_of(volume)
    return [
        row(
            volume.key,
            link("volume", volume.key),
            phase,
            size_text(whole_bytes(capacity_of(volume))),
            shown(volume.spec.storage_class_name) or "-",
            link("claim", reference.key) if reference is not None else "-",
            shown(volume.spec.persistent_volume_reclaim_policy) or "Retain",
            shown(maker_of(volume)) or "-",
            age(volume.metadata.creation_timestamp),
            tone=_TONES.get(phase, ""),
        )
    ]


def waiting_claim(claim: Claim, told: Told, events: Iterable[Event]) -> list[Row]:
    return [
        _waiting("claim", claim, phase, reason, told=told, events=events, number=number)
        for number, (phase, reason) in enumerate(waits_of_claim(claim, told.reasons))
    ]


def waiting_volume(volume: Volume, told: Told, events: Iterable[Event]) -> list[Row]:
    since = volume.status.last_phase_transition_time
    return [
        _waiting("volume", volume, phase, reason, told=told, events=events, since=since)
        for phase, reason in waits_of_volume(volume, told.reasons)
    ]


def waiting_attachment(attachment: VolumeAttachment, told: Told, events: Iterable[Event]) -> list[Row]:
    """Return a row unless it is attached and stays so."""
    if attachment.status.attached and not attachment.terminating:
        return []
    error = attachment.status.detach_error if attachment.terminating else attachment.status.attach_error
    phase = "Detaching" if attachment.terminating else "Attaching"
    reason = error.message if error is not None else f"attacher {attachment.spec.attacher} works on it"
    to = ("volume", attachment.spec.source.persistent_volume_name or "")
    return [_waiting("attachment", attachment, phase, reason, told=told, events=events, to=to)]


def waiting_pod(pod: Pod, told: Told, events: Iterable[Event]) -> list[Row]:
    """Return a row of a pod with claims that does not run yet; it leads to the first of them."""
    claims = claims_of_pod(pod)
    if not claims or pod.status.phase not in ("", "Pending") or pod.terminating:
        return []
    return [_waiting("pod", pod, "Pending", "", told=told, events=events, to=("claim", claims[0]))]


def waiting_snapshot(snapshot: VolumeSnapshot, told: Told, events: Iterable[Event]) -> list[Row]:
    """Return a row unless it can be used and stays."""
    if snapshot.status.ready_to_use and not snapshot.terminating:
        return []
    error, phase = snapshot.status.error, "Terminating" if snapshot.terminating else "Pending"
    why = told.reasons.get("snapshots", {}).get(snapshot.key, "-")
    why = error.message if error is not None else why
    return [_waiting("snapshot", snapshot, phase, why, told=told, events=events)]


def _waiting(
    kind: str,
    item: KubeObject,
    phase: str,
    reason: str,
    *,
    told: Told,
    events: Iterable[Event],
    since: str | None = None,
    to: tuple[str, str] | None = None,
    number: int = 0,
) -> Row:
    """Return a row of `waiting`. Without a reason the newest event of the object stands for it.

    to: where its name leads; None = to itself. number: of its rows.
    """
    going = item.metadata.deletion_timestamp
    begun = going or since or item.metadata.creation_timestamp
    due = told.next_try(item.uid)
    for each in told.operations.get(item.uid, ()):
        if each["error"]:
            reason = f"{each['verb']} failed {each['failures']} times, the last with: {each['error']}"
    if reason in ("", "-"):
        newest = max(events, key=lambda event: time_of(event) or 0.0, default=None)
        reason = f"{newest.reason}: {newest.message}" if newest is not None else "nothing is known of the reason"
    after: Cell = "-" if due is None else {"due": due}
    cells = (shown(phase) or "Pending", shown(reason), age(begun), after)
    tone = "bad" if phase in ("Failed", "Lost") else ""
    name: Cell = {"to": to or (kind, item.key), "text": shown(item.key)}
    return row(f"{kind}/{item.key}" + "'" * number, kind, name, *cells, tone=tone, order=seconds(begun) or 0.0)


def of_node(node: Node, attached: int, free: int | None) -> list[Row]:
    """Return its row. attached: how many volumes. free: the most room that a class has on it; None = not known."""
    ready = "Ready" if is_ready(node) else "NotReady"
    cells = (str(attached), size_text(free), age(node.metadata.creation_timestamp))
    return [row(node.key, link("node", node.key), ready, *cells, tone=_TONES.get(ready, ""))]


def of_snapshot(snapshot: VolumeSnapshot) -> list[Row]:
    status = snapshot.status
    state = "Terminating" if snapshot.terminating else "ready" if status.ready_to_use else "not ready"
    size = status.restore_size
    try:
        text = size_text(whole_bytes(parse(str(size)).nanos)) if size is not None else "-"
    except ValueError:
        text = "-"
    claim = snapshot.spec.source.persistent_volume_claim_name
    return [
        row(
            snapshot.key,
            link("snapshot", snapshot.key),
            state,
            text,
            link("claim", f"{snapshot.namespace}/{claim}") if claim else "-",
            shown(status.error.message) if status.error is not None else "-",
            age(snapshot.metadata.creation_timestamp),
            tone="bad" if status.error is not None else _TONES.get(state, ""),
        )
    ]


def of_trash(volume: Volume) -> list[Row]:
    record = in_trash(volume)
    if record is None:
        return []
    until = seconds(record.until)
    size = size_text(whole_bytes(capacity_of(volume)))
    after: Cell = "a person decides" if until is None else {"due": until}
    cells = (size, shown(record.released) or "-", after, age(record.since))
    return [row(volume.key, link("volume", volume.key), *cells, order=until or 0.0)]


def leader_of(lease: Lease, now: float) -> str:
    """Return who holds the Lease, and for how long it was not renewed if that is too long; "" = nobody."""
    holder, renewed = shown(lease.spec.holder_identity), seconds(lease.spec.renew_time)
    if not holder or renewed is None or now - renewed <= (lease.spec.lease_duration_seconds or 0):
        return holder
    return f"{holder}, which has not renewed its Lease for {age_text(now - renewed)}"


def phase_of(item: Claim | Volume) -> str:
    return "Terminating" if item.terminating else shown(item.status.phase) or "Pending"


def maker_of(volume: Volume) -> str:
    """Return the driver that made the volume, else that of its source; "" = not known."""
    return volume.annotation(names.PROVISIONED_BY) or csi_source(volume)[0]


def tone_of(word: str) -> str:
    return _TONES.get(word, "")


def time_of(event: Event) -> float | None:
    """Return when the event was seen last."""
    series = event.series or {}
    for time in (series.get("lastObservedTime"), event.last_timestamp, event.event_time):
        if isinstance(time, str) and (found := seconds(time)) is not None:
            return found
    return seconds(event.metadata.creation_timestamp)
