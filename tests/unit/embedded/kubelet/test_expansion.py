"""The node's half of growth, against an embedded server."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet.expansion import finish_expansion
from volplane_testing.clock import now


@pytest.mark.parametrize(("allocated", "grown"), [({"storage": "2Gi"}, "2Gi"), (None, "4Gi")])
async def test_a_file_system_gets_the_size_that_was_asked_for_though_the_asset_has_more(
    allocated: dict[str, str] | None, grown: str
) -> None:
    client = Client(InProcessTransport(ApiServer(now=now, random=Random(1))))
    common: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    wanted = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "v"}
    claim = await client.create(CLAIMS, CLAIMS.body(metadata={"name": "c", "namespace": "default"}, spec=wanted))
    spec = {**common, "capacity": {"storage": "4Gi"}, "hostPath": {"path": "/v"}}
    volume = await client.create(VOLUMES, VOLUMES.body(metadata={"name": "v"}, spec=spec))
    status = {
        "phase": "Bound",
        "capacity": {"storage": "1Gi"},
        "allocatedResources": allocated,
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }
    claim = await client.patch(CLAIMS, claim.key, {"status": status}, subresource="status")
    assert await finish_expansion(client, claim, volume)
    after = await client.get(CLAIMS, claim.key)
    assert after.status.capacity == {"storage": grown}
    assert not await finish_expansion(client, after, volume), "there is nothing more to do"
