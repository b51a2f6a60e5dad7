"""What people and storages do to attachments and to claims that change: it heals, or says what a person must do."""

from __future__ import annotations

from typing import Any

from scenarios.attached_world import World, a_world
from volplane import Asset, ExpandRequest, InvalidArgument, hookimpl
from volplane_testing import FaultyBackend, Hang
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage


class SmallBackend(MemoryBackend):
    """Has assets of 4 GiB at most."""

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        if request.capacity_bytes > 4 << 30:
            raise InvalidArgument("at most 4Gi")
        return super().expand(request)


class HangsUntilRestarted:
    """Makes backends; the first `attach` of the first one never answers."""

    def __init__(self) -> None:
        self._starts = 0

    def __call__(self, storage: MemoryStorage) -> object:
        self._starts += 1
        backend = MemoryBackend(storage=storage)
        return FaultyBackend(backend, {"attach": [Hang()]}) if self._starts == 1 else backend


async def strip(world: World, name: str) -> None:
    """A person removes the finalizer of an attachment, and the attachment."""
    world.api.patch("volumeattachments", name, {"metadata": {"finalizers": None}})
    world.api.delete("volumeattachments", name)
    await world.cluster.advance(5.0)


async def test_without_its_attachment_a_volume_is_said_to_be_where_it_is_and_can_be_freed_by_hand() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        world.cluster.fail("patch", "volumeattachments", times=50)  # nobody puts the finalizer back meanwhile
        await strip(world, "to-node-1")
        world.cluster.heal()
        assert world.asset.attached_to == ["node-1"]
        refused = await world.attach("node-2")
        assert refused["attached"] is False
        assert "is attached to node-1" in refused["attachError"]["message"]
        await world.compare()
        await world.cluster.advance(5.0)
        volume: Any = world.api.get("persistentvolumes", world.volume)
        [told] = [event for event in world.api.events(volume) if event["reason"] == "UnexpectedAttachment"]
        assert "attached to node-1, for which there is no VolumeAttachment" in told["message"]
        await world.attach("node-1")
        await world.detach("node-1")
        await world.cluster.advance(600.0)
        assert world.asset.attached_to == ["node-2"]


async def test_an_attach_that_never_answers_is_said_and_holds_up_its_own_volume_alone() -> None:
    async with a_world(HangsUntilRestarted()) as world:
        await world.attach("node-1")
        claim = await world.cluster.create_claim("other", storage_class="fast", capacity="1Gi")
        other = await world.cluster.wait_bound(claim)
        attached = await world.attach("node-2", other["metadata"]["name"])
        assert attached["attached"] is True
        await world.cluster.advance(300.0)
        stuck = await world.later("to-node-1")
        assert stuck["attached"] is False
        assert "did not return" in stuck["attachError"]["message"]
        await world.cluster.restart()
        assert (await world.later("to-node-1"))["attached"] is True


async def test_a_status_that_a_person_edits_is_put_right() -> None:
    async with a_world() as world:
        before = await world.attach("node-1")
        nothing = {"status": {"attached": False, "attachmentMetadata": None}}
        world.api.patch("volumeattachments", "to-node-1", nothing, subresource="status")
        assert await world.later("to-node-1") == before


async def test_a_finalizer_that_a_person_removes_comes_back_so_that_nothing_stays_attached_unseen() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        stripped = {"metadata": {"finalizers": None, "annotations": None}}
        world.api.patch("volumeattachments", "to-node-1", stripped)
        await world.cluster.advance(5.0)
        await world.detach("node-1")
        assert world.asset.attached_to == []


async def test_an_attachment_of_a_claim_that_goes_keeps_the_volume_until_it_is_deleted() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        await world.cluster.delete_claim(world.claim)
        await world.cluster.advance(3600.0)
        volume: Any = world.api.get("persistentvolumes", world.volume)
        assert volume["status"]["phase"] == "Released"
        assert any("node-1" in reason for reason in world.reasons(world.volume))
        await world.detach("node-1")
        await world.cluster.advance(60.0)
        assert world.storage.assets == {}


async def test_a_claim_may_grow_and_change_at_once_over_a_crash() -> None:
    async with a_world() as world:
        world.cluster.delay("patch", "persistentvolumeclaims/status", 5.0, times=4)
        body = {"metadata": {"name": "red"}, "driverName": world.driver, "parameters": {"colour": "red"}}
        world.api.create("volumeattributesclasses", body)
        both = {"resources": {"requests": {"storage": "2Gi"}}, "volumeAttributesClassName": "red"}
        world.api.patch("persistentvolumeclaims", "data", {"spec": both})
        await world.cluster.advance(7.0)
        await world.cluster.restart()
        await world.cluster.advance(120.0)
        assert world.asset.capacity_bytes == 2 << 30
        assert world.asset.modified == {"colour": "red"}
        status = world.claim["status"]
        assert status["capacity"] == {"storage": "2Gi"}
        assert status["currentVolumeAttributesClassName"] == "red"
        assert not status.get("conditions")
        assert "modifyVolumeStatus" not in status


async def test_a_size_that_is_refused_for_ever_does_not_hold_up_other_attributes() -> None:
    async with a_world(SmallBackend) as world:
        claim = await world.ask(9)
        assert claim["status"]["allocatedResourceStatuses"] == {"storage": "ControllerResizeInfeasible"}
        claim = await world.name_attributes("red", colour="red")
        await world.cluster.advance(300.0)
        assert world.claim["status"]["currentVolumeAttributesClassName"] == "red"
        assert [each["type"] for each in world.claim["status"]["conditions"]] == ["ControllerResizeError"]
        claim = await world.ask(3)
        assert claim["status"]["capacity"] == {"storage": "3Gi"}
        assert not claim["status"].get("conditions")
