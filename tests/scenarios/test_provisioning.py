"""Volumes made for claims: what interrupts, refuses, forges or changes it."""

from __future__ import annotations

import asyncio
import json

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.laboratory import Json, Laboratory, at_work
from scenarios.stories import DRIVER, GIB, claim, reference, storage_class, volume
from volplane import (
    AlreadyExists,
    Asset,
    BackendError,
    InProgress,
    InvalidArgument,
    ResourceExhausted,
    VolumeSource,
)
from volplane.operations import DriverLimits

INTENT = "volplane.dev/intent"
PROVISIONING = "volplane.dev/provisioning"
SELECTED = "volume.kubernetes.io/selected-node"
ZONE = "topology.kubernetes.io/zone"
BACKENDS = (ScriptedBackend, SearchableBackend)


def _slow(_driver: str, hook: str) -> tuple[float, float]:
    return (2.0, 2.0) if hook == "provision" else (0.0, 0.0)


def _asset(name: str, gib: int, **more: object) -> Asset:
    source = VolumeSource(kind="hostPath", fields={"path": f"/assets/{name}"})
    return Asset(handle=f"/assets/{name}", source=source, capacity_bytes=gib * GIB, **more)  # type: ignore[arg-type]


async def _fast_class(lab: Laboratory, **more: object) -> None:
    await lab.create("classes", storage_class(**more))


async def _ask(lab: Laboratory, name: str = "c", **spec: object) -> str:
    """Create a claim of the class; its uid."""
    made = await lab.create("claims", claim(name, storageClassName="fast", **spec))
    return str(made["metadata"]["uid"])


def _zoned_node(name: str, zone: str) -> Json:
    return {"metadata": {"name": name, "labels": {ZONE: zone}}}


# --- deleted meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0, 3.999, 4.0, 4.001])
def test_a_claim_deleted_during_its_create_leaves_nothing(kind: type[ScriptedBackend], seconds: float) -> None:
    backend = kind(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(seconds)
        await lab.delete("claims", "c")
        await lab.settle()
        assert not backend.assets
        assert await lab.claims() == {}
        assert await lab.volumes() == {}
        assert "Warning ProvisioningCleanupFailed" not in lab.events

    at_work(lambda: Laboratory(backend, latency=_slow), body)


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_claim_deleted_while_a_create_overruns_leaves_nothing(kind: type[ScriptedBackend]) -> None:
    """The hook is given up, takes effect later all the same, and its asset is found and deleted."""
    backend = kind(DRIVER)
    slow = iter([(2.0, 2.0)])

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.5)
        await lab.delete("claims", "c")
        await lab.settle()
        assert backend.calls["provision"] >= 1
        assert not backend.assets
        assert await lab.claims() == {}

    def first_is_slow(_driver: str, hook: str) -> tuple[float, float]:
        return next(slow, (0.0, 0.0)) if hook == "provision" else (0.0, 0.0)

    at_work(lambda: Laboratory(backend, latency=first_is_slow, limits={DRIVER: DriverLimits(timeout=1.0)}), body)


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_claim_deleted_while_the_process_is_away_leaves_nothing(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        backend.after = lambda hook: lab.crash() if hook == "provision" and lab.restarts == 0 else None
        lab.fail("create persistentvolumes", "away", 1000)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.kill()
        await lab.delete("claims", "c")
        held = await lab.claim("c")
        assert held["metadata"]["finalizers"] == [PROVISIONING]
        await lab.start()
        await lab.settle()
        assert not backend.assets
        assert await lab.claims() == {}
        assert await lab.volumes() == {}

    at_work(lambda: Laboratory(backend), body)


def test_an_asset_that_cannot_be_deleted_yet_keeps_its_claim() -> None:
    backend = SearchableBackend(DRIVER, {"delete": ["in-use: busy", "busy still", OK]})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        lab.fail("create persistentvolumes", "away", 1000)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(0.1)
        assert await lab.claims() == {"c": "Pending"}
        assert lab.events["Warning ProvisioningCleanupFailed"] == 1
        await lab.settle()
        assert await lab.claims() == {}
        assert not backend.assets

    at_work(lambda: Laboratory(backend), body)


def test_absent_is_no_proof_before_the_driver_has_settled() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]}, info={"settle_seconds": 60.0})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(0.2)
        await lab.delete("claims", "c")
        await asyncio.sleep(30.0)
        assert await lab.claims() == {"c": "Pending"}, "the asset could still come to be"
        await asyncio.sleep(35.0)
        assert await lab.claims() == {}

    at_work(lambda: Laboratory(backend), body)


