"""Who wakes whom, in every order in which changes and answers can come: no claim waits beside a volume that fits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import empty_state, put
from volplane.binding.decide import ClaimReconciler
from volplane.controller.actions import Decide, LiveReads, Patch, Read
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, KubeObject, Node, Volume, VolumeAttachment
from volplane.state.handlers import EventHandlers
from volplane.state.matching import capacity_of, demand_of, place_of

ONE_MODE, TWO_MODES = ["ReadWriteOnce"], ["ReadWriteOnce", "ReadOnlyMany"]


class Queue:
    """Keys to decide about, unless the predicate refuses them. A key in work that is queued again waits until it is
    done.
    """

    def __init__(self, may_act: Callable[[str], bool]) -> None:
        self.keys: dict[str, None] = {}
        self._may_act = may_act

    def enqueue(self, key: str, after: float = 0.0) -> None:
        if self._may_act(key):
            self.keys[key] = None


class Bench:
    """Reconcilers whose steps a test performs when it likes. The caches are the server."""

    def __init__(self, **settings: Any) -> None:
        self.world = empty_state(**settings)
        self.claims, self.volumes = (Queue(functools.partial(self._may_act, which)) for which in ("claims", "volumes"))
        self.forgotten: list[tuple[str, str, str]] = []
        binds = self.world.role.runs("binder")
        handlers = EventHandlers(
            self.world,
            self.claims,
            self.volumes,
            Queue(lambda _key: True),
            lambda *operation: self.forgotten.append(operation),
            writes_phase=binds,
        )
        self.world.follow(self.world.record_conflicts, handlers)
        self.role = self.world.decisions
        decide_claim = self.role.decide_claim
        self.decide: dict[str, Decide] = {
            "claims": ClaimReconciler(self.world, decide_claim, self.claims) if binds else decide_claim,
            "volumes": self.role.decide_volume,
        }
        self.under_way: dict[tuple[str, str], Patch] = {}
        """Steps that are sent and not yet answered; their keys are in work."""
        self._version = itertools.count(1000)

    def _may_act(self, which: str, key: str) -> bool:
        may_act = self.role.claim_may_act if which == "claims" else self.role.volume_may_act
        return (which, key) in self.under_way or may_act(key)

    def queue(self, which: str) -> Queue:
        return self.claims if which == "claims" else self.volumes

    def ready(self) -> list[tuple[str, str]]:
        """What a worker could take up."""
        both = [(which, key) for which in ("claims", "volumes") for key in self.queue(which).keys]
        return [item for item in both if item not in self.under_way]

    def begin(self, which: str, key: str) -> None:
        """Decide about a key, and send the step."""
        del self.queue(which).keys[key]
        self._go_on(which, key, LiveReads())

    def _go_on(self, which: str, key: str, reads: LiveReads) -> None:
        action = self.decide[which](key, reads)
        while isinstance(action, Read):
            cache: Any = self.world.claims if action.kind is CLAIMS else self.world.volumes
            reads.put(action.kind, action.key, cache.get(action.key))
            action = self.decide[which](key, reads)
        if isinstance(action, Patch):
            self.under_way[which, key] = action

    def answer(self, which: str, key: str) -> None:
        """The server's answer to the step of a key: taken, or refused because the object changed meanwhile."""
        step = self.under_way.pop((which, key))
        cache: Any = self.world.claims if step.kind is CLAIMS else self.world.volumes
        current = cache.get(step.target.key)
        if current is not None and current.metadata.resource_version == step.target.metadata.resource_version:
            self.change(current, step.body)
        self._go_on(which, key, LiveReads())

    def lose(self, which: str, key: str) -> None:
        """The step of a key fails without an answer: the key comes back later."""
        del self.under_way[which, key]
        self.queue(which).enqueue(key)

    def change(self, item: KubeObject, patch: Any) -> None:
        body = msgspec.to_builtins(item)
        _merge(body, patch)
        body["metadata"]["resourceVersion"] = str(next(self._version))
        put(self.world, msgspec.convert(body, type(item)))

    def delete(self, item: KubeObject) -> None:
        cache: Any = self.world.claims if isinstance(item, Claim) else self.world.volumes
        cache.observe_deleted(item.key, item.uid)

    def missed(self) -> list[str]:
        waiting = [c for c in self.world.claims.values() if not c.spec.volume_name]
        free = [v for v in self.world.volumes.values() if v.spec.claim_ref is None and v.status.phase == "Available"]
        return [f"{c.name} and {v.name}" for c, v in itertools.product(waiting, free) if _fit(c, v)]


