"""What the tests of provisioning share."""

from __future__ import annotations

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
