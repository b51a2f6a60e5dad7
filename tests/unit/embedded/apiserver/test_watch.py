from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from unit.embedded.apiserver.calls import MAPS, VOLUMES, Calls, config_map, events, rest, volume
from volplane_testing import clock

FOREVER = "100000"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def calls_of_this_loop(**options: Any) -> Calls:
    return Calls(now=clock.now, **options)


async def test_a_watch_shows_what_is_there_and_then_every_change() -> None:
    calls = calls_of_this_loop()
    calls.made(MAPS, config_map("a"))
    watch = calls.watch(MAPS)
    calls.made(MAPS, config_map("b"))
    calls.patch(f"{MAPS}/a", {"data": {"k": "v"}})
    calls.delete(f"{MAPS}/b")
    assert await events(watch, 4) == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    watch.close()
    assert await rest(watch) == []


async def test_a_watch_from_a_version_replays_what_came_after_it_once() -> None:
    calls = calls_of_this_loop()
    version = calls.made(MAPS, config_map("a")).version
    calls.made(MAPS, config_map("b"))
    watch = calls.watch(MAPS, resourceVersion=version)
    calls.made(MAPS, config_map("c"))
    assert await events(watch, 2) == [("ADDED", "b"), ("ADDED", "c")]
    calls.server.close()


async def test_a_waiting_reader_is_woken_by_a_write() -> None:
    calls = calls_of_this_loop()
    watch = calls.watch(MAPS)
    reader = asyncio.ensure_future(events(watch, 1))
    await asyncio.sleep(5)
    calls.made(MAPS, config_map("a"))
    assert await reader == [("ADDED", "a")]
    watch.close()


async def test_a_watch_sees_its_namespace_alone() -> None:
    calls = calls_of_this_loop()
    watch = calls.watch(MAPS, timeoutSeconds="1")
    calls.made("/api/v1/namespaces/kube-system/configmaps", config_map("x"))
    calls.made(MAPS, config_map("a"))
    assert [event["object"]["metadata"]["name"] for event in await rest(watch)] == ["a"]


async def test_objects_that_start_or_stop_to_match_come_and_go() -> None:
    calls = calls_of_this_loop()
    calls.made(MAPS, config_map("a"))
    watch = calls.watch(MAPS, labelSelector="on", timeoutSeconds="1")
    calls.patch(f"{MAPS}/a", {"metadata": {"labels": {"on": "1"}}})
    calls.patch(f"{MAPS}/a", {"data": {"k": "v"}})
    gone = calls.patch(f"{MAPS}/a", {"metadata": {"labels": None}, "data": {"k": "w"}})
    calls.patch(f"{MAPS}/a", {"data": {"k": "x"}})
    calls.delete(f"{MAPS}/a")
    seen = await rest(watch)
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]
    last = seen[-1]["object"]
    assert (last["metadata"]["labels"], last["data"]) == ({"on": "1"}, {"k": "v"})
    assert last["metadata"]["resourceVersion"] == gone.version


async def test_a_replay_selects_as_a_live_watch_does() -> None:
    calls = calls_of_this_loop()
    version = calls.get(MAPS).version
    calls.made(MAPS, {"metadata": {"name": "a", "labels": {"on": "1"}}})
    calls.made(MAPS, config_map("b"))
    calls.patch(f"{MAPS}/a", {"metadata": {"labels": None}})
    watch = calls.watch(MAPS, labelSelector="on", resourceVersion=version, timeoutSeconds="1")
    assert [event["type"] for event in await rest(watch)] == ["ADDED", "DELETED"]


async def test_one_object_is_watched_by_its_name_or_by_the_old_path() -> None:
    calls = calls_of_this_loop()
    calls.made(MAPS, config_map("a"))
    calls.made(MAPS, config_map("b"))
    by_path = calls.watch("/api/v1/watch/namespaces/default/configmaps/a", timeoutSeconds="1")
    by_name = calls.watch(MAPS, fieldSelector="metadata.name=a", timeoutSeconds="1")
    calls.delete(f"{MAPS}/b")
    calls.delete(f"{MAPS}/a")
    for watch in (by_path, by_name):
        assert [event["type"] for event in await rest(watch)] == ["ADDED", "DELETED"]


