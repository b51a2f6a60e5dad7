"""What a page knows, made of plain objects."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from volplane.kube.client import Client
from volplane.kube.events import Event
from volplane.kube.objects import KubeObject
from volplane.snapshots.objects import VolumeSnapshot
from volplane.ui.told import Told
from volplane.ui.watched import Watched

NOW = 1_800_000_000.0


def seen(*objects: KubeObject, watched: Watched | None = None) -> Watched:
    """Caches with these objects, each in that of its kind."""
    caches = watched or Watched(cast("Client", None))
    for each in objects:
        next(cache for cache in caches.caches if type(each) is cache.kind.struct).observe(each)
    return caches


def event(about: KubeObject, message: str, **fields: Any) -> Event:
    """An event about an object; fields: kind, reason, type, time, count."""
    involved = {"kind": fields.get("kind", "PersistentVolumeClaim"), "name": about.name, "uid": about.uid}
    body = {
        "metadata": {"name": f"e-{message}", "namespace": "default", "uid": f"uid-{message}", "resourceVersion": "1"},
        "involvedObject": {**involved, "namespace": about.namespace},
        "type": fields.get("type", "Warning"),
        "reason": fields.get("reason", "ProvisioningFailed"),
        "message": message,
        "count": fields.get("count", 1),
        "lastTimestamp": fields.get("time", "2027-01-01T00:00:00Z"),
    }
    return msgspec.convert(body, Event)


def snapshot(name: str = "s", claim: str = "c", **status: Any) -> VolumeSnapshot:
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"},
        "spec": {"source": {"persistentVolumeClaimName": claim}},
        "status": status,
    }
    return msgspec.convert(body, VolumeSnapshot)


def told(**status: Any) -> Told:
    """What a controller says that leads; its clock shows 100 s at NOW."""
    leaks = status.pop("leaks", {})
    base = {"leads": True, "now": 100.0, "reasons": {}, "operations": [], "drivers": []}
    return Told.of({**base, **status}, leaks, now=NOW)


def operation(about: KubeObject, **fields: Any) -> dict[str, Any]:
    base = {"name": f"provision-{about.key}", "verb": "provision", "key": about.key, "uid": about.uid, "driver": "d"}
    return {**base, "phase": "waiting", "since": 90.0, "next_try": None, "failures": 0, "error": None, **fields}
