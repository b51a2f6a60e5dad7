"""What people and storages do to attachments and to claims that change: it heals, or says what a person must do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import pytest

from scenarios.attached_world import World, a_world
from volplane import (
    Asset,
    Attachment,
    AttachRequest,
    DeleteRequest,
    DetachRequest,
    Done,
    ExpandRequest,
    InProgress,
    InvalidArgument,
    OwnsRequest,
    Unavailable,
    hookimpl,
)
from volplane.attach.operation import AttachOperation
from volplane.controller.actions import Run
from volplane.errors import OperationError, OutcomeUnknown, VolplaneError
from volplane.kube import names
from volplane_testing import FailBefore, FaultyBackend, Hang, Slow
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryAsset, MemoryStorage


class SmallBackend(MemoryBackend):
    """Has assets of 4 GiB at most."""

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        if request.capacity_bytes > 4 << 30:
            raise InvalidArgument("at most 4Gi")
        return super().expand(request)


class AttachesAnywhere(MemoryBackend):
    """Does not look where else an asset is attached."""

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        self._there(request.volume).attached_to.append(request.node.name)
        return Attachment()


class DeletesAttached(MemoryBackend):
    """Deletes what is attached, too."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        self.storage.assets.pop(request.volume.name, None)
        return Done()


class OwnsWhatItHas(MemoryBackend):
    """Owns the volumes of assets that its storage has, as a driver of an account of its own does."""

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return self.storage.by_handle(request.source.fields["volumeHandle"]) is not None


class RefusesToDetach:
    """Makes backends whose first eight calls of `detach` fail."""

    def __call__(self, storage: MemoryStorage) -> object:
        busy = [FailBefore(Unavailable("the storage is busy"))] * 8
        return FaultyBackend(MemoryBackend(storage=storage), {"detach": busy})


class FailsToList:
    """Makes backends whose first two calls of `list_assets` fail."""

    def __call__(self, storage: MemoryStorage) -> object:
        failures = [FailBefore(Unavailable("not now")), FailBefore(KeyError("a bug"))]
        return FaultyBackend(MemoryBackend(storage=storage), {"list_assets": failures})


class HangsWhenListed:
    """Makes backends whose first two calls of `list_assets` never answer."""

    def __call__(self, storage: MemoryStorage) -> object:
        return FaultyBackend(MemoryBackend(storage=storage), {"list_assets": [Hang(), Hang()]})


class HangsUntilRestarted:
    """Makes backends; the first `attach` of the first one never answers."""

    def __init__(self) -> None:
        self._starts = 0

    def __call__(self, storage: MemoryStorage) -> object:
        self._starts += 1
        backend = MemoryBackend(storage=storage)
        return FaultyBackend(backend, {"attach": [Hang()]}) if self._starts == 1 else backend


class ListsSlowly:
    """Makes backends whose lists are half a minute on their way."""

    def __call__(self, storage: MemoryStorage) -> object:
        return FaultyBackend(MemoryBackend(storage=storage), {"list_assets": [Slow(after=30.0)] * 20})


class WorksLong(MemoryBackend):
    """Attaches and detaches by jobs, and notes what it was asked: hook, uid of the attachment, state."""

    asked: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []

    def _is_done(self, request: AttachRequest | DetachRequest) -> bool:
        self.asked.append((request.hook, request.attachment, dict(request.context.state or {})))
        return bool(request.context.state)

    @hookimpl
    def attach(self, request: AttachRequest) -> Any:
        return super().attach(request) if self._is_done(request) else InProgress(retry_after=3.0, state={"job": "a"})

    @hookimpl
    def detach(self, request: DetachRequest) -> Any:
        return super().detach(request) if self._is_done(request) else InProgress(retry_after=3.0, state={"job": "d"})


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


async def removed_at_once(world: World) -> None:
    """The volume is attached to node-1; a person removes its attachment with its finalizer in one moment."""
    await world.attach("node-1")
    world.cluster.fail("patch", "volumeattachments", times=50)
    await strip(world, "to-node-1")
    world.cluster.heal()
    assert world.asset.attached_to == ["node-1"]


async def looked_twice(world: World) -> list[str]:
    """Where the volume is attached after two comparisons and a minute."""
    for _ in range(2):
        await world.compare()
        await world.cluster.advance(30.0)
    return [] if world.volume not in world.storage.assets else world.asset.attached_to


