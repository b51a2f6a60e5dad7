"""Looking at a cluster where no controller runs, with fewer rights than a controller has."""

from __future__ import annotations

import asyncio
import json

import pytest

from scenarios.faults import Rules, refusing
from volplane.controller.config import Configuration
from volplane.errors import ApiError
from volplane.explain.explain import Explanation
from volplane.kube.client import Client
from volplane.process.process import Options, read_control_plane
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock
from volplane_testing.transport import FaultTransport


def looked(*refused: str) -> tuple[tuple[str, ...], Explanation]:
    """Look at an empty cluster whose server answers 403 to these calls, and ask about a claim."""

    async def body() -> tuple[tuple[str, ...], Explanation]:
        server = ApiServer(now=clock.now)
        namespace = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}).encode()
        server.handle("POST", "/api/v1/namespaces", {}, {"content-type": "application/json"}, namespace)
        before = server.store.version
        forbidden = refusing(403, "Forbidden", "not for you")
        rules = Rules()
        rules.fault(lambda call: call.what in refused, times=100, before=forbidden)
        plane, doubts = await read_control_plane(
            Client(FaultTransport(InProcessTransport(server), rules)), Configuration(drivers=()), Options()
        )
        assert server.store.version == before
        return doubts, plane.explain("claim", "default/c")

    return asyncio.run(body())


def test_an_empty_cluster_is_seen_without_doubt_and_nothing_is_written() -> None:
    doubts, told = looked()
    assert doubts == ()
    assert told.situation == ("there is no claim default/c",)


def test_who_may_not_read_the_sealing_key_is_told_that_records_are_not_believed() -> None:
    doubts, _ = looked("get secrets")
    (doubt,) = doubts
    assert "the key that seals intents may not be read here" in doubt


def test_who_may_not_read_claims_sees_nothing_and_is_told_so() -> None:
    with pytest.raises(ApiError, match="not for you"):
        looked("list persistentvolumeclaims")
