"""What the tests of recycling share: a released volume, its scrubber pod, and how the pod ends."""

from __future__ import annotations

import json
from typing import Any

from scenarios.backends import ScriptedBackend
from scenarios.harness import OURS, Harness, Json
from scenarios.stories import DRIVER, reference, volume

INTENT = "volplane.dev/intent"
GONE = "00000000-0000-0000-0000-000000000001"


def released(name: str = "v", **spec: Any) -> Json:
    body = volume(name, persistentVolumeReclaimPolicy="Recycle", claimRef=reference("gone", uid=GONE), **spec)
    body["metadata"]["annotations"] = {"pv.kubernetes.io/bound-by-controller": "yes"}
    return {**body, "status": {"phase": "Bound"}}


def user() -> Json:
    """A running pod that mounts the claim from which the volume was released."""
    return {
        "metadata": {"name": "user", "namespace": "default"},
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "c", "image": "x"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "gone"}}],
        },
        "status": {"phase": "Running"},
    }


def by_pod() -> ScriptedBackend:
    return ScriptedBackend(DRIVER, recycler_pod=True)


async def pods(harness: Harness) -> list[Json]:
    return await harness.everything("pods", OURS)


async def permitted(harness: Harness, seconds: float = 30.0) -> Json:
    """The one scrubber pod, once its gate is lifted."""

    async def there() -> bool:
        found = await pods(harness)
        return len(found) == 1 and not found[0]["spec"].get("schedulingGates")

    await harness.until(there, seconds, "a permitted pod")
    (pod,) = await pods(harness)
    return pod


async def end(harness: Harness, pod: Json, phase: str, **status: Any) -> None:
    await harness.patch(
        "pods", pod["metadata"]["name"], {"status": {"phase": phase, **status}}, OURS, subresource="status"
    )


async def intent(harness: Harness, name: str = "v") -> Json:
    text = ((await harness.volume(name))["metadata"].get("annotations") or {}).get(INTENT)
    return json.loads(text) if text else {}
