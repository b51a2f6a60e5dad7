"""The scrubber pod: name, command, body, its failure, and whether a pod of that name is ours for this scrub. Pure.

Others who may create pods in our namespace may create one of that name. So the pod carries what it is for and the spec
that it was made with, sealed with our key.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from volplane._templates import data_of, filled, text_of
from volplane.controller.config import ADDED_CAPABILITIES, CONTAINER, VOLUME, ScrubberSettings
from volplane.kube import names
from volplane.kube.objects import Pod, Volume
from volplane.state.cluster_state import SCRUB_VOLUME
from volplane.state.matching import capacity_of
from volplane.state.naming import volume_source
from volplane.state.records import RecycleIntent, ScrubPlan, Sealer

_DATA: Final = ("volplane.reclaim", "scrub_pod.yaml")
_APPENDED: Final = ("volumes", "volumeMounts")
"""Lists of a template that are appended to ours; everything else replaces ours."""

SCRUB_GATE = "volplane.dev/scrub"
"""Scheduling gate, removed only after the pod's uid is on the volume: a late or foreign pod never starts."""
SCRUB_LABEL = "volplane.dev/scrub"
"""On the pod: hash of the volume's uid, as in its name."""
_CLAIM_UID = "volplane.dev/scrub-claim-uid"
_SOURCE = "volplane.dev/scrub-source"
_ATTEMPT = "volplane.dev/scrub-attempt"
_SPEC = "volplane.dev/scrub-spec"
"""The spec as it was made, as JSON: admission may have changed the pod's own."""
SEAL = "volplane.dev/scrub-seal"
_SEALED = (SCRUB_VOLUME, names.SCRUB_VOLUME_UID, _CLAIM_UID, _SOURCE, _ATTEMPT, _SPEC)

DEFAULT_IMAGE = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6"
LONGEST_DEADLINE = 2**31 - 1
"""Seconds that the API server accepts as `activeDeadlineSeconds`."""
NANOS_PER_GIB = 2**30 * 10**9
LONGEST_FAILURE = 900
"""Characters of a failure that are kept in the volume's annotation."""

SCRIPT: Final = text_of("volplane.reclaim", "scrub.sh")
"""Empties /scrub without following links or crossing mounts, and fails unless nothing is left.

It uses only what POSIX asks of a shell, find, rm, ls, head and tail (IEEE Std 1003.1-2008), and a command that the
image lacks makes it fail. rm, not find, descends: its paths may grow longer than PATH_MAX.
"""

DEVICE = "/dev/volplane-scrub"
"""Where the pod finds a block volume."""

BLOCK_SCRIPT: Final = text_of("volplane.reclaim", "scrub_block.sh")
"""Discards the whole disk; where it reads anything but zeros after that, overwrites it. Fails unless all of it is zero.

blkdiscard, blockdev and fallocate are of util-linux, cmp of diffutils, the others of coreutils: essential in Debian.
"""


class Unmountable(Exception):
    """Raised when a scrubber pod cannot mount the volume; the text says why."""


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def pod_name(volume: Volume) -> str:
    """Return `volplane-scrub-` and the first 16 hex digits of SHA-256 of the volume's uid."""
    return f"volplane-scrub-{_hash(volume.uid.encode())}"


def source_digest(volume: Volume) -> str:
    """Return the hash of the volume's source: a changed source must not be scrubbed under an old permit."""
    source = volume_source(volume)
    return _hash(msgspec.json.encode([source.kind, dict(source.fields)], order="deterministic"))


def _permit(volume: Volume, intent: RecycleIntent) -> dict[str, str]:
    return {
        SCRUB_VOLUME: volume.name,
        names.SCRUB_VOLUME_UID: volume.uid,
        _CLAIM_UID: intent.claim,
        _SOURCE: source_digest(volume),
        _ATTEMPT: str(intent.attempt),
    }


def belongs(pod: Pod, volume: Volume, intent: RecycleIntent) -> bool:
    """Return whether the pod names this volume, this release of it, this source and this attempt."""
    annotations = pod.metadata.annotations or {}
    return all(annotations.get(key) == value for key, value in _permit(volume, intent).items())


