"""List, watch, and all the ways in which a watch ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from volplane.controller.metrics import Metrics
from volplane.errors import ApiUnavailable
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Volume
from volplane.kube.reflector import Reflector
from volplane.kube.transport import Response

SPEC = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp/x"}}


async def make(wire: Any, *names: str, **metadata: Any) -> None:
    for name in names:
        await wire.client.create(VOLUMES, VOLUMES.body(metadata={"name": name, **metadata}, spec=SPEC))


async def remove(wire: Any, name: str) -> None:
    await wire.client.patch(VOLUMES, name, {"metadata": {"finalizers": None}})
    await wire.client.delete(VOLUMES, name)


@asynccontextmanager
async def reflecting(wire: Any, **more: Any) -> AsyncIterator[Cache[Volume]]:
    async with reflector_of(wire, **more) as reflector:
        yield reflector.cache


@asynccontextmanager
async def reflector_of(wire: Any, *, seed: int = 1, **more: Any) -> AsyncIterator[Reflector[Volume]]:
    reflector = Reflector(wire.client, Cache(VOLUMES), random=Random(seed), **more)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector
    finally:
        task.cancel()
        await asyncio.wait([task])


def versions(wire: Any) -> list[str]:
    return [query["resourceVersion"] for query in wire.queries if "watch" in query]


def lengths(wire: Any) -> list[int]:
    return [int(query["timeoutSeconds"]) for query in wire.queries if "watch" in query]


def lists(wire: Any) -> int:
    """How often the whole was listed, in pages."""
    return sum(query.get("limit") == "500" and "continue" not in query for query in wire.queries)


class Breakable:
    """An open watch whose connection breaks when `end` is set."""

    def __init__(self, lines: Any, end: asyncio.Event) -> None:
        self.status, self.headers = lines.status, lines.headers
        self._lines, self._end = aiter(lines), end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            line: asyncio.Future[bytes | None] = asyncio.ensure_future(anext(self._lines, None))
            end = asyncio.ensure_future(self._end.wait())
            await asyncio.wait({line, end}, return_when=asyncio.FIRST_COMPLETED)
            end.cancel()
            if not line.done():
                line.cancel()
                raise ApiUnavailable("it broke off", status=0)
            if (found := line.result()) is None:
                return
            yield found


def looks(wire: Any) -> int:
    """How often the newest version was asked for."""
    return sum(query.get("limit") == "1" for query in wire.queries)


async def test_what_was_there_and_what_comes_is_in_the_cache(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, "a", "b")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        assert cache.keys() == ["a", "b"]
        await settle()
        await make(line, "c")
        await remove(line, "a")
        await line.client.patch(VOLUMES, "b", {"metadata": {"labels": {"x": "y"}}})
        await settle()
        assert cache.keys() == ["b", "c"]
        found = cache.get("b")
        assert found is not None
        assert found.metadata.labels == {"x": "y"}
        assert cache.reached == line.server.store.version
    assert line.watches == 0


async def test_a_watch_is_renewed_from_its_last_version_without_a_new_list(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        for number in range(5):
            await make(line, f"v{number}")
            await settle()
            line.server.end_watches()
            await asyncio.sleep(5)
        assert len(cache) == 5
    assert lists(line) == 1
    assert len(set(versions(line))) == 6
    assert all(query["allowWatchBookmarks"] == "true" for query in line.queries if "watch" in query)


async def test_changes_made_while_the_watch_was_down_are_replayed(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, "a")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        line.fail(("WATCH", "/"), times=3)
        line.server.end_watches()
        await settle()
        await make(line, "b")
        await remove(line, "a")
        await asyncio.sleep(30)
        assert cache.keys() == ["b"]


async def test_a_version_too_old_leads_to_a_new_list_and_its_difference_is_told(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, "stays", "goes")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        told: list[tuple[bool, bool, str]] = []
        cache.subscribe(lambda old, new: told.append((old is not None, new is not None, (new or old or Volume()).name)))
        line.fail(("WATCH", "/"), times=2)
        line.server.end_watches()
        await settle()
        await make(line, "comes")
        await remove(line, "goes")
        line.server.store.compact()
        await asyncio.sleep(30)
        assert cache.keys() == ["comes", "stays"]
        assert told == [(False, True, "comes"), (True, False, "goes")]
    assert lists(line) == 2


async def test_a_list_whose_pages_are_compacted_away_one_after_the_other_is_read_in_one_answer(
    wire: Callable[[], Any],
) -> None:
    line = wire()
    await make(line, *(f"v{number:03}" for number in range(501)))

    changes = iter(range(501))

    async def change() -> None:
        number = next(changes)
        await make(line, f"new{number:03}")
        await remove(line, f"v{number:03}")
        line.server.store.compact()

    line.before_page = change
    async with reflecting(line) as cache:
        async with asyncio.timeout(60):
            await cache.listed.wait()
        assert len(cache) == 501
        assert "new000" in cache
        assert "v000" not in cache


async def test_a_silent_connection_is_given_up_after_ninety_seconds(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await asyncio.sleep(100)  # bookmarks came: the second watch is a long one
        (watch,) = line.server._open
        watch.push = lambda _event: None
        await make(line, "a")
        await asyncio.sleep(40)
        assert cache.keys() == []
        await asyncio.sleep(32)
        assert cache.keys() == ["a"]


async def test_a_kind_without_bookmarks_is_followed_in_short_watches_and_nothing_comes_late(
    wire: Callable[[], Any], settle: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line = wire(without_bookmarks=frozenset({"persistentvolumes"}))
    cache, loop = Cache(VOLUMES), asyncio.get_running_loop()
    reflector = Reflector(line.client, cache, random=Random(1))
    task = asyncio.create_task(reflector.run())
    await cache.listed.wait()
    came: list[float] = []
    cache.subscribe(lambda _old, _new: came.append(loop.time()))
    made: list[float] = []
    for number in range(12):
        await asyncio.sleep(300)
        made.append(loop.time())
        await make(line, f"v{number}")
        await settle()
        assert reflector.failing == ""
    assert came == made
    assert all(60 <= seconds <= 80 for seconds in lengths(line))
    assert lists(line) == 1
    assert caplog.text == ""
    task.cancel()


async def test_a_kind_whose_bookmarks_cease_is_followed_in_short_watches_without_a_gap_or_a_warning(
    wire: Callable[[], Any], settle: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A server whose etcd reports no progress sends them only while something of the kind changes."""
    line = wire()
    caplog.set_level("WARNING")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        watches = line.server._watches
        for number in range(8):
            line.server._watches = watches
            await asyncio.sleep(100)
            line.server._watches = replace(watches, without_bookmarks=frozenset({"persistentvolumes"}))
            await asyncio.sleep(400)
            await make(line, f"v{number}")
            await settle()
            assert len(cache) == number + 1
    assert max(lengths(line)[:5]) > 80
    assert max(lengths(line)[10:]) <= 80
    assert lists(line) == 1
    assert caplog.text == ""