def _fit(wanting: Claim, free: Volume) -> bool:
    demand = demand_of(wanting)
    return place_of(free) == demand.place and capacity_of(free) >= demand.request and demand.accepts(free)


def _merge(into: dict[str, Any], patch: Any) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


def _new_claim(number: int, data: st.DataObject) -> Claim:
    selector = data.draw(st.sampled_from((None, {"matchLabels": {"tier": "a"}})))
    return claim(
        f"c{number}",
        uid=f"uid-c{number}",
        size=f"{data.draw(st.integers(1, 3))}Gi",
        accessModes=data.draw(st.sampled_from((ONE_MODE, TWO_MODES))),
        selector=selector,
    )


def _new_volume(number: int, data: st.DataObject) -> Volume:
    return volume(
        f"v{number}",
        size=f"{data.draw(st.integers(1, 3))}Gi",
        accessModes=data.draw(st.sampled_from((ONE_MODE, TWO_MODES))),
        labels=data.draw(st.sampled_from(({}, {"tier": "a"}))),
        status={"phase": data.draw(st.sampled_from(("Pending", "Available")))},
    )


def _happen(bench: Bench, what: str, number: int, data: st.DataObject) -> None:
    volumes = [bench.world.volumes.get(key) for key in bench.world.volumes.keys()]  # noqa: SIM118
    match what:
        case "claim":
            put(bench.world, _new_claim(number, data))
        case "volume":
            put(bench.world, _new_volume(number, data))
        case "begin" if ready := bench.ready():
            bench.begin(*data.draw(st.sampled_from(ready)))
        case "answer" if bench.under_way:
            bench.answer(*data.draw(st.sampled_from(sorted(bench.under_way))))
        case "lose" if bench.under_way:
            bench.lose(*data.draw(st.sampled_from(sorted(bench.under_way))))
        case "free" if taken := [v for v in volumes if v is not None and v.spec.claim_ref is not None]:
            bench.change(data.draw(st.sampled_from(taken)), {"spec": {"claimRef": None}})
        case "relabel" if volumes:
            bench.change(data.draw(st.sampled_from(volumes)), {"metadata": {"labels": {"tier": "a"}}})
        case "delete" if keys := bench.world.claims.keys():
            bench.delete(bench.world.claims.get(data.draw(st.sampled_from(keys))))


HAPPENINGS = ("claim", "volume", "begin", "begin", "begin", "answer", "answer", "lose", "free", "relabel", "delete")


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_claim_waits_beside_a_volume_that_fits_whatever_comes_first(data: st.DataObject) -> None:
    bench = Bench()
    for number in range(data.draw(st.integers(5, 40))):
        _happen(bench, data.draw(st.sampled_from(HAPPENINGS)), number, data)
    for _ in range(1000):
        if bench.under_way:
            bench.answer(*min(bench.under_way))
        elif ready := bench.ready():
            bench.begin(*ready[0])
        else:
            break
    else:
        raise AssertionError("it never comes to rest")
    assert not bench.missed()
    assert not bench.world.free._held, "a volume is kept for nobody"
    owners = [c.spec.volume_name for c in bench.world.claims.values() if c.spec.volume_name]
    assert len(owners) == len(set(owners)), "a volume bound twice"