async def test_a_disk_is_attached_to_no_second_node_through_another_volume() -> None:
    async with a_world(AttachesAnywhere) as world:
        await world.attach("node-1")
        spec = world.api.get("persistentvolumes", world.volume)["spec"]
        twin = {key: spec[key] for key in ("accessModes", "capacity", "csi")}
        world.api.create("persistentvolumes", {"metadata": {"name": "twin"}, "spec": twin})
        refused = await world.attach("node-2", "twin")
        assert refused["attached"] is False
        assert f"{world.volume} is attached to node-1 by to-node-1" in refused["attachError"]["message"]
        assert world.asset.attached_to == ["node-1"]


async def test_a_disk_for_one_node_is_attached_to_no_second_one_through_a_volume_that_allows_many() -> None:
    async with a_world(AttachesAnywhere) as world:
        await world.attach("node-1")
        spec = world.api.get("persistentvolumes", world.volume)["spec"]
        twin = {key: spec[key] for key in ("capacity", "csi")} | {"accessModes": ["ReadWriteMany"]}
        world.api.create("persistentvolumes", {"metadata": {"name": "twin"}, "spec": twin})
        refused = await world.attach("node-2", "twin")
        assert f"{world.volume} is attached to node-1 by to-node-1" in refused["attachError"]["message"]
        assert world.asset.attached_to == ["node-1"]


async def test_a_disk_outlives_its_claim_for_as_long_as_it_is_attached_through_another_volume_that_is_gone() -> None:
    async with a_world(DeletesAttached) as world:
        spec = world.api.get("persistentvolumes", world.volume)["spec"]
        twin = {key: spec[key] for key in ("accessModes", "capacity", "csi")}
        world.api.create("persistentvolumes", {"metadata": {"name": "twin"}, "spec": twin})
        await world.attach("node-1", "twin")
        world.api.patch("persistentvolumes", "twin", {"metadata": {"finalizers": None}})
        world.api.delete("persistentvolumes", "twin")
        await world.cluster.delete_claim(world.claim)
        await world.cluster.advance(600.0)
        assert world.volume in world.storage.assets
        assert world.reasons(world.volume) == ["attachments of it exist, to node-1"]
        world.api.delete("volumeattachments", "twin-to-node-1")
        await world.cluster.advance(5.0)
        assert world.storage.assets == {}


async def test_a_volume_of_ours_without_its_attachment_is_detached_after_two_looks() -> None:
    async with a_world() as world:
        await removed_at_once(world)
        await world.attach("node-2")
        await world.compare()
        await world.cluster.advance(30.0)
        assert world.asset.attached_to == ["node-1"], "one look may be a late answer"
        await world.compare()
        await world.cluster.advance(300.0)
        assert world.asset.attached_to == ["node-2"]
        assert [each["metadata"]["name"] for each in world.api.all("volumeattachments")] == ["to-node-2"]
        await world.compare()
        await world.cluster.advance(60.0)
        assert world.asset.attached_to == ["node-2"], "what has an attachment stays"


async def test_a_claim_that_goes_is_not_kept_by_what_is_attached_without_an_attachment() -> None:
    async with a_world() as world:
        await removed_at_once(world)
        await world.cluster.delete_claim(world.claim)
        await world.cluster.advance(60.0)
        assert world.asset.attached_to == ["node-1"], "the storage deletes nothing that is attached"
        await looked_twice(world)
        await world.cluster.advance(300.0)
        assert world.storage.assets == {}
        assert world.api.all("persistentvolumes") == []


async def test_a_process_that_starts_anew_detaches_what_the_former_one_left_attached() -> None:
    async with a_world() as world:
        await removed_at_once(world)
        await world.cluster.restart()
        assert await looked_twice(world) == []


async def test_lists_that_fail_do_not_end_the_comparisons() -> None:
    async with a_world(FailsToList()) as world:
        await removed_at_once(world)
        plane = world.cluster.controllers.plane
        assert plane.attachments is not None
        comparing = asyncio.create_task(plane.attachments.run())
        await world.cluster.advance(150.0)
        assert world.asset.attached_to == ["node-1"]
        await world.cluster.advance(150.0)
        assert world.asset.attached_to == []
        comparing.cancel()


