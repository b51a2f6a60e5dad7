"""A warm pool beside a stock binder: we scrub and take the reference away, the binder offers the volume again."""

from __future__ import annotations

import asyncio
from typing import Any

from integration.beside import Beside, fast, ours, pod
from scenarios.backends import ScriptedBackend
from scenarios.harness import OURS
from scenarios.recycling import end, permitted, pods
from scenarios.stories import DRIVER

POOL = {"parameters": {"volplane.dev/on-release": "recycle"}}
INTENT = "volplane.dev/intent"


class Pool(Beside):
    """A stock binder, and a driver that erases with a pod, or with its hook."""

    def __init__(self, *, by_pod: bool = True, **more: Any) -> None:
        super().__init__(ScriptedBackend(DRIVER, recycler_pod=by_pod), **more)

    async def released(self) -> str:
        """The name of a volume whose claim was just deleted."""
        await self.create("classes", fast(**POOL))
        await self.create("claims", ours("first"))
        await self.start_both()
        await self.settle()
        name: str = (await self.bound_volume("first"))["metadata"]["name"]
        await self.delete("claims", "first")
        return name

    def no_status_written(self) -> bool:
        return not [call for call in self.our_writes() if call.resource == "persistentvolumes/status"]


async def test_a_released_volume_is_scrubbed_and_taken_by_the_next_claim() -> None:
    async with Pool() as harness:
        name = await harness.released()
        scrubber = await permitted(harness)
        assert (await harness.volumes()) == {name: "Released"}
        await end(harness, scrubber, "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {name: "Available"}
        assert await pods(harness) == []
        offered = await harness.volume(name)
        assert "claimRef" not in offered["spec"]
        assert INTENT not in offered["metadata"]["annotations"]
        await harness.create("claims", ours("second"))
        await harness.settle()
        assert (await harness.bound_volume("second"))["metadata"]["name"] == name
        assert harness.backend.calls["provision"] == 1
        assert harness.no_status_written()
        assert harness.events["Normal VolumeRecycled"] == 1


async def test_a_backend_that_erases_by_itself_needs_no_pod() -> None:
    async with Pool(by_pod=False) as harness:
        name = await harness.released()
        await harness.settle()
        assert await harness.volumes() == {name: "Available"}
        assert harness.backend.calls["recycle"] == 1


async def test_a_claim_of_the_same_name_does_not_get_it_unscrubbed() -> None:
    async with Pool() as harness:
        name = await harness.released()
        scrubber = await permitted(harness)
        await harness.create("claims", ours("first"))
        await harness.settle()
        assert (await harness.bound_volume("first"))["metadata"]["name"] != name
        assert (await harness.volume(name))["status"]["phase"] == "Released"
        await end(harness, scrubber, "Succeeded")
        await harness.settle()
        assert (await harness.volume(name))["status"]["phase"] == "Available"


async def test_each_failed_scrub_is_said_and_after_the_last_one_the_volume_waits_for_a_person() -> None:
    async with Pool() as harness:
        name = await harness.released()
        for _ in range(3):
            scrubber = await permitted(harness, 120.0)
            ended = {"exitCode": 1, "reason": "Error", "message": "rm: /scrub/x: read-only\nnot erased:\nx"}
            statuses = [{"name": "scrub", "state": {"terminated": ended}, "image": "i", "imageID": "", "ready": False}]
            await end(harness, scrubber, "Failed", containerStatuses=[{**each, "restartCount": 0} for each in statuses])
            await harness.until(lambda uid=scrubber["metadata"]["uid"]: gone(harness, uid), 120.0, "the pod is removed")
        await harness.settle()
        assert await harness.volumes() == {name: "Released"}
        told = harness.messages("VolumeFailedRecycle")
        assert len(told) >= 3
        assert all("rm: /scrub/x: read-only not erased: x" in message for message in told)
        assert f"remove the annotation {INTENT} to try again" in told[-1]
        assert harness.no_status_written()
        await harness.patch("volumes", name, {"metadata": {"annotations": {INTENT: None}}})
        await end(harness, await permitted(harness, 120.0), "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {name: "Available"}


async def gone(harness: Pool, uid: str) -> bool:
    return all(each["metadata"]["uid"] != uid for each in await pods(harness))


async def test_a_policy_or_reference_that_changes_in_the_middle_stops_the_scrub() -> None:
    for change in ({"persistentVolumeReclaimPolicy": "Retain"}, {"claimRef": None}):
        async with Pool() as harness:
            name = await harness.released()
            await permitted(harness)
            await harness.patch("volumes", name, {"spec": change})
            await harness.settle()
            assert await pods(harness) == []
            assert INTENT not in (await harness.volume(name))["metadata"]["annotations"]
            assert harness.backend.assets


async def test_deleting_the_object_in_the_middle_deletes_the_asset_and_the_pod() -> None:
    async with Pool() as harness:
        name = await harness.released()
        await permitted(harness)
        await harness.delete("volumes", name)
        await harness.settle()
        await harness.nothing_left()
        assert await harness.everything("pods", OURS) == []


async def test_a_volume_that_a_pod_still_uses_is_not_scrubbed() -> None:
    async with Pool() as harness:
        await harness.create("nodes", {"metadata": {"name": "node-1"}})
        await harness.create("classes", fast(**POOL))
        await harness.create("claims", ours("first"))
        await harness.create("pods", pod("user", "first"))
        await harness.start_both()
        await harness.settle()
        await harness.delete("claims", "first")
        await harness.settle()
        assert await pods(harness) == []
        assert (await harness.bound_volume("first"))["status"]["phase"] == "Bound"
        await harness.delete("pods", "user", grace=0)
        await permitted(harness)


async def test_a_restart_in_the_middle_goes_on_with_the_same_pod() -> None:
    async with Pool() as harness:
        name = await harness.released()
        scrubber = await permitted(harness)
        await harness.restart()
        await harness.settle()
        assert [each["metadata"]["uid"] for each in await pods(harness)] == [scrubber["metadata"]["uid"]]
        await end(harness, scrubber, "Succeeded")
        await harness.settle()
        assert await harness.volumes() == {name: "Available"}


async def test_nothing_is_erased_while_a_pod_that_outlived_its_claim_uses_it() -> None:
    async with Pool(by_pod=False) as harness:
        await harness.create("classes", fast(**POOL))
        await harness.create("claims", ours("first"))
        await harness.start_both()
        await harness.settle()
        name: str = (await harness.bound_volume("first"))["metadata"]["name"]
        await harness.create("pods", pod("user", "first"))
        await harness.patch("claims", "first", {"metadata": {"finalizers": None}})
        await harness.delete("claims", "first")
        await asyncio.sleep(60)
        assert harness.backend.calls["recycle"] == 0
        assert harness.messages("VolumeFailedRecycle")[-1] == "Volume is used by pods: default/user"
        await harness.delete("pods", "user")
        await harness.settle()
        assert await harness.volumes() == {name: "Available"}