def test_a_volume_that_a_claim_does_not_take_is_passed_on() -> None:
    """The larger claim is woken for it, finds a better one that came a moment later, and the other gets the first."""
    bench = Bench()
    put(bench.world, claim("large", size="2Gi"), claim("picky", selector={"matchLabels": {"tier": "a"}}))
    for key in ("default/large", "default/picky"):
        bench.begin("claims", key)
    put(bench.world, volume("first", size="3Gi", labels={"tier": "a"}), volume("better", size="2Gi"))
    assert list(bench.claims.keys) == ["default/large"]
    bench.begin("claims", "default/large")
    assert bench.under_way["claims", "default/large"].target.name == "better"
    assert list(bench.claims.keys) == ["default/picky"]


def test_a_volume_wakes_one_claim_and_not_all_that_wait() -> None:
    """Item 20.2: waiting claims cost nothing when a volume comes that one of them takes."""
    bench = Bench()
    put(bench.world, *(claim(f"c{n}") for n in range(100)))
    for n in range(100):
        bench.begin("claims", f"default/c{n}")
    put(bench.world, volume())
    assert len(bench.claims.keys) == 1


def test_a_class_wakes_its_claims_and_a_default_one_those_without_a_class() -> None:
    """Item 20.3."""
    bench = Bench()
    put(bench.world, claim("fast", storageClassName="fast"), claim("none", storageClassName=None), claim("other"))
    bench.claims.keys.clear()
    put(bench.world, storage_class("fast"))
    assert sorted(bench.claims.keys) == ["default/fast", "default/none"]
    assert ("provision", "default/fast", "uid-fast") in bench.forgotten, "what failed before may succeed now"


def test_a_node_wakes_claims_that_selected_it_and_its_heartbeat_does_not() -> None:
    bench = Bench()
    selected = {"volume.kubernetes.io/selected-node": "n"}
    put(bench.world, claim("here", annotations=selected), claim("elsewhere"))
    bench.claims.keys.clear()
    node = msgspec.convert({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}}, Node)
    put(bench.world, node)
    assert list(bench.claims.keys) == ["default/here"]
    bench.claims.keys.clear()
    bench.change(node, {"status": {"conditions": []}})
    assert not bench.claims.keys
    bench.change(node, {"metadata": {"labels": {"zone": "a"}}})
    assert list(bench.claims.keys) == ["default/here"]


def test_a_claim_wakes_the_volumes_that_name_it_when_it_comes_goes_dies_or_turns_to_another() -> None:
    bench = Bench()
    put(bench.world, volume("v", reserved="c"))

    def woken() -> bool:
        found = "v" in bench.volumes.keys
        bench.volumes.keys.clear()
        return found

    woken()
    item = claim()
    put(bench.world, item)
    assert woken()
    bench.change(item, {"metadata": {"labels": {"x": "y"}}})
    assert not woken()
    bench.change(item, {"spec": {"volumeName": "other"}})
    assert woken()
    bench.change(item, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert woken()
    bench.delete(item)
    assert woken()


def test_the_last_write_of_a_bind_wakes_the_claim_and_no_volume() -> None:
    bench = Bench()
    put(bench.world, volume("v", reserved="c"))
    item = claim(volumeName="v")
    put(bench.world, item)

    def woken() -> tuple[bool, bool]:
        found = "default/c" in bench.claims.keys, "v" in bench.volumes.keys
        bench.claims.keys.clear()
        bench.volumes.keys.clear()
        return found

    woken()
    bench.change(item, {"status": {"phase": "Bound"}})
    assert woken() == (True, False)
    bench.change(item, {"status": {"phase": "Lost"}})
    assert woken() == (True, True)


@pytest.mark.parametrize(
    ("phase", "more", "wakes"),
    [
        ("Bound", {}, []),
        ("Lost", {}, []),
        ("Bound", {"status": {"phase": "Lost"}}, ["default/c"]),
        ("Bound", {"metadata": {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}}, ["default/c"]),
        ("Bound", {"metadata": {"finalizers": [names.PROVISIONING_FINALIZER]}}, ["default/c"]),
        ("Bound", {"metadata": {"annotations": {names.INTENT: "x"}}}, ["default/c"]),
    ],
)
def test_that_the_deletion_of_a_bound_claim_begins_changes_nothing_for_its_binder(
    phase: str, more: dict[str, Any], wakes: list[str]
) -> None:
    bench = Bench()
    item = claim(volumeName="v", status={"phase": phase}, annotations={names.BIND_COMPLETED: "yes"})
    put(bench.world, volume("v", claim=item, status={"phase": "Bound"}), item)
    before = bench.decide["claims"]("default/c", LiveReads())
    bench.claims.keys.clear()
    dying = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    _merge(dying, more)
    bench.change(item, dying)
    assert list(bench.claims.keys) == wakes
    after = bench.decide["claims"]("default/c", LiveReads())
    assert wakes or (getattr(after, "body", None), type(after)) == (getattr(before, "body", None), type(before))


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"status": {"phase": "Bound"}}, False),
        ({"status": {"phase": "Bound"}, "spec": {"claimRef": None}}, True),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
        ({"metadata": {"annotations": {names.GENERATION: "2"}}}, True),
    ],
    ids=("a phase alone", "its reference", "its deletion", "an annotation"),
)
def test_beside_another_binder_a_phase_alone_wakes_no_claim(change: dict[str, Any], wakes: bool) -> None:
    bench = Bench(binder=False)
    item = claim()
    made = volume("v", claim=item, status={"phase": "Pending"})
    put(bench.world, item, made)
    bench.claims.keys.clear()
    bench.change(made, change)
    assert ("default/c" in bench.claims.keys) is wakes