async def test_a_server_that_calls_every_version_too_old_is_asked_ever_less_often(wire: Callable[[], Any]) -> None:
    line = wire()
    opened = line.server.watch

    def too_old(path: str, query: dict[str, str], headers: dict[str, str]) -> Any:
        line.server.store.compact()
        return opened(path, {**query, "resourceVersion": "1"}, headers)

    line.server.watch = too_old
    await make(line, "a")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await asyncio.sleep(600)
        assert 15 < lists(line) < 50
        line.server.watch = opened
        await make(line, "b")
        await asyncio.sleep(31)
        assert cache.keys() == ["a", "b"]


async def test_the_first_list_after_a_version_too_old_is_not_long_in_coming(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await asyncio.sleep(3600)
        for name in "abc":
            line.server.end_watches()
            await make(line, name)
            line.server.store.compact()
            await asyncio.sleep(0.9)
            assert name in cache
            await asyncio.sleep(3600)


async def test_bookmarks_keep_a_quiet_watch_open_and_move_its_version(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        before = cache.reached
        await line.client.create(
            VOLUMES, VOLUMES.body(metadata={"name": "x"}, spec=SPEC)
        )  # any write moves the server's version
        await asyncio.sleep(250)
        assert cache.reached > before
    # Bookmarks may not come: the first ends before it is silent for too long. They came.
    drawn = Random(1)
    assert lengths(line) == [drawn.randint(60, 80), drawn.randint(240, 480)]


async def test_an_object_that_cannot_be_read_is_skipped_and_its_old_state_kept(
    wire: Callable[[], Any], settle: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line = wire()
    await make(line, "a", "b")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        stored = line.server.store.get("persistentvolumes", "a").decode()
        line.server.store.put("persistentvolumes", "a", {**stored, "spec": {"capacity": 7}})
        await make(line, "c")
        await settle()
        assert cache.keys() == ["a", "b", "c"]
        line.fail(("WATCH", "/"), times=1)
        line.server.end_watches()
        await settle()
        await make(line, "d")
        line.server.store.compact()
        await asyncio.sleep(10)
        assert lists(line) == 2
        assert cache.keys() == ["a", "b", "c", "d"]
        line.server.store.delete("persistentvolumes", "a")
        await settle()
        assert cache.keys() == ["b", "c", "d"]
    assert "PersistentVolume a could not be read" in caplog.text


async def test_a_server_that_is_away_is_asked_ever_less_often(wire: Callable[[], Any]) -> None:
    line = wire()
    line.fail(("GET", "/"), times=10_000)
    async with reflecting(line) as cache:
        await asyncio.sleep(600)
        assert 20 < len(line.calls) < 60
        line.before = lambda _method, _path: None
        await make(line, "a")
        await asyncio.sleep(31)
        assert cache.keys() == ["a"]


async def make_a_longer_past(wire: Any) -> None:
    await make(wire, "a", "b")
    for number in range(20):
        await wire.client.patch(VOLUMES, "a", {"metadata": {"labels": {"n": str(number)}}})


async def test_a_server_that_was_put_back_is_believed(wire: Callable[[], Any], settle: Callable[[], Any]) -> None:
    line, other = wire(), wire()
    await make(other, "b", "c")
    await make_a_longer_past(line)
    heard: list[tuple[str, bool]] = []
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        cache.subscribe(lambda old, new: heard.append(((new or old or Volume()).name, new is not None)))
        line.inner = other.inner
        line.server.end_watches()
        await asyncio.sleep(4)
        assert cache.keys() == ["b", "c"]
        assert {cache.get(key).uid for key in "bc"} == {(await other.client.get(VOLUMES, key)).uid for key in "bc"}
        assert ("a", False) in heard
        await make(other, "d")
        await settle()
        assert cache.keys() == ["b", "c", "d"]


async def test_a_restored_server_whose_versions_jumped_ahead_is_believed_although_its_objects_are_old(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, "a", "b")
    backup = line.server.store.snapshot()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        await line.client.patch(VOLUMES, "a", {"metadata": {"labels": {"n": "lost"}}})
        await remove(line, "b")
        await make(line, "c")
        await settle()
        line.server.restore(backup, version=line.server.store.version + 1000)
        await asyncio.sleep(4)
        assert cache.keys() == ["a", "b"]
        assert cache.get("a").metadata.labels is None


async def test_a_restored_server_is_believed_about_an_object_that_was_made_anew_since(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    """Found by the simulation: the former object was older than the one in its place, and was ignored for ever."""
    line = wire()
    await make(line, "a")
    backup, former = line.server.store.snapshot(), (await line.client.get(VOLUMES, "a")).uid
    await remove(line, "a")
    await make(line, "a")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        assert cache.get("a").uid != former
        line.server.restore(backup, version=line.server.store.version + 1000)
        await asyncio.sleep(4)
        assert cache.get("a").uid == former


async def test_a_server_that_was_put_back_while_it_was_away_is_believed_at_once(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line, other = wire(), wire()
    await make(other, "b", "c")
    await make_a_longer_past(line)
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await asyncio.sleep(100)
        line.fail(("WATCH", "/"), times=1)
        line.inner = other.inner
        line.server.end_watches()
        await asyncio.sleep(2)
        assert cache.keys() == ["b", "c"]


async def test_what_leaves_the_selection_leaves_the_cache_and_may_come_back(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, "a", labels={"node": "one"})
    await make(line, "b", labels={"node": "two"})
    async with reflecting(line, label_selector="node=one") as cache:
        await cache.listed.wait()
        await settle()
        assert cache.keys() == ["a"]
        await line.client.patch(VOLUMES, "a", {"metadata": {"labels": {"node": "two"}}})
        await line.client.patch(VOLUMES, "b", {"metadata": {"labels": {"node": "one"}}})
        await settle()
        assert cache.keys() == ["b"]
        await line.client.patch(VOLUMES, "a", {"metadata": {"labels": {"node": "one"}}})
        await settle()
        assert cache.keys() == ["a", "b"]


@pytest.mark.parametrize(
    ("where", "for_good"),
    [({}, True), ({"label_selector": "node=one"}, False), ({"field_selector": "metadata.name=a"}, False)],
)
async def test_only_a_watch_of_everything_tells_that_an_object_is_gone_for_good(
    wire: Callable[[], Any], settle: Callable[[], Any], where: dict[str, str], for_good: bool
) -> None:
    line = wire()
    await make(line, "a", labels={"node": "one"})
    await make(line, "b", labels={"node": "two"})
    async with reflecting(line, **where) as cache:
        await cache.listed.wait()
        await settle()
        uid = cache.get("a").uid
        assert not cache.gone(uid)
        await remove(line, "a")
        await settle()
        assert cache.keys() == (["b"] if for_good else [])
        assert cache.gone(uid) is for_good


async def test_a_list_of_many_pages_is_taken_in_whole(wire: Callable[[], Any]) -> None:
    line = wire()
    await make(line, *(f"v{number:04}" for number in range(1201)))
    async with reflecting(line) as cache:
        await cache.listed.wait()
        assert len(cache) == 1201
    assert len([call for call in line.calls if call[0] == "GET"]) == 3


# --- after a watch has ended ----------------------------------------------------------------------------------------


async def test_a_server_is_looked_at_anew_only_after_a_watch_that_told_nothing_or_ended_early(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await asyncio.sleep(600)
        assert len(lengths(line)) > 2
        assert looks(line) == 0, "bookmarks came, and the watches lasted"
        await make(line, "a")
        await settle()
        line.server.end_watches()
        await asyncio.sleep(5)
        assert looks(line) == 1, "it may have stopped, and another one started"
    quiet = wire(without_bookmarks=frozenset({"persistentvolumes"}))
    async with reflecting(quiet) as cache:
        await cache.listed.wait()
        await asyncio.sleep(85)
        assert looks(quiet) == 1


async def test_a_server_that_ends_every_watch_at_once_is_asked_ever_less_often(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflector_of(line) as reflector:
        await reflector.cache.listed.wait()
        await settle()
        for _ in range(600):
            line.server.end_watches()
            await asyncio.sleep(0.1)
        assert 3 < len(lengths(line)) < 20
        assert reflector.failing == ""


async def test_two_reflectors_that_lost_one_server_do_not_come_back_in_step(wire: Callable[[], Any]) -> None:
    async def tries(seed: int) -> list[float]:
        line, times = wire(), []  # type: ignore[var-annotated]

        def fails(_method: str, _path: str) -> Response:
            times.append(asyncio.get_running_loop().time())
            raise ApiUnavailable("no answer", status=0)

        line.before = fails
        began = asyncio.get_running_loop().time()
        async with reflector_of(line, seed=seed):
            await asyncio.sleep(60)
        return [round(each - began, 6) for each in times]

    one = await tries(1)
    assert one == await tries(1)
    assert one[1:] != (await tries(2))[1:]


async def test_what_fails_is_shown_until_a_watch_has_lasted(
    wire: Callable[[], Any], settle: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line = wire()
    async with reflector_of(line) as reflector:
        assert reflector.failing == ""
        await reflector.cache.listed.wait()
        await asyncio.sleep(1000)
        line.fail(("WATCH", "/"), times=2)
        line.server.end_watches()
        await asyncio.sleep(0.1)
        assert "was cut" in reflector.failing
        await asyncio.sleep(10)
        assert reflector.failing == ""
        line.server.store.compact()
        caplog.clear()
        caplog.set_level("INFO", "volplane.kube.reflector")
        await make(line, "a")
        await settle()
        line.fail(("WATCH", "/"), times=1)
        line.server.end_watches()
        await settle()
        await make(line, "b")
        line.server.store.compact()
        await asyncio.sleep(10)
        assert reflector.failing == ""
        assert reflector.cache.keys() == ["a", "b"]
    assert ["listing again" in each.getMessage() for each in caplog.records] == [False, True]


async def test_a_server_that_says_when_to_come_back_is_left_alone_until_then(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line, asked = wire(), []  # type: ignore[var-annotated]

    def busy(_method: str, _path: str) -> Response | None:
        asked.append(asyncio.get_running_loop().time())
        return Response(429, {"retry-after": "20"}, b"") if len(asked) == 1 else None

    line.before = busy
    async with reflecting(line) as cache:
        await cache.listed.wait()
    assert asked[1] - asked[0] >= 20


async def test_an_object_that_cannot_be_read_is_no_bookmark(wire: Callable[[], Any], settle: Callable[[], Any]) -> None:
    line = wire(without_bookmarks=frozenset({"persistentvolumes"}))
    await make(line, "a")
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        stored = line.server.store.get("persistentvolumes", "a").decode()
        line.server.store.put("persistentvolumes", "a", {**stored, "spec": {"capacity": 7}})
        await asyncio.sleep(100)
    assert all(seconds <= 80 for seconds in lengths(line))


async def test_many_changes_at_once_do_not_hold_up_everything_else(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        turns: list[int] = []
        counting: list[asyncio.Task[None]] = []

        async def count() -> None:
            for _ in range(1000):
                turns.append(len(cache))
                await asyncio.sleep(0)

        cache.subscribe(lambda _old, _new: None if counting else counting.append(asyncio.create_task(count())))
        line.fail(("WATCH", "/"), times=1)
        line.server.end_watches()
        await settle()
        await make(line, *(f"v{number:03}" for number in range(600)))
        await asyncio.sleep(30)
        assert len(cache) == 600
        assert max(later - before for before, later in pairwise(turns)) == 64


async def test_a_long_list_does_not_hold_up_everything_else(wire: Callable[[], Any]) -> None:
    line = wire()
    await make(line, *(f"v{number:03}" for number in range(600)))
    async with reflecting(line) as cache:
        turns = [0]
        while not cache.listed.is_set():
            turns.append(len(cache))
            await asyncio.sleep(0)
        assert max(later - before for before, later in pairwise([*turns, len(cache)])) == 64


async def test_a_restored_server_is_believed_about_what_was_deleted_and_has_changed_since(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line, told = wire(), []  # type: ignore[var-annotated]
    await make(line, "a", "b")
    backup = line.server.store.snapshot()
    async with reflecting(line, restored=lambda: told.append("restored")) as cache:
        await cache.listed.wait()
        await settle()
        await remove(line, "b")
        await settle()
        line.server.restore(backup, version=line.server.store.version + 1000)
        await line.client.patch(VOLUMES, "b", {"metadata": {"labels": {"n": "anew"}}})
        await asyncio.sleep(4)
        assert cache.keys() == ["a", "b"]
    assert told == ["restored"]


async def test_lists_and_ends_of_watches_are_counted(wire: Callable[[], Any], settle: Callable[[], Any]) -> None:
    registry = CollectorRegistry()
    line = wire()

    def counted(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"resource": "persistentvolumes", **labels})

    async with reflecting(line, metrics=Metrics(registry)) as cache:
        await cache.listed.wait()
        await settle()
        assert counted("volplane_reflector_lists_total") == 1
        line.server.end_watches()
        await asyncio.sleep(5)
        line.fail(("WATCH", "/"), times=1)
        line.server.end_watches()
        await asyncio.sleep(5)
        line.fail(("WATCH", "/"), times=1)
        line.server.end_watches()
        await settle()
        await make(line, "b")
        line.server.store.compact()
        await asyncio.sleep(10)
        assert counted("volplane_reflector_lists_total") == 2
    assert counted("volplane_reflector_watch_ends_total", why="end") == 3
    assert counted("volplane_reflector_watch_ends_total", why="error") == 2
    assert counted("volplane_reflector_watch_ends_total", why="gone") == 1


@pytest.mark.parametrize("bookmarks", [True, False])
async def test_a_watch_that_breaks_off_is_a_failure_however_long_nothing_was_heard_before_it(
    wire: Callable[[], Any], bookmarks: bool
) -> None:
    line = wire(**({} if bookmarks else {"without_bookmarks": frozenset({"persistentvolumes"})}))
    end, opened = asyncio.Event(), line.inner.stream

    @asynccontextmanager
    async def stream(request: Any) -> AsyncIterator[Any]:
        async with opened(request) as lines:
            yield Breakable(lines, end)

    line.inner.stream = stream
    async with reflector_of(line) as reflector:
        await reflector.cache.listed.wait()
        while len(lengths(line)) < 2:
            await asyncio.sleep(1)
        await asyncio.sleep(100 if bookmarks else 30)
        watches = len(lengths(line))
        end.set()
        await asyncio.sleep(0.1)
        assert len(lengths(line)) == watches
        assert reflector.failing == "it broke off"
        end.clear()
        before = looks(line)
        await asyncio.sleep(5)
        assert looks(line) == before + 1, "the server may have been put back"
        await asyncio.sleep(600)
        assert reflector.failing == ""
        assert (max(lengths(line)[2:]) > 80) is bookmarks


@pytest.mark.parametrize(
    ("where", "path"),
    [
        ({"namespace": "default"}, "/api/v1/namespaces/default/persistentvolumeclaims"),
        ({}, "/api/v1/persistentvolumeclaims"),
    ],
)
async def test_a_server_is_looked_at_in_the_namespace_that_is_followed(
    wire: Callable[[], Any], settle: Callable[[], Any], where: dict[str, str], path: str
) -> None:
    line = wire()
    reflector = Reflector(line.client, Cache(CLAIMS), random=Random(1), **where)
    task = asyncio.create_task(reflector.run())
    await reflector.cache.listed.wait()
    await settle()
    line.server.end_watches()
    await asyncio.sleep(5)
    asked = zip(line.calls, line.queries, strict=True)
    assert {called for (_, called), query in asked if query.get("limit") == "1"} == {path}
    task.cancel()


async def test_a_watch_that_told_something_before_it_ended_is_followed_by_another_at_once(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        for number in range(50):
            await make(line, f"v{number}")
            await settle()
            line.server.end_watches()
            await settle()
        assert len(lengths(line)) == 51


async def test_what_left_the_selection_and_came_back_by_a_later_write_stays(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, "a", labels={"node": "one"})
    async with reflecting(line, label_selector="node=one") as cache:
        await cache.listed.wait()
        await settle()
        held = cache.get("a")
        cache.observe(structs.replace(held, metadata=structs.replace(held.metadata, resource_version="1000000")))
        await line.client.patch(VOLUMES, "a", {"metadata": {"labels": {"node": "two"}}})
        await settle()
        assert cache.keys() == ["a"]


async def test_of_a_server_that_was_put_back_nothing_of_the_former_future_is_left(
    wire: Callable[[], Any], settle: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    line, other, told = wire(), wire(), []  # type: ignore[var-annotated]
    caplog.set_level("INFO", "volplane.kube.reflector")
    await make(other, "z")
    await make_a_longer_past(line)
    async with reflecting(line, restored=lambda: told.append("restored")) as cache:
        await cache.listed.wait()
        await settle()
        line.inner = other.inner
        line.server.end_watches()
        await asyncio.sleep(4)
        assert cache.keys() == ["z"]
    assert told == ["restored", "restored"], "the list may show a server that has caught up"
    assert "is not known, the newest is" in caplog.text


async def test_a_long_list_that_turns_out_to_be_of_a_restored_server_is_read_again_from_its_begin(
    wire: Callable[[], Any], settle: Callable[[], Any]
) -> None:
    line = wire()
    await make(line, *(f"v{number:03}" for number in range(501)))
    backup = line.server.store.snapshot()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await settle()
        await line.client.patch(VOLUMES, "v500", {"metadata": {"labels": {"n": "lost"}}})
        await settle()
        line.server.restore(backup, version=line.server.store.version + 1000)
        await asyncio.sleep(5)
        assert len(cache) == 501
        assert cache.get("v500").metadata.labels is None


async def test_a_server_is_looked_at_anew_though_its_very_first_watch_failed(wire: Callable[[], Any]) -> None:
    line = wire()
    line.fail(("WATCH", "/"), times=1)
    async with reflector_of(line) as reflector:
        await asyncio.sleep(10)
        assert looks(line) == 1
        assert reflector.failing == ""


async def test_after_a_watch_in_which_no_bookmark_came_the_next_one_is_short(wire: Callable[[], Any]) -> None:
    line = wire()
    async with reflecting(line) as cache:
        await cache.listed.wait()
        await asyncio.sleep(100)
        assert lengths(line)[-1] >= 240
        line.server.end_watches()
        await asyncio.sleep(5)
        assert lengths(line)[-1] <= 80
        assert len(lengths(line)) == 3
