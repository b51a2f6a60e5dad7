"""The kinds that the API server serves: defaults, validation, columns and selectable fields of each.

The server reads them as `Resource` and calls their strategies. Kinds know no request, no store and no other kind's
objects; they never write.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from volplane_embedded.apiserver.kinds import (
    apps,
    configmaps,
    csi,
    customresourcedefinitions,
    events,
    leases,
    namespaces,
    nodes,
    persistentvolumeclaims,
    persistentvolumes,
    pods,
    resourcequotas,
    secrets,
    storageclasses,
    volumeattachments,
)
from volplane_embedded.apiserver.resources import Clock, Resource

__all__ = ["RESOURCES", "resources"]


GRANTS_GROUP: Final = "gateway.networking.k8s.io"
CROSS_NAMESPACE: Final = "CrossNamespaceVolumeDataSource"
"""The one feature gate that can be set, of those that are off by default."""


def resources(now: Clock, gates: Collection[str] = ()) -> tuple[Resource, ...]:
    """Return the served resources, with strategies that read wall time from `now`. gates: that are on."""
    return (
        configmaps.RESOURCE,
        events.CORE,
        namespaces.RESOURCE,
        nodes.RESOURCE,
        persistentvolumeclaims.resource(cross_namespace=CROSS_NAMESPACE in gates),
        persistentvolumes.resource(now),
        pods.resource(now),
        resourcequotas.RESOURCE,
        secrets.SECRET,
        secrets.SERVICE_ACCOUNT,
        apps.STATEFUL_SET,
        apps.DEPLOYMENT,
        apps.REPLICA_SET,
        apps.CONTROLLER_REVISION,
        leases.RESOURCE,
        events.NEW,
        csi.DRIVER,
        csi.NODE,
        csi.CAPACITY,
        storageclasses.STORAGE_CLASS,
        volumeattachments.RESOURCE,
        storageclasses.ATTRIBUTES_CLASS,
        customresourcedefinitions.resource(now),
    )


def _wall_clock() -> datetime:
    return datetime.now(UTC)


RESOURCES: Final = resources(_wall_clock)