@pytest.mark.parametrize("place", ["i-3", "z/i-3", "aws:///z/i-3"])
async def test_a_backend_may_list_a_machine_by_an_end_of_its_id(place: str) -> None:
    async with a_world() as world:
        world.api.create("nodes", {"metadata": {"name": "node-3"}, "spec": {"providerID": "aws:///z/i-3"}})
        await world.attach("node-3")
        world.asset.attached_to[:] = [place]
        assert await looked_twice(world) == [place]
        volume: Any = world.api.get("persistentvolumes", world.volume)
        reasons = {event["reason"] for event in world.api.events(volume)}
        assert not reasons & {"UnexpectedAttachment", "AttachmentLost"}
        world.asset.attached_to[:] = ["3", "other/i-3"]
        await looked_twice(world)
        assert "AttachmentLost" in {event["reason"] for event in world.api.events(volume)}, "that is no end of it"


async def test_what_a_person_attached_to_a_machine_that_is_no_node_stays() -> None:
    async with a_world() as world:
        world.asset.attached_to.append("rescue-host")
        assert await looked_twice(world) == ["rescue-host"]
        volume: Any = world.api.get("persistentvolumes", world.volume)
        [told] = [event for event in world.api.events(volume) if event["reason"] == "UnexpectedAttachment"]
        assert told["message"] == (
            "the backend shows it attached to rescue-host, for which there is no VolumeAttachment; a person may want "
            "that, and it stays"
        )


async def test_a_backend_may_list_a_node_by_its_name_alone() -> None:
    async with a_world() as world:
        world.api.create("nodes", {"metadata": {"name": "node-3"}, "spec": {"providerID": "aws:///z/i-3"}})
        world.asset.attached_to.append("node-3")
        assert await looked_twice(world) == [], "it is detached from there"


async def test_an_attachment_without_the_id_of_its_node_is_compared_by_the_name() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        world.cluster.fail("patch", "volumeattachments", times=50)  # nobody puts it back meanwhile
        world.api.patch("volumeattachments", "to-node-1", {"metadata": {"annotations": {names.NODE_ID: None}}})
        assert await looked_twice(world) == ["node-1"]
        volume: Any = world.api.get("persistentvolumes", world.volume)
        assert not {event["reason"] for event in world.api.events(volume)} & {"AttachmentLost", "UnexpectedAttachment"}
        world.asset.attached_to[:] = ["elsewhere"]
        await looked_twice(world)
        assert "AttachmentLost" in {event["reason"] for event in world.api.events(volume)}


async def test_what_is_not_attached_yet_is_not_called_lost() -> None:
    async with a_world() as world:
        refused = await world.attach("unknown")
        assert refused["attached"] is False
        world.api.delete("nodes", "unknown")
        await world.cluster.advance(600.0)
        assert await looked_twice(world) == []
        volume: Any = world.api.get("persistentvolumes", world.volume)
        assert "AttachmentLost" not in {event["reason"] for event in world.api.events(volume)}


async def test_what_was_detached_while_the_list_was_on_its_way_is_not_called_unexpected() -> None:
    async with a_world(ListsSlowly()) as world:
        await world.attach("node-1")
        comparing = asyncio.create_task(world.compare())
        await asyncio.sleep(1.0)
        world.api.delete("volumeattachments", "to-node-1")
        await comparing
        assert world.api.all("volumeattachments") == []
        await world.cluster.advance(5.0)
        volume: Any = world.api.get("persistentvolumes", world.volume)
        assert "UnexpectedAttachment" not in {event["reason"] for event in world.api.events(volume)}


async def test_what_was_attached_while_the_list_was_on_its_way_is_not_lost_after_one_look() -> None:
    async with a_world(ListsSlowly()) as world:
        comparing = asyncio.create_task(world.compare())
        await asyncio.sleep(1.0)
        source = {"persistentVolumeName": world.volume}
        spec = {"attacher": world.driver, "nodeName": "node-1", "source": source}
        world.api.create("volumeattachments", {"metadata": {"name": "to-node-1"}, "spec": spec})
        await comparing
        assert world.asset.attached_to == ["node-1"]
        world.asset.attached_to.clear()
        await world.compare()
        await world.cluster.advance(5.0)
        assert world.asset.attached_to == []
        await world.compare()
        await world.cluster.advance(5.0)
        assert world.asset.attached_to == ["node-1"], "after two looks it is attached again"


