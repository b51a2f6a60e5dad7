"""The scrubber pod: its name, its body, and whether a pod found under that name is ours for this very scrub. Pure.

Whoever may create pods in our namespace may create one of that name. So the pod carries what it is for and the spec
that it was made with, sealed with our key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from volplane.controller.config import ScrubberSettings
from volplane.controller.scrub_template import ADDED_CAPABILITIES, CONTAINER, VOLUME, overlaid
from volplane.kube import names
from volplane.kube.kinds import PODS
from volplane.kube.objects import Pod, Volume
from volplane.reclaim.scrub_script import BLOCK_SCRIPT, DEVICE, SCRIPT
from volplane.state.indexes import SCRUB_VOLUME
from volplane.state.matching import capacity_of
from volplane.state.naming import volume_source
from volplane.state.progress import ScrubPlan
from volplane.state.records import RecycleIntent, Sealer

__all__ = [
    "SCRUB_GATE",
    "SCRUB_LABEL",
    "Unmountable",
    "belongs",
    "pod_body",
    "pod_name",
    "scrub_deadline",
    "sealed_spec",
    "source_digest",
]

SCRUB_GATE = "volplane.dev/scrub"
"""Scheduling gate: lifted only after the pod's uid stands on the volume, so a late or foreign pod never starts."""
SCRUB_LABEL = "volplane.dev/scrub"
"""On the pod: hash of the volume's uid, as in its name."""
_CLAIM_UID = "volplane.dev/scrub-claim-uid"
_SOURCE = "volplane.dev/scrub-source"
_ATTEMPT = "volplane.dev/scrub-attempt"
_SPEC = "volplane.dev/scrub-spec"
"""The spec as it was made, JSON: admission may have changed the pod's own."""
_SEAL = "volplane.dev/scrub-seal"
_SEALED = (SCRUB_VOLUME, names.SCRUB_VOLUME_UID, _CLAIM_UID, _SOURCE, _ATTEMPT, _SPEC)

DEFAULT_IMAGE = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6"
LONGEST_DEADLINE = 2**31 - 1
"""Seconds that the API server accepts as `activeDeadlineSeconds`."""
NANOS_PER_GIB = 2**30 * 10**9


class Unmountable(Exception):
    """A scrubber pod cannot mount this volume; the text says why."""


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def pod_name(volume: Volume) -> str:
    """`volplane-scrub-` and the first 16 hex digits of SHA-256 of the volume's uid."""
    return f"volplane-scrub-{_hash(volume.uid.encode())}"


def source_digest(volume: Volume) -> str:
    """Which source the pod was made for: a changed source must not be scrubbed under an old permit."""
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
    """Whether the pod names this volume, this release of it, this source and this attempt."""
    annotations = pod.metadata.annotations or {}
    return all(annotations.get(key) == value for key, value in _permit(volume, intent).items())


def sealed_spec(pod: Pod, sealer: Sealer) -> dict[str, Any] | None:
    """The spec that this cluster's volplane made the pod with; None if it did not, or an annotation was changed."""
    annotations = pod.metadata.annotations or {}
    if not sealer.signed(*_sealed(pod.name, annotations), annotations.get(_SEAL, "")):
        return None
    return msgspec.json.decode(annotations[_SPEC], type=dict[str, Any])


def _sealed(name: str, annotations: Mapping[str, str]) -> tuple[str, bytes]:
    """Subject and content of the seal."""
    content = [annotations.get(key) for key in _SEALED]
    return f"scrub {name}", msgspec.json.encode(content)


def scrub_deadline(volume: Volume, settings: ScrubberSettings) -> int:
    """Seconds a scrub may run: a base and so much for each GiB."""
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
) -> dict[str, Any]:
    """The pod, gated and sealed. Raises Unmountable if the volume can be mounted neither inline nor by a claim."""
    block = volume.spec.volume_mode == "Block"
    if block and not intent.held_by:
        raise Unmountable("a volume of mode Block cannot be mounted in a scrubber pod")
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.image or DEFAULT_IMAGE,
        "command": list(settings.command) or ["/bin/sh", "-c", BLOCK_SCRIPT if block else SCRIPT],
        **_shown(plan, block=block),
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": list(ADDED_CAPABILITIES)},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if settings.resources:
        container["resources"] = dict(settings.resources)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "activeDeadlineSeconds": scrub_deadline(volume, settings),
        "schedulingGates": [{"name": SCRUB_GATE}],
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": VOLUME, **_pod_volume(volume, intent, plan)}],
    }
    if settings.tolerations:
        spec["tolerations"] = [dict(toleration) for toleration in settings.tolerations]
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        required = msgspec.to_builtins(affinity.required)
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    metadata: dict[str, Any] = {
        "name": pod_name(volume),
        "namespace": namespace,
        "labels": {SCRUB_LABEL: _hash(volume.uid.encode()), "app.kubernetes.io/name": "volplane-scrub"},
        "annotations": _permit(volume, intent),
    }
    if (node := (volume.metadata.labels or {}).get(names.NODE)) is not None:
        metadata["labels"][names.NODE] = node
    body = overlaid(PODS.body(metadata=metadata, spec=spec), settings.template)
    annotations = body["metadata"]["annotations"]
    annotations[_SPEC] = msgspec.json.encode(body["spec"]).decode()
    annotations[_SEAL] = sealer.sign(*_sealed(pod_name(volume), annotations))
    return body


def _shown(plan: ScrubPlan, *, block: bool) -> dict[str, Any]:
    """Where the container finds the volume."""
    if block:
        return {"volumeDevices": [{"name": VOLUME, "devicePath": DEVICE}]}
    return {
        "volumeMounts": [
            {"name": VOLUME, "mountPath": "/scrub"} | ({"subPath": plan.sub_path} if plan.sub_path else {})
        ]
    }


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
