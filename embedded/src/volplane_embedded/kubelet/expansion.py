"""The node's half of growing a volume. A directory needs no resizing, so the claim is only told the new size.

Source: pkg/volume/util/operationexecutor/node_expander.go.
"""

from __future__ import annotations

from typing import Final

from volplane.expand.resize import RESIZE_CONDITIONS, conditions_without
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, Volume

_PENDING: Final = frozenset({"NodeResizePending", "NodeResizeInProgress"})


def awaits_node(claim: Claim) -> bool:
    """Tell whether the asset has grown and its file system has not."""
    return (claim.status.allocated_resource_statuses or {}).get("storage") in _PENDING


async def finish_expansion(client: Client, claim: Claim, volume: Volume) -> bool:
    """Write that the file system of a mounted volume has grown; whether there was something to write. It gets the size
    that was asked for last, as by the stock kubelet: the asset may have more.

    Raises ApiError, ApiConflict if the claim has changed meanwhile.
    """
    if not awaits_node(claim):
        return False
    sizes = {**(volume.spec.capacity or {}), **(claim.status.allocated_resources or {})}
    status = {
        "capacity": {"storage": sizes["storage"]},
        "allocatedResourceStatuses": None,
        "conditions": conditions_without(claim, RESIZE_CONDITIONS),
    }
    metadata = {"uid": claim.uid, "resourceVersion": claim.metadata.resource_version}
    await client.patch(CLAIMS, claim.key, {"metadata": metadata, "status": status}, subresource="status")
    return True
