"""Every kind the embedded API server serves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from volplane_embedded.apiserver.kinds import (
    attachments,
    claims,
    classes,
    csi,
    events,
    leases,
    namespaces,
    nodes,
    pods,
    settings,
    volumes,
)
from volplane_embedded.apiserver.kinds.strategies import Clock
from volplane_embedded.apiserver.resources import Resource

__all__ = ["RESOURCES", "resources"]


def resources(now: Clock) -> tuple[Resource, ...]:
    """The served resources, with strategies that read wall time from `now`."""
    return (
        settings.CONFIG_MAP,
        events.CORE,
        namespaces.RESOURCE,
        nodes.RESOURCE,
        claims.RESOURCE,
        volumes.resource(now),
        pods.resource(now),
        settings.SECRET,
        settings.SERVICE_ACCOUNT,
        leases.RESOURCE,
        events.NEW,
        csi.DRIVER,
        csi.NODE,
        csi.CAPACITY,
        classes.STORAGE_CLASS,
        attachments.RESOURCE,
        classes.ATTRIBUTES_CLASS,
    )


def _wall_clock() -> datetime:
    return datetime.now(UTC)


RESOURCES: Final = resources(_wall_clock)
