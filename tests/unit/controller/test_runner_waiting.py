"""A runner: operations, waits, failures, fairness and the orderly stop."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from unit.controller.running import World, label, labelled, running
from volplane.controller.actions import Action, EventRecord, LiveReads, Run, Settled, Wait
from volplane.controller.runner import Runner
from volplane.errors import BackoffError, OperationInProgress
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.transport import Response
from volplane_testing.control_plane import idle


async def test_an_operation_is_started_once_and_its_end_decides_again(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()
    finished: list[str] = []

    async def work(_run: Run) -> None:
        await asyncio.sleep(30)
        finished.append("a")

    world.operations.work = work
    delete = Run(verb="delete", key="a", uid="uid", driver="d", asset="x")

    def decide(key: str, _: LiveReads) -> Action:
        return Settled() if finished else delete

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.operations.started == [delete]
        assert world.runner.reasons["a"] == "delete-a[uid] is running"
        await asyncio.sleep(31)
        assert world.decided == ["a", "a"]
        assert world.runner.reasons == {}


async def test_an_operation_that_cannot_start_is_left_to_the_registry(wire: Callable[[], Any]) -> None:
    world = World(wire())
    world.operations.refuse = [OperationInProgress("busy"), BackoffError("failed before", until=9.0)]
    delete = Run(verb="delete", key="a", uid="uid", driver="d", asset="x")

    def decide(key: str, _: LiveReads) -> Action:
        if world.operations.started:
            return Settled()
        return delete

    async with running(world, decide):
        world.runner.enqueue("a")
        await asyncio.sleep(3600)
        assert world.decided == ["a"]
        assert world.runner.reasons["a"] == "another operation holds x"
        world.operations.waiting.pop()()
        await world.quiet()
        assert world.runner.reasons["a"] == "failed before"
        world.operations.waiting.pop()()
        await world.quiet()
        assert world.operations.started == [delete]


async def test_waiting_says_why_and_comes_back_when_asked(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        if len(world.decided) == 1:
            event = EventRecord(VOLUMES, world.volume(key), "Normal", "Waiting", "for rain")
            return Wait(reason="no rain yet", seconds=60, events=(event,))
        return Wait(reason="no sun yet")

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert world.runner.reasons == {"a": "no rain yet"}
        assert [event.message for event in world.events.seen] == ["for rain"]
        await asyncio.sleep(3600)
        assert world.decided == ["a", "a"]
        assert world.runner.reasons == {"a": "no sun yet"}


async def test_a_decision_that_raises_is_logged_and_retried_and_harms_no_other_key(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(wire())

    def decide(key: str, _: LiveReads) -> Action:
        if key == "bad" and world.decided.count("bad") < 5:
            raise RuntimeError("a mistake of ours")
        return Settled()

    async with running(world, decide, workers=1):
        for key in ("bad", "good"):
            world.runner.enqueue(key)
        await asyncio.sleep(1)
        assert world.decided.count("bad") == 5
        assert world.decided.count("good") == 1
        assert world.runner.reasons == {}
    assert "RuntimeError: a mistake of ours" in caplog.text


async def test_a_patch_that_changes_nothing_is_reported_and_backs_off(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(wire())
    await world.make(labels={"step": "1"})
    async with running(world, lambda key, _: label(world.volume(key), "1")):
        world.runner.enqueue("a")
        await asyncio.sleep(10)
        assert 5 < len(world.decided) < 15
    assert "the patch of persistentvolumes a (reach 1) changed nothing" in caplog.text


async def test_steps_without_end_are_stopped(wire: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        return label(volume, str(int(labelled(volume)) + 1))

    async with running(world, decide):
        world.runner.enqueue("a")
        await world.quiet()
        assert len(world.decided) == 50
    assert "50 steps did not settle it, the last: patch persistentvolumes a (reach 50)" in caplog.text


@pytest.mark.parametrize("status", [403, 422])
async def test_a_refused_call_is_an_event_and_is_retried_slowly(wire: Callable[[], Any], status: int) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        return Settled() if labelled(volume) == "1" else label(volume, "1")

    async with running(world, decide):
        refuse = Response(status, {}, b'{"message":"you may not","reason":"No"}')
        world.wire.before = lambda method, _path: refuse if method == "PATCH" else None
        world.runner.enqueue("a")
        await asyncio.sleep(3600)
        assert 10 < len(world.decided) < 30
        first = world.events.seen[0]
        assert (first.reason, first.type, first.about.name) == ("ApiCallRefused", "Warning", "a")
        assert "you may not" in first.message
        world.wire.before = lambda _method, _path: None
        await asyncio.sleep(300)
        assert labelled(await world.live()) == "1"


async def test_a_server_that_is_away_delays_but_never_for_long_and_is_not_complained_of_by_every_key(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        world = World(wire())
        for number in range(20):
            await world.make(f"v{number}")

        def decide(key: str, _: LiveReads) -> Action:
            volume = world.volume(key)
            return Settled() if labelled(volume) == "1" else label(volume, "1")

        async with running(world, decide):
            world.wire.fail(("PATCH", "/"), times=10_000)
            for number in range(20):
                world.runner.enqueue(f"v{number}")
            await asyncio.sleep(1200)
            assert len(world.decided) < 20 * 60
            world.wire.before = lambda _method, _path: None
            await asyncio.sleep(31)
            assert [labelled(volume) for volume in (await world.wire.client.list(VOLUMES)).items] == ["1"] * 20
    assert len(caplog.records) < 250


async def test_the_server_may_ask_for_a_longer_pause(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()
    async with running(world, lambda key, _: label(world.volume(key), "1")):
        world.wire.before = lambda _method, _path: Response(429, {"retry-after": "7"}, b"")
        world.runner.enqueue("a")
        await world.quiet()
        assert world.runner.queue.next_due == pytest.approx(7)


async def test_many_keys_are_in_flight_and_each_is_worked_by_one_worker(wire: Callable[[], Any]) -> None:
    world = World(wire())
    for number in range(100):
        await world.make(f"v{number}")
    patching: list[str] = []
    most = 0

    def begin(method: str, path: str) -> None:
        nonlocal most
        if method == "PATCH":
            assert path not in patching
            patching.append(path)
            most = max(most, len(patching))

    def end(method: str, path: str) -> None:
        if method == "PATCH":
            patching.remove(path)

    world.wire.before, world.wire.after = begin, end

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        step = int(labelled(volume))
        return Settled() if step == 3 else label(volume, str(step + 1))

    async with running(world, decide, watching=True, workers=16):
        leave = world.cache.subscribe(lambda _old, new: world.runner.enqueue(new.key) if new else None)
        for number in range(100):
            world.runner.enqueue(f"v{number}")
        await world.quiet()
        leave()
        assert most == 16
        assert [labelled(volume) for volume in world.cache.values()] == ["3"] * 100
        assert len(world.wire.writes()) == 400


async def test_work_begins_only_when_every_cache_is_filled(wire: Callable[[], Any]) -> None:
    world = World(wire())
    claims = Cache(CLAIMS)
    decided: list[str] = []

    def decide(key: str, _: LiveReads) -> Action:
        decided.append(key)
        return Settled()

    runner = Runner(
        "volumes",
        decide,
        kind=VOLUMES,
        caches={"persistentvolumes": world.cache, "persistentvolumeclaims": claims},
        client=world.wire.client,
        recorder=world.events,
        start_operation=world.operations.start,
    )
    runner.enqueue("a")
    task = asyncio.create_task(runner.run())
    world.cache.listed.set()
    await asyncio.sleep(10)
    assert decided == []
    claims.listed.set()
    await asyncio.sleep(1)
    assert decided == ["a"]
    runner.stop()
    await task


async def test_stopping_finishes_the_step_at_hand_and_no_more(wire: Callable[[], Any]) -> None:
    world = World(wire())
    await world.make()

    def decide(key: str, _: LiveReads) -> Action:
        volume = world.volume(key)
        return label(volume, str(int(labelled(volume)) + 1))

    async with running(world, decide):
        world.runner.enqueue("a")
        world.runner.enqueue("never")
        while not world.wire.writes()[1:]:
            await asyncio.sleep(0)
        world.runner.stop()
        assert not world.run.done()
        await world.run
        assert labelled(await world.live()) == "1"
        assert labelled(world.volume()) == "1"


async def test_a_runner_that_has_had_no_work_ends_when_it_is_stopped(wire: Callable[[], Any]) -> None:
    world = World(wire())
    async with running(world, lambda _key, _reads: Settled()):
        await world.quiet()
        world.runner.stop()
        await world.run
        world.runner.enqueue("never")
    assert not world.decided


async def test_a_worker_is_started_by_a_key_for_which_none_is_idle_up_to_the_limit(wire: Callable[[], Any]) -> None:
    world = World(wire())
    volumes = [(await world.make(f"volume-{number}")).metadata.name for number in range(10)]
    crowds = [0, 1, 1, 1, 3, 2, 10]
    workers: list[int] = []

    def decide(key: str, _: LiveReads) -> Action:
        volume, value = world.volume(key), str(len(workers))
        return Settled() if labelled(volume) == value else label(volume, value)

    async with running(world, decide, workers=4):
        for crowd in crowds:
            for volume in volumes[:crowd]:
                world.runner.enqueue(volume)
            await world.quiet()
            workers.append(sum(task.get_name().startswith("volumes-") for task in asyncio.all_tasks()))
    assert workers == [0, 1, 1, 1, 3, 3, 4]
    assert len(world.wire.writes()) == len(volumes) + sum(crowds)


async def test_many_passes_without_a_call_let_others_have_their_turn(wire: Callable[[], Any]) -> None:
    world = World(wire())
    async with running(world, lambda _key, _reads: Settled(), workers=4):
        for number in range(1000):
            world.runner.enqueue(f"volume-{number}")
        longest = before = 0
        while not idle(world.runner):
            await asyncio.sleep(0)
            longest, before = max(longest, len(world.decided) - before), len(world.decided)
        assert len(world.decided) == 1000
        assert longest <= 200