# --- what the volume says ----------------------------------------------------------------------------------------


def test_the_volume_records_what_the_asset_really_holds() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", _asset("a", 5, gid=77, mount_options=("hard",)))

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        uid = await _ask(lab)
        await lab.start()
        await lab.settle()
        made = await lab.volume(f"pvc-{uid}")
        assert made["spec"]["capacity"] == {"storage": "5Gi"}
        assert made["spec"]["mountOptions"] == ["hard"]
        assert made["metadata"]["annotations"]["pv.beta.kubernetes.io/gid"] == "77"
        assert made["metadata"]["annotations"]["volplane.dev/handle"] == "/assets/a"
        assert (await lab.claim("c"))["status"]["capacity"] == {"storage": "5Gi"}

    at_work(lambda: Laboratory(backend), body)


def test_an_asset_smaller_than_asked_is_no_success() -> None:
    backend = SearchableBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        uid = await _ask(lab)
        backend.assets[f"pvc-{uid}"] = _asset("small", 1)
        backend.script("provision", backend.assets[f"pvc-{uid}"])
        await lab.delete("claims", "c")
        uid = await _ask(lab, resources={"requests": {"storage": "2Gi"}})
        backend.assets = {f"pvc-{uid}": _asset("small", 1)}
        await lab.start()
        await lab.settle()
        assert await lab.volumes() == {}
        assert "made 1073741824 bytes where 2147483648 were asked for" in lab.messages("ProvisioningFailed")[0]
        await lab.delete("claims", "c")
        await lab.settle()
        assert not backend.assets
        assert await lab.claims() == {}

    at_work(lambda: Laboratory(backend), body)


def test_a_class_with_retain_makes_volumes_that_nothing_holds() -> None:
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab, reclaimPolicy="Retain")
        uid = await _ask(lab)
        await lab.start()
        await lab.settle()
        assert not (await lab.volume(f"pvc-{uid}"))["metadata"].get("finalizers")
        await lab.delete("claims", "c")
        await lab.settle()
        assert await lab.volumes() == {f"pvc-{uid}": "Released"}
        assert list(backend.assets) == [f"pvc-{uid}"]

    at_work(lambda: Laboratory(backend), body)


# --- intents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", ["{}", "not json", '{"intent":{"v":1,"driver":"other"},"seal":"00"}', "x" * 1000])
def test_a_forged_intent_is_replaced_by_a_sealed_one(forged: str) -> None:
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {INTENT: forged}
        await lab.create("claims", body)
        await lab.start()
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        bound = await lab.claim("c")
        assert INTENT not in bound["metadata"]["annotations"]
        assert PROVISIONING not in bound["metadata"].get("finalizers", [])

    at_work(lambda: Laboratory(backend), body)


def test_the_intent_of_another_claim_is_worth_nothing() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await _ask(lab, "a")
        await lab.start()
        await asyncio.sleep(1.0)
        stolen = (await lab.claim("a"))["metadata"]["annotations"][INTENT]
        body = claim("b", storageClassName="fast")
        body["metadata"]["annotations"] = {INTENT: stolen}
        await lab.create("claims", body)
        await asyncio.sleep(1.0)
        own = (await lab.claim("b"))["metadata"]["annotations"][INTENT]
        assert json.loads(own)["seal"] != json.loads(stolen)["seal"]

    at_work(lambda: Laboratory(backend), body)


def test_a_stripped_intent_is_restored_while_the_hook_runs() -> None:
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: None}, "finalizers": None}})
        await asyncio.sleep(0.1)
        held = (await lab.claim("c"))["metadata"]
        assert PROVISIONING in held["finalizers"]
        assert INTENT in held["annotations"]
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        assert len(backend.assets) == 1

    at_work(lambda: Laboratory(backend, latency=_slow), body)


def test_a_claim_stripped_and_deleted_during_its_create_gets_no_volume() -> None:
    """What a tenant can do to himself: the asset is left to the leak check, everything else goes on."""
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        uid = await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await lab.patch("claims", "c", {"metadata": {"finalizers": None}})
        await lab.settle()
        assert await lab.claims() == {}
        assert await lab.volumes() == {}
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert not lab.plane.world.outcomes.made, "nothing is remembered of a claim that is gone"

    at_work(lambda: Laboratory(backend, latency=_slow), body)


