"""Volumes that cannot be made, or not as asked, and what is said of them."""

from __future__ import annotations

import asyncio

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.laboratory import Json, Laboratory
from scenarios.provisioning import BACKENDS, INTENT, PROVISIONING, ask, create_class, slow_provisioning
from scenarios.stories import DRIVER, reference, volume
from volplane import (
    AlreadyExists,
    BackendError,
    InvalidArgument,
)
from volplane.operations import DriverLimits

# --- in the way --------------------------------------------------------------------------------------------------


async def test_a_foreign_volume_under_our_name_is_not_taken_for_ours() -> None:
    """Item 21.10: the name alone proves nothing."""
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        uid = await ask(lab)
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


async def test_a_foreign_volume_under_our_name_does_not_keep_a_dying_claim() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})

    async with Laboratory(backend) as lab:
        await create_class(lab)
        await lab.start()
        uid = await ask(lab)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume(f"pvc-{uid}", claimRef=reference("somebody-else")))
        await lab.delete("claims", "c")
        await lab.settle()
        assert await lab.claims() == {}


async def test_a_static_volume_that_comes_first_makes_the_asset_superfluous() -> None:
    backend = SearchableBackend(DRIVER)

    async with Laboratory(backend, latency=slow_provisioning) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.create("volumes", volume("static", storageClassName="fast"))
        await lab.settle()
        bound = await lab.claim("c")
        assert bound["spec"]["volumeName"] == "static"
        assert not backend.assets
        assert INTENT not in bound["metadata"]["annotations"]
        assert PROVISIONING not in bound["metadata"].get("finalizers", [])


async def test_a_volume_that_cannot_be_saved_delays_no_other() -> None:
    """Item 20.10: no worker and no slot of the driver is kept while the server refuses one volume."""
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend, limits={DRIVER: DriverLimits(concurrency=1)}) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "Forbidden", 10)
        await lab.start()
        for number in range(12):
            await ask(lab, f"c{number}")
        await asyncio.sleep(2.0)
        phases = list((await lab.claims()).values())
        assert phases.count("Bound") == 2
        assert "asset is kept" in lab.messages("ProvisioningFailed")[0]
        assert "forbidden by the scenario" in lab.messages("ProvisioningFailed")[0]
        await lab.settle()
        assert set((await lab.claims()).values()) == {"Bound"}
        assert backend.calls["delete"] == 0


async def test_an_unsaved_asset_is_deleted_once_and_nobody_is_asked_to_do_it_by_hand() -> None:
    """Item 21.2: a volume that was never saved is not missed."""
    backend = SearchableBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "Forbidden", 1000)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(10.0)
        assert len(backend.assets) == 1
        await lab.delete("claims", "c")
        await lab.settle()
        assert not backend.assets
        assert backend.calls["delete"] == 1
        assert "Warning ProvisioningCleanupFailed" not in lab.events


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
async def test_what_cannot_be_made_is_said_once_and_nothing_is_tried(spec: Json, more: Json, said: str) -> None:
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab, **more)
        await lab.start()
        await ask(lab, **spec)
        await asyncio.sleep(1.0)
        assert said in lab.messages("ProvisioningFailed")[0]
        assert backend.calls["provision"] == 0
        assert PROVISIONING not in (await lab.claim("c"))["metadata"].get("finalizers", [])
        await lab.delete("classes", "fast")
        await create_class(lab)
        if spec:
            await lab.create(
                "volumes", {**volume("v", storageClassName="fast"), "metadata": {"name": "v", "labels": {"a": "b"}}}
            )
        await lab.settle()
        assert await lab.claims() == {"c": "Bound"}, "it heals when the cause goes"


@pytest.mark.parametrize(
    "error", [InvalidArgument("bad size"), AlreadyExists("another demand"), BackendError("no idea")]
)
async def test_a_failed_create_is_told_with_the_time_of_the_next_try(error: BackendError) -> None:
    """Item 20.5: the retry comes when the back-off ends, not with the next resync."""
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", error, OK)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(0.6)
        (message,) = lab.messages("ProvisioningFailed")
        assert f"{error}; next attempt in" in message
        waits = 300.0 if error.retry.name == "SLOW" else 0.5
        assert f"next attempt in {waits:g} s" in message
        await asyncio.sleep(waits)
        assert await lab.claims() == {"c": "Bound"}


async def test_a_class_that_is_gone_is_said_and_heals_when_it_returns() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        assert lab.messages("ProvisioningFailed") == ['storageclass.storage.k8s.io "fast" not found']
        await create_class(lab)
        await asyncio.sleep(1.0)
        assert await lab.claims() == {"c": "Bound"}


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_class_deleted_meanwhile_does_not_leave_the_asset(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await ask(lab)
        await asyncio.sleep(1.0)
        await lab.kill()
        await lab.delete("classes", "fast")
        await lab.delete("claims", "c")
        await lab.start()
        await lab.settle()
        if kind is ScriptedBackend:
            assert await lab.claims() == {"c": "Pending"}
            assert 'class "fast" is gone' in lab.messages("ProvisioningCleanupFailed")[0]
            await create_class(lab)
            await lab.settle(600.0)
        assert await lab.claims() == {}
        assert not backend.assets


async def test_a_driver_that_is_not_there_keeps_the_claim_and_says_so() -> None:
    backend = SearchableBackend(DRIVER)

    async with Laboratory(backend) as lab:
        await create_class(lab)
        lab.fail("create persistentvolumes", "away", 10**6)
        await lab.start()
        await ask(lab)
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
