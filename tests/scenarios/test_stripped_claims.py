"""What a tenant who removes the record and the finalizer of a claim gains: nothing that no claim accounts for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.harness import STANDARD, Harness
from scenarios.provisioning import INTENT, PROVISIONING, ask, create_class, slow_provisioning
from scenarios.stories import DRIVER, claim, reference, volume
from volplane import BackendError, InProgress, InvalidArgument, ProvisionRequest, Unavailable
from volplane_testing.transport import delay, requests

BESIDE = STANDARD - {"binder", "protection"}
Deed = Callable[[Harness], Awaitable[None]]


async def strip(lab: Harness, **spec: object) -> None:
    bare = {"metadata": {"finalizers": None, "annotations": {INTENT: None}}, **({"spec": spec} if spec else {})}
    await lab.patch("claims", "c", bare)


async def remove(lab: Harness) -> None:
    await strip(lab)
    await lab.delete("claims", "c")


async def remove_and_ask_again(lab: Harness) -> None:
    await remove(lab)
    await lab.create("claims", claim("c", storageClassName="none"))


async def delete_while_another_holds_it(lab: Harness) -> None:
    await lab.patch("claims", "c", {"metadata": {"finalizers": [PROVISIONING, "example.com/mine"]}})
    await lab.delete("claims", "c")
    await lab.patch("claims", "c", {"metadata": {"finalizers": ["example.com/mine"], "annotations": {INTENT: None}}})


async def bind_elsewhere(lab: Harness) -> None:
    await lab.create("volumes", volume("static", claimRef=reference("c"), storageClassName="fast"))
    await strip(lab, volumeName="static")


DEEDS = [remove, remove_and_ask_again, bind_elsewhere, delete_while_another_holds_it]


def asked_by_binder(lab: Harness) -> Awaitable[None]:
    named = {f"volume.{beta}kubernetes.io/storage-provisioner": DRIVER for beta in ("", "beta.")}
    return lab.patch("claims", "c", {"metadata": {"annotations": named}})


@pytest.mark.parametrize("after", [0.5, 2.5], ids=["while it is made", "once it is made"])
@pytest.mark.parametrize("controllers", [STANDARD, BESIDE], ids=["whole", "beside"])
@pytest.mark.parametrize("deed", DEEDS)
async def test_what_is_made_for_a_claim_without_record_is_deleted(
    deed: Deed, controllers: frozenset[str], after: float
) -> None:
    backend = SearchableBackend(DRIVER)
    async with Harness(backend, controllers=controllers, latency=slow_provisioning) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await ask(lab)
        await asked_by_binder(lab)
        await asyncio.sleep(after)
        await deed(lab)
        await asyncio.sleep(30.0)
        assert backend.calls["provision"]
        assert not backend.assets
        assert not lab.plane.state.progress.vanished


@pytest.mark.parametrize("kind", [ScriptedBackend, SearchableBackend])
async def test_a_job_is_followed_to_its_end_though_its_claim_is_gone(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)
    backend.script("provision", *(InProgress(retry_after=2.0, state={"job": n}) for n in "12"), OK)
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await remove(lab)
        await asyncio.sleep(30.0)
        states = [request.context.state for request in backend.requests if isinstance(request, ProvisionRequest)]
        assert states[1:3] == [{"job": "1"}, {"job": "2"}]
        assert not backend.assets
        assert not lab.plane.state.progress.vanished


async def test_a_deletion_that_fails_is_tried_again_though_its_claim_is_gone() -> None:
    backend = SearchableBackend(DRIVER)
    backend.script("delete", BackendError("later"), InProgress(retry_after=1.0, state={"job": "1"}), OK)
    async with Harness(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(0.5)
        await remove(lab)
        await asyncio.sleep(30.0)
        assert not backend.assets
        assert backend.requests[-1].context.state == {"job": "1"}
        assert not lab.plane.state.progress.vanished


@pytest.mark.parametrize("named", ["pvc-{uid}", "static"])
async def test_a_claim_that_points_at_a_volume_that_is_not_there_gets_its_record_back(named: str) -> None:
    backend = SearchableBackend(DRIVER)
    async with Harness(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(0.5)
        await strip(lab, volumeName=named.format(uid=uid))
        await asyncio.sleep(5.0)
        assert PROVISIONING in (await lab.claim("c"))["metadata"]["finalizers"]
        await lab.restart()
        await lab.delete("claims", "c")
        await asyncio.sleep(30.0)
        assert not backend.assets


async def test_the_volume_of_a_claim_that_vanished_is_left_to_its_policy() -> None:
    backend = SearchableBackend(DRIVER)
    async with Harness(backend, latency=slow_provisioning) as lab:
        await create_class(lab, reclaimPolicy="Retain")
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(0.5)
        # Somebody who may create volumes made it from a backup.
        restored = volume(f"pvc-{uid}", claimRef=reference("c", uid=uid))
        restored["metadata"]["annotations"] = {"pv.kubernetes.io/provisioned-by": DRIVER}
        await lab.create("volumes", restored)
        await remove(lab)
        await asyncio.sleep(30.0)
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert not lab.plane.state.progress.vanished


async def test_what_the_volume_of_a_claim_that_vanished_holds_stays_though_that_is_created_late() -> None:
    backend = SearchableBackend(DRIVER)
    async with Harness(backend) as lab:
        await create_class(lab, reclaimPolicy="Retain")
        lab.rules.add(requests("create", "persistentvolumes"), delay(2.0))
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(1.0)
        assert backend.assets
        await remove(lab)
        await asyncio.sleep(90.0)
        assert await lab.volumes() == {f"pvc-{uid}": "Released"}
        assert list(backend.assets) == [f"pvc-{uid}"]
        assert not lab.plane.state.progress.vanished


async def test_what_the_backend_has_never_begun_is_not_looked_for() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", InvalidArgument("no such tier", nothing_done=True))
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        calls = backend.calls["provision"]
        await remove(lab)
        await asyncio.sleep(60.0)
        assert backend.calls["provision"] == calls > 0
        assert not lab.plane.state.progress.vanished


async def test_one_namespace_does_not_fill_the_memory_of_claims_that_have_vanished() -> None:
    """Its backend says for ever that it does not know whether it made something."""
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", Unavailable("no answer"))
    async with Harness(backend) as lab:
        await create_class(lab)
        await lab.start()
        for namespace, count in (("default", 130), ("other", 1)):
            for n in range(count):
                body = claim(f"c{n}", storageClassName="fast")
                await lab.create("claims", {**body, "metadata": {**body["metadata"], "namespace": namespace}})
        await asyncio.sleep(5.0)
        bare = {"metadata": {"finalizers": None, "annotations": {INTENT: None}}}
        for namespace, count in (("default", 130), ("other", 1)):
            for n in range(count):
                await lab.patch("claims", f"c{n}", bare, namespace=namespace)
                await lab.delete("claims", f"c{n}", namespace=namespace)
        await asyncio.sleep(5.0)
        vanished = Counter(each.namespace for each in lab.plane.state.progress.vanished.values())
        assert vanished == {"default": 100, "other": 1}