def test_the_state_of_long_work_survives_a_restart() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", InProgress(retry_after=5.0, state={"task": 7}), OK)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await _ask(lab)
        await lab.start()
        await asyncio.sleep(1.0)
        await lab.restart()
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        first, *later = [request.context.state for request in backend.requests]
        assert dict(first) == {}
        assert all(dict(state) == {"task": 7} for state in later)

    at_work(lambda: Laboratory(backend), body)


# --- in the way --------------------------------------------------------------------------------------------------


def test_a_foreign_volume_under_our_name_is_not_taken_for_ours() -> None:
    """Item 21.10: the name alone proves nothing."""
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        uid = await _ask(lab)
        stranger = volume(f"pvc-{uid}", claimRef=reference("somebody-else"))
        await lab.create("volumes", stranger)
        await lab.start()
        await lab.settle()
        assert await lab.claims() == {"c": "Pending"}
        assert backend.calls["provision"] == 0
        assert "does not belong to this claim" in lab.messages("ProvisioningFailed")[0]
        await lab.delete("volumes", f"pvc-{uid}")
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}

    at_work(lambda: Laboratory(backend), body)


def test_a_foreign_volume_under_our_name_does_not_keep_a_dying_claim() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        uid = await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume(f"pvc-{uid}", claimRef=reference("somebody-else")))
        await lab.delete("claims", "c")
        await lab.settle()
        assert await lab.claims() == {}

    at_work(lambda: Laboratory(backend), body)


def test_a_static_volume_that_comes_first_makes_the_asset_superfluous() -> None:
    backend = SearchableBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume("static", storageClassName="fast"))
        await lab.settle()
        bound = await lab.claim("c")
        assert bound["spec"]["volumeName"] == "static"
        assert not backend.assets
        assert INTENT not in bound["metadata"]["annotations"]
        assert PROVISIONING not in bound["metadata"].get("finalizers", [])

    at_work(lambda: Laboratory(backend, latency=_slow), body)


def test_a_volume_that_cannot_be_saved_delays_no_other() -> None:
    """Item 20.10: no worker and no slot of the driver is kept while the server refuses one volume."""
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        lab.fail("create persistentvolumes", "Forbidden", 10)
        await lab.start()
        for number in range(12):
            await _ask(lab, f"c{number}")
        await asyncio.sleep(2.0)
        phases = list((await lab.claims()).values())
        assert phases.count("Bound") == 2
        assert "asset is kept" in lab.messages("ProvisioningFailed")[0]
        assert "forbidden by the scenario" in lab.messages("ProvisioningFailed")[0]
        await lab.settle()
        assert set((await lab.claims()).values()) == {"Bound"}
        assert backend.calls["delete"] == 0

    at_work(lambda: Laboratory(backend, limits={DRIVER: DriverLimits(concurrency=1)}), body)


def test_an_unsaved_asset_is_deleted_once_and_nobody_is_asked_to_do_it_by_hand() -> None:
    """Item 21.2: a volume that was never saved is not missed."""
    backend = SearchableBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        lab.fail("create persistentvolumes", "Forbidden", 1000)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(10.0)
        assert len(backend.assets) == 1
        await lab.delete("claims", "c")
        await lab.settle()
        assert not backend.assets
        assert backend.calls["delete"] == 1
        assert "Warning ProvisioningCleanupFailed" not in lab.events

    at_work(lambda: Laboratory(backend), body)


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "more", "said"),
    [
        ({}, {"parameters": {"colour": "red"}}, "colour"),
        ({}, {"parameters": {"volplane.dev/on-release": "burn"}}, 'valid values are "delete" and "recycle"'),
        ({}, {"mountOptions": ["hard"]}, "has mountOptions, which driver"),
        ({"selector": {"matchLabels": {"a": "b"}}}, {}, "spec.selector"),
    ],
)
def test_what_cannot_be_made_is_said_once_and_nothing_is_tried(spec: Json, more: Json, said: str) -> None:
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab, **more)
        await lab.start()
        await _ask(lab, **spec)
        await asyncio.sleep(1.0)
        assert said in lab.messages("ProvisioningFailed")[0]
        assert backend.calls["provision"] == 0
        assert PROVISIONING not in (await lab.claim("c"))["metadata"].get("finalizers", [])
        await lab.delete("classes", "fast")
        await _fast_class(lab)
        if spec:
            await lab.create(
                "volumes", {**volume("v", storageClassName="fast"), "metadata": {"name": "v", "labels": {"a": "b"}}}
            )
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}, "it heals when the cause goes"

    at_work(lambda: Laboratory(backend), body)


