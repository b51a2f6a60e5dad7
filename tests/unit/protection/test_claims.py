"""`kubernetes.io/pvc-protection`: the cases of pvc_protection_controller_test.go of Kubernetes, and the live list."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest

from unit.binding.objects import claim, volume
from unit.deciding import empty_state
from volplane.controller.actions import LiveReads, Patch, Run, Settled, Wait
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane.kube.names import CLAIM_PROTECTION as GUARD
from volplane.kube.objects import Claim, Pod
from volplane.kube.transport import LineStream, Request, Response
from volplane.protection.finalizers import BELIEVED, OPERATION_DRIVER, Protection, uses

DYING = "2026-01-01T00:00:00Z"
FOREIGN = "example.com/hold"


def pod(name: str = "p", *, uses: str = "c", node: str = "n", phase: str = "Running", **meta: Any) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **meta}
    spec = {"nodeName": node, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": uses}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Pod)


def ephemeral(name: str = "p", **meta: Any) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5", **meta}
    spec = {"nodeName": "n", "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}, Pod)


class Bench:
    """A claim, pods in the cache, pods on the server, and a clock."""

    def __init__(self, item: Claim, *cached: Pod, live: tuple[Pod, ...] = ()) -> None:
        self.time = 100.0
        self.item = item
        self.server = [*cached, *live]
        self.lists = 0
        self.woken: list[str] = []
        cluster = empty_state()
        cluster.monotonic = lambda: self.time
        self.claims, self.pods = cluster.claims, cluster.pods
        self.world = Protection(cluster=cluster, claims=self, volumes=self)
        self.claims.subscribe(self.world.claim_changed)
        self.pods.subscribe(self.world.pod_changed)
        self.claims.observe(item)
        for each in cached:
            self.pods.observe(each)

    def enqueue(self, key: str, after: float = 0.0) -> None:
        self.woken.append(key)

    async def list_pods(self, namespace: str) -> None:
        self.lists += 1
        await self.refresh(Client(OnePage(*map(msgspec.to_builtins, self.server))), namespace)

    async def refresh(self, client: Client, namespace: str = "default") -> None:
        key, uid = self.item.key, self.item.uid
        run = Run(verb="unprotect", key=key, uid=uid, driver=OPERATION_DRIVER, asset=namespace)
        await self.world.unprotect(run, client)()

    def decide(self) -> Any:
        return self.world.decide_claim(self.item.key)

    def until_settled(self) -> Any:
        """Decide, and list whenever that is asked for, a second later each time."""
        for _ in range(5):
            action = self.decide()
            if not isinstance(action, Run):
                return action
            self.time += 1.0
            asyncio.run(self.list_pods(action.asset))
        raise AssertionError("it lists for ever")


def removed(action: Any) -> list[str]:
    """The finalizers that a write to the claim leaves on it."""
    assert isinstance(action, Patch), action
    assert (action.kind, action.subresource) == (CLAIMS, "")
    assert isinstance(action.target, Claim)
    return action.body["metadata"]["finalizers"] or []


def test_a_living_claim_gets_the_finalizer_once() -> None:
    assert removed(Bench(claim()).decide()) == [GUARD]
    assert removed(Bench(claim(finalizers=[FOREIGN])).decide()) == [FOREIGN, GUARD]
    assert Bench(claim(finalizers=[GUARD])).decide() == Settled()


def test_a_dying_claim_without_the_finalizer_is_left_alone() -> None:
    assert Bench(claim(finalizers=[FOREIGN], deletionTimestamp=DYING)).decide() == Settled()


def dying(name: str = "c", **fields: Any) -> Claim:
    return claim(name, finalizers=[GUARD], deletionTimestamp=DYING, **fields)


def test_a_claim_that_is_gone_needs_nothing() -> None:
    bench = Bench(dying())
    bench.claims.observe_deleted(bench.item.key, bench.item.uid)
    assert bench.decide() == Settled()


def test_the_pods_of_the_namespace_are_listed_live_before_anything_is_let_go() -> None:
    assert Bench(dying()).decide() == Run(
        verb="unprotect", key="default/c", uid="uid-c", driver="volplane.dev/protection", asset="default"
    )


def test_an_unused_claim_is_let_go_after_one_live_list_and_foreign_finalizers_stay() -> None:
    bench = Bench(claim(finalizers=[GUARD, FOREIGN], deletionTimestamp=DYING))
    assert removed(bench.until_settled()) == [FOREIGN]
    assert bench.lists == 1
    assert Bench(dying()).until_settled().body == {"metadata": {"finalizers": None}}


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed", "Unknown"])
def test_every_pod_on_a_node_keeps_the_claim_whatever_its_phase_and_costs_no_list(phase: str) -> None:
    bench = Bench(dying(), pod(phase=phase))
    waits = bench.until_settled()
    assert isinstance(waits, Wait)
    assert waits.reason == "used by pods p"
    assert bench.lists == 0


def test_a_pod_that_never_started_is_named_because_it_keeps_the_claim_and_cannot_start_on_it() -> None:
    """The deadlock of the original proposal: the kubelet refuses a claim that is being deleted."""
    waits = Bench(dying(), pod("stuck", phase="Pending"), pod("works")).until_settled()
    assert isinstance(waits, Wait)
    [event] = waits.events
    assert (event.kind, event.about.name, event.type, event.reason) == (CLAIMS, "c", "Warning", "ClaimInUse")
    assert event.message.startswith("pod stuck on node n keeps the claim and has not started")
    assert event.message.endswith("delete the pod")


@pytest.mark.parametrize(
    ("status", "named"),
    [
        ({"phase": ""}, True),
        ({"phase": "Pending"}, True),
        ({"phase": "Pending", "containerStatuses": [{"name": "c"}]}, True),
        ({"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "x"}}}]}, True),
        (
            {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {"startedAt": DYING}}}]},
            False,
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]},
            False,
        ),
        ({"phase": "Pending", "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": DYING}}}]}, False),
        ({"phase": "Running"}, False),
        ({"phase": "Unknown"}, False),
    ],
)
def test_only_a_pod_of_which_nothing_ran_yet_is_named(status: Any, *, named: bool) -> None:
    user = msgspec.convert({**msgspec.to_builtins(pod()), "status": status}, Pod)
    waits = Bench(dying(), user).until_settled()
    assert waits.reason == "used by pods p"
    assert len(waits.events) == named


def test_a_pod_that_is_deleted_already_is_not_named() -> None:
    user = pod(phase="Pending", deletionTimestamp=DYING, deletionGracePeriodSeconds=30)
    assert Bench(dying(), user).until_settled().events == ()


@pytest.mark.parametrize(
    "user",
    [
        pod(node=""),
        pod(uses="another"),
        pod(namespace="elsewhere"),
        ephemeral("c", ownerReferences=[]),
    ],
    ids=["without a node", "of another claim", "of another namespace", "that only has a similar name"],
)
def test_these_pods_keep_nothing(user: Pod) -> None:
    assert removed(Bench(dying(), user).until_settled()) == []


def test_a_dying_pod_keeps_the_claim_until_it_is_gone() -> None:
    for grace in (30, 0):
        user = pod(deletionTimestamp=DYING, deletionGracePeriodSeconds=grace)
        assert isinstance(Bench(dying(), user).until_settled(), Wait)


def owned(name: str = "p-v", **owner: Any) -> Claim:
    """The dying claim of the ephemeral volume `v` of the pod `p`."""
    body = msgspec.to_builtins(dying(name))
    body["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True, **owner}]
    return msgspec.convert(body, Claim)


@pytest.mark.parametrize(
    ("meta", "kept"),
    [
        ({}, True),
        ({"deletionTimestamp": DYING, "deletionGracePeriodSeconds": 30}, True),
        ({"deletionTimestamp": DYING, "deletionGracePeriodSeconds": 0}, False),
        ({"deletionGracePeriodSeconds": 0}, True),
    ],
    ids=["runs", "is asked to end", "only waits for its finalizers", "lives"],
)
def test_an_ephemeral_claim_is_kept_by_its_own_pod_unless_that_only_waits_for_its_finalizers(
    meta: Any, *, kept: bool
) -> None:
    action = Bench(owned(), ephemeral(**meta)).until_settled()
    assert isinstance(action, Wait) == kept


@pytest.mark.parametrize("owner", [{"uid": "uid-another"}, {"controller": False}], ids=["another pod", "no controller"])
def test_an_ephemeral_claim_of_another_is_not_kept_by_a_pod_whose_name_leads_to_it(owner: Any) -> None:
    assert removed(Bench(owned(**owner), ephemeral()).until_settled()) == []
    assert removed(Bench(dying("p-v"), ephemeral()).until_settled()) == []


def test_every_volume_of_a_pod_counts_whatever_comes_before_it() -> None:
    mounts = [
        {"name": "settings"},
        {"name": "w", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "x", "persistentVolumeClaim": {"claimName": "another"}},
        {"name": "v", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "y", "persistentVolumeClaim": {"claimName": "c"}},
    ]
    body = msgspec.to_builtins(pod())
    body["spec"]["volumes"] = mounts
    user = msgspec.convert(body, Pod)
    assert uses(user, dying())
    assert uses(user, owned())
    assert not uses(user, owned("p-settings")), "that is no ephemeral volume"
    assert not uses(user, dying("unused"))


@pytest.mark.parametrize("claim_of", [dying("p-v"), owned()], ids=["another's", "its own"])
def test_a_claim_that_a_pod_names_too_is_its_whatever_its_ephemeral_volume_is_called(claim_of: Claim) -> None:
    body = msgspec.to_builtins(ephemeral(deletionTimestamp=DYING, deletionGracePeriodSeconds=0))
    body["spec"]["volumes"].append({"name": "w", "persistentVolumeClaim": {"claimName": "p-v"}})
    assert uses(msgspec.convert(body, Pod), claim_of)


def test_a_pod_that_the_cache_does_not_know_yet_keeps_the_claim() -> None:
    bench = Bench(dying(), live=(pod(),))
    waits = bench.until_settled()
    assert isinstance(waits, Wait)
    assert waits.reason == "a pod that is not in the cache uses it"
    assert bench.lists == 1


def test_a_list_that_began_before_the_deletion_was_seen_proves_nothing() -> None:
    bench = Bench(claim(finalizers=[GUARD]))
    asyncio.run(bench.list_pods("default"))
    bench.time += 1.0
    bench.claims.observe(claim(finalizers=[GUARD], deletionTimestamp=DYING, resourceVersion="2"))
    assert isinstance(bench.decide(), Run)


def test_one_list_serves_all_claims_that_were_dying_when_it_began() -> None:
    bench = Bench(dying())
    for number in range(20):
        bench.claims.observe(claim(f"c{number}", finalizers=[GUARD], deletionTimestamp=DYING))
    asyncio.run(bench.list_pods("default"))
    for number in range(20):
        assert removed(bench.world.decide_claim(f"default/c{number}")) == []
    late = claim("late", finalizers=[GUARD], deletionTimestamp=DYING)
    bench.time += 1.0
    bench.claims.observe(late)
    assert isinstance(bench.world.decide_claim(late.key), Run), "it died after the list began"


def test_a_user_that_came_and_went_is_not_believed_for_ever() -> None:
    """The list showed it, the watch brought it late and took it away again: the claim must not be stuck."""
    bench = Bench(dying(), live=(pod(),))
    assert isinstance(bench.until_settled(), Wait)
    bench.pods.observe(pod())
    assert isinstance(bench.until_settled(), Wait)
    bench.server.clear()
    bench.woken.clear()
    bench.pods.observe_deleted("default/p", "uid-p")
    assert bench.woken == ["default/c"]
    assert removed(bench.until_settled()) == []


def test_a_user_that_only_a_list_showed_is_looked_for_again() -> None:
    bench = Bench(dying(), live=(pod(),))
    waits = bench.until_settled()
    assert waits.seconds == pytest.approx(BELIEVED - 1.0, abs=1.5)
    bench.server.clear()
    bench.time += waits.seconds - 0.5
    assert bench.decide() == Wait(reason="a pod that is not in the cache uses it", seconds=0.5)
    bench.time += 0.5
    assert removed(bench.until_settled()) == []


def test_a_claim_stays_while_a_volume_chosen_for_it_is_taken_back() -> None:
    """Item 21.6."""
    bench = Bench(dying())
    bench.world.binds = True
    given_back = volume("v", claim=bench.item)
    bench.world.cluster.volumes.observe(given_back)
    bench.world.cluster.free.changed(None, given_back)
    assert bench.until_settled() == Wait(reason="the volume that was chosen for it is being taken back")
    bench.woken.clear()
    bench.world.volume_changed(given_back, None)
    assert "default/c" in bench.woken


def test_only_pods_of_dying_claims_wake_anybody() -> None:
    bench = Bench(claim(finalizers=[GUARD]))
    bench.woken.clear()
    bench.pods.observe(pod())
    assert bench.woken == []


def test_what_was_noted_about_a_claim_goes_with_it() -> None:
    bench = Bench(dying())
    assert bench.world.terminating_since
    bench.claims.observe_deleted(bench.item.key, bench.item.uid)
    assert not bench.world.terminating_since


def test_what_was_listed_in_a_namespace_goes_with_its_last_dying_claim() -> None:
    bench = Bench(dying("a"), live=(pod(uses="other"),))
    bench.claims.observe(dying("b"))
    asyncio.run(bench.list_pods("default"))
    bench.claims.observe_deleted("default/a", "uid-a")
    assert bench.world.lists
    bench.claims.observe_deleted("default/b", "uid-b")
    assert not bench.world.lists


def test_a_list_serves_one_attempt_and_that_it_did_is_forgotten_with_the_claim() -> None:
    bench = Bench(dying())
    protects = bench.world.reconcile_claim
    assert isinstance(protects(bench.item.key, LiveReads()), Run)
    asyncio.run(bench.list_pods("default"))
    assert isinstance(protects(bench.item.key, LiveReads()), Patch)
    assert isinstance(protects(bench.item.key, LiveReads()), Run), "that patch failed"
    bench.claims.observe_deleted(bench.item.key, bench.item.uid)
    assert not bench.world.lists
    assert not bench.world.terminating_since


def test_a_list_that_began_before_another_claim_was_deleted_serves_that_one_only_after_the_next_list() -> None:
    bench = Bench(dying())
    protects = bench.world.reconcile_claim
    asyncio.run(bench.list_pods("default"))
    bench.time += 1.0
    bench.claims.observe(dying("late"))
    assert isinstance(protects("default/late", LiveReads()), Run)
    assert bench.world.lists["default"].spent == set(), "nothing was tried for it"


def test_nothing_is_noted_about_a_living_claim_that_gets_the_finalizer() -> None:
    bench = Bench(claim())
    assert isinstance(bench.world.reconcile_claim(bench.item.key, LiveReads()), Patch)
    assert not bench.world.lists
    assert not bench.world.terminating_since


def test_a_list_that_is_answered_when_nobody_waits_any_more_is_not_kept() -> None:
    bench = Bench(dying(), live=(pod(uses="other"),))
    bench.claims.observe_deleted(bench.item.key, bench.item.uid)
    asyncio.run(bench.list_pods("default"))
    assert not bench.world.lists


def test_a_living_claim_that_goes_disturbs_nobody() -> None:
    bench = Bench(claim(finalizers=[GUARD]))
    bench.claims.observe_deleted(bench.item.key, bench.item.uid)
    assert bench.world.terminating_since == {}


def test_a_claim_that_took_the_place_of_a_dying_one_is_not_dying() -> None:
    """Its own deletion, later, needs a list of its own."""
    bench = Bench(dying())
    asyncio.run(bench.list_pods("default"))
    bench.claims.observe(claim("c", uid="uid-next", finalizers=[GUARD], resourceVersion="2"))
    assert bench.world.terminating_since == {}
    assert bench.world.lists == {}
    bench.time += 1.0
    asyncio.run(bench.list_pods("default"))
    bench.time += 1.0
    bench.claims.observe(claim("c", uid="uid-next", finalizers=[GUARD], deletionTimestamp=DYING, resourceVersion="3"))
    assert isinstance(bench.decide(), Run)


def test_no_list_proves_anything_of_a_claim_whose_deletion_nobody_has_seen() -> None:
    bench = Bench(dying("another"))
    asyncio.run(bench.list_pods("default"))
    bench.world.cluster.claims.observe(dying())
    bench.world.terminating_since["default"].pop("uid-c")
    assert isinstance(bench.world.decide_claim("default/c"), Run)
    assert isinstance(bench.world.decide_claim("default/another"), Patch)


def test_of_a_list_only_pods_that_hold_something_are_kept() -> None:
    """A namespace may have thousands of pods, and a claim may wait for days."""
    bench = Bench(dying(), live=(pod("holds"), pod("waits", node=""), _without_volumes("bare")))
    asyncio.run(bench.list_pods("default"))
    assert [each.name for each in bench.world.lists["default"].used] == ["holds"]


def test_a_pod_without_volumes_uses_nothing() -> None:
    assert not uses(_without_volumes("bare"), dying())


def _without_volumes(name: str) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "5"}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}, Pod)


class OnePage:
    """A server whose pods are these, whatever is asked for."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)

    async def send(self, request: Request) -> Response:
        assert request.path == "/api/v1/namespaces/default/pods"
        page = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": self.items}
        return Response(status=200, headers={}, body=msgspec.json.encode(page))

    def stream(self, request: Request) -> AbstractAsyncContextManager[LineStream]:
        raise AssertionError(request)

    async def close(self) -> None:
        """Nothing is open."""


async def test_a_pod_that_cannot_be_read_keeps_the_claims_of_its_namespace() -> None:
    bench, odd = Bench(dying()), {"metadata": {"name": "odd", "namespace": "default"}, "spec": {"volumes": 7}}
    server = OnePage(odd)
    client = Client(server)
    await bench.refresh(client)
    waits = bench.decide()
    assert waits == Wait(reason="pods cannot be read and may use it: default/odd", seconds=BELIEVED)
    bench.time += BELIEVED
    assert isinstance(bench.decide(), Run)
    server.items.clear()
    await bench.refresh(client)
    assert removed(bench.decide()) == []