async def test_a_deleted_event_of_a_finalized_object_shows_what_was_last_stored() -> None:
    calls = calls_of_this_loop()
    calls.made(VOLUMES, volume("a"))
    calls.delete(f"{VOLUMES}/a")
    watch = calls.watch(VOLUMES, resourceVersion=calls.get(VOLUMES).version, timeoutSeconds="1")
    calls.patch(f"{VOLUMES}/a", {"metadata": {"finalizers": None}})
    (event,) = await rest(watch)
    meta = event["object"]["metadata"]
    assert (event["type"], meta["finalizers"]) == ("DELETED", ["kubernetes.io/pv-protection"])
    assert meta["resourceVersion"] == str(calls.server.store.version)


async def test_a_watch_ends_at_its_timeout_and_has_one_even_if_not_asked() -> None:
    calls = calls_of_this_loop()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await rest(calls.watch(MAPS, timeoutSeconds="30")) == []
    assert loop.time() - begun == pytest.approx(30)
    assert await rest(calls.watch(MAPS)) == []
    assert 30 + 1800 <= loop.time() - begun <= 30 + 3600


async def test_bookmarks_come_every_minute_and_before_the_end_with_the_newest_version() -> None:
    calls = calls_of_this_loop()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    watch = calls.watch(VOLUMES, allowWatchBookmarks="true", timeoutSeconds="150")
    calls.made(MAPS, config_map("elsewhere"))
    seen = []
    async for line in watch:
        event = json.loads(line)
        assert event["object"]["metadata"] == {"resourceVersion": str(calls.server.store.version)}
        seen.append((event["type"], event["object"]["kind"], round(loop.time() - begun)))
    kind = "PersistentVolume"
    assert seen == [("BOOKMARK", kind, 60), ("BOOKMARK", kind, 120), ("BOOKMARK", kind, 148)]


async def test_events_get_no_bookmarks_and_other_kinds_where_it_is_asked_for() -> None:
    calls = calls_of_this_loop()
    assert await rest(calls.watch("/api/v1/events", allowWatchBookmarks="true", timeoutSeconds="150")) == []
    calls = calls_of_this_loop(without_bookmarks=frozenset({"persistentvolumes"}))
    watch = calls.watch(VOLUMES, allowWatchBookmarks="true", timeoutSeconds="150")
    assert await rest(watch) == []


async def test_a_watch_from_the_future_hears_nothing_until_the_server_gets_there() -> None:
    calls = calls_of_this_loop()
    ahead = str(calls.server.store.version + 2)
    watch = calls.watch(MAPS, resourceVersion=ahead, allowWatchBookmarks="true", timeoutSeconds="150")
    await asyncio.sleep(100)
    for name in "abc":
        calls.made(MAPS, config_map(name))
    seen = await rest(watch)
    assert [event["type"] for event in seen] == ["ADDED", "BOOKMARK", "BOOKMARK"]
    assert seen[0]["object"]["metadata"]["name"] == "c"


async def test_a_bell_that_rings_a_clock_tick_early_rings_once() -> None:
    calls = calls_of_this_loop()
    loop = asyncio.get_running_loop()
    watch = calls.watch(VOLUMES, allowWatchBookmarks="true", timeoutSeconds="62")
    loop.call_at(loop.time() + 60 - 5e-7, lambda: None)
    assert len([line async for line in watch]) == 1


async def test_without_leave_there_are_no_bookmarks() -> None:
    calls = calls_of_this_loop()
    assert await rest(calls.watch(MAPS, timeoutSeconds="150")) == []


