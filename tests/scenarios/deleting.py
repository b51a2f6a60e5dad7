"""What the tests of deleting share."""

from __future__ import annotations

from typing import Any

from scenarios.harness import Harness, Json
from scenarios.stories import claim, reference, storage_class, volume

RECLAIM = "volplane.dev/reclaim"
GONE = "00000000-0000-0000-0000-000000000001"


def released(name: str = "v", **spec: Any) -> Json:
    body = volume(name, persistentVolumeReclaimPolicy="Delete", claimRef=reference("gone", uid=GONE), **spec)
    return {**body, "status": {"phase": "Bound"}}


async def made_volume(harness: Harness, name: str = "c") -> str:
    """A bound claim with a volume that was made for it; the volume's name."""
    await harness.create("classes", storage_class())
    made = await harness.create("claims", claim(name, storageClassName="fast"))
    await harness.start()
    await harness.settle()
    return f"pvc-{made['metadata']['uid']}"