async def test_what_a_long_attach_or_detach_has_answered_comes_back_to_it() -> None:
    WorksLong.asked.clear()
    async with a_world(WorksLong) as world:
        assert (await world.attach("node-1"))["attached"] is True
        made: Any = world.api.get("volumeattachments", "to-node-1")
        await world.detach("node-1")
        uid, attach, detach = made["metadata"]["uid"], {"job": "a"}, {"job": "d"}
        first, second = [("attach", uid, {}), ("attach", uid, attach)], [("detach", uid, {}), ("detach", uid, detach)]
        assert WorksLong.asked == first + second


async def test_an_attach_that_waited_is_not_begun_once_its_attachment_is_being_deleted() -> None:
    async with a_world(RefusesToDetach()) as world:
        await world.attach("node-1")
        plane = world.cluster.controllers.plane
        assert plane.attachments is not None
        attachment = plane.state.attachments.get("to-node-1")
        assert attachment is not None
        run = Run(verb="attach", key=attachment.key, uid=attachment.uid, driver=world.driver, asset="any")
        operation = AttachOperation(plane.attachments.deps)
        attach = operation(run)
        for other in ({"uid": "of a former one"}, {"key": "gone"}):
            with pytest.raises(OperationError, match="what it was decided for is gone"):
                operation(msgspec.structs.replace(run, **other))
        world.api.delete("volumeattachments", "to-node-1")
        await world.cluster.advance(1.0)
        world.asset.attached_to.clear()
        with pytest.raises(VolplaneError):
            await attach()
        assert world.asset.attached_to == []


async def test_what_carries_the_marks_of_another_cluster_stays_attached() -> None:
    async with a_world() as world:
        await removed_at_once(world)
        assert world.asset.owner is not None
        world.asset.owner = replace(world.asset.owner, cluster_id="another")
        assert await looked_twice(world) == ["node-1"]


async def test_a_volume_that_a_person_made_stays_where_a_person_attached_it() -> None:
    async with a_world() as world:
        await removed_at_once(world)
        world.api.patch("persistentvolumes", world.volume, {"metadata": {"annotations": None}})
        assert await looked_twice(world) == ["node-1"]


async def test_what_a_kubelet_still_uses_is_not_detached_though_its_attachment_is_gone() -> None:
    async with a_world() as world:
        await removed_at_once(world)
        unique = world.unique_name
        world.api.patch("nodes", "node-1", {"status": {"volumesInUse": [unique]}}, subresource="status")
        assert await looked_twice(world) == ["node-1"]
        world.api.patch("nodes", "node-1", {"status": {"volumesInUse": None}}, subresource="status")
        await world.compare()
        await world.cluster.advance(30.0)
        assert world.asset.attached_to == []


async def test_a_detach_of_what_was_left_that_fails_says_so_and_goes_on() -> None:
    async with a_world(RefusesToDetach()) as world:
        await removed_at_once(world)
        assert await looked_twice(world) == ["node-1"]
        [left] = world.api.all("volumeattachments")
        assert "the storage is busy" in left["status"]["detachError"]["message"]
        await world.cluster.advance(600.0)
        assert world.asset.attached_to == []
        assert world.api.all("volumeattachments") == []


async def test_an_attachment_is_found_lost_though_another_driver_is_compared_in_between() -> None:
    async with a_world(others=["second.example.com"]) as world:
        await world.attach("node-1")
        world.asset.attached_to.clear()
        for _ in range(2):
            await world.compare()
            await world.compare("second.example.com")
        await world.cluster.advance(30.0)
        assert world.asset.attached_to == ["node-1"]


async def test_a_list_that_hangs_costs_one_thread_though_it_is_wanted_for_attachments_and_for_leaks() -> None:
    async with a_world(HangsWhenListed()) as world:
        plane = world.cluster.controllers.plane
        driver = plane.drivers.get(world.driver)
        assert driver is not None
        comparing = asyncio.create_task(world.compare())
        await plane.leak_check.check(driver)
        await world.cluster.advance(300.0)
        assert isinstance(comparing.exception(), Unavailable | OutcomeUnknown)
        assert [call.what for call in plane.executor.running(world.driver)] == ["list_assets"]