async def test_initial_events_end_with_a_marked_bookmark() -> None:
    calls = calls_of_this_loop()
    calls.made(MAPS, config_map("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    watch = calls.watch(MAPS, **query, timeoutSeconds="1")
    calls.made(MAPS, config_map("b"))
    first, mark, later = await rest(watch)
    assert (first["type"], mark["type"], later["type"]) == ("ADDED", "BOOKMARK", "ADDED")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert int(mark["object"]["metadata"]["resourceVersion"]) < int(later["object"]["metadata"]["resourceVersion"])


async def test_a_version_that_is_compacted_is_a_410_event_and_the_end() -> None:
    calls = calls_of_this_loop()
    version = calls.made(MAPS, config_map("a")).version
    calls.made(MAPS, config_map("b"))
    calls.server.store.compact()
    (event,) = await rest(calls.watch(MAPS, resourceVersion=version))
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    watch = calls.watch(MAPS, resourceVersion=calls.get(MAPS).version, timeoutSeconds="1")
    assert await rest(watch) == []


async def test_a_watch_from_the_future_waits_for_it() -> None:
    calls = calls_of_this_loop()
    watch = calls.watch(MAPS, resourceVersion=str(calls.server.store.version + 1), timeoutSeconds="1")
    calls.made(MAPS, config_map("a"))
    calls.made(MAPS, config_map("b"))
    assert [event["object"]["metadata"]["name"] for event in await rest(watch)] == ["b"]


async def test_a_reader_that_is_too_slow_is_dropped() -> None:
    calls = calls_of_this_loop(watch_buffer=3)
    slow, fast = calls.watch(MAPS), calls.watch(MAPS)
    for name in "abcde":
        calls.made(MAPS, config_map(name))
        assert await events(fast, 1) == [("ADDED", name)]
    assert (slow.dropped, fast.dropped) == (True, False)
    assert await rest(slow) == []
    fast.close()


async def test_a_reader_is_dropped_before_much_memory_is_held_for_it() -> None:
    calls = calls_of_this_loop()
    watch = calls.watch(MAPS)
    for number in range(70):
        calls.made(MAPS, config_map(f"m-{number}", k="x" * 1_000_000))
        if watch.dropped:
            break
    assert 60 < number < 70


async def test_what_is_there_at_the_start_needs_no_buffer() -> None:
    calls = calls_of_this_loop(watch_buffer=2)
    for name in "abcdef":
        calls.made(MAPS, config_map(name))
    watch = calls.watch(MAPS, timeoutSeconds="1")
    assert len(await rest(watch)) == 6


async def test_lines_that_wait_are_read_in_one_chunk() -> None:
    calls = calls_of_this_loop()
    watch = calls.watch(MAPS, timeoutSeconds="1")
    for name in "abc":
        calls.made(MAPS, config_map(name))
    assert (await watch.chunk()).count(b"\n") == 3
    assert await watch.chunk() == b""


async def test_only_the_first_table_of_a_watch_defines_columns() -> None:
    calls = calls_of_this_loop()
    calls.made(VOLUMES, volume("a"))
    watch = calls.watch(VOLUMES, accept=TABLE, timeoutSeconds="1")
    calls.made(VOLUMES, volume("b"))
    first, second = (event["object"] for event in await rest(watch))
    assert (first["kind"], first["rows"][0]["cells"][0], second["rows"][0]["cells"][0]) == ("Table", "a", "b")
    assert first["columnDefinitions"]
    assert second["columnDefinitions"] is None


async def test_bookmarks_and_ends_are_shown_in_a_watch_of_tables() -> None:
    calls = calls_of_this_loop()
    watch = calls.watch(VOLUMES, accept=TABLE, allowWatchBookmarks="true", timeoutSeconds="10")
    (mark,) = await rest(watch)
    assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "Table")


async def test_a_closed_watch_leaves_nothing_behind() -> None:
    calls = calls_of_this_loop()
    for _ in range(3):
        calls.watch(MAPS, allowWatchBookmarks="true").close()
    watch = calls.watch(MAPS, allowWatchBookmarks="true")
    calls.server.close()
    assert await rest(watch) == []


async def test_options_that_make_no_sense_are_refused_before_the_watch_begins() -> None:
    calls = calls_of_this_loop()
    for path, query, status in (
        (MAPS, {"resourceVersion": "x"}, 500),
        (MAPS, {"labelSelector": "=="}, 400),
        (MAPS, {"timeoutSeconds": "soon"}, 400),
        (MAPS, {"sendInitialEvents": "true"}, 422),
        (MAPS, {"resourceVersionMatch": "Exact", "resourceVersion": "1"}, 422),
        ("/api/v1/nopes", {}, 404),
        ("/nope", {}, 404),
        (f"{VOLUMES}/a/status", {}, 404),
    ):
        assert calls.refused_watch(path, **query).status == status
