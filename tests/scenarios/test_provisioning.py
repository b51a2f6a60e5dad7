"""Making volumes for claims: the intent, what the volume says, claims that are deleted meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.laboratory import Laboratory
from scenarios.provisioning import BACKENDS, INTENT, PROVISIONING, ask, create_class, slow_provisioning
from scenarios.stories import DRIVER, GIB, claim
from volplane import (
    Asset,
    BackendError,
    DeleteRequest,
    InProgress,
    ProvisionRequest,
    VolumeSource,
)
from volplane.operations import DriverLimits


def _asset(name: str, gib: int, **more: object) -> Asset:
    source = VolumeSource(kind="hostPath", fields={"path": f"/assets/{name}"})
    return Asset(handle=f"/assets/{name}", source=source, capacity_bytes=gib * GIB, **more)  # type: ignore[arg-type]


# --- deleted meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0, 3.999, 4.0, 4.001])
async def test_a_claim_deleted_during_its_create_leaves_nothing(kind: type[ScriptedBackend], seconds: float) -> None:
    backend = kind(DRIVER)

    async with Laboratory(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(seconds)
        await lab.delete("claims", "c")
        await lab.settle()
        assert not backend.assets
        assert await lab.claims() == {}
        assert await lab.volumes() == {}
        assert "Warning ProvisioningCleanupFailed" not in lab.events


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_claim_deleted_while_a_create_overruns_leaves_nothing(kind: type[ScriptedBackend]) -> None:
    """The hook is given up, takes effect later all the same, and its asset is found and deleted."""
    backend = kind(DRIVER)
    slow = iter([(2.0, 2.0)])

    def first_is_slow(_driver: str, hook: str) -> tuple[float, float]:
        return next(slow, (0.0, 0.0)) if hook == "provision" else (0.0, 0.0)

    async with Laboratory(backend, latency=first_is_slow, limits={DRIVER: DriverLimits(timeout=1.0)}) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.5)
        await lab.delete("claims", "c")
        await lab.settle()
        assert backend.calls["provision"] >= 1
        assert not backend.assets
        assert await lab.claims() == {}


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_claim_deleted_while_the_process_is_away_leaves_nothing(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        backend.after = lambda hook: lab.crash() if hook == "provision" and lab.restarts == 0 else None
        lab.fail("create persistentvolumes", "away", 1000)
        await lab.start()
        await ask(lab)
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


async def test_an_asset_that_cannot_be_deleted_yet_keeps_its_claim() -> None:
    backend = SearchableBackend(DRIVER, {"delete": ["in-use: busy", "busy still", OK]})

    async with Laboratory(backend) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "away", 1000)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(0.1)
        assert await lab.claims() == {"c": "Pending"}
        assert lab.events["Warning ProvisioningCleanupFailed"] == 1
        await lab.settle()
        assert await lab.claims() == {}
        assert not backend.assets


async def test_absent_is_no_proof_before_the_driver_has_settled() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]}, info={"settle_seconds": 60.0})

    async with Laboratory(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(0.2)
        await lab.delete("claims", "c")
        await asyncio.sleep(30.0)
        assert await lab.claims() == {"c": "Pending"}, "the asset could still come to be"
        await asyncio.sleep(35.0)
        assert await lab.claims() == {}


# --- what the volume says ----------------------------------------------------------------------------------------


async def test_the_volume_records_what_the_asset_really_holds() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", _asset("a", 5, gid=77, mount_options=("hard",)))

    async with Laboratory(backend) as lab:
        await create_class(lab)
        uid = await ask(lab)
        await lab.start()
        await lab.settle()
        made = await lab.volume(f"pvc-{uid}")
        assert made["spec"]["capacity"] == {"storage": "5Gi"}
        assert made["spec"]["mountOptions"] == ["hard"]
        assert made["metadata"]["annotations"]["pv.beta.kubernetes.io/gid"] == "77"
        assert made["metadata"]["annotations"]["volplane.dev/handle"] == "/assets/a"
        assert (await lab.claim("c"))["status"]["capacity"] == {"storage": "5Gi"}


async def test_an_asset_smaller_than_asked_is_no_success() -> None:
    backend = SearchableBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        uid = await ask(lab)
        backend.assets[f"pvc-{uid}"] = _asset("small", 1)
        backend.script("provision", backend.assets[f"pvc-{uid}"])
        await lab.delete("claims", "c")
        uid = await ask(lab, resources={"requests": {"storage": "2Gi"}})
        backend.assets = {f"pvc-{uid}": _asset("small", 1)}
        await lab.start()
        await lab.settle()
        assert await lab.volumes() == {}
        assert "made 1073741824 bytes where 2147483648 were asked for" in lab.messages("ProvisioningFailed")[0]
        await lab.delete("claims", "c")
        await lab.settle()
        assert not backend.assets
        assert await lab.claims() == {}


async def test_a_class_with_retain_makes_volumes_that_nothing_holds() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab, reclaimPolicy="Retain")
        uid = await ask(lab)
        await lab.start()
        await lab.settle()
        assert not (await lab.volume(f"pvc-{uid}"))["metadata"].get("finalizers")
        await lab.delete("claims", "c")
        await lab.settle()
        assert await lab.volumes() == {f"pvc-{uid}": "Released"}
        assert list(backend.assets) == [f"pvc-{uid}"]


# --- intents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", ["{}", "not json", '{"intent":{"v":1,"driver":"other"},"seal":"00"}', "x" * 1000])
async def test_a_forged_intent_is_replaced_by_a_sealed_one(forged: str) -> None:
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {INTENT: forged}
        await lab.create("claims", body)
        await lab.start()
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        bound = await lab.claim("c")
        assert INTENT not in bound["metadata"]["annotations"]
        assert PROVISIONING not in bound["metadata"].get("finalizers", [])


async def test_the_intent_of_another_claim_is_worth_nothing() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})

    async with Laboratory(backend) as lab:
        await create_class(lab)
        await ask(lab, "a")
        await lab.start()
        await asyncio.sleep(1.0)
        stolen = (await lab.claim("a"))["metadata"]["annotations"][INTENT]
        body = claim("b", storageClassName="fast")
        body["metadata"]["annotations"] = {INTENT: stolen}
        await lab.create("claims", body)
        await asyncio.sleep(1.0)
        own = (await lab.claim("b"))["metadata"]["annotations"][INTENT]
        assert json.loads(own)["seal"] != json.loads(stolen)["seal"]


async def test_a_stripped_intent_is_restored_while_the_hook_runs() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.patch("claims", "c", {"metadata": {"annotations": {INTENT: None}, "finalizers": None}})
        await asyncio.sleep(0.1)
        held = (await lab.claim("c"))["metadata"]
        assert PROVISIONING in held["finalizers"]
        assert INTENT in held["annotations"]
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        assert len(backend.assets) == 1


async def test_a_claim_stripped_and_deleted_during_its_create_gets_no_volume() -> None:
    """What a tenant can do to himself: the asset is left to the leak check, everything else goes on."""
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await lab.patch("claims", "c", {"metadata": {"finalizers": None}})
        await lab.settle()
        assert await lab.claims() == {}
        assert await lab.volumes() == {}
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert not len(lab.plane.state.progress), "nothing is remembered of a claim that is gone"


async def test_the_state_of_long_work_survives_a_restart() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", InProgress(retry_after=5.0, state={"task": 7}), OK)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        await ask(lab)
        await lab.start()
        await asyncio.sleep(1.0)
        await lab.restart()
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        first, *later = [request.context.state for request in backend.requests]
        assert dict(first) == {}
        assert all(dict(state) == {"task": 7} for state in later)


# --- what was made and is not wanted -----------------------------------------------------------------------------


async def test_the_state_of_a_long_discard_survives_a_restart() -> None:
    backend = SearchableBackend(DRIVER)
    backend.script("delete", InProgress(retry_after=20.0, state={"job": 5}), OK)

    async with Laboratory(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(10.0)
        await lab.restart()
        await lab.settle(60.0)
        assert await lab.claims() == {}
        assert backend.assets == {}
        assert [dict(request.context.state) for request in deletions(backend)] == [{}, {"job": 5}]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_discard_that_was_begun_goes_on_though_the_class_switches_back(restarted: bool) -> None:
    backend, other = SearchableBackend(DRIVER), SearchableBackend("other.example.com")
    backend.script("delete", InProgress(retry_after=20.0, state={"job": 5}), OK)

    async with Laboratory(backend, other, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(1.0)
        await switch_class(lab, other.name)
        await asyncio.sleep(10.0)
        await switch_class(lab, DRIVER)
        await asyncio.sleep(1.0)
        assert await lab.volumes() == {}, "no volume stands for an asset that is being deleted"
        if restarted:
            await lab.restart()
        await asyncio.sleep(60.0)
        assert [dict(request.context.state) for request in deletions(backend)] == [{}, {"job": 5}]
        assert await lab.claims() == {"c": "Bound"}
        made = [request for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert [request.context.generation for request in made] == [1, 2], "the second asset is another one"
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert not other.calls["provision"]


def deletions(backend: ScriptedBackend) -> list[DeleteRequest]:
    return [request for request in backend.requests if isinstance(request, DeleteRequest)]


async def switch_class(lab: Laboratory, driver: str) -> None:
    """A provisioner is immutable: the class is made again."""
    await lab.delete("classes", "fast")
    await create_class(lab, provisioner=driver)
