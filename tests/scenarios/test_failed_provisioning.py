"""Volumes that cannot be made, or not as asked, and what is said of them."""

from __future__ import annotations

import asyncio

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.harness import Harness, Json
from scenarios.provisioning import BACKENDS, INTENT, PROVISIONING, ask, create_class, slow_provisioning
from scenarios.stories import DRIVER, reference, volume
from volplane import (
    AlreadyExists,
    BackendError,
    InvalidArgument,
)
from volplane.operations.operation import DriverLimits

# --- in the way --------------------------------------------------------------------------------------------------


async def test_a_foreign_volume_under_our_name_is_not_taken_for_ours() -> None:
    """Item 21.10: the name alone proves nothing."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness)
        uid = await ask(harness)
        stranger = volume(f"pvc-{uid}", claimRef=reference("somebody-else"))
        await harness.create("volumes", stranger)
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Pending"}
        assert backend.calls["provision"] == 0
        assert "does not belong to this claim" in harness.messages("ProvisioningFailed")[0]
        await harness.delete("volumes", f"pvc-{uid}")
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}


async def test_a_foreign_volume_under_our_name_does_not_keep_a_dying_claim() -> None:
    backend = SearchableBackend(DRIVER, {"provision": [BackendError("lost")]})

    async with Harness(backend) as harness:
        await create_class(harness)
        await harness.start()
        uid = await ask(harness)
        await asyncio.sleep(1.0)
        await harness.create("volumes", volume(f"pvc-{uid}", claimRef=reference("somebody-else")))
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.claims() == {}


async def test_a_static_volume_that_comes_first_makes_the_asset_superfluous() -> None:
    backend = SearchableBackend(DRIVER)

    async with Harness(backend, latency=slow_provisioning) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.0)
        await harness.create("volumes", volume("static", storageClassName="fast"))
        await harness.settle()
        bound = await harness.claim("c")
        assert bound["spec"]["volumeName"] == "static"
        assert not backend.assets
        assert INTENT not in bound["metadata"]["annotations"]
        assert PROVISIONING not in bound["metadata"].get("finalizers", [])


async def test_a_volume_that_cannot_be_saved_delays_no_other() -> None:
    """Item 20.10: no worker and no slot of the driver is kept while the server refuses one volume."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, limits={DRIVER: DriverLimits(concurrency=1)}) as harness:
        await create_class(harness)
        harness.fail("create persistentvolumes", "Forbidden", 10)
        await harness.start()
        for number in range(12):
            await ask(harness, f"c{number}")
        await asyncio.sleep(0.05)  # a refused write is tried again after 0.1 s
        phases = list((await harness.claims()).values())
        assert phases.count("Bound") == 2
        assert "asset is kept" in harness.messages("ProvisioningFailed")[0]
        assert "forbidden by the scenario" in harness.messages("ProvisioningFailed")[0]
        await harness.settle()
        assert set((await harness.claims()).values()) == {"Bound"}
        assert backend.calls["delete"] == 0


async def test_an_unsaved_asset_is_deleted_once_and_nobody_is_asked_to_do_it_by_hand() -> None:
    """Item 21.2: a volume that was never saved is not missed."""
    backend = SearchableBackend(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness)
        harness.fail("create persistentvolumes", "Forbidden", 1000)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(10.0)
        assert len(backend.assets) == 1
        await harness.delete("claims", "c")
        await harness.settle()
        assert not backend.assets
        assert backend.calls["delete"] == 1
        assert "Warning ProvisioningCleanupFailed" not in harness.events


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

    async with Harness(backend) as harness:
        await create_class(harness, **more)
        await harness.start()
        await ask(harness, **spec)
        await asyncio.sleep(1.0)
        assert said in harness.messages("ProvisioningFailed")[0]
        assert backend.calls["provision"] == 0
        assert PROVISIONING not in (await harness.claim("c"))["metadata"].get("finalizers", [])
        await harness.delete("classes", "fast")
        await create_class(harness)
        if spec:
            await harness.create(
                "volumes", {**volume("v", storageClassName="fast"), "metadata": {"name": "v", "labels": {"a": "b"}}}
            )
        await harness.settle()
        assert await harness.claims() == {"c": "Bound"}, "it heals when the cause goes"


@pytest.mark.parametrize(
    "error", [InvalidArgument("bad size"), AlreadyExists("another demand"), BackendError("no idea")]
)
async def test_a_failed_create_is_told_with_the_time_of_the_next_try(error: BackendError) -> None:
    """Item 20.5: the retry comes when the back-off ends, not with the next resync."""
    backend = ScriptedBackend(DRIVER)
    backend.script("provision", error, OK)

    async with Harness(backend) as harness:
        await create_class(harness)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(0.6)
        (message,) = harness.messages("ProvisioningFailed")
        assert f"{error}; next attempt in" in message
        waits = 300.0 if error.retry.name == "SLOW" else 0.5
        assert f"next attempt in {waits:g} s" in message
        await asyncio.sleep(waits)
        assert await harness.claims() == {"c": "Bound"}


async def test_a_class_that_is_gone_is_said_and_heals_when_it_returns() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.0)
        assert harness.messages("ProvisioningFailed") == ['storageclass.storage.k8s.io "fast" not found']
        await create_class(harness)
        await asyncio.sleep(1.0)
        assert await harness.claims() == {"c": "Bound"}


@pytest.mark.parametrize("kind", BACKENDS)
async def test_a_class_deleted_meanwhile_does_not_leave_the_asset(kind: type[ScriptedBackend]) -> None:
    backend = kind(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness)
        harness.fail("create persistentvolumes", "away", 10**6)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.0)
        await harness.kill()
        await harness.delete("classes", "fast")
        await harness.delete("claims", "c")
        await harness.start()
        await harness.settle()
        if kind is ScriptedBackend:
            assert await harness.claims() == {"c": "Pending"}
            assert 'class "fast" is gone' in harness.messages("ProvisioningCleanupFailed")[0]
            await create_class(harness)
            await harness.settle(600.0)
        assert await harness.claims() == {}
        assert not backend.assets


async def test_a_driver_that_is_not_there_keeps_the_claim_and_says_so() -> None:
    backend = SearchableBackend(DRIVER)

    async with Harness(backend) as harness:
        await create_class(harness)
        harness.fail("create persistentvolumes", "away", 10**6)
        await harness.start()
        await ask(harness)
        await asyncio.sleep(1.0)
        await harness.kill()
        harness.backends = {}
        await harness.delete("claims", "c")
        await harness.start()
        await harness.settle()
        assert await harness.claims() == {"c": "Pending"}
        assert PROVISIONING in harness.messages("ProvisioningFailed")[-1]
        harness.backends = {DRIVER: backend}
        await harness.restart()
        await harness.settle()
        assert await harness.claims() == {}
        assert not backend.assets
