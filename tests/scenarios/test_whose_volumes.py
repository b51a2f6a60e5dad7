"""Whose a volume is, and what becomes of one that people deleted."""

from __future__ import annotations

import asyncio

from scenarios.backends import ScriptedBackend
from scenarios.deleting import RECLAIM, made_volume, released
from scenarios.harness import Harness
from scenarios.stories import DRIVER, claim, storage_class, volume
from volplane import Unavailable, VolumeSource
from volplane.drivers.driver import BrokenDriver

ALL = frozenset({"binder", "provisioner", "reclaimer", "protection"})


# --- whose it is -------------------------------------------------------------------------------------------------


async def test_a_volume_that_several_drivers_call_theirs_is_touched_by_none() -> None:
    backends = ScriptedBackend("a.example.com"), ScriptedBackend("b.example.com")

    async with Harness(*backends) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await harness.settle()
        failed = await harness.volume("v")
        assert failed["status"]["phase"] == "Failed"
        assert "several drivers say it is theirs: a.example.com, b.example.com" in failed["status"]["message"]
        assert sum(backend.calls["delete"] for backend in backends) == 0


async def test_a_driver_whose_owns_is_slow_delays_its_own_static_volumes_and_nothing_else() -> None:
    quick, slow = (
        ScriptedBackend(name, owns=lambda source, name=name: source.fields["path"].startswith(f"/{name}/"))
        for name in ("quick.example.com", "slow.example.com")
    )

    def latency(driver: str, hook: str) -> tuple[float, float]:
        return (5.0, 0.0) if (driver, hook) == (slow.name, "owns") else (0.0, 0.0)

    async with Harness(quick, slow, latency=latency, controllers=ALL) as harness:
        await harness.create("classes", storage_class("slow", provisioner=slow.name))
        await harness.start()
        await harness.create("volumes", released("slow", hostPath={"path": f"/{slow.name}/x"}))
        await asyncio.sleep(2)  # the first call is known to be slow after a second
        for number in range(20):
            body = released(f"quick-{number}", hostPath={"path": f"/{quick.name}/{number}"})
            await harness.create("volumes", {key: body[key] for key in ("metadata", "spec")})
        await harness.create("claims", claim("c", storageClassName="slow"))
        await asyncio.sleep(1)
        assert sorted(await harness.volumes()) == sorted(["slow", (await harness.claim("c"))["spec"]["volumeName"]])
        assert (quick.calls["delete"], slow.calls["delete"]) == (20, 0)
        await asyncio.sleep(3)
        assert "slow" not in await harness.volumes()
        assert slow.calls["delete"] == 1


async def test_a_volume_says_why_its_driver_cannot_tell_whether_it_owns_it_and_is_deleted_once_it_can() -> None:
    lost = True

    def owns(_source: VolumeSource) -> bool:
        if lost:
            raise Unavailable("the list of exports cannot be read")
        return True

    backend = ScriptedBackend(DRIVER, owns=owns)
    async with Harness(backend) as harness:
        await harness.create("volumes", released())
        await harness.start()
        await asyncio.sleep(30)
        failed = await harness.volume("v")
        assert failed["status"]["phase"] == "Failed"
        assert "cannot tell whether it owns it: the list of exports cannot be read" in failed["status"]["message"]
        lost = False
        await harness.settle()
        assert await harness.volumes() == {}
        assert backend.calls["delete"] == 1


async def test_a_driver_that_is_not_installed_or_broken_is_named_and_its_return_heals() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        name = await made_volume(harness)
        await harness.kill()
        harness.backends = {}
        await harness.delete("claims", "c")
        await harness.start()
        await harness.settle()
        assert f'driver "{DRIVER}" is not configured here' in (await harness.volume(name))["status"]["message"]
        harness.broken = (BrokenDriver(name=DRIVER, backend="disk", error="its root is not mounted"),)
        await harness.restart()
        await harness.settle()
        assert "its root is not mounted" in (await harness.volume(name))["status"]["message"]
        harness.broken, harness.backends = (), {DRIVER: backend}
        await harness.restart()
        await harness.settle()
        assert await harness.volumes() == {}
        assert not backend.assets


async def test_a_renamed_driver_takes_over_by_the_annotation() -> None:
    """What docs tell to do: say on the volume who works on it now."""
    old, new = ScriptedBackend(DRIVER), ScriptedBackend("renamed.example.com")

    async with Harness(old) as harness:
        name = await made_volume(harness)
        await harness.kill()
        new.memory = old.memory
        harness.backends = {new.name: new}
        await harness.patch(
            "volumes", name, {"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": new.name}}}
        )
        await harness.start()
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {}
        assert new.calls["delete"] == 1
        assert not new.assets


async def test_an_external_provisioner_of_the_drivers_name_does_not_keep_its_volumes_though_it_has_marked_them() -> (
    None
):
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        name = await made_volume(harness)
        external = "external-provisioner.volume.kubernetes.io/finalizer"
        await harness.patch("volumes", name, {"metadata": {"finalizers": [RECLAIM, external]}})
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {}
        assert not backend.assets


# --- deleted by people -------------------------------------------------------------------------------------------


async def test_a_volume_deleted_before_its_claim_stays_until_the_claim_goes_and_takes_the_asset_with_it() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, controllers=ALL, disabled_admission=()) as harness:
        name = await made_volume(harness)
        await harness.delete("volumes", name)
        await harness.settle()
        assert await harness.volumes() == {name: "Bound"}
        assert await harness.claims() == {"c": "Bound"}
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {}
        assert not backend.assets


async def test_a_static_volume_deleted_by_a_person_before_its_release_keeps_its_asset() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend, controllers=ALL, disabled_admission=()) as harness:
        await harness.create("claims", claim("c"))
        await harness.create("volumes", volume("v", persistentVolumeReclaimPolicy="Delete"))
        await harness.start()
        await harness.settle()
        await harness.delete("volumes", "v")
        await harness.delete("claims", "c")
        await harness.settle()
        assert await harness.volumes() == {}
        assert backend.calls["delete"] == 0


async def test_our_finalizer_is_put_back_on_a_volume_of_ours_that_lost_it() -> None:
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        name = await made_volume(harness)
        await harness.patch("volumes", name, {"metadata": {"finalizers": None}})
        await harness.settle()
        assert (await harness.volume(name))["metadata"]["finalizers"] == [RECLAIM]


async def test_what_the_cache_knows_in_the_end_is_what_the_server_knows() -> None:
    """Item 21.16: answers are kept, never what was sent."""
    backend = ScriptedBackend(DRIVER)

    async with Harness(backend) as harness:
        await made_volume(harness, "a")
        await harness.create("claims", claim("b", storageClassName="fast"))
        await harness.create("volumes", released())
        await harness.settle()
        await harness.delete("claims", "a")
        await harness.settle()
        for cache, kind in ((harness.plane.state.claims, "claims"), (harness.plane.state.volumes, "volumes")):
            known = {item.uid: item.metadata.resource_version for item in cache.values()}
            stored = {
                item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in await harness.everything(kind)
            }
            assert known == stored
