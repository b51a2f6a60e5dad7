"""What a process makes before its first decision."""

from __future__ import annotations

from random import Random

import pytest

from volplane.controller.config import namespace_labels
from volplane.intents.bootstrap import ensure_namespace
from volplane.kube.client import Client
from volplane.kube.kinds import NAMESPACES
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.clock import now

ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.mark.parametrize(
    ("controllers", "level"), [({"provisioner", "reclaimer"}, "privileged"), ({"provisioner"}, "restricted")]
)
async def test_a_namespace_that_is_made_admits_the_scrubber_pods_and_no_more_than_needed(
    controllers: set[str], level: str
) -> None:
    client = Client(InProcessTransport(ApiServer(now=now, random=Random(1))))
    await ensure_namespace(client, "ours", namespace_labels(controllers))
    made = await client.get(NAMESPACES, "ours")
    assert (made.metadata.labels or {})[ENFORCE] == level


async def test_the_labels_of_a_namespace_that_exists_stay_as_somebody_set_them() -> None:
    client = Client(InProcessTransport(ApiServer(now=now, random=Random(1))))
    await client.create(NAMESPACES, NAMESPACES.body(metadata={"name": "ours", "labels": {ENFORCE: "baseline"}}))
    await ensure_namespace(client, "ours", namespace_labels({"reclaimer"}))
    kept = await client.get(NAMESPACES, "ours")
    assert (kept.metadata.labels or {})[ENFORCE] == "baseline"
