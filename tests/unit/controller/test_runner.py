"""A runner: steps follow each other on the server's answers, whatever comes between."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from unit.controller.running import SPEC, World, label, labelled, running
from volplane.controller.actions import Action, Create, Delete, EventRecord, LiveReads, Patch, Read, Run, Settled, Wait
from volplane.kube.cache import Cache
from volplane.kube.kinds import PODS, VOLUMES
from volplane.kube.objects import Volume
from volplane.kube.transport import Response
from volplane_testing.transport import refusal


async def test_steps_follow_each_other_until_done_on_the_answers_alone(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        step = int(labelled(volume))
        return Settled() if step == 3 else label(volume, str(step + 1))

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.decided == ["a"] * 4
        assert labelled(await world.live()) == "3"
        assert world.wire.writes()[1:] == [("PATCH", "/api/v1/persistentvolumes/a")] * 3
        assert world.runner.reasons == {}


@pytest.mark.parametrize(("reading", "decisions"), [(False, 3), (True, 6)])
async def test_own_writes_cause_no_further_pass_unless_the_last_decision_relied_on_a_live_read(
    wire: Callable[[], Any], reading: bool, decisions: int
) -> None:
    world = World(wire())
    await world.make()
    world.cache.subscribe(lambda _old, new: world.runner.enqueue(new.key) if new is not None else None)

    def decide(key: str, reads: LiveReads) -> Action:
        if reading and not reads.has(VOLUMES, key):
            return Read(VOLUMES, key, why="what is there now?")
        step = int(labelled(world.volume(key)))
        return Settled() if step == 2 else label(world.volume(key), str(step + 1))

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.decided == ["a"] * decisions


@pytest.mark.parametrize("reading", [False, True])
async def test_own_writes_do_not_end_the_pause_after_steps_that_settle_nothing(
    wire: Callable[[], Any], reading: bool
) -> None:
    """50 writes and a pause that doubles from 5 ms: ten rounds take more than two seconds."""
    world = World(wire())
    await world.make()
    world.cache.subscribe(lambda _old, new: world.runner.enqueue(new.key) if new is not None else None)

    def decide(key: str, reads: LiveReads) -> Action:
        if reading and not reads.has(VOLUMES, key):
            return Read(VOLUMES, key, why="what is there now?")
        return label(world.volume(key), str(int(labelled(world.volume(key))) + 1))

    async with running(world, decide):
        world.runner.enqueue("a")
        await asyncio.sleep(2.0)
        assert len(world.wire.writes()) <= 10 * 50
        assert "50 steps did not settle it" in world.runner.reasons["a"]


@pytest.mark.parametrize(
    ("last", "live"), [("write", True), ("read", False), ("conflict", False), ("of another", False), ("none", False)]
)
async def test_an_operation_is_told_whether_the_server_has_just_answered_with_its_object(
    wire: Callable[[], Any], last: str, live: bool
) -> None:
    world = World(wire())
    await world.make("a")
    await world.make("b")
    if last == "conflict":
        await world.wire.client.patch(VOLUMES, "a", {"metadata": {"labels": {"step": "1"}}})

    def decide(key: str, reads: LiveReads) -> Action:
        volume = world.volume(key)
        if labelled(world.volume("b" if last == "of another" else "a")) == "0" and last != "none":
            return label(world.volume("b") if last == "of another" else volume, "1")
        if last == "read" and not reads.has(VOLUMES, key):
            return Read(VOLUMES, key, why="is it there?")
        return Run(verb="delete", key=key, uid=volume.uid, driver="disk.example.com", asset="a")

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.operations.started[0].live is live


async def test_no_pass_is_spent_on_what_the_predicate_refuses_and_its_reason_goes(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()
    refused: set[str] = set()

    async with running(
        world, lambda _key, _: Wait(reason="later", seconds=60.0), predicate=lambda key: key not in refused
    ):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.runner.reasons == {"a": "later"}
        refused.add("a")
        world.runner.enqueue("a")
        world.runner.enqueue("a", 1.0)
        await world.quiet()
        assert world.decided == ["a"]
        assert world.runner.reasons == {}


async def test_what_comes_to_rest_while_it_is_in_work_is_decided_once_more(wire: Callable[[], Any]) -> None:
    """The pass may have read it before: what it says last must be about what is there now."""
    world = World(wire())
    await world.make()

    def decide(key: str, reads: LiveReads) -> Action:
        if not reads.has(VOLUMES, key):
            return Read(VOLUMES, key, why="what is there now?")
        if len(world.decided) > 2:
            return Settled()
        world.runner.enqueue(key)
        return Wait(reason="as it was read")

    async with running(world, decide, predicate=lambda _key: not world.decided):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.decided == ["a"] * 4
        assert world.runner.reasons == {}


async def test_what_others_change_after_the_last_decision_is_decided_again(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        return Settled() if labelled(world.volume(key)) == "1" else label(world.volume(key), "1")

    async with running(world, decide):
        world.cache.subscribe(lambda _old, _new: asyncio.get_running_loop().call_soon(world.runner.enqueue, "a"))
        world.runner.enqueue("a")
        await world.quiet()
        assert world.decided == ["a"] * 3


async def test_no_step_is_taken_while_the_lease_is_over_and_none_is_forgotten(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        return Settled() if labelled(world.volume(key)) == "1" else label(world.volume(key), "1")

    async with running(world, decide):
        world.leads = False
        world.runner.enqueue("a")
        await asyncio.sleep(5)
        assert labelled(await world.live()) == "0"
        world.leads = True
        await asyncio.sleep(2)
        assert labelled(await world.live()) == "1"


async def test_notices_are_recorded_only_after_the_write_is_acknowledged(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        if labelled(volume) == "1":
            return Settled()
        return label(volume, "1", events=(EventRecord(VOLUMES, volume, "Normal", "Labelled", "it is"),))

    async with running(world, decide):
        world.wire.fail(("PATCH", "/"))
        world.runner.enqueue("a")
        await world.quiet()
        assert world.events.seen == []
        await asyncio.sleep(1)
        assert [event.reason for event in world.events.seen] == ["Labelled"]


async def test_a_conflict_is_healed_by_a_live_read_and_a_new_decision(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()
    await world.wire.client.patch(VOLUMES, "a", {"metadata": {"labels": {"else": "x"}}})

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        return Settled() if labelled(volume) == "1" else label(volume, "1")

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.decided == ["a"] * 3
        assert (await world.live()).metadata.labels == {"else": "x", "step": "1"}


async def test_conflicts_without_end_come_back_later(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        return label(world.volume(key), "1")

    async with running(world, decide):
        refuse = Response(409, {}, b'{"message":"changed","reason":"Conflict"}')
        world.wire.before = lambda method, _path: refuse if method == "PATCH" else None
        world.runner.enqueue("a")
        await world.quiet()
        assert len(world.decided) == 6
        assert "6 conflicts in a row" in world.runner.reasons["a"]
        assert world.runner.queue.next_due == pytest.approx(0.005)


async def test_an_answer_that_was_lost_is_found_by_the_conflict_it_causes(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        step = int(labelled(volume))
        return Settled() if step == 2 else label(volume, str(step + 1))

    async with running(world, decide):
        world.wire.fail(("PATCH", "/"), after=True)
        world.runner.enqueue("a")
        await asyncio.sleep(5)
        assert labelled(await world.live()) == "2"
        assert [call[0] for call in world.wire.writes()[1:]] == ["PATCH"] * 3


async def test_create_of_what_exists_reads_it_and_decides_again(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()
    world.cache.observe_deleted("a", "nobody")
    world.cache = Cache(VOLUMES)

    def decide(key: str, _: LiveReads) -> Action:
        if key in world.cache:
            return Settled()
        body = VOLUMES.body(metadata={"name": key}, spec=SPEC)
        event = EventRecord(VOLUMES, Volume(), "Normal", "Made", "")
        return Create(kind=VOLUMES, body=body, why="it is missing", events=(event,))

    async with running(world, decide):
        for key in ("a", "b"):
            world.runner.enqueue(key)
        await world.quiet()
        assert world.cache.keys() == ["a", "b"]
        assert len(world.events.seen) == 1


async def test_a_deleted_object_leaves_the_cache_or_stays_terminating(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make("kept")
    await world.make("free")
    world.cache.observe(await world.wire.client.patch(VOLUMES, "free", {"metadata": {"finalizers": None}}))

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.cache.get(key)
        if volume is None or volume.terminating:
            return Settled()
        return Delete(kind=VOLUMES, target=volume, why="nobody wants it")

    async with running(world, decide):
        for key in ("kept", "free"):
            world.runner.enqueue(key)
        await world.quiet()
        assert world.cache.keys() == ["kept"]
        assert world.volume("kept").terminating


async def test_a_delete_of_another_version_or_of_what_is_gone_is_decided_anew(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make("a")
    await world.make("gone")
    await world.wire.client.patch(VOLUMES, "a", {"metadata": {"labels": {"keep": "me"}}})
    await world.wire.client.patch(VOLUMES, "gone", {"metadata": {"finalizers": None}})
    await world.wire.client.delete(VOLUMES, "gone")

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.cache.get(key)
        if volume is None or (volume.metadata.labels or {}).get("keep"):
            return Settled()
        return Delete(kind=VOLUMES, target=volume, why="nobody wants it")

    async with running(world, decide):
        for key in ("a", "gone"):
            world.runner.enqueue(key)
        await world.quiet()
        assert world.cache.keys() == ["a"]
        assert not (await world.live()).terminating


async def test_removing_the_last_finalizer_of_a_terminating_object_takes_it_from_the_cache(
    wire: Callable[[], Any],
) -> None:
    world = World(wire())
    await world.make()
    left = await world.wire.client.delete(VOLUMES, "a")
    world.cache.observe(left)

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.cache.get(key)
        if volume is None:
            return Settled()
        return Patch(kind=VOLUMES, target=volume, body={"metadata": {"finalizers": None}}, why="let it go")

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert len(world.cache) == 0
        assert len(world.decided) == 2


async def test_live_reads_prove_presence_and_absence_for_this_pass_only(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make("a")
    await world.make("stale")
    await world.wire.client.patch(VOLUMES, "stale", {"metadata": {"finalizers": None}})
    await world.wire.client.delete(VOLUMES, "stale")
    proved: list[tuple[str, bool]] = []

    def decide(key: str, reads: LiveReads) -> Action:
        if not reads.has(VOLUMES, key):
            return Read(VOLUMES, key, "to be sure")
        proved.append((key, reads.get(VOLUMES, key) is not None))
        return Settled()

    async with running(world, decide):
        for key in ("a", "stale", "never", "a"):
            world.runner.enqueue(key)
            await world.quiet()
        assert proved == [("a", True), ("stale", False), ("never", False), ("a", True)]
        assert world.cache.keys() == ["a"]


async def test_kinds_without_a_cache_can_be_read(wire: Callable[[], Any]) -> None:
    world = World(wire())
    found: list[bool] = []

    def decide(_key: str, reads: LiveReads) -> Action:
        if not reads.has(PODS, "default/p"):
            return Read(PODS, "default/p", "to be sure")
        found.append(reads.get(PODS, "default/p") is not None)
        return Settled()

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
    assert found == [False]


async def test_an_absence_read_late_does_not_remove_what_appeared_meanwhile(wire: Callable[[], Any]) -> None:
    world = World(wire())

    def decide(key: str, reads: LiveReads) -> Action:
        return Settled() if reads.has(VOLUMES, key) else Read(VOLUMES, key, "to be sure")

    async with running(world, decide):
        newer = Volume()
        newer.metadata.name, newer.metadata.uid, newer.metadata.resource_version = "a", "new", "900"

        def appear(method: str, _path: str) -> Response | None:
            if method != "GET":
                return None
            world.cache.observe(newer)
            return refusal(404, "not found", kind="persistentvolumes", name="a")

        world.wire.before = appear
        world.runner.enqueue("a")
        await world.quiet()
        assert world.volume().uid == "new"
