"""Making volumes for claims: the intent, what the volume says, claims that are deleted meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.harness import Harness
from scenarios.provisioning import (
    BACKENDS,
    INTENT,
    PROVISIONING,
    ask,
    create_class,
    made_without_a_volume,
    slow_provisioning,
)
from scenarios.single import hold
from scenarios.stories import DRIVER, GIB, claim, volume
from volplane import (
    Asset,
    BackendError,
    DeleteRequest,
    InProgress,
    InvalidArgument,
    Ownership,
    ProvisionRequest,
    VolumeSource,
    hookimpl,
)
from volplane.operations.operation import DriverLimits
from volplane_testing.memory_storage import MemoryAsset


def _asset(name: str, gib: int, **more: object) -> Asset:
    source = VolumeSource(kind="hostPath", fields={"path": f"/assets/{name}"})
    return Asset(handle=f"/assets/{name}", source=source, capacity_bytes=gib * GIB, **more)  # type: ignore[arg-type]


# --- deleted meanwhile -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("seconds", [0.0, 1.0, 3.0, 3.999, 4.0, 4.001])
async def test_a_claim_deleted_during_its_create_leaves_nothing(kind: type[ScriptedBackend], seconds: float) -> None:
    backend = kind(DRIVER)

    async with Harness(backend, latency=slow_provisioning) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(seconds)
        await harness.delete("claims", "c")
        await harness.settle()
        assert not backend.assets
        assert await harness.claims() == {}
        assert await harness.volumes() == {}
        assert "Warning ProvisioningCleanupFailed" not in harness.events


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_claim_deleted_while_a_create_overruns_leaves_nothing(kind: type[ScriptedBackend]) -> None:
    """The hook is given up, takes effect later all the same, and its asset is found and deleted."""
    backend = kind(DRIVER)
    slow = iter([(2.0, 2.0)])

    def first_is_slow(_driver: str, hook: str) -> tuple[float, float]:
        return next(slow, (0.0, 0.0)) if hook == "provision" else (0.0, 0.0)

    async with Harness(backend, latency=first_is_slow, limits={DRIVER: DriverLimits(timeout=1.0)}) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.5)
        await harness.delete("claims", "c")
        await harness.settle()
        assert backend.calls["provision"] >= 1
        assert not backend.assets
        assert await harness.claims() == {}


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_claim_deleted_while_the_process_is_away_leaves_nothing(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)

    async with Harness(backend) as harness:
        backend.after = lambda hook: harness.crash() if hook == "provision" and harness.restarts == 0 else None
        await made_without_a_volume(harness)
        await harness.kill()
        await harness.delete("claims", "c")
        held = await harness.claim("c")
        assert held["metadata"]["finalizers"] == [PROVISIONING]
        await harness.start()
        await harness.settle()
        assert not backend.assets
        assert await harness.claims() == {}
        assert await harness.volumes() == {}


@pytest.mark.parametrize("record", [None, "not json"], ids=["stripped", "damaged"])
@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_claim_whose_record_is_lost_while_the_process_is_away_leaves_nothing(
    kind: type[ScriptedBackend], record: str | None
) -> None:
    """What may have been begun is presumed from uid and class; what was made is found and deleted."""
    backend = kind(DRIVER)

    async with Harness(backend) as harness:
        backend.after = lambda hook: harness.crash() if hook == "provision" and harness.restarts == 0 else None
        await made_without_a_volume(harness)
        await harness.kill()
        assert backend.assets
        await harness.patch("claims", "c", {"metadata": {"annotations": {INTENT: record}}})
        await harness.delete("claims", "c")
        await harness.start()
        await harness.settle()
        assert not backend.assets
        assert await harness.claims() == {}
        assert await harness.volumes() == {}


@pytest.mark.parametrize(("refers", "marked"), [(True, True), (False, True), (True, False)])
async def test_an_asset_is_not_discarded_while_a_volume_that_no_cache_shows_yet_holds_it(
    *, refers: bool, marked: bool
) -> None:
    """The process died when the server had the volume and before it heard of that.

    refers: to the claim; else to nobody. marked: it says who made it.
    """
    backend = SearchableBackend(DRIVER)

    async with Harness(backend) as harness:
        uid = await made_without_a_volume(harness, reclaimPolicy="Retain")
        await harness.kill()
        [made] = backend.assets
        body = volume(made, storageClassName="fast", hostPath={"path": f"/assets/{made}"})
        if refers:
            body["spec"]["claimRef"] = {"namespace": "default", "name": "c", "uid": uid}
        if marked:
            body["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER}
        await harness.create("volumes", body)
        harness.rules.hide("persistentvolumes", "*")
        await harness.delete("claims", "c")
        await harness.start()
        await harness.settle()
        assert list(backend.assets) == [made]
        assert backend.calls["delete"] == 0
        assert await harness.claims() == {}


async def test_an_asset_that_cannot_be_deleted_yet_keeps_its_claim() -> None:
    backend = SearchableBackend(DRIVER, {"delete": ["in-use: busy", "busy still", OK]})

    async with Harness(backend) as harness:
        await made_without_a_volume(harness)
        await harness.delete("claims", "c")
        await asyncio.sleep(0.1)
        assert await harness.claims() == {"c": "Pending"}
        assert harness.events["Warning ProvisioningCleanupFailed"] == 1
        await harness.settle()
        assert await harness.claims() == {}
        assert not backend.assets


@pytest.mark.parametrize("seconds", [0.9, 60.0])
async def test_absent_is_no_proof_before_the_driver_has_settled(seconds: float) -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]}, info={"settle_seconds": seconds})

    async with Harness(backend) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(0.2)
        await harness.delete("claims", "c")
        await asyncio.sleep(seconds / 2)
        assert await harness.claims() == {"c": "Pending"}, "the asset could still come to be"
        await asyncio.sleep(seconds / 2 + 0.1)
        assert await harness.claims() == {}


# --- what the volume says ----------------------------------------------------------------------------------------


async def test_the_volume_records_what_the_asset_really_holds() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", _asset("a", 5, gid=77, mount_options=("hard",)))

    async with Harness(backend) as harness:
        await create_class(harness)
        uid = await ask(harness)
        await harness.start()
        await harness.settle()
        made = await harness.volume(f"pvc-{uid}")
        assert made["spec"]["capacity"] == {"storage": "5Gi"}
        assert made["spec"]["mountOptions"] == ["hard"]
        assert made["metadata"]["annotations"]["pv.beta.kubernetes.io/gid"] == "77"
        assert made["metadata"]["annotations"]["volplane.dev/handle"] == "/assets/a"
        assert (await harness.claim("c"))["status"]["capacity"] == {"storage": "5Gi"}


async def test_an_asset_smaller_than_asked_is_no_success() -> None:
    backend = SearchableBackend(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness)
        uid = await ask(harness, resources={"requests": {"storage": "2Gi"}})
        name, small = f"pvc-{uid}", _asset("small", 1)
        owner = Ownership(cluster_id="cluster-1", claim_uid=uid, volume_name=name)
        backend.assets[name] = MemoryAsset(small.handle, name, owner, small.capacity_bytes, demand=())
        backend.script("provision", small)
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {}
        assert "made 1073741824 bytes where 2147483648 were asked for" in harness.messages("ProvisioningFailed")[0]
        await harness.delete("claims", "c")
        await harness.settle()
        assert not backend.assets
        assert await harness.claims() == {}


async def test_a_class_with_retain_makes_volumes_that_nothing_holds() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness, reclaimPolicy="Retain")
        uid = await ask(harness)
        await harness.start()
        await harness.settle()
        assert not (await harness.volume(f"pvc-{uid}"))["metadata"].get("finalizers")
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {f"pvc-{uid}": "Released"}
        assert list(backend.assets) == [f"pvc-{uid}"]


# --- intents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forged", ["{}", "not json", '{"intent":{"v":1,"driver":"other"},"seal":"00"}', "x" * 1000])
async def test_a_forged_intent_is_replaced_by_a_sealed_one(forged: str) -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness)
        body = claim("c", storageClassName="fast")
        body["metadata"]["annotations"] = {INTENT: forged}
        await harness.create("claims", body)
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        bound = await harness.claim("c")
        assert INTENT not in bound["metadata"]["annotations"]
        assert PROVISIONING not in bound["metadata"].get("finalizers", [])


async def test_the_intent_of_another_claim_is_worth_nothing() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})

    async with Harness(backend) as harness:
        await create_class(harness)
        await ask(harness, "a")
        await harness.start()
        await asyncio.sleep(1.0)
        stolen = (await harness.claim("a"))["metadata"]["annotations"][INTENT]
        body = claim("b", storageClassName="fast")
        body["metadata"]["annotations"] = {INTENT: stolen}
        await harness.create("claims", body)
        await asyncio.sleep(1.0)
        own = (await harness.claim("b"))["metadata"]["annotations"][INTENT]
        assert json.loads(own)["seal"] != json.loads(stolen)["seal"]


async def test_a_stripped_intent_is_restored_while_the_hook_runs() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, latency=slow_provisioning) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.0)
        await harness.patch("claims", "c", {"metadata": {"annotations": {INTENT: None}, "finalizers": None}})
        await asyncio.sleep(0.1)
        held = (await harness.claim("c"))["metadata"]
        assert PROVISIONING in held["finalizers"]
        assert INTENT in held["annotations"]
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        assert len(backend.assets) == 1


async def test_a_claim_stripped_and_deleted_during_its_create_gets_no_volume() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, latency=slow_provisioning) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.0)
        await harness.delete("claims", "c")
        await harness.patch("claims", "c", {"metadata": {"finalizers": None}})
        await harness.settle()
        assert await harness.claims() == {}
        assert await harness.volumes() == {}
        assert not backend.assets
        assert not len(harness.plane.state.progress), "nothing is remembered of a claim that is gone"


async def test_the_state_of_long_work_survives_a_restart() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", InProgress(retry_after=5.0, state={"task": 7}), OK)

    async with Harness(backend) as harness:
        await create_class(harness)
        await ask(harness)
        await harness.start()
        await asyncio.sleep(1.0)
        await harness.restart()
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}
        first, *later = [request.context.state for request in backend.requests]
        assert dict(first) == {}
        assert all(dict(state) == {"task": 7} for state in later)


async def test_an_asset_that_a_job_makes_later_does_not_outlive_its_claim() -> None:
    backend = JobBackend(DRIVER)

    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(12.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(30.0)
        assert await lab.claims() == {"c": "Pending"}, "the job goes on, whatever `find` says"
        await lab.settle()
        assert await lab.claims() == {}
        assert backend.assets == {}


async def test_a_job_is_remembered_over_a_crash_though_its_claim_was_deleted_before_it_answered() -> None:
    backend = JobBackend(DRIVER)

    async with Harness(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(5.0)
        await lab.restart()
        await lab.settle()
        assert await lab.claims() == {}
        assert backend.assets == {}
        last = next(request for request in reversed(backend.requests) if isinstance(request, ProvisionRequest))
        assert dict(last.context.state) == {"job": 17}


async def test_a_job_that_failed_for_good_and_left_nothing_does_not_hold_the_claim() -> None:
    failure = InvalidArgument("too large")
    failure.nothing_done = True  # The class alone says this of its own call only.
    backend = SearchableBackend(DRIVER)
    backend.script("provision", InProgress(retry_after=5.0, state={"job": 17}), failure)

    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("claims", "c")
        await asyncio.sleep(30.0)
        assert await lab.claims() == {}


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_volume_whose_class_goes_while_it_is_made_is_finished_when_the_class_is_back(
    kind: type[ScriptedBackend],
) -> None:
    backend = kind(DRIVER)
    backend.script("provision", InProgress(retry_after=5.0, state={"job": 17}), OK)

    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("classes", "fast")
        await asyncio.sleep(60.0)
        assert "it is finished when the class is back" in lab.messages("ProvisioningFailed")[-1]
        await create_class(lab)
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}
        assert list(backend.assets) == [f"pvc-{uid}"]


async def test_a_volume_whose_class_goes_while_it_is_made_goes_with_its_claim() -> None:
    backend = JobBackend(DRIVER)

    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.delete("classes", "fast")
        await asyncio.sleep(120.0)
        assert backend.assets, "the job of the storage has made it"
        await lab.delete("claims", "c")
        await lab.settle()
        assert await lab.claims() == {}
        assert backend.assets == {}


class JobBackend(SearchableBackend):
    """`provision` begins a job of the storage, which makes the asset a minute later; until then `find` sees nothing."""

    begun: float | None = None

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        loop = asyncio.get_running_loop()
        if self.begun is None:
            self.begun = loop.time()
            loop.call_later(60.0, self.memory.provision, request)
        self.requests.append(request)
        if loop.time() < self.begun + 60.0:
            return InProgress(retry_after=5.0, state={"job": 17})
        return self.memory.provision(request)


# --- what was made and is not wanted -----------------------------------------------------------------------------


async def test_the_state_of_a_long_discard_survives_a_restart() -> None:
    backend = SearchableBackend(DRIVER)
    backend.script("delete", InProgress(retry_after=20.0, state={"job": 5}), OK)

    async with Harness(backend, latency=slow_provisioning) as lab:
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

    async with Harness(backend, other, latency=slow_provisioning) as lab:
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


async def test_a_crash_after_an_unwanted_asset_was_deleted_does_not_lead_to_its_generation_again() -> None:
    """Found by the simulation: nothing on the claim said that the first was deleted, and its token was used up."""
    backend, other = SearchableBackend(DRIVER), SearchableBackend("other.example.com")
    backend.script("provision", BackendError("the answer was lost"))

    def answers_late(_driver: str, hook: str) -> tuple[float, float]:
        return (0.0, 5.0) if hook == "delete" else (0.0, 0.0)

    async with Harness(backend, other, latency=answers_late) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(0.1)
        backend.memory.provision(backend.requests[-1])
        await switch_class(lab, other.name)
        await asyncio.sleep(1.0)
        assert backend.assets == {}
        await switch_class(lab, DRIVER)
        await lab.restart()
        backend.script("provision", OK)
        await lab.settle()
        made = [request.context.generation for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert made[-1] == 2
        assert list(backend.assets) == [f"pvc-{uid}"]


async def test_an_asset_is_not_discarded_because_a_cache_has_an_old_class() -> None:
    backend, other = SearchableBackend(DRIVER), SearchableBackend("other.example.com")

    async with Harness(backend, other, latency=slow_provisioning) as lab:
        lab.rules.hide("storageclasses", "none of these yet")
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)

        async def switch_back(operation: str) -> None:
            if operation.startswith("discard-"):
                lab.rules.hide("storageclasses", "*")
                await switch_class(lab, DRIVER)

        hold(lab.plane.operations, switch_back)
        await switch_class(lab, other.name)
        await asyncio.sleep(30.0)
        assert backend.calls["delete"] == 0, "the class is ours again, and the claim wants the asset"


async def test_a_generation_is_never_used_again_though_the_class_names_another_driver_in_between() -> None:
    backend, other = SearchableBackend(DRIVER), SearchableBackend("other.example.com")
    lost = BackendError("the answer was lost")
    for each in (backend, other):
        each.script("provision", lost)

    async with Harness(backend, other) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        for name in (other.name, DRIVER):
            await switch_class(lab, name)
            await asyncio.sleep(30.0)
        made = [r.context.generation for r in backend.requests if isinstance(r, ProvisionRequest)]
        others = [r.context.generation for r in other.requests if isinstance(r, ProvisionRequest)]
        assert (set(made), set(others)) == ({1, 3}, {2})


def deletions(backend: ScriptedBackend) -> list[DeleteRequest]:
    return [request for request in backend.requests if isinstance(request, DeleteRequest)]


async def switch_class(lab: Harness, driver: str) -> None:
    """A provisioner is immutable: the class is made again."""
    await lab.delete("classes", "fast")
    await create_class(lab, provisioner=driver)
