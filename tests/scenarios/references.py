"""How rows refer to objects: `pods/default/pod1`, and `$(uid:pods/default/pod1)` for its uid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scenarios.harness import Harness

__all__ = ["KINDS", "place", "resolved"]

KINDS = {
    "persistentvolumeclaims": "claims",
    "persistentvolumes": "volumes",
    "pods": "pods",
    "nodes": "nodes",
    "volumeattachments": "attachments",
    "csidrivers": "csidrivers",
}
_UID = re.compile(r"\$\(uid:([^)]+)\)")


async def resolved(harness: Harness, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: await resolved(harness, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [await resolved(harness, entry) for entry in value]
    if isinstance(value, str) and (found := _UID.fullmatch(value)):
        kind, name, namespace = place(found[1])
        return (await harness.see(kind, name, namespace))["metadata"]["uid"]
    return value


def place(reference: str) -> tuple[str, str, str]:
    """(kind, name, namespace) of `pods/default/pod1` or `persistentvolumes/pv-1`."""
    resource, *namespace, name = reference.split("/")
    return KINDS[resource], name, namespace[0] if namespace else "default"
