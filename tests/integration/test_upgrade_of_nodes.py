"""From a version whose nodes had the key of the central process, and no namespace of their own; and back."""

from __future__ import annotations

import base64

import pytest

from integration.test_distributed import begin_on_a_node_that_goes
from integration.test_scrubs_on_nodes import DISKS, end, is_offered, scrubber, written
from volplane.controller.config import ScrubberSettings
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import PODS, SECRETS, VOLUMES
from volplane.reclaim.scrub_pod import pod_body
from volplane.state.records import ClaimIntent, RecycleIntent, ScrubPlan, Sealer, write_intent
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.control_plane import NAMESPACE
from volplane_testing.distributed import CENTRAL, DistributedCluster
from volplane_testing.transport import requests, unanswered


async def former_key(cluster: DistributedCluster) -> Sealer:
    """That of every process before."""
    secret = await Client(InProcessTransport(cluster.server)).get(SECRETS, f"{NAMESPACE}/{SEAL_SECRET}")
    assert secret.data is not None
    return Sealer(base64.b64decode(secret.data["key"]), NAMESPACE)


class Versions:
    """Both versions of the processes of a cluster: the former ones seal with one key."""

    def __init__(self, cluster: DistributedCluster, former: Sealer) -> None:
        self._cluster = cluster
        self._present = dict(cluster.sealers)
        self._former = {"": former, CENTRAL: former}

    async def to(self, *, former: bool, order: tuple[str, ...]) -> None:
        """Stop the processes, and start them in this order in that version. Their faults end."""
        for name in order:
            await self._cluster.kill(name)
            self._cluster.scripts[name].faults.clear()
        self._cluster.sealers = self._former if former else self._present
        for name in order:
            await self._cluster.start(name)
            await self._cluster.settle()


def author(cluster: DistributedCluster) -> str:
    text: str = cluster.claim("data")["metadata"]["annotations"][names.INTENT]
    return text.rpartition('"by":"')[2].removesuffix('"}')


async def begun(cluster: DistributedCluster, *, former: bool) -> Versions:
    """Let node a make the asset of claim `data`, in one version, and not say so."""
    versions = Versions(cluster, await former_key(cluster))
    await versions.to(former=former, order=(CENTRAL, "a"))
    cluster.create_class("local")
    cluster.scripts["a"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
    cluster.create_claim("data", "local")
    await cluster.advance(5)
    assert len(cluster.assets()["a"]) == 1
    assert author(cluster) == (NAMESPACE if former else f"{NAMESPACE}-nodes")
    return versions


@pytest.mark.parametrize(("former", "order"), [(True, (CENTRAL, "a")), (True, ("a", CENTRAL)), (False, (CENTRAL, "a"))])
async def test_what_one_version_began_the_other_ends_without_a_second_asset(
    former: bool, order: tuple[str, ...]
) -> None:
    async with DistributedCluster(["a"]) as cluster:
        versions = await begun(cluster, former=former)
        await versions.to(former=not former, order=order)
        await cluster.advance(300)
        assert cluster.node_of("data") == "a"
        assert len(cluster.assets()["a"]) == 1
        assert names.INTENT not in cluster.claim("data")["metadata"]["annotations"]
        cluster.api.delete("persistentvolumeclaims", "data")
        await cluster.settle()
        assert cluster.assets()["a"] == []


async def test_a_later_generation_stays_the_one_it_is() -> None:
    """Else two assets of one generation would be there, and one of them be taken for the other."""
    async with DistributedCluster(["a", "b"]) as cluster:
        versions = Versions(cluster, await former_key(cluster))
        await versions.to(former=True, order=(CENTRAL, "a", "b"))
        cluster.scripts["b"].add(requests("create", "persistentvolumes"), unanswered, times=1e9)
        await begin_on_a_node_that_goes(cluster)
        assert len(cluster.assets()["b"]) == 1
        await versions.to(former=False, order=("b", CENTRAL))
        await cluster.advance(15)
        volume = cluster.volume("data")
        assert volume is not None
        assert volume["metadata"]["annotations"][names.GENERATION] == "2"
        assert len(cluster.assets()["b"]) == 1


async def test_a_process_of_a_node_leaves_a_record_of_the_former_key_to_the_central_one() -> None:
    async with DistributedCluster(["a"]) as cluster:
        versions = await begun(cluster, former=True)
        await cluster.kill(CENTRAL)
        await cluster.kill("a")
        cluster.scripts["a"].faults.clear()
        cluster.scripts["a"].requests.clear()
        cluster.sealers = versions._present
        await cluster.start("a")
        await cluster.advance(20)
        assert author(cluster) == NAMESPACE
        assert not [
            each
            for each in cluster.scripts["a"].requests
            if each.verb == "patch" and each.resource == "persistentvolumeclaims"
        ]
        await cluster.start(CENTRAL)
        await cluster.advance(15)
        assert cluster.node_of("data") == "a"


async def test_a_scrub_that_the_process_of_a_node_began_goes_on_with_its_pod() -> None:
    async with DistributedCluster(["a"], pod_volume=DISKS) as cluster:
        former = await former_key(cluster)
        volume = await written(cluster)
        await cluster.kill(CENTRAL)
        await cluster.kill("a")
        claim = cluster.claim("data")["metadata"]["uid"]
        cluster.api.patch("persistentvolumeclaims", "data", {"metadata": {"finalizers": None}})
        cluster.api.delete("persistentvolumeclaims", "data")
        client = Client(InProcessTransport(cluster.server))
        typed = await client.get(VOLUMES, volume["metadata"]["name"])
        intent = RecycleIntent(v=1, claim=claim, fence="5/node-a/uid", installation=NAMESPACE)
        plan = ScrubPlan(DISKS, typed.spec.local["path"].removeprefix("/disks/") if typed.spec.local else "")
        body = pod_body(typed, intent, plan, ScrubberSettings(), namespace=NAMESPACE, sealer=former)
        pod = await client.create(PODS, body)
        begun = RecycleIntent(v=1, claim=claim, fence="5/node-a/uid", installation=NAMESPACE, pod=pod.uid)
        change = {"metadata": {"annotations": {names.INTENT: write_intent(begun)}}}
        cluster.api.patch("persistentvolumes", typed.name, change)
        await cluster.start("a")
        await cluster.start(CENTRAL)
        await cluster.settle()
        assert scrubber(cluster)["metadata"]["uid"] == pod.uid
        end(cluster, "Succeeded")
        await cluster.settle()
        assert is_offered(cluster, volume)


async def test_the_key_of_the_nodes_is_believed_about_their_drivers_alone() -> None:
    async with DistributedCluster(["a"]) as cluster:
        central, nodes = cluster.sealers[CENTRAL], cluster.sealers[""]
        forged = nodes.seal("uid", ClaimIntent(v=1, driver="ebs.example.com"))
        assert central.open("uid", forged) is None
        assert not central.signed("scrub pod", b"content", nodes.sign("scrub pod", b"content"))