def sealed_spec(pod: Pod, sealer: Sealer) -> dict[str, Any] | None:
    """Return the spec that this cluster's volplane made the pod with; None if it is not ours or was changed."""
    annotations = pod.metadata.annotations or {}
    if not sealer.signed(*_sealed(pod.name, annotations), annotations.get(SEAL, "")):
        return None
    return msgspec.json.decode(annotations[_SPEC], type=dict[str, Any])


def _sealed(name: str, annotations: Mapping[str, str]) -> tuple[str, bytes]:
    content = [annotations.get(key) for key in _SEALED]
    return f"scrub {name}", msgspec.json.encode(content)


def scrub_deadline(volume: Volume, settings: ScrubberSettings) -> int:
    """Return the seconds that a scrub may run: a base, and more for each GiB."""
    gib = capacity_of(volume) // NANOS_PER_GIB
    return min(int(settings.base_deadline + min(gib, LONGEST_DEADLINE) * settings.deadline_per_gib), LONGEST_DEADLINE)


def pod_body(
    volume: Volume,
    intent: RecycleIntent,
    plan: ScrubPlan,
    settings: ScrubberSettings,
    *,
    namespace: str,
    sealer: Sealer,
    node: str = "",
) -> dict[str, Any]:
    """Return the pod, gated and sealed. Raises Unmountable if it can be mounted neither inline nor by a claim.

    node: the only one where it may run, by its name; "" = any that the volume's node affinity allows.
    """
    block, affinity = volume.spec.volume_mode == "Block", volume.spec.node_affinity
    if block and not intent.held_by:
        raise Unmountable("a volume of mode Block cannot be mounted in a scrubber pod")
    near = msgspec.to_builtins(affinity.required) if affinity is not None else None
    for term in near["nodeSelectorTerms"] if near and node else ():
        term["matchFields"] = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    pod = filled(
        data_of(*_DATA)["pod"],
        {
            "name": pod_name(volume),
            "namespace": namespace,
            "hash": _hash(volume.uid.encode()),
            "node": (volume.metadata.labels or {}).get(names.NODE),
            "permit": _permit(volume, intent),
            "deadline": scrub_deadline(volume, settings),
            "container": CONTAINER,
            "image": settings.image or DEFAULT_IMAGE,
            "command": list(settings.command) or ["/bin/sh", "-c", BLOCK_SCRIPT if block else SCRIPT],
            "mounts": None if block else [{"name": VOLUME, "mountPath": "/scrub"}],
            "devices": [{"name": VOLUME, "devicePath": DEVICE}] if block else None,
            "capabilities": list(ADDED_CAPABILITIES),
            "resources": dict(settings.resources) or None,
            "volume": {"name": VOLUME, **_pod_volume(volume, intent, plan)},
            "tolerations": [dict(toleration) for toleration in settings.tolerations] or None,
            "affinity": {"nodeAffinity": {_DEMANDED: near}} if near is not None else None,
        },
    )
    if plan.sub_path and not block:
        pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = plan.sub_path
    body = overlaid(pod, settings.template)
    annotations = body["metadata"]["annotations"]
    annotations[_SPEC] = msgspec.json.encode(body["spec"]).decode()
    annotations[SEAL] = sealer.sign(*_sealed(pod_name(volume), annotations))
    return body


def _pod_volume(volume: Volume, intent: RecycleIntent, plan: ScrubPlan) -> Mapping[str, Any]:
    if intent.held_by:
        return {"persistentVolumeClaim": {"claimName": pod_name(volume)}}
    if plan.volume is not None:
        return plan.volume
    source = volume_source(volume)
    match source.kind, source.fields:
        case "hostPath" | "local", {"path": str(path)}:
            return {"hostPath": {"path": path, "type": "Directory"}}
        case "nfs", {"server": str(server), "path": str(path)}:
            return {"nfs": {"server": server, "path": path}}
        case kind, _:
            raise Unmountable(f"a volume whose source is {kind or 'unknown'} cannot be mounted in a scrubber pod")