@pytest.mark.parametrize(
    "error", [InvalidArgument("bad size"), AlreadyExists("another demand"), BackendError("no idea")]
)
def test_a_failed_create_is_told_with_the_time_of_the_next_try(error: BackendError) -> None:
    """Item 20.5: the retry comes when the back-off ends, not with the next resync."""
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", error, OK)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(0.6)
        (message,) = lab.messages("ProvisioningFailed")
        assert f"{error}; next attempt in" in message
        waits = 300.0 if error.retry.name == "SLOW" else 0.5
        assert f"next attempt in {waits:g} s" in message
        await asyncio.sleep(waits)
        assert await lab.claims() == {"c": "Bound"}

    at_work(lambda: Laboratory(backend), body)


def test_a_class_that_is_gone_is_said_and_heals_when_it_returns() -> None:
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        assert lab.messages("ProvisioningFailed") == ['storageclass.storage.k8s.io "fast" not found']
        await _fast_class(lab)
        await asyncio.sleep(1.0)
        assert await lab.claims() == {"c": "Bound"}

    at_work(lambda: Laboratory(backend), body)


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_class_deleted_meanwhile_does_not_leave_the_asset(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.kill()
        await lab.delete("classes", "fast")
        await lab.delete("claims", "c")
        await lab.start()
        await lab.settle()
        if kind is ScriptedBackend:
            assert await lab.claims() == {"c": "Pending"}
            assert 'class "fast" is gone' in lab.messages("ProvisioningCleanupFailed")[0]
            await _fast_class(lab)
            await lab.settle(600.0)
        assert await lab.claims() == {}
        assert not backend.assets

    at_work(lambda: Laboratory(backend), body)


def test_a_driver_that_is_not_there_keeps_the_claim_and_says_so() -> None:
    backend = SearchableBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await _ask(lab)
        await asyncio.sleep(1.0)
        await lab.kill()
        lab.backends = {}
        await lab.delete("claims", "c")
        await lab.start()
        await lab.settle()
        assert await lab.claims() == {"c": "Pending"}
        assert PROVISIONING in lab.messages("ProvisioningFailed")[-1]
        lab.backends = {DRIVER: backend}
        await lab.restart()
        await lab.settle()
        assert await lab.claims() == {}
        assert not backend.assets

    at_work(lambda: Laboratory(backend), body)


# --- places ------------------------------------------------------------------------------------------------------


def test_a_full_place_gives_the_claim_back_to_the_scheduler() -> None:
    full = ResourceExhausted("zone a is full", reschedule=True)
    backend = SearchableBackend(DRIVER, {"provision": [full, OK]}, info={"topology_keys": (ZONE,)})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab, volumeBindingMode="WaitForFirstConsumer")
        await lab.create("nodes", _zoned_node("n-a", "a"))
        await lab.create("nodes", _zoned_node("n-b", "b"))
        await lab.start()
        await _ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await lab.settle()
        given_back = (await lab.claim("c"))["metadata"]
        assert SELECTED not in given_back["annotations"]
        assert PROVISIONING in given_back["finalizers"]
        assert "zone a is full" in lab.messages("ProvisioningFailed")[0]
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-b"}}})
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        asked = [dict(r.segment) for r in backend.requests if hasattr(r, "allowed_segments")]
        assert asked == [{ZONE: "a"}, {ZONE: "b"}]

    at_work(lambda: Laboratory(backend), body)


def test_a_full_place_is_kept_while_an_asset_may_be_there() -> None:
    full = ResourceExhausted("zone a is full", reschedule=True)
    backend = ScriptedBackend(DRIVER, {"provision": [full, OK]}, info={"topology_keys": (ZONE,)})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab, volumeBindingMode="WaitForFirstConsumer")
        await lab.create("nodes", _zoned_node("n-a", "a"))
        await lab.start()
        await _ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n-a"}}})
        await lab.settle()
        assert (await lab.claim("c"))["metadata"]["annotations"][SELECTED] == "n-a"
        assert await lab.claims() == {"c": "Bound"}
        asked = [dict(request.segment) for request in backend.requests]
        assert asked == [{ZONE: "a"}, {ZONE: "a"}]

    at_work(lambda: Laboratory(backend), body)


def test_an_in_tree_name_gives_the_claim_back_after_any_failure() -> None:
    backend = ScriptedBackend("kubernetes.io/disk", {"provision": ["broken", OK]})

    async def body(lab: Laboratory) -> None:
        await lab.create(
            "classes", storage_class(provisioner="kubernetes.io/disk", volumeBindingMode="WaitForFirstConsumer")
        )
        await lab.create("nodes", _zoned_node("n", "a"))
        await lab.start()
        await _ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert SELECTED not in (await lab.claim("c"))["metadata"]["annotations"]
        assert lab.events["Normal WaitForFirstConsumer"] >= 1
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}

    at_work(lambda: Laboratory(backend), body)


