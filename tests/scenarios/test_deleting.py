"""Deleting released volumes: what is read before the hook, and what follows it."""

from __future__ import annotations

import asyncio

import pytest

from scenarios.backends import OK, ScriptedBackend, SearchableBackend
from scenarios.deleting import RECLAIM, made_volume, released
from scenarios.harness import Harness
from scenarios.single import hold
from scenarios.stories import DRIVER, claim, reference, storage_class, volume
from volplane import InProgress
from volplane.operations.operation import DriverLimits

# --- before the hook ---------------------------------------------------------------------------------------------


async def test_the_object_is_deleted_before_its_asset() -> None:
    """From then on no binder can use it; our finalizer keeps it until the asset is gone."""
    backend = ScriptedBackend(DRIVER, {"delete": ["in-use: mounted", OK]})

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(0.2)
        held = await harness.volume("v")
        assert "deletionTimestamp" in held["metadata"]
        assert held["metadata"]["finalizers"] == [RECLAIM]
        assert held["status"]["phase"] == "Released", "in use is no failure"
        assert harness.messages("VolumeDelete") == ["mounted"]
        await harness.settle()
        assert await harness.volumes() == {}
        writes = harness.rules.writes()
        assert writes.index("delete persistentvolumes") == len(writes) - 2


async def test_a_policy_changed_before_the_operation_starts_keeps_the_asset() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await harness.create("volumes", released())

        async def change(operation: str) -> None:
            if operation.startswith("delete-v["):
                await harness.patch("volumes", "v", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})

        harness.adjust = lambda plane: hold(plane.operations, change)
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {}, "the object was deleted already, and nothing holds it any more"
        assert backend.calls["delete"] == 0


