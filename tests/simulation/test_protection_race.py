"""The race of the protection proposal, in every order: a pod begins to use a claim while its last user has gone.

Controller: the claim is deleted; it lists the pods live; it removes the finalizer. Node: the pod is bound; its kubelet
reads the claim and starts the pod, or refuses it. Source: KEP "PVC protection", kubernetes/community#1174.
"""

from __future__ import annotations

import asyncio
from itertools import combinations_with_replacement

import pytest

from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.objects import Claim, Volume
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet import populator
from volplane_embedded.kubelet.populator import claim_error, populate
from volplane_embedded.objects import PODS
from volplane_testing import Cluster, run
from volplane_testing.memory import MemoryBackend

STEP = 10.0
"""Virtual seconds from one step of the controller to the next."""
MOMENTS = ("before the deletion", "before the list", "between list and removal", "after the removal")
ORDERS = tuple(combinations_with_replacement(range(len(MOMENTS)), 2))
"""(moment of the bind, moment at which the kubelet reads the claim): never before the bind."""


def stock_rule(claim: Claim, volume: Volume | None, *, ran: bool) -> str:
    """Of pkg/kubelet/volumemanager: a claim is refused once its finalizer has gone too."""
    if claim.terminating and claim.has_finalizer(names.CLAIM_PROTECTION):
        return claim_error(claim, volume, ran=True)
    return claim_error(claim, volume, ran=ran)


async def started(client: Client, name: str) -> bool:
    """Whether the kubelet starts the pod on what it reads now."""
    pod = await client.get(PODS, f"default/{name}")
    return bool((await populate(client, pod, ran=False)).volumes)


async def play(bind: int, read: int) -> tuple[bool, bool]:
    """Whether the pod was started, and whether the claim is there at the end."""
    async with Cluster([MemoryBackend()]) as cluster:
        await cluster.create_class("fast")
        claim = await cluster.create_claim("data", storage_class="fast")
        await cluster.wait_bound(claim)
        client = Client(InProcessTransport(cluster.server))
        body = {
            "metadata": {"name": "late"},
            "spec": {
                "nodeName": "node-a",
                "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        }
        runs = False
        for moment in range(len(MOMENTS)):
            if moment == bind:
                cluster.api.create("pods", body)
            if moment == read:
                runs = await started(client, "late")
            if moment == 0:
                cluster.delay("list", "pods", STEP * 1.5)
                cluster.delay("patch", "persistentvolumeclaims", STEP)
                await cluster.delete_claim(claim)
            await asyncio.sleep(STEP)
        await cluster.advance(120.0)
        return runs, cluster.api.get("persistentvolumeclaims", "data") is not None


def results() -> dict[tuple[str, str], tuple[bool, bool]]:
    return {(MOMENTS[bind], MOMENTS[read]): run(play(bind, read)) for bind, read in ORDERS}


def test_no_pod_runs_on_a_claim_that_goes_whatever_the_order() -> None:
    found = results()
    assert [order for order, (runs, there) in found.items() if runs and not there] == []
    assert found[MOMENTS[0], MOMENTS[0]] == (True, True), "a pod that was first keeps the claim"
    assert found[MOMENTS[2], MOMENTS[2]] == (False, False), "in the middle of the race the kubelet refuses it"
    assert found[MOMENTS[1], MOMENTS[1]] == (False, True), "the live list sees it, and the claim waits for a person"


def test_the_stock_rule_for_kubelets_leaves_the_window_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(populator, "claim_error", stock_rule)
    open_window = [order for order, (runs, there) in results().items() if runs and not there]
    assert open_window == [(MOMENTS[2], MOMENTS[2])]
