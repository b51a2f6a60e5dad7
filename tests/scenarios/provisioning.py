"""What the tests of provisioning share."""

from __future__ import annotations

from scenarios.backends import ScriptedBackend, SearchableBackend
from scenarios.laboratory import Laboratory
from scenarios.stories import claim, storage_class

INTENT = "volplane.dev/intent"
PROVISIONING = "volplane.dev/provisioning"
BACKENDS = (ScriptedBackend, SearchableBackend)


def slow_provisioning(_driver: str, hook: str) -> tuple[float, float]:
    return (2.0, 2.0) if hook == "provision" else (0.0, 0.0)


async def create_class(lab: Laboratory, **more: object) -> None:
    await lab.create("classes", storage_class(**more))


async def ask(lab: Laboratory, name: str = "c", **spec: object) -> str:
    """Create a claim of the class; its uid."""
    made = await lab.create("claims", claim(name, storageClassName="fast", **spec))
    return str(made["metadata"]["uid"])