_USAGE = re.compile(r"(?i)usage:|BusyBox v\S+ .*multi-call binary|try '.*--help'")
_MESSAGE = re.compile(r"[\w./-]+: |[a-z][\w ]*:$")
"""The beginning of a program's message: its name, or a heading of ours."""


def last_lines(text: str, longest: int = LONGEST_FAILURE) -> str:
    """Return the end of a program's output on one line: at most `longest` characters, whole lines, no help text."""
    lines: list[str] = []
    usage = False
    for line in text.splitlines():
        # Help goes from `Usage:` to the next message of a program.
        if _USAGE.match(line.strip()):
            usage = True
        elif _MESSAGE.match(line) and not line.startswith("Defaults: "):
            usage = False
        if line.strip() and not usage:
            lines.append(line.strip())
    kept: list[str] = []
    left = longest
    for shown in reversed(lines):
        if kept and len(shown) + 1 > left:
            break
        kept.append(shown[-longest:])
        left -= len(shown) + 1
    return " ".join(reversed(kept))


# --- whether its spec is still the one that it was made with --------------------------------------------------------


_DEMANDED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
"""The part of the node affinity that counts; preferences only choose among those nodes."""


def spec_difference(made: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """Return what of the live spec differs from what was made, in words; "" if nothing relevant does."""
    for key, what in data_of(*_DATA)["lists"].items():
        ours, theirs = ({str(item.get("name")): item for item in spec.get(key) or ()} for spec in (made, live))
        if added := sorted(theirs.keys() - ours.keys()):
            return f"{what} {added[0]!r} was added"
        if removed := sorted(ours.keys() - theirs.keys()):
            return f"{what} {removed[0]!r} was removed"
        if len(theirs) != len(live.get(key) or ()):
            return f"{what}s of one name were added"
        where = "container" if what.endswith("container") else what
        for name, item in ours.items():
            if difference := _fields_differ(where, item, theirs[name]):
                return f"{difference} of {what} {name!r}"
    return _fields_differ("spec", _without_lists(made), _without_lists(live))


def _without_lists(spec: Mapping[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in spec.items() if key not in data_of(*_DATA)["lists"]}
    nodes = (left.pop("affinity", None) or {}).get("nodeAffinity") or {}
    return {**left, "nodeAffinity": nodes.get(_DEMANDED)}


def _fields_differ(where: str, made: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    ours, theirs = _plain(made), _plain(live)
    for key in sorted((ours.keys() | theirs.keys()) - {*data_of(*_DATA)["filledIn"].get(where, ())}):
        if ours.get(key) != theirs.get(key):
            how = "changed" if key in ours and key in theirs else "added" if key in theirs else "removed"
            return f"{key} was {how}" if where == "spec" else f"{key} {how}"
    return ""


def _plain(value: Any) -> Any:
    """Return the value without nulls, empty texts, lists and mappings, and defaults of the API."""
    if isinstance(value, Mapping):
        parts = ((key, _plain(item)) for key, item in value.items())
        kept = ((key, item) for key, item in parts if item is not None and item not in ({}, [], ""))
        defaults = data_of(*_DATA)["defaults"]
        return {key: item for key, item in kept if key not in defaults or item != defaults[key]}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def overlaid(body: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod with a template without flaws laid over it."""
    spec = dict(template.get("spec") or {})
    container: Mapping[str, Any] = next(iter(spec.pop("containers", ())), {})
    [ours] = body["spec"]["containers"]
    merged = _merged(body, {"metadata": template.get("metadata") or {}, "spec": spec})
    merged["spec"]["containers"] = [_merged(ours, container)]
    return merged


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(ours))
    for key, value in theirs.items():
        mine = result.get(key)
        if isinstance(mine, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(mine, value)
        elif key in _APPENDED and isinstance(mine, list):
            result[key] = [*mine, *value]
        else:
            result[key] = copy.deepcopy(value)
    return result
