"""Decide, take one step, learn, decide again."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from volplane.controller.actions import Action, Create, Delete, Done, Notice, Patch, Read, Reads, Run, Wait
from volplane.controller.runner import Runner
from volplane.errors import BackoffError, OperationError, OperationInProgress
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane.kube.objects import Volume
from volplane.kube.reflector import Reflector
from volplane.kube.transport import Response
from volplane.testing.clock import run

SPEC = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/x"}}


@dataclass
class Notices:
    seen: list[Notice] = field(default_factory=list)

    def record(self, notice: Notice) -> None:
        self.seen.append(notice)


class Operations:
    """Starts everything at once, unless told what to raise."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str, str]] = []
        self.refuse: list[OperationError] = []
        self.waiting: list[Callable[[], None]] = []

    def start(
        self, name: str, *, driver: str, asset: str, run: Callable[[], Awaitable[None]], requeue: Callable[[], None]
    ) -> None:
        if self.refuse:
            self.waiting.append(requeue)
            raise self.refuse.pop(0)
        self.started.append((name, driver, asset))
        self.task = asyncio.ensure_future(run())
        self.task.add_done_callback(lambda _: requeue())


class World:
    """A runner over volumes on an embedded server. `watching`: whether the cache also hears of what others do."""

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.cache = Cache(VOLUMES)
        self.notices = Notices()
        self.operations = Operations()
        self.decided: list[str] = []
        self.runner: Runner

    def volume(self, name: str = "a") -> Volume:
        found = self.cache.get(name)
        assert found is not None
        return found

    async def make(self, name: str = "a", **metadata: Any) -> Volume:
        made: Volume = await self.wire.client.create(
            VOLUMES, VOLUMES.body(metadata={"name": name, **metadata}, spec=SPEC)
        )
        self.cache.observe(made)
        return made

    async def live(self, name: str = "a") -> Volume:
        found: Volume = await self.wire.client.get(VOLUMES, name)
        return found

    async def quiet(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        while not self.runner.idle:
            await asyncio.sleep(0)


@asynccontextmanager
async def running(
    world: World, decide: Callable[[str, Reads], Action], *, watching: bool = False, workers: int = 4
) -> AsyncIterator[World]:
    def noting(key: str, reads: Reads) -> Action:
        world.decided.append(key)
        return decide(key, reads)

    world.runner = Runner(
        "volumes",
        noting,
        kind=VOLUMES,
        caches={"persistentvolumes": world.cache},
        client=world.wire.client,
        recorder=world.notices,
        registry=world.operations,
        workers=workers,
    )
    tasks = [asyncio.create_task(world.runner.run())]
    if watching:
        tasks.append(asyncio.create_task(Reflector(world.wire.client, world.cache, random=Random(1)).run()))
    else:
        world.cache.mark_synced()
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def label(volume: Volume, value: str, **more: Any) -> Patch:
    return Patch(
        kind=VOLUMES, target=volume, body={"metadata": {"labels": {"step": value}}}, why=f"reach {value}", **more
    )


def labelled(volume: Volume) -> str:
    return (volume.metadata.labels or {}).get("step", "0")


def test_steps_follow_each_other_until_done_on_the_answers_alone(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            step = int(labelled(volume))
            return Done() if step == 3 else label(volume, str(step + 1))

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert world.decided == ["a"] * 4
            assert labelled(await world.live()) == "3"
            assert world.wire.writes()[1:] == [("PATCH", "/api/v1/persistentvolumes/a")] * 3
            assert world.runner.reasons == {}

    run(main())


@pytest.mark.parametrize(("reading", "decisions"), [(False, 3), (True, 6)])
def test_own_writes_cause_no_further_pass_unless_the_last_decision_relied_on_a_live_read(
    wire: Callable[[], Any], reading: bool, decisions: int
) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()
        world.cache.subscribe(lambda _old, new: world.runner.enqueue(new.key) if new is not None else None)

        def decide(key: str, reads: Reads) -> Action:
            if reading and not reads.has(VOLUMES, key):
                return Read(VOLUMES, key, why="what is there now?")
            step = int(labelled(world.volume(key)))
            return Done() if step == 2 else label(world.volume(key), str(step + 1))

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert world.decided == ["a"] * decisions

    run(main())


def test_what_others_change_after_the_last_decision_is_decided_again(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            return Done() if labelled(world.volume(key)) == "1" else label(world.volume(key), "1")

        async with running(world, decide):
            world.cache.subscribe(lambda _old, _new: asyncio.get_running_loop().call_soon(world.runner.enqueue, "a"))
            world.runner.enqueue("a")
            await world.quiet()
            assert world.decided == ["a"] * 3

    run(main())


def test_notices_are_recorded_only_after_the_write_is_acknowledged(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            if labelled(volume) == "1":
                return Done()
            return label(volume, "1", notices=(Notice(VOLUMES, volume, "Normal", "Labelled", "it is"),))

        async with running(world, decide):
            world.wire.fail(("PATCH", "/"))
            world.runner.enqueue("a")
            await world.quiet()
            assert world.notices.seen == []
            await asyncio.sleep(1)
            assert [notice.reason for notice in world.notices.seen] == ["Labelled"]

    run(main())


def test_a_conflict_is_healed_by_a_live_read_and_a_new_decision(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()
        await world.wire.client.patch(VOLUMES, "a", {"metadata": {"labels": {"else": "x"}}})

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            return Done() if labelled(volume) == "1" else label(volume, "1")

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert world.decided == ["a"] * 3
            assert (await world.live()).metadata.labels == {"else": "x", "step": "1"}

    run(main())


def test_conflicts_without_end_come_back_later(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            return label(world.volume(key), "1")

        async with running(world, decide):
            refuse = Response(409, {}, b'{"message":"changed","reason":"Conflict"}')
            world.wire.before = lambda method, _path: refuse if method == "PATCH" else None
            world.runner.enqueue("a")
            await world.quiet()
            assert len(world.decided) == 6
            assert "6 conflicts in a row" in world.runner.reasons["a"]
            assert world.runner.next_due == pytest.approx(0.005)

    run(main())


def test_an_answer_that_was_lost_is_found_by_the_conflict_it_causes(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            step = int(labelled(volume))
            return Done() if step == 2 else label(volume, str(step + 1))

        async with running(world, decide):
            world.wire.fail(("PATCH", "/"), after=True)
            world.runner.enqueue("a")
            await asyncio.sleep(5)
            assert labelled(await world.live()) == "2"
            assert [call[0] for call in world.wire.writes()[1:]] == ["PATCH"] * 3

    run(main())


def test_create_of_what_exists_reads_it_and_decides_again(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()
        world.cache.observe_deleted("a", "nobody")
        world.cache = Cache(VOLUMES)

        def decide(key: str, _: Reads) -> Action:
            if key in world.cache:
                return Done()
            body = VOLUMES.body(metadata={"name": key}, spec=SPEC)
            notice = Notice(VOLUMES, Volume(), "Normal", "Made", "")
            return Create(kind=VOLUMES, body=body, why="it is missing", notices=(notice,))

        async with running(world, decide):
            for key in ("a", "b"):
                world.runner.enqueue(key)
            await world.quiet()
            assert world.cache.keys() == ["a", "b"]
            assert len(world.notices.seen) == 1

    run(main())


def test_a_deleted_object_leaves_the_cache_or_stays_terminating(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make("kept")
        await world.make("free")
        world.cache.observe(await world.wire.client.patch(VOLUMES, "free", {"metadata": {"finalizers": None}}))

        def decide(key: str, _: Reads) -> Action:
            volume = world.cache.get(key)
            if volume is None or volume.terminating:
                return Done()
            return Delete(kind=VOLUMES, target=volume, why="nobody wants it")

        async with running(world, decide):
            for key in ("kept", "free"):
                world.runner.enqueue(key)
            await world.quiet()
            assert world.cache.keys() == ["kept"]
            assert world.volume("kept").terminating

    run(main())


def test_a_delete_of_another_version_or_of_what_is_gone_is_decided_anew(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make("a")
        await world.make("gone")
        await world.wire.client.patch(VOLUMES, "a", {"metadata": {"labels": {"keep": "me"}}})
        await world.wire.client.patch(VOLUMES, "gone", {"metadata": {"finalizers": None}})
        await world.wire.client.delete(VOLUMES, "gone")

        def decide(key: str, _: Reads) -> Action:
            volume = world.cache.get(key)
            if volume is None or (volume.metadata.labels or {}).get("keep"):
                return Done()
            return Delete(kind=VOLUMES, target=volume, why="nobody wants it")

        async with running(world, decide):
            for key in ("a", "gone"):
                world.runner.enqueue(key)
            await world.quiet()
            assert world.cache.keys() == ["a"]
            assert not (await world.live()).terminating

    run(main())


def test_removing_the_last_finalizer_of_a_terminating_object_takes_it_from_the_cache(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()
        left = await world.wire.client.delete(VOLUMES, "a")
        world.cache.observe(left)

        def decide(key: str, _: Reads) -> Action:
            volume = world.cache.get(key)
            if volume is None:
                return Done()
            return Patch(kind=VOLUMES, target=volume, body={"metadata": {"finalizers": None}}, why="let it go")

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert len(world.cache) == 0
            assert len(world.decided) == 2

    run(main())


def test_live_reads_prove_presence_and_absence_for_this_pass_only(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make("a")
        await world.make("stale")
        await world.wire.client.patch(VOLUMES, "stale", {"metadata": {"finalizers": None}})
        await world.wire.client.delete(VOLUMES, "stale")
        proved: list[tuple[str, bool]] = []

        def decide(key: str, reads: Reads) -> Action:
            if not reads.has(VOLUMES, key):
                return Read(VOLUMES, key, "to be sure")
            proved.append((key, reads.get(VOLUMES, key) is not None))
            return Done()

        async with running(world, decide):
            for key in ("a", "stale", "never", "a"):
                world.runner.enqueue(key)
                await world.quiet()
            assert proved == [("a", True), ("stale", False), ("never", False), ("a", True)]
            assert world.cache.keys() == ["a"]

    run(main())


def test_kinds_without_a_cache_can_be_read(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        found: list[bool] = []

        def decide(_key: str, reads: Reads) -> Action:
            if not reads.has(PODS, "default/p"):
                return Read(PODS, "default/p", "to be sure")
            found.append(reads.get(PODS, "default/p") is not None)
            return Done()

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
        assert found == [False]

    run(main())


def test_an_absence_read_late_does_not_remove_what_appeared_meanwhile(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())

        def decide(key: str, reads: Reads) -> Action:
            return Done() if reads.has(VOLUMES, key) else Read(VOLUMES, key, "to be sure")

        async with running(world, decide):
            newer = Volume()
            newer.metadata.name, newer.metadata.uid, newer.metadata.resource_version = "a", "new", "900"

            def appear(method: str, _path: str) -> Response | None:
                if method != "GET":
                    return None
                world.cache.observe(newer)
                return Response(404, {}, b'{"message":"not found","reason":"NotFound"}')

            world.wire.before = appear
            world.runner.enqueue("a")
            await world.quiet()
            assert world.volume().uid == "new"

    run(main())


def test_an_operation_is_started_once_and_its_end_decides_again(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()
        finished: list[str] = []

        async def work() -> None:
            await asyncio.sleep(30)
            finished.append("a")

        def decide(key: str, _: Reads) -> Action:
            return Done() if finished else Run(name=f"delete-{key}", driver="d", asset="x", start=work)

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert world.operations.started == [("delete-a", "d", "x")]
            assert world.runner.reasons["a"] == "delete-a is running"
            await asyncio.sleep(31)
            assert world.decided == ["a", "a"]
            assert world.runner.reasons == {}

    run(main())


def test_an_operation_that_cannot_start_is_left_to_the_registry(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        world.operations.refuse = [OperationInProgress("busy"), BackoffError("failed before", until=9.0)]

        async def work() -> None:
            await asyncio.sleep(0)

        def decide(key: str, _: Reads) -> Action:
            if world.operations.started:
                return Done()
            return Run(name=f"delete-{key}", driver="d", asset="x", start=work)

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
            assert world.operations.started == [("delete-a", "d", "x")]

    run(main())


def test_waiting_says_why_and_comes_back_when_asked(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            if len(world.decided) == 1:
                notice = Notice(VOLUMES, world.volume(key), "Normal", "Waiting", "for rain")
                return Wait(reason="no rain yet", seconds=60, notices=(notice,))
            return Wait(reason="no sun yet")

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert world.runner.reasons == {"a": "no rain yet"}
            assert [notice.message for notice in world.notices.seen] == ["for rain"]
            await asyncio.sleep(3600)
            assert world.decided == ["a", "a"]
            assert world.runner.reasons == {"a": "no sun yet"}

    run(main())


def test_a_decision_that_raises_is_logged_and_retried_and_harms_no_other_key(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(wire())

        def decide(key: str, _: Reads) -> Action:
            if key == "bad" and world.decided.count("bad") < 5:
                raise RuntimeError("a mistake of ours")
            return Done()

        async with running(world, decide, workers=1):
            for key in ("bad", "good"):
                world.runner.enqueue(key)
            await asyncio.sleep(1)
            assert world.decided.count("bad") == 5
            assert world.decided.count("good") == 1
            assert world.runner.reasons == {}

    run(main())
    assert "RuntimeError: a mistake of ours" in caplog.text


def test_a_patch_that_changes_nothing_is_reported_and_backs_off(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make(labels={"step": "1"})
        async with running(world, lambda key, _: label(world.volume(key), "1")):
            world.runner.enqueue("a")
            await asyncio.sleep(10)
            assert 5 < len(world.decided) < 15

    run(main())
    assert "the patch of persistentvolumes a (reach 1) changed nothing" in caplog.text


def test_steps_without_end_are_stopped(wire: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            return label(volume, str(int(labelled(volume)) + 1))

        async with running(world, decide):
            world.runner.enqueue("a")
            await world.quiet()
            assert len(world.decided) == 50

    run(main())
    assert "50 steps did not settle it, the last: patch persistentvolumes a (reach 50)" in caplog.text


@pytest.mark.parametrize("status", [403, 422])
def test_a_refused_call_is_an_event_and_is_retried_slowly(wire: Callable[[], Any], status: int) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            return Done() if labelled(volume) == "1" else label(volume, "1")

        async with running(world, decide):
            refuse = Response(status, {}, b'{"message":"you may not","reason":"No"}')
            world.wire.before = lambda method, _path: refuse if method == "PATCH" else None
            world.runner.enqueue("a")
            await asyncio.sleep(3600)
            assert 10 < len(world.decided) < 30
            first = world.notices.seen[0]
            assert (first.reason, first.type, first.about.name) == ("ApiCallRefused", "Warning", "a")
            assert "you may not" in first.message
            world.wire.before = lambda _method, _path: None
            await asyncio.sleep(300)
            assert labelled(await world.live()) == "1"

    run(main())


def test_a_server_that_is_away_delays_but_never_for_long_and_is_not_complained_of_by_every_key(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World(wire())
        for number in range(20):
            await world.make(f"v{number}")

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            return Done() if labelled(volume) == "1" else label(volume, "1")

        async with running(world, decide):
            world.wire.fail(("PATCH", "/"), times=10_000)
            for number in range(20):
                world.runner.enqueue(f"v{number}")
            await asyncio.sleep(1200)
            assert len(world.decided) < 20 * 60
            world.wire.before = lambda _method, _path: None
            await asyncio.sleep(31)
            assert [labelled(volume) for volume in (await world.wire.client.list(VOLUMES)).items] == ["1"] * 20

    with caplog.at_level(logging.WARNING):
        run(main())
    assert len(caplog.records) < 250


def test_the_server_may_ask_for_a_longer_pause(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()
        async with running(world, lambda key, _: label(world.volume(key), "1")):
            world.wire.before = lambda _method, _path: Response(429, {"retry-after": "7"}, b"")
            world.runner.enqueue("a")
            await world.quiet()
            assert world.runner.next_due == pytest.approx(7)

    run(main())


def test_many_keys_are_in_flight_and_each_is_worked_by_one_worker(wire: Callable[[], Any]) -> None:
    async def main() -> None:
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

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            step = int(labelled(volume))
            return Done() if step == 3 else label(volume, str(step + 1))

        async with running(world, decide, watching=True, workers=16):
            leave = world.cache.subscribe(lambda _old, new: world.runner.enqueue(new.key) if new else None)
            for number in range(100):
                world.runner.enqueue(f"v{number}")
            await world.quiet()
            leave()
            assert most == 16
            assert [labelled(volume) for volume in world.cache.values()] == ["3"] * 100
            assert len(world.wire.writes()) == 400

    run(main())


def test_work_begins_only_when_every_cache_is_filled(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        claims = Cache(CLAIMS)
        decided: list[str] = []

        def decide(key: str, _: Reads) -> Action:
            decided.append(key)
            return Done()

        runner = Runner(
            "volumes",
            decide,
            kind=VOLUMES,
            caches={"persistentvolumes": world.cache, "persistentvolumeclaims": claims},
            client=world.wire.client,
            recorder=world.notices,
            registry=world.operations,
        )
        runner.enqueue("a")
        task = asyncio.create_task(runner.run())
        world.cache.mark_synced()
        await asyncio.sleep(10)
        assert decided == []
        claims.mark_synced()
        await asyncio.sleep(1)
        assert decided == ["a"]
        runner.stop()
        await task

    run(main())


def test_stopping_finishes_the_step_at_hand_and_no_more(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        await world.make()

        def decide(key: str, _: Reads) -> Action:
            volume = world.volume(key)
            return label(volume, str(int(labelled(volume)) + 1))

        async with running(world, decide):
            world.runner.enqueue("a")
            world.runner.enqueue("never")
            while not world.wire.writes()[1:]:
                await asyncio.sleep(0)
            world.runner.stop()
            await asyncio.sleep(10)
            assert labelled(await world.live()) == "1"
            assert labelled(world.volume()) == "1"

    run(main())


def test_many_passes_without_a_call_let_others_have_their_turn(wire: Callable[[], Any]) -> None:
    async def main() -> None:
        world = World(wire())
        async with running(world, lambda _key, _reads: Done(), workers=4):
            for number in range(1000):
                world.runner.enqueue(f"volume-{number}")
            longest = before = 0
            while not world.runner.idle:
                await asyncio.sleep(0)
                longest, before = max(longest, len(world.decided) - before), len(world.decided)
            assert len(world.decided) == 1000
            assert longest <= 200

    run(main())