def test_a_selected_node_that_is_not_there_is_given_back_and_one_that_gets_its_label_later_is_noticed() -> None:
    backend = ScriptedBackend(DRIVER, info={"topology_keys": (ZONE,)})

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab, volumeBindingMode="WaitForFirstConsumer")
        await lab.start()
        await _ask(lab)
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert 'selected node "n" does not exist; another one is asked for' in lab.messages("ProvisioningFailed")
        assert "annotations" not in (await lab.see("claims", "c"))["metadata"]
        await lab.create("nodes", {"metadata": {"name": "n"}})
        await lab.patch("claims", "c", {"metadata": {"annotations": {SELECTED: "n"}}})
        await lab.settle()
        assert any("lacks the label" in message for message in lab.messages("ProvisioningFailed"))
        await lab.patch("nodes", "n", {"metadata": {"labels": {ZONE: "z"}}})
        await asyncio.sleep(1.0)
        assert await lab.claims() == {"c": "Bound"}

    at_work(lambda: Laboratory(backend), body)


def test_an_immediate_claim_goes_where_the_class_allows_and_stays_there() -> None:
    backend = ScriptedBackend(DRIVER, {"provision": ["not yet", "not yet", OK]}, info={"topology_keys": (ZONE,)})
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]}]

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab, allowedTopologies=terms)
        await _ask(lab)
        await lab.start()
        await asyncio.sleep(0.3)
        await lab.restart()
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        places = {request.segment[ZONE] for request in backend.requests}
        assert len(places) == 1
        assert places <= {"a", "b"}

    at_work(lambda: Laboratory(backend), body)


# --- beside a stock binder ---------------------------------------------------------------------------------------


def test_beside_a_binder_only_what_it_asks_for_is_made() -> None:
    """The protocol of external provisioners: annotations in, a reserved volume out, no binding."""
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        uid = await _ask(lab)
        await lab.settle()
        assert lab.rules.writes() == []
        await lab.patch(
            "claims", "c", {"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER}}}
        )
        await lab.settle()
        made = await lab.volume(f"pvc-{uid}")
        assert made["spec"]["claimRef"]["uid"] == uid
        assert made["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == DRIVER
        assert made["metadata"]["finalizers"] == ["volplane.dev/reclaim"]
        waiting = await lab.claim("c")
        assert waiting["spec"].get("volumeName") is None
        assert waiting["metadata"].get("finalizers") is None, "the volume is there: the claim is held no more"

    at_work(lambda: Laboratory(backend, settings={"binder": False}), body)


def test_beside_a_binder_a_claim_bound_to_another_volume_leaves_no_asset() -> None:
    backend = SearchableBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        await _fast_class(lab)
        await lab.start()
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {"volume.kubernetes.io/storage-provisioner": DRIVER}
        await lab.create("claims", body)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume("other", storageClassName="fast"))
        await lab.patch("claims", "c", {"spec": {"volumeName": "other"}})
        await lab.settle()
        assert not backend.assets
        assert list(await lab.volumes()) == ["other"]
        assert (await lab.claim("c"))["metadata"].get("finalizers") is None

    at_work(lambda: Laboratory(backend, settings={"binder": False}, latency=_slow), body)


def test_beside_a_binder_what_it_released_is_deleted_and_nothing_else_touched() -> None:
    backend = ScriptedBackend(DRIVER)

    async def body(lab: Laboratory) -> None:
        ref = reference("gone", uid="00000000-0000-0000-0000-000000000001")
        ours = volume("ours", persistentVolumeReclaimPolicy="Delete", claimRef=ref)
        ours["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER}
        static = volume("static", persistentVolumeReclaimPolicy="Recycle", claimRef=ref)
        for body in (ours, static):
            await lab.create("volumes", {**body, "status": {"phase": "Bound"}})
        await lab.start()
        await lab.settle()
        assert await lab.volumes() == {"ours": "Bound", "static": "Bound"}
        for name in ("ours", "static"):
            await lab.patch("volumes", name, {"status": {"phase": "Released"}}, subresource="status")
        await lab.settle()
        assert await lab.volumes() == {"static": "Released"}
        assert backend.calls["delete"] == 1

    at_work(lambda: Laboratory(backend, settings={"binder": False}), body)
