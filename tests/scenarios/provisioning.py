"""What the tests of provisioning share."""

from __future__ import annotations

import asyncio

from scenarios.backends import ScriptedBackend, SearchableBackend
from scenarios.harness import Harness
from scenarios.stories import claim, storage_class

INTENT = "volplane.dev/intent"
PROVISIONING = "volplane.dev/provisioning"
BACKENDS = (ScriptedBackend, SearchableBackend)


def slow_provisioning(_driver: str, hook: str) -> tuple[float, float]:
    return (2.0, 2.0) if hook == "provision" else (0.0, 0.0)


async def create_class(harness: Harness, **more: object) -> None:
    await harness.create("classes", storage_class(**more))


async def ask(harness: Harness, name: str = "c", **spec: object) -> str:
    """Create a claim of the class; its uid."""
    made = await harness.create("claims", claim(name, storageClassName="fast", **spec))
    return str(made["metadata"]["uid"])


async def made_without_a_volume(harness: Harness, **fields: object) -> str:
    """Let the process make an asset for claim `c`, and fail to create its volume. The claim's uid.

    fields: of the class.
    """
    await create_class(harness, **fields)
    harness.fail("create persistentvolumes", "away", 1000)
    await harness.start()
    uid = await ask(harness)
    await asyncio.sleep(1.0)
    return uid