async def a_static_volume(world: World) -> None:
    """A person's asset `hand`, and a PersistentVolume of it."""
    made = MemoryAsset(handle="hand-1", name="hand", owner=None, capacity_bytes=1 << 30, demand=())
    world.storage.assets["hand"] = made
    spec = world.api.get("persistentvolumes", world.volume)["spec"]
    source = {**spec["csi"], "volumeHandle": "hand-1"}
    body = {"capacity": spec["capacity"], "accessModes": spec["accessModes"], "csi": source}
    world.api.create("persistentvolumes", {"metadata": {"name": "hand"}, "spec": body})


async def test_a_static_volume_is_attached_by_the_one_of_several_drivers_that_owns_it() -> None:
    async with a_world(OwnsWhatItHas, others=("second.volplane.dev",)) as world:
        await a_static_volume(world)
        assert (await world.attach("node-1", "hand"))["attached"] is True
        assert world.storage.assets["hand"].attached_to == ["node-1"]
        await world.cluster.restart()
        world.api.patch("volumeattachments", "hand-to-node-1", {"metadata": {"finalizers": None}})
        await world.cluster.advance(5.0)
        held: Any = world.api.get("volumeattachments", "hand-to-node-1")
        assert held["metadata"]["finalizers"] == ["external-attacher/memory-volplane-dev"]


async def test_a_static_volume_that_several_drivers_own_is_attached_by_none_and_says_so() -> None:
    async with a_world(others=("second.volplane.dev",)) as world:
        await a_static_volume(world)
        told = (await world.attach("node-1", "hand"))["attachError"]["message"]
        assert told == (
            'none of the drivers memory.volplane.dev, second.volplane.dev owns volume "hand": '
            "several drivers say it is theirs: memory.volplane.dev, second.volplane.dev"
        )


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


class NotesReadOnly(MemoryBackend):
    """Attaches everything, and notes what was asked to be read-only."""

    asked: ClassVar[list[bool]] = []

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        self.asked.append(request.read_only)
        return Attachment()


async def test_a_read_only_volume_is_attached_as_one() -> None:
    NotesReadOnly.asked.clear()
    async with a_world(NotesReadOnly) as world:
        await world.attach("node-1")
        source = {"csi": {"driver": world.driver, "volumeHandle": "static", "readOnly": True}}
        await world.cluster.create_volume("static", source)
        await world.attach("node-1", "static")
        assert NotesReadOnly.asked == [False, True]


async def test_the_csidriver_that_somebody_deletes_is_made_again() -> None:
    async with a_world() as world:
        made: Any = world.api.get("csidrivers", world.driver)
        world.api.delete("csidrivers", world.driver)
        await world.cluster.advance(5.0)
        again: Any = world.api.get("csidrivers", world.driver)
        assert again["metadata"]["uid"] != made["metadata"]["uid"]
        assert again["spec"]["attachRequired"] is True


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


async def test_a_record_that_a_person_removes_is_written_again() -> None:
    async with a_world() as world:
        await world.attach("node-1")
        before = annotations(world)
        world.api.patch("volumeattachments", "to-node-1", {"metadata": {"annotations": None}})
        await world.cluster.advance(5.0)
        assert annotations(world) == before


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_record_that_a_person_edits_leads_to_no_other_asset(at_once: bool) -> None:
    """at_once: the attachment is deleted in the same moment."""
    async with a_world() as world:
        other = await world.cluster.wait_bound(await world.cluster.create_claim("other", storage_class="fast"))
        second = world.storage.assets[other["metadata"]["name"]]
        await world.attach("node-1")
        await world.attach("node-1", other["metadata"]["name"])
        before = annotations(world)
        record = json.loads(before["volplane.dev/intent"])
        assert record["handle"] != second.handle
        edited = {"volplane.dev/intent": json.dumps({**record, "handle": second.handle, "asset": second.name})}
        world.api.patch("volumeattachments", "to-node-1", {"metadata": {"annotations": edited}})
        if not at_once:
            await world.cluster.advance(5.0)
            assert annotations(world) == before
        await world.detach("node-1")
        assert (world.asset.attached_to, second.attached_to) == ([], ["node-1"])


def annotations(world: World) -> dict[str, str]:
    found: dict[str, str] = (world.api.get("volumeattachments", "to-node-1") or {})["metadata"]["annotations"]
    return found


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
