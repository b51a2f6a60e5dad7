"""Every kind the embedded API server serves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from volplane.apiserver.kinds import claims, classes, events, leases, namespaces, nodes, pods, volumes
from volplane.apiserver.kinds.strategies import Clock
from volplane.apiserver.resources import Resource

__all__ = ["RESOURCES", "resources"]


def resources(now: Clock) -> tuple[Resource, ...]:
    """The served resources, with strategies that read wall time from `now`."""
    return (
        namespaces.RESOURCE,
        volumes.resource(now),
        claims.RESOURCE,
        pods.resource(now),
        nodes.RESOURCE,
        events.CORE,
        classes.STORAGE_CLASS,
        classes.ATTRIBUTES_CLASS,
        leases.RESOURCE,
        events.NEW,
    )


def _wall_clock() -> datetime:
    return datetime.now(UTC)


RESOURCES: Final = resources(_wall_clock)