RETAINED = {"persistentVolumeReclaimPolicy": "Retain"}
BIND = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "c", "uid": "uid-c"}


@pytest.mark.parametrize(
    ("half", "then"), [({"spec": {"claimRef": BIND}}, ["v"]), ({"status": {"phase": "Bound"}}, [])]
)
def test_a_half_of_a_bind_wakes_the_claim_which_goes_on_and_then_the_volume_if_its_phase_is_missing(
    half: dict[str, Any], then: list[str]
) -> None:
    bench = Bench()
    pair = claim()
    item = volume("v") if "spec" in half else volume("v", claim=pair)
    put(bench.world, pair, item)
    bench.volumes.keys.clear()
    bench.claims.keys.clear()
    bench.change(item, half)
    assert (list(bench.claims.keys), list(bench.volumes.keys)) == (["default/c"], [])
    bench.change(pair, {"spec": {"volumeName": "v"}})
    assert list(bench.volumes.keys) == then


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"annotations": {names.INTENT: "x"}}},
        {"metadata": {"finalizers": [names.RECLAIM_FINALIZER]}, "spec": {"claimRef": BIND, **RETAINED}},
        {"metadata": {"annotations": {names.PROVISIONED_BY: "kubernetes.io/aws-ebs"}}},
        {"spec": {"claimRef": {**BIND, "uid": "another"}}},
        {"spec": {"claimRef": BIND, "volumeMode": "Block"}},
    ],
)
def test_what_else_happens_to_a_volume_in_its_bind_wakes_it(more: dict[str, Any]) -> None:
    bench = Bench()
    item = volume("v")
    put(bench.world, claim(), item)
    bench.volumes.keys.clear()
    bench.change(item, {"spec": {"claimRef": BIND}, **more})
    assert list(bench.volumes.keys) == ["v"]