async def test_a_policy_changed_between_two_tries_keeps_the_asset() -> None:
    backend = ScriptedBackend(DRIVER, {"delete": ["broken"]})

    async with Harness(backend) as harness:
        volume_name = await made_volume(harness)
        await harness.delete("claims", "c")
        await asyncio.sleep(1.0)
        assert (await harness.volume(volume_name))["status"]["phase"] == "Failed"
        await harness.patch("volumes", volume_name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await harness.settle()
        assert await harness.volumes() == {}
        assert list(backend.assets) == [volume_name]


async def test_retain_before_the_release_keeps_volume_and_asset_and_takes_the_finalizer_away() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        name = await made_volume(harness)
        assert (await harness.volume(name))["metadata"]["finalizers"] == [RECLAIM]
        await harness.patch("volumes", name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        await harness.settle()
        assert (await harness.volume(name))["metadata"].get("finalizers") is None
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {name: "Released"}
        await harness.patch("volumes", name, {"spec": {"persistentVolumeReclaimPolicy": "Delete"}})
        await harness.settle()
        assert await harness.volumes() == {}
        assert not backend.assets


@pytest.mark.parametrize("hidden", [True, False])
async def test_a_claim_that_the_cache_does_not_know_keeps_its_volume(hidden: bool) -> None:
    """Item 21.5: a live read comes before anything is destroyed, also for volumes in phase Released or Failed."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        made = await harness.create("claims", claim("c", volumeName="v"))
        ref = reference("c", uid=made["metadata"]["uid"])
        body = volume("v", persistentVolumeReclaimPolicy="Delete", claimRef=ref)
        await harness.create("volumes", {**body, "status": {"phase": "Released"}})
        if hidden:
            harness.rules.hide("persistentvolumeclaims", "default/c")
        await harness.start()
        await harness.settle()
        assert await harness.volumes() == {"v": "Bound"}
        assert "deletionTimestamp" not in (await harness.volume("v"))["metadata"]
        assert backend.calls["delete"] == 0


async def test_the_hook_is_told_what_the_volume_says_now() -> None:
    """Item 21.11: an operation that waited works on the volume as it is, not as it was when it was queued."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await harness.create("volumes", released())

        async def change(operation: str) -> None:
            if operation.startswith("delete-v["):
                await harness.patch("volumes", "v", {"metadata": {"annotations": {"volplane.dev/handle": "moved"}}})

        harness.adjust = lambda plane: hold(plane.operations, change)
        await harness.start()
        await harness.settle()
        assert [request.volume.handle for request in backend.requests] == ["moved"]


async def test_a_claim_created_again_under_the_same_name_gets_another_volume() -> None:
    """Item 21.17: the old volume is released at once, although the name never was away for long."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        first = await made_volume(harness)
        await harness.delete("claims", "c")
        again = await harness.create("claims", claim("c", storageClassName="fast"))
        await asyncio.sleep(1.0)
        second = f"pvc-{again['metadata']['uid']}"
        assert await harness.volumes() == {second: "Bound"}
        assert list(backend.assets) == [second]
        assert first != second


# --- the hook ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", [DRIVER, "kubernetes.io/disk"])
async def test_the_backend_is_asked_once(driver: str) -> None:
    """Item 21.9: the finalizer does not come back between its removal and the end of the object."""
    backend = ScriptedBackend(driver)

    async with Harness(backend) as harness:
        await harness.create("classes", storage_class(provisioner=driver))
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.start()
        await harness.settle()
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {}
        assert backend.calls["delete"] == 1


async def test_a_failure_is_told_and_so_is_the_next_one_for_another_reason() -> None:
    """Item 21.12: message and event follow the last reason, and say when it is tried again."""
    backend = ScriptedBackend(DRIVER, {"delete": ["disk is locked", "disk is locked", "filer is down", OK]})

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        said = []
        for seconds in (0.2, 0.5, 1.0):
            await asyncio.sleep(seconds)
            said.append((await harness.volume("v"))["status"].get("message"))
        assert said == ["disk is locked", "disk is locked", "filer is down"]
        told = harness.messages("VolumeFailedDelete")
        assert told == ["disk is locked", "disk is locked; next attempt in 1 s", "filer is down"]
        await harness.settle()
        assert await harness.volumes() == {}


async def test_a_failing_delete_is_tried_less_and_less_often() -> None:
    """Item 21.13, and 20.5: between two tries nothing is called."""
    backend = ScriptedBackend(DRIVER, {"delete": ["broken"]})

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(600.0)
        assert 8 <= backend.calls["delete"] <= 13


async def test_nobody_to_delete_it_is_said_once() -> None:
    """Item 21.13: without a plugin nothing is repeated."""

    async with Harness() as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(600.0)
        assert harness.rules.writes() == ["update persistentvolumes/status", "update persistentvolumes/status"]
        assert harness.events == {"Warning VolumeFailedDelete": 1}


async def test_a_long_deletion_goes_on_after_a_restart() -> None:
    backend = ScriptedBackend(DRIVER)
    backend.script("delete", InProgress(retry_after=10.0, state={"job": 3}), OK)

    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(1.0)
        await harness.restart()
        await harness.settle()
        assert await harness.volumes() == {}
        assert [dict(request.context.state) for request in backend.requests] == [{}, {"job": 3}]


async def test_no_more_deletions_run_at_once_than_the_driver_takes() -> None:
    """Item 21.15: a backend is never flooded."""
    backend = ScriptedBackend(DRIVER)
    at_once: list[int] = []

    latency = lambda _driver, hook: (1.0, 0.0) if hook == "delete" else (0.0, 0.0)  # noqa: E731
    async with Harness(backend, limits={DRIVER: DriverLimits(concurrency=3)}, latency=latency) as harness:
        for number in range(40):
            await harness.create("volumes", released(f"v{number}"))
        await harness.start()
        for _ in range(200):
            await asyncio.sleep(0.1)
            running = [state for state in harness.plane.operations.snapshot() if state.phase == "running"]
            at_once.append(len(running))
        await harness.settle()
        assert await harness.volumes() == {}
        assert max(at_once) == 3


async def test_nothing_is_kept_about_operations_whose_object_is_gone() -> None:
    """Of the claim, once `find` has proven that nothing was made."""
    backend = SearchableBackend(DRIVER, {"delete": ["broken"], "provision": ["broken"]})

    async with Harness(backend) as harness:
        await harness.create("classes", storage_class())
        await harness.create("claims", claim("c", storageClassName="fast"))
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(5.0)
        await harness.patch("volumes", "v", {"metadata": {"finalizers": None}})
        await harness.patch("claims", "c", {"metadata": {"finalizers": None}})
        await harness.delete("claims", "c")
        await asyncio.sleep(1200.0)
        state, registry = harness.plane.state, harness.plane.operations
        assert not registry._pauses.by_name
        assert not registry._pauses.by_asset
        assert not len(state.progress)
        assert not state.waiting.claims
