"""Events: counted, limited, never in the way."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from volplane.controller.actions import EventRecord
from volplane.kube import events as events_module
from volplane.kube.events import MOST_WAITING, EventRecorder
from volplane.kube.kinds import CLAIMS, NAMESPACES, VOLUMES
from volplane.kube.objects import Claim, Metadata, Volume
from volplane.kube.transport import Response
from volplane_testing.clock import now

CLAIM = Claim(metadata=Metadata(name="data", namespace="default", uid="u1", resource_version="7"))
VOLUME = Volume(metadata=Metadata(name="pv", uid="u2", resource_version="8"))


def failed(message: str = "no space", about: Claim = CLAIM) -> EventRecord:
    return EventRecord(CLAIMS, about, "Warning", "ProvisioningFailed", message)


@asynccontextmanager
async def recording(wire: Any) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(wire.client, instance="volplane-0", now=now)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        await recorder.close()
        await task


async def events(wire: Any) -> list[dict[str, Any]]:
    listed = msgspec.json.decode(await wire.client.raw("/api/v1/events"))
    return [dict(item) for item in listed["items"]]


async def quiet(recorder: EventRecorder) -> None:
    while not recorder.idle:
        await asyncio.sleep(0)


async def test_an_event_says_who_tells_what_about_which_object(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        recorder.record(failed())
        recorder.record(EventRecord(VOLUMES, VOLUME, "Normal", "VolumeDeleted", "gone"))
        await quiet(recorder)
        about_claim, about_volume = sorted(await events(line), key=lambda event: str(event["reason"]))
    assert about_claim["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "default",
        "name": "data",
        "uid": "u1",
        "resourceVersion": "7",
    }
    assert about_claim["message"] == "no space"
    assert about_claim["type"] == "Warning"
    assert about_claim["count"] == 1
    assert about_claim["source"] == {"component": "volplane"}
    assert about_claim["reportingComponent"] == "volplane"
    assert about_claim["reportingInstance"] == "volplane-0"
    assert about_claim["firstTimestamp"] == about_claim["lastTimestamp"] == "2026-01-01T00:00:00Z"
    assert about_claim["metadata"]["namespace"] == "default"
    assert about_volume["metadata"]["namespace"] == "default"
    assert "namespace" not in about_volume["involvedObject"]


async def test_the_same_notice_again_is_counted_and_written_ever_less_often(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        for _ in range(600):
            recorder.record(failed())
            await asyncio.sleep(1)
        await asyncio.sleep(301)
        (event,) = await events(line)
        assert event["count"] == 600
        assert event["firstTimestamp"] == "2026-01-01T00:00:00Z"
        assert event["lastTimestamp"] == "2026-01-01T00:09:59Z"
        assert len(line.writes()) <= 11


async def test_a_count_is_seen_soon_while_it_is_small(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        for _ in range(3):
            recorder.record(failed())
            await quiet(recorder)
        await asyncio.sleep(2.1)
        (event,) = await events(line)
        assert event["count"] == 3


async def test_what_changes_from_try_to_try_makes_no_new_event_and_the_last_is_told(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        for seconds in (1, 2, 4, 8, 16):
            again = f"no space; next attempt in {seconds} s"
            recorder.record(EventRecord(CLAIMS, CLAIM, "Warning", "ProvisioningFailed", again, same_as="no space"))
            await asyncio.sleep(seconds)
        await asyncio.sleep(301)
        (event,) = await events(line)
        assert event["count"] == 5
        assert event["message"] == "no space; next attempt in 16 s"


async def test_from_the_tenth_text_for_one_reason_on_there_is_one_event_for_all_further_ones(
    wire: Callable[[], Any],
) -> None:
    line = wire()
    async with recording(line) as recorder:
        for number in range(100):
            recorder.record(failed(f"request {number} failed"))
        recorder.record(failed("request 3 failed"))
        await asyncio.sleep(1200)
        told = {event["message"]: event["count"] for event in await events(line)}
        assert len(told) == 10
        assert told["(combined from similar events): request 99 failed"] == 91
        assert told["request 3 failed"] == 2
        for number in range(3):
            recorder.record(failed(f"another day, request {number}"))
        await quiet(recorder)
        assert len(await events(line)) == 13


async def test_what_is_not_counted_yet_is_written_at_the_end(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        for _ in range(3):
            recorder.record(failed())
            await quiet(recorder)
    (event,) = await events(line)
    assert event["count"] == 3


async def test_a_restarted_controller_goes_on_counting(wire: Callable[[], Any]) -> None:
    line = wire()
    for _ in range(3):
        async with recording(line) as recorder:
            recorder.record(failed())
    (event,) = await events(line)
    assert event["count"] == 3


async def test_an_event_that_expired_is_made_anew(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        recorder.record(failed())
        await quiet(recorder)
        (event,) = await events(line)
        line.server.handle("DELETE", f"/api/v1/namespaces/default/events/{event['metadata']['name']}", {}, {}, b"")
        await asyncio.sleep(3600)
        recorder.record(failed())
        await quiet(recorder)
        (again,) = await events(line)
        assert again["count"] == 2


def reason(number: int) -> EventRecord:
    return EventRecord(CLAIMS, CLAIM, "Warning", f"Reason{number}", "it failed")


async def test_one_object_cannot_flood_the_server_and_what_is_too_much_waits(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        for number in range(30):
            recorder.record(reason(number))
        await quiet(recorder)
        assert len(await events(line)) == 25
        other = Claim(metadata=Metadata(name="other", namespace="default", uid="u3"))
        recorder.record(failed(about=other))
        await quiet(recorder)
        assert len(await events(line)) == 26
        await asyncio.sleep(301)
        assert len(await events(line)) == 27
        await asyncio.sleep(1201)
        assert len(await events(line)) == 31
        assert recorder.dropped == 0


def crowd(number: int) -> EventRecord:
    about = Claim(metadata=Metadata(name=f"c{number}", namespace="default", uid=f"u{number}"))
    return EventRecord(CLAIMS, about, "Normal", "ProvisioningSucceeded", "made")


async def test_a_burst_of_thousands_loses_none(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        for number in range(3000):
            recorder.record(crowd(number))
        await recorder.close(3600.0)
        assert recorder.dropped == 0
    assert len(line.writes()) == 3000


async def test_only_above_a_hundred_thousand_waiting_are_any_dropped_and_those_are_counted(
    wire: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_WAITING == 100_000
    monkeypatch.setattr("volplane.kube.events.MOST_WAITING", 1000)
    line = wire()
    recorder = EventRecorder(line.client, instance="volplane-0", now=now)
    for number in range(1010):
        recorder.record(crowd(number))
    recorder.record(crowd(7))
    assert recorder.dropped == 10
    task = asyncio.create_task(recorder.run())
    await quiet(recorder)
    assert len(await events(line)) == 1000
    await recorder.close()
    await task


async def test_a_server_that_is_away_for_an_hour_gets_all_events_later(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        line.fail(("POST", "/"), times=100_000)
        for number in range(100):
            recorder.record(crowd(number))
        await asyncio.sleep(3600)
        line.before = lambda _method, _path: None
        await asyncio.sleep(61)
        assert len(await events(line)) == 100
        assert recorder.dropped == 0


async def test_an_event_that_the_server_cannot_take_delays_no_other(wire: Callable[[], Any]) -> None:
    line = wire()
    poison = "/api/v1/namespaces/poison/events"
    line.before = lambda _method, path: Response(500, {}, b"{}") if path == poison else None
    async with recording(line) as recorder:
        for number in range(10):
            about = Claim(metadata=Metadata(name=f"p{number}", namespace="poison", uid=f"p{number}"))
            recorder.record(failed(about=about))
        recorder.record(failed())
        await asyncio.sleep(0.5)
        assert len(await events(line)) == 1


async def test_rights_that_take_a_moment_to_spread_lose_no_event(wire: Callable[[], Any]) -> None:
    line = wire()
    line.before = lambda method, _path: Response(403, {}, b'{"message":"you may not"}') if method == "POST" else None
    async with recording(line) as recorder:
        recorder.record(failed())
        await asyncio.sleep(3)
        line.before = lambda _method, _path: None
        await asyncio.sleep(5)
        assert len(await events(line)) == 1
        assert recorder.dropped == 0


async def test_a_create_whose_answer_was_lost_is_not_repeated(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        line.fail(("POST", "/"), after=True)
        recorder.record(failed())
        await asyncio.sleep(20)
        assert len(await events(line)) == 1


async def test_an_event_in_a_namespace_that_goes_is_dropped_without_a_fuss(wire: Callable[[], Any]) -> None:
    line = wire()
    await line.client.create(NAMESPACES, NAMESPACES.body(metadata={"name": "other"}))
    async with recording(line) as recorder:
        line.before = lambda method, _path: (
            Response(403, {}, b'{"message":"namespace is being terminated"}') if method == "POST" else None
        )
        recorder.record(failed(about=Claim(metadata=Metadata(name="x", namespace="other", uid="u9"))))
        await quiet(recorder)
        assert recorder.dropped == 1
        assert len(line.writes()) == 2


async def test_long_names_and_messages_fit(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        long = Claim(metadata=Metadata(name="n" * 253, namespace="default", uid="u4"))
        recorder.record(failed("x" * 5000, about=long))
        await quiet(recorder)
        (event,) = await events(line)
        assert len(event["metadata"]["name"]) == 253
        assert len(event["message"].encode()) == 1024


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no file /srv/\udcff", "no file /srv/\\udcff"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("backwards \u202egnp.exe", "backwards \\u202egnp.exe"),
        ("größer als 8 Ei \N{PILE OF POO}", "größer als 8 Ei \N{PILE OF POO}"),
        ("a" * 1022 + "ééé", "a" * 1021 + "…"),
        ("é" * 600, "é" * 510 + "…"),
    ],
)
async def test_hostile_text_becomes_one_legible_line_that_the_server_takes(
    wire: Callable[[], Any], said: str, told: str
) -> None:
    line = wire()
    async with recording(line) as recorder:
        recorder.record(failed(said))
        recorder.record(failed(said))
        await quiet(recorder)
        (event,) = await events(line)
        assert event["message"] == told
        assert len(event["message"].encode()) <= 1024


async def test_a_fault_of_ours_at_one_event_does_not_end_the_writing_of_others(wire: Callable[[], Any]) -> None:
    line = wire()

    def broken(_method: str, _path: str) -> Response | None:
        line.before = lambda _method, _path: None
        raise RuntimeError("a bug")

    line.before = broken
    async with recording(line) as recorder:
        recorder.record(failed("the first"))
        await quiet(recorder)
        recorder.record(failed("the next"))
        await quiet(recorder)
        assert [event["message"] for event in await events(line)] == ["the next"]
        assert recorder.dropped == 1


async def test_closing_does_not_wait_for_a_server_that_is_away(wire: Callable[[], Any]) -> None:
    line = wire()
    async with recording(line) as recorder:
        line.fail(("POST", "/"), times=1000)
        recorder.record(failed())
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun < 4


def size_of(item: Any, seen: set[int] | None = None) -> int:
    """Bytes of everything that can be reached from the item."""
    seen = set() if seen is None else seen
    todo, total = [item], 0
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type) or callable(each):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        fields = getattr(each, "__struct_fields__", ())
        todo += [getattr(each, name) for name in fields] or gc.get_referents(each)
    return total


async def test_what_tenants_write_on_objects_and_into_texts_is_not_kept_with_their_events(
    wire: Callable[[], Any],
) -> None:
    line = wire()
    async with recording(line) as recorder:
        for number in range(10):
            large = {"notes": f"{number}\U0001f600" + "x" * 50_000}
            about = Claim(
                metadata=Metadata(name=f"c{number}", namespace="default", uid=f"u{number}", annotations=large)
            )
            for text in range(2):
                recorder.record(failed(f"{text}{large['notes']}", about))
        assert size_of(recorder._correlator) < 500_000
        await quiet(recorder)
        assert size_of(recorder._correlator) < 500_000


async def test_events_are_dropped_above_a_number_of_characters(
    wire: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "_MOST_CHARACTERS", 100_000)
    line = wire()
    async with recording(line) as recorder:
        for number in range(200):
            about = Claim(metadata=Metadata(name=f"c{number}", namespace="default", uid=f"u{number}"))
            recorder.record(failed("x" * 1000, about))
        assert 100 < recorder.dropped < 200
        await quiet(recorder)
        before = recorder.dropped
        recorder.record(failed("y" * 1000))
        assert recorder.dropped == before
