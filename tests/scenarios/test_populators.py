"""Sources of other kinds: a populator makes the volume, as lib-volume-populator does it, in its order of writes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import pytest

from integration.definitions_of_others import VOLUME_POPULATORS, install, send
from volplane_testing import Cluster
from volplane_testing.memory import MemoryBackend
from volplane_testing.transport import ApiCall, Ask

CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
HELLO: Final = {"apiGroup": "hello.example.com", "kind": "Hello", "name": "world"}
PROTECTION: Final = "hello.example.com/populate-target-protection"
Json = dict[str, Any]


class Populator:
    """What the library does with one claim, a write at a time."""

    def __init__(self, cluster: Cluster, target: Mapping[str, Any]) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.target = target["metadata"]
        self.prime = f"prime-{self.target['uid']}"

    async def make_prime(self) -> Json:
        """The claim of its own, without labels and source; then its finalizer on the target."""
        made = await self.cluster.create_claim(self.prime, storage_class="fast", namespace="populators")
        self.api.patch(CLAIMS, self.target["name"], {"metadata": {"finalizers": self.finalizers(PROTECTION)}})
        return made

    def finalizers(self, *more: str) -> list[str]:
        now = self.api.get(CLAIMS, self.target["name"])
        assert now is not None
        return [*(each for each in now["metadata"].get("finalizers", []) if each != PROTECTION), *more]

    def rebind(self, volume: Json) -> None:
        """Rewrite the reference of the volume to the target, in one patch with its annotation."""
        now = self.api.get(CLAIMS, self.target["name"])
        assert now is not None
        named = {key: now["metadata"][key] for key in ("namespace", "name", "uid", "resourceVersion")}
        body = {
            "metadata": {"annotations": {"hello.example.com/populated-from": "default/world"}},
            "spec": {"claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **named}},
        }
        self.api.patch(VOLUMES, volume["metadata"]["name"], body)

    async def lost(self) -> None:
        """Wait until the binder has taken the volume from the prime."""

        def phase() -> bool:
            now = self.api.get(CLAIMS, self.prime, "populators")
            return now is not None and now["status"]["phase"] == "Lost"

        await self.cluster.wait_for(phase, 600.0, "the prime is Lost")

    def clean_up(self) -> None:
        self.api.delete(CLAIMS, self.prime, "populators")
        self.api.patch(CLAIMS, self.target["name"], {"metadata": {"finalizers": self.finalizers() or None}})


def events(cluster: Cluster, about: Json) -> list[tuple[str, str, str]]:
    return [(each["type"], each["reason"], each["message"]) for each in cluster.api.events(about)]


async def leaks(cluster: Cluster) -> list[object]:
    """What the leak check finds."""
    plane = cluster.controllers.plane
    driver = plane.drivers.get(cluster.driver)
    assert driver is not None
    assert await plane.leak_check.check(driver)
    return list(plane.leak_check.observations.findings())


async def target_of(cluster: Cluster, **more: Any) -> Json:
    return await cluster.create_claim("data", storage_class="fast", dataSourceRef=HELLO, **more)


async def test_a_claim_of_a_foreign_kind_is_left_alone_with_one_normal_event() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        claim = await target_of(cluster)
        await cluster.settle()
        writes = len([each for each in cluster.requests if each.verb in ("patch", "create", "update")])
        await cluster.advance(3600.0)
        assert events(cluster, claim) == [
            ("Normal", "Provisioning", "Assuming an external populator will provision the volume")
        ]
        later = [each for each in cluster.requests if each.verb in ("patch", "create", "update")]
        assert [each for each in later[writes:] if each.resource == CLAIMS] == []
        assert cluster.backend.storage.assets == {}
        now = cluster.api.get(CLAIMS, "data")
        assert now is not None
        assert now["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] == cluster.driver
        assert "volplane.dev/intent" not in now["metadata"]["annotations"]


async def test_a_volume_populator_for_the_kind_changes_nothing_and_explain_names_the_kind() -> None:
    """Whether there is one is the volume-data-source-validator's to say (`UnrecognizedDataSourceKind`)."""
    async with Cluster() as cluster:
        install(cluster, VOLUME_POPULATORS)
        populates = {"sourceKind": {"group": HELLO["apiGroup"], "kind": HELLO["kind"]}, "metadata": {"name": "hello"}}
        body = {"apiVersion": "populator.storage.k8s.io/v1beta1", "kind": "VolumePopulator", **populates}
        send(cluster, "POST", "/apis/populator.storage.k8s.io/v1beta1/volumepopulators", body)
        await cluster.create_class("fast")
        claim = await target_of(cluster)
        await cluster.settle()
        assert [reason for _, reason, _ in events(cluster, claim)] == ["Provisioning"]
        told = cluster.controllers.plane.explain("claim", "default/data")
        assert any("Hello.hello.example.com" in each for each in told.next)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_volume_of_the_prime_is_bound_to_the_target_and_goes_with_that(*, restarted: bool) -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        claim = await target_of(cluster)
        populator = Populator(cluster, claim)
        volume = await cluster.wait_bound(await populator.make_prime())
        await cluster.settle()
        [asset] = cluster.backend.storage.assets.values()
        asset.contents.append("hello")
        populator.rebind(volume)
        if restarted:
            await cluster.restart()
        await populator.lost()
        bound = await cluster.wait_bound(claim)
        assert bound["metadata"]["name"] == volume["metadata"]["name"]
        populator.clean_up()
        await cluster.settle()
        assert cluster.api.get(CLAIMS, populator.prime, "populators") is None
        kept = cluster.api.get(VOLUMES, volume["metadata"]["name"])
        assert kept is not None
        assert (kept["status"]["phase"], asset.contents) == ("Bound", ["hello"])
        assert await leaks(cluster) == []
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert (volume in cluster.api, cluster.backend.storage.assets) == (False, {})