@pytest.mark.parametrize(
    "end", [{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, {"spec": {"volumeName": "other"}}, None]
)
def test_a_volume_whose_bind_comes_to_nothing_is_woken_by_its_claim(end: dict[str, Any] | None) -> None:
    bench = Bench()
    pair, item = claim(), volume("v")
    put(bench.world, pair, item)
    bench.change(item, {"spec": {"claimRef": BIND}})
    bench.volumes.keys.clear()
    if end is None:
        bench.delete(pair)
    else:
        bench.change(pair, end)
    assert "v" in bench.volumes.keys


def test_a_volume_wakes_the_claim_it_names_the_claim_that_names_it_and_the_one_whose_name_it_has() -> None:
    bench = Bench()
    put(bench.world, claim("named"), claim("naming", volumeName="pvc-uid-own"), claim("own"))
    bench.claims.keys.clear()
    item = volume("pvc-uid-own", reserved="named")
    put(bench.world, item)
    everybody = ["default/named", "default/naming", "default/own"]
    assert sorted(bench.claims.keys) == everybody
    bench.claims.keys.clear()
    bench.delete(item)
    assert sorted(bench.claims.keys) == everybody


def test_a_volume_wakes_no_claim_that_is_gone() -> None:
    bench = Bench()
    bench.claims.keys.clear()
    item = volume("pvc-uid-own", reserved="gone")
    put(bench.world, item)
    bench.delete(item)
    assert not bench.claims.keys


def test_outcomes_of_what_is_gone_are_forgotten() -> None:
    """Item 21.14."""
    bench = Bench()
    item, made = volume(), claim()
    put(bench.world, item, made)
    bench.world.progress.volumes.track(item.uid).unreported_failure = "broken"
    bench.world.progress.claims.track(made.uid).attempted = 1.0
    bench.delete(item)
    bench.delete(made)
    assert len(bench.world.progress) == 0


def test_a_volume_that_was_kept_for_a_claim_in_vain_goes_to_the_next() -> None:
    """The write that was to bind it is lost, and the claim with it, while another claim already waits."""
    bench = Bench()
    put(bench.world, volume(), claim("first"), claim("second"))
    bench.begin("claims", "default/first")
    bench.begin("claims", "default/second")
    assert ("claims", "default/second") not in bench.under_way
    bench.lose("claims", "default/first")
    bench.delete(claim("first"))
    bench.begin("claims", "default/first")
    assert list(bench.claims.keys) == ["default/second"]


def test_the_end_of_an_attachment_wakes_a_volume_that_no_living_claim_has() -> None:
    bench = Bench()
    held = claim("c", volumeName="v", annotations={names.BIND_COMPLETED: "yes"})
    bench.world.claims.observe(held)
    bench.world.volumes.observe(volume("v", claim=held))

    def woken_by_the_end_of(uid: str) -> list[str]:
        bench.volumes.keys.clear()
        metadata = {"name": "a", "uid": uid, "resourceVersion": "5"}
        body = {"metadata": metadata, "spec": {"source": {"persistentVolumeName": "v"}}}
        bench.world.attachments.observe(msgspec.convert(body, VolumeAttachment))
        bench.world.attachments.observe_deleted("a", uid, 6)
        return list(bench.volumes.keys)

    assert woken_by_the_end_of("first") == []
    bench.world.claims.observe_deleted(held.key, held.uid)
    assert woken_by_the_end_of("second") == ["v"]


def test_the_end_of_an_attachment_wakes_every_volume_of_the_same_disk() -> None:
    """Whether its source is CSI or in-tree; a released volume waits until nothing of its disk is attached."""
    bench = Bench()
    csi = {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}
    bench.world.volumes.observe(volume("v", hostPath=None, csi=csi))
    bench.world.volumes.observe(volume("twin", hostPath=None, awsElasticBlockStore={"volumeID": "vol-1"}))
    body = {
        "metadata": {"name": "a", "uid": "a", "resourceVersion": "5"},
        "spec": {"source": {"persistentVolumeName": "v"}, "nodeName": "n", "attacher": "ebs.csi.aws.com"},
    }
    attachment = msgspec.convert(body, VolumeAttachment)
    bench.world.attachments.observe(attachment)
    twin = bench.world.volumes.get("twin")
    assert twin is not None
    assert bench.world.attachments_of(twin) == [attachment]
    bench.volumes.keys.clear()
    bench.world.attachments.observe_deleted("a", "a", 6)
    assert list(bench.volumes.keys) == ["twin", "v"]
