"""A claim's picture: pod, claim, volume, asset, attachment, node, and what happened to them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from volplane.attach.desired import is_ready
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim, KubeObject, Pod, Volume, VolumeAttachment
from volplane.state.cluster_state import csi_parts, finished, mounts, unique_name
from volplane.state.matching import refers_to
from volplane.state.naming import handle_of, volume_name_of
from volplane.trash.decide import in_trash
from volplane.ui.rows import maker_of, phase_of, seconds, shown, time_of
from volplane.ui.told import Told
from volplane.ui.watched import Watched

THERE, BETWEEN, MISSING, NONE, UNKNOWN = "there", "between", "missing", "none", "unknown"
"""It is there and settled; it is being made, changed or removed; it should be there; it is not there, rightly; its kind
was not read, or may not be.
"""
_MOST_ENTRIES: Final = 200


class Part(msgspec.Struct, frozen=True):
    """One thing in the picture."""

    role: str
    """pod, claim, volume, asset, attachment or node."""
    name: str
    state: str
    text: str
    to: tuple[str, str] | None = None
    """Kind and key of the object to look at."""


class Entry(msgspec.Struct, frozen=True):
    """One thing that happened. at: seconds since 1970."""

    at: float
    about: str
    text: str
    tone: str = ""


class Picture(msgspec.Struct, frozen=True):
    found: bool
    name: str
    parts: tuple[Part, ...] = ()
    timeline: tuple[Entry, ...] = ()
    """The newest first."""
    next: float | None = None
    """When something is tried again."""


def picture_of(kind: str, key: str, watched: Watched, told: Told) -> Picture:
    """Return the picture of a claim (`namespace/name`) with its volume, or of a volume with its claim."""
    claim = watched.claims.get(key) if kind == "claim" else None
    volume = watched.volumes.get(key) if kind == "volume" else None
    if claim is not None:
        # The one that it names, or that was made for it.
        volume = watched.volumes.get(claim.spec.volume_name or volume_name_of(claim))
    elif volume is not None and (reference := volume.spec.claim_ref) is not None:
        named = watched.claims.get(reference.key)
        claim = named if named is not None and refers_to(volume, named) else None
    if claim is None and volume is None:
        return Picture(found=False, name=shown(key))
    used = watched.pods.by_index("claim", claim.key) if claim is not None else []
    pods = [pod for pod in used if claim is not None and mounts(pod, claim)]
    attachments = watched.attachments.by_index("volume", volume.name) if volume is not None else []
    on = {pod.spec.node_name: None for pod in pods if pod.spec.node_name and not finished(pod)}
    on |= {each.spec.node_name: None for each in attachments}
    parts = [
        *([_pod(pod) for pod in pods] or [_absent("pod", watched.pods, "no pod uses it")]),
        _claim(claim) if claim is not None else _former_claim(volume, watched),
        _volume(claim, volume, watched),
        _asset(claim, volume, told),
        *_attachments(volume, attachments, watched, needed=bool(on)),
        *([_node(name, watched) for name in on] or [Part("node", "", NONE, "on no node")]),
    ]
    about: list[tuple[str, KubeObject]] = [("claim", claim)] if claim is not None else []
    about += [("volume", volume)] if volume is not None else []
    about += [("pod", pod) for pod in pods]
    about += [("attachment", each) for each in attachments]
    about += [("snapshot", each) for each in watched.snapshots.by_index("claim", claim.key)] if claim else []
    entries = sorted(_timeline(about, watched, told), key=lambda entry: -entry.at)
    due = [moment for _, item in about if (moment := told.next_try(item.uid)) is not None]
    return Picture(
        found=True,
        name=shown(key),
        parts=tuple(parts),
        timeline=tuple(entries[:_MOST_ENTRIES]),
        next=min(due, default=None),
    )


def _absent(role: str, cache: Cache[Any], text: str, name: str = "", state: str = NONE) -> Part:
    """Return the part for what is not in the cache, which proves something only if its kind was read."""
    if not cache.listed.is_set():
        return Part(role, name, UNKNOWN, f"{cache.kind.plural} are not read")
    return Part(role, name, state, text)


def _pod(pod: Pod) -> Part:
    phase = "Terminating" if pod.terminating else shown(pod.status.phase) or "Pending"
    state = NONE if finished(pod) else THERE if phase == "Running" else BETWEEN
    where = f" on {shown(pod.spec.node_name)}" if pod.spec.node_name else ", on no node yet"
    return Part("pod", shown(pod.key), state, f"{phase}{where}")


def _claim(claim: Claim) -> Part:
    phase = phase_of(claim)
    state = MISSING if phase == "Lost" else THERE if phase == "Bound" else BETWEEN
    held = ", ".join(map(shown, claim.metadata.finalizers or ())) if claim.terminating else ""
    text = f"{phase}; held by {held}" if held else phase
    return Part("claim", shown(claim.key), state, text, ("claim", claim.key))


def _former_claim(volume: Volume | None, watched: Watched) -> Part:
    reference = volume.spec.claim_ref if volume is not None else None
    if volume is None or reference is None:
        return Part("claim", "", NONE, "no claim is named by the volume")
    released = in_trash(volume) is not None or volume.status.phase in ("Released", "Failed") or volume.terminating
    reserved = not reference.uid
    text = "it is reserved for this claim" if reserved else "it was released" if released else "it does not exist"
    state = NONE if released or reserved else MISSING
    return _absent("claim", watched.claims, text, shown(reference.key), state)


def _volume(claim: Claim | None, volume: Volume | None, watched: Watched) -> Part:
    if volume is None:
        named = claim.spec.volume_name if claim is not None else ""
        text = "the claim names it, and it does not exist" if named else "none is bound yet"
        return _absent("volume", watched.volumes, text, shown(named), MISSING if named else NONE)
    phase = phase_of(volume)
    if claim is not None and not refers_to(volume, claim):
        reference = volume.spec.claim_ref
        other = f"claim {shown(reference.key)}" if reference is not None else "no claim"
        return Part("volume", shown(volume.name), BETWEEN, f"{phase}; it names {other}", ("volume", volume.name))
    record = in_trash(volume)
    state = THERE if phase in ("Bound", "Available") or record is not None else BETWEEN
    phase = phase if record is None else f"in the trash until {shown(record.until) or 'a person decides'}"
    phase = f"{phase}; {shown(volume.status.message)}" if volume.status.message else phase
    return Part("volume", shown(volume.name), state, phase, ("volume", volume.name))


def _asset(claim: Claim | None, volume: Volume | None, told: Told) -> Part:
    running = [each for item in (claim, volume) if item is not None for each in told.operations.get(item.uid, ())]
    doing = "; ".join(f"{shown(each['verb'])} {shown(each['phase'])}" for each in running)
    if volume is None:
        if running or (claim is not None and claim.has_finalizer(names.PROVISIONING_FINALIZER)):
            return Part("asset", "", BETWEEN, doing or "it may be in the making: an intent is recorded on the claim")
        if claim is not None and claim.spec.volume_name:
            return Part("asset", "", UNKNOWN, "its volume would name it")
        return Part("asset", "", NONE, "nothing was asked of a backend")
    handle, maker = handle_of(volume), maker_of(volume)
    name, of = shown(handle) or "(no handle)", f"of {shown(maker)}" if maker else "of no known driver"
    for finding in told.leaks.get("findings", ()):
        if finding["verdict"] == "ghost" and finding["volume"] == volume.name:
            return Part("asset", name, MISSING, f"{of}; {shown(finding['detail']) or 'the backend does not list it'}")
    return Part(
        "asset", name, BETWEEN if running else THERE, f"{of}; {doing}" if doing else f"{of}, as the volume says"
    )


def _attachments(
    volume: Volume | None, attachments: Iterable[VolumeAttachment], watched: Watched, *, needed: bool
) -> Iterator[Part]:
    found = False
    for each in attachments:
        found = True
        status, where = each.status, shown(each.spec.node_name)
        error = status.detach_error if each.terminating else status.attach_error
        settled = status.attached and not each.terminating
        text = f"{'being detached from' if each.terminating else 'attached to' if settled else 'waits for'} {where}"
        text += f"; the last try failed: {shown(error.message)}" if error is not None else ""
        yield Part("attachment", shown(each.name), THERE if settled else BETWEEN, text)
    if found or volume is None:
        return
    unique = unique_name(volume)
    driver = watched.csi_drivers.get(csi_parts(unique)[0])
    if not unique or (driver is not None and not driver.spec.attach_required):
        yield Part("attachment", "", NONE, "it needs no attaching")
    else:
        yield _absent("attachment", watched.attachments, "it is not attached", state=BETWEEN if needed else NONE)


def _node(name: str, watched: Watched) -> Part:
    node = watched.nodes.get(name)
    if node is None:
        return _absent("node", watched.nodes, "it does not exist", shown(name), MISSING)
    ready = is_ready(node)
    return Part("node", shown(name), THERE if ready else MISSING, "Ready" if ready else "not Ready", ("node", name))


def _timeline(about: Iterable[tuple[str, KubeObject]], watched: Watched, told: Told) -> Iterator[Entry]:
    for role, item in about:
        what = f"{role} {shown(item.key)}"
        if (made := seconds(item.metadata.creation_timestamp)) is not None:
            yield Entry(made, what, "was created")
        if (going := seconds(item.metadata.deletion_timestamp)) is not None:
            yield Entry(going, what, "is being deleted")
        if isinstance(item, Claim):
            yield from _conditions(what, item)
        if isinstance(item, Volume) and (moved := seconds(item.status.last_phase_transition_time)) is not None:
            yield Entry(moved, what, f"became {shown(item.status.phase)}")
        for event in watched.events.by_index("about", item.uid):
            count = (event.series or {}).get("count") or event.count or 1
            times = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
            tone = "bad" if event.type == "Warning" else ""
            yield Entry(time_of(event) or 0.0, what, f"{shown(event.reason)}: {shown(event.message)}{times}", tone)
        for each in told.operations.get(item.uid, ()):
            failed = f": {shown(each['error'])}" if each["error"] else ""
            yield Entry(
                told.wall(each["since"]) or 0.0,
                what,
                f"{shown(each['name'])} {shown(each['phase'])}{failed}",
                "bad" * bool(failed),
            )


def _conditions(what: str, claim: Claim) -> Iterator[Entry]:
    for each in claim.status.conditions or ():
        if (changed := seconds(each.get("lastTransitionTime"))) is not None:
            why = ": ".join(shown(each.get(name)) for name in ("reason", "message") if each.get(name))
            text = f"{shown(each.get('type'))} is {shown(each.get('status'))}"
            yield Entry(changed, what, f"{text}, {why}" if why else text)