async def test_beside_a_scheduler_the_target_waits_for_its_node_and_is_bound_afterwards() -> None:
    async with Cluster() as cluster:
        await cluster.create_class("fast", binding_mode="WaitForFirstConsumer")
        claim = await target_of(cluster)
        await cluster.settle()
        assert [reason for _, reason, _ in events(cluster, claim)] == ["WaitForFirstConsumer"]
        selected = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node-1"}}}
        cluster.api.create("nodes", {"metadata": {"name": "node-1"}})
        cluster.api.patch(CLAIMS, "data", selected)
        await cluster.settle()
        populator = Populator(cluster, claim)
        prime = await populator.make_prime()
        cluster.api.patch(CLAIMS, populator.prime, selected, namespace="populators")
        volume = await cluster.wait_bound(prime)
        populator.rebind(volume)
        assert (await cluster.wait_bound(claim))["metadata"]["name"] == volume["metadata"]["name"]
        await populator.lost()


async def test_a_target_that_is_deleted_before_the_rebind_takes_nothing_with_it() -> None:
    """The library deletes the prime then, and with it the volume."""
    async with Cluster() as cluster:
        await cluster.create_class("fast")
        claim = await target_of(cluster)
        populator = Populator(cluster, claim)
        await cluster.wait_bound(await populator.make_prime())
        cluster.api.delete(CLAIMS, "data")
        populator.clean_up()
        await cluster.settle()
        assert cluster.api.all(CLAIMS) == []
        assert cluster.backend.storage.assets == {}


# --- a small populator, over kills ------------------------------------------------------------------------------------


class SmallPopulator(Populator):
    """Does what the objects lack, one write at a time. It remembers nothing, so it may be killed after any of them."""

    async def step(self) -> bool:
        """Return whether there is nothing more to do."""
        target = self.api.get(CLAIMS, self.target["name"])
        prime = self.api.get(CLAIMS, self.prime, "populators")
        held = target is not None and PROTECTION in target["metadata"].get("finalizers", [])
        if (
            target is None
            or "deletionTimestamp" in target["metadata"]
            or (prime and prime["status"]["phase"] == "Lost")
        ):
            if prime is not None:
                self.api.delete(CLAIMS, self.prime, "populators")
            elif held:
                self.api.patch(CLAIMS, self.target["name"], {"metadata": {"finalizers": self.finalizers() or None}})
            return prime is None and not held
        if prime is None and target["status"]["phase"] == "Bound":
            if held:
                self.api.patch(CLAIMS, self.target["name"], {"metadata": {"finalizers": self.finalizers() or None}})
            return not held
        if prime is None:
            await self.cluster.create_claim(self.prime, storage_class="fast", namespace="populators")
        elif not held:
            self.api.patch(CLAIMS, self.target["name"], {"metadata": {"finalizers": self.finalizers(PROTECTION)}})
        elif prime["status"]["phase"] == "Bound":
            self._fill(prime["spec"]["volumeName"])
        return False

    def _fill(self, name: str) -> None:
        volume = self.api.get(VOLUMES, name, "")
        assert volume is not None
        [asset] = self.cluster.backend.storage.assets.values()
        if not asset.contents:
            asset.contents.append("hello")
        elif volume["spec"]["claimRef"]["uid"] != self.target["uid"]:
            self.rebind(volume)


async def killed_at(cluster: Cluster, populator: SmallPopulator, number: int, *, lost: bool) -> None:
    """Let the populator work, and kill the controllers at their write of this number: before it, or after it."""
    died = asyncio.Event()

    async def die(_call: ApiCall, ask: Ask) -> Any:
        if not lost:
            await ask()
        died.set()
        return await asyncio.get_running_loop().create_future()

    writes = ("create", "patch", "delete")
    cluster.script.add(lambda call: call.verb in writes and call.resource != "events", die, skip=number)
    for _ in range(300):
        done = await populator.step()
        await asyncio.sleep(0.5)
        if died.is_set():
            died.clear()
            await cluster.restart()
        elif done:
            return
    raise AssertionError("the populator is never done")


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("number", range(11))
async def test_kills_at_any_write_neither_lose_nor_double_what_a_populator_made(number: int, lost: bool) -> None:
    backend = MemoryBackend()
    async with Cluster([backend]) as cluster:
        await cluster.create_class("fast")
        claim = await target_of(cluster)
        await killed_at(cluster, SmallPopulator(cluster, claim), number, lost=lost)
        await cluster.wait_bound(claim)
        await cluster.settle()
        assert [each.contents for each in backend.storage.assets.values()] == [["hello"]]
        assert [each["metadata"]["name"] for each in cluster.api.all(CLAIMS)] == ["data"]
        assert await leaks(cluster) == []
        await cluster.delete_claim(claim)
        await cluster.settle()
        assert (cluster.api.all(VOLUMES), backend.storage.assets) == ([], {})


@pytest.mark.parametrize("number", range(5))
async def test_a_target_that_goes_at_any_time_leaves_nothing(number: int) -> None:
    backend = MemoryBackend()
    async with Cluster([backend]) as cluster:
        await cluster.create_class("fast")
        populator = SmallPopulator(cluster, await target_of(cluster))
        for _ in range(number):
            await populator.step()
            await cluster.settle()
        cluster.api.delete(CLAIMS, "data")
        while not await populator.step():
            await cluster.advance(1.0)
        await cluster.advance(60.0)
        assert (cluster.api.all(CLAIMS), cluster.api.all(VOLUMES), backend.storage.assets) == ([], [], {})
