"""Typed calls and what refusals become."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from volplane.errors import ApiConflict, ApiError, ApiForbidden, ApiGone, ApiNotFound, ApiUnavailable
from volplane.kube.client import JSON_PATCH, ApiMetrics, Counted
from volplane.kube.kinds import CLAIMS, NAMESPACES, PODS, VOLUMES
from volplane.kube.transport import Response


def volume(name: str, **metadata: Any) -> dict[str, Any]:
    return VOLUMES.body(
        metadata={"name": name, **metadata},
        spec={
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/tmp/x"},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    )


async def test_an_object_is_created_read_changed_and_deleted(wire: Callable[[], Any]) -> None:
    client = wire().client
    made = await client.create(VOLUMES, volume("a"))
    assert made.spec.capacity == {"storage": "1Gi"}
    changed = await client.patch(VOLUMES, "a", {"metadata": {"labels": {"x": "y"}}})
    assert changed.version > made.version
    assert await client.get(VOLUMES, "a") == changed
    patched = await client.patch(
        VOLUMES,
        "a",
        [{"op": "replace", "path": "/spec/persistentVolumeReclaimPolicy", "value": "Delete"}],
        content_type=JSON_PATCH,
    )
    assert patched.spec.persistent_volume_reclaim_policy == "Delete"
    left = await client.delete(VOLUMES, "a", uid=made.uid)
    assert left is not None
    assert left.terminating
    await client.patch(VOLUMES, "a", {"metadata": {"finalizers": None}})
    with pytest.raises(ApiNotFound):
        await client.get(VOLUMES, "a")


async def test_deleting_what_nothing_holds_leaves_nothing(wire: Callable[[], Any]) -> None:
    client = wire().client
    await client.create(VOLUMES, volume("a"))
    await client.patch(VOLUMES, "a", {"metadata": {"finalizers": None}})
    assert await client.delete(VOLUMES, "a") is None


async def test_a_pod_with_a_grace_period_is_left_and_then_deleted(wire: Callable[[], Any]) -> None:
    client = wire().client
    pod = PODS.body(metadata={"name": "p", "namespace": "default"}, spec={"containers": [{"name": "c", "image": "i"}]})
    await client.create(PODS, pod)
    await client.post(
        PODS,
        "default/p",
        "binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}},
    )
    left = await client.delete(PODS, "default/p")
    assert left is not None
    assert left.metadata.deletion_grace_period_seconds == 30
    assert await client.delete(PODS, "default/p", grace_seconds=0) is None


async def test_a_stale_write_is_a_conflict_and_a_second_create_is_not(wire: Callable[[], Any]) -> None:
    client = wire().client
    made = await client.create(VOLUMES, volume("a"))
    await client.patch(VOLUMES, "a", {"metadata": {"labels": {"x": "y"}}})
    stale = {"metadata": {"resourceVersion": made.metadata.resource_version, "labels": {"x": "z"}}}
    with pytest.raises(ApiConflict):
        await client.patch(VOLUMES, "a", stale)
    with pytest.raises(ApiConflict):
        await client.delete(VOLUMES, "a", resource_version=made.metadata.resource_version)
    with pytest.raises(ApiConflict):
        await client.delete(VOLUMES, "a", uid="another")
    with pytest.raises(ApiError) as caught:
        await client.create(VOLUMES, volume("a"))
    assert caught.value.already_exists
    assert not isinstance(caught.value, ApiConflict)


async def test_an_invalid_object_is_refused_with_the_servers_reason(wire: Callable[[], Any]) -> None:
    with pytest.raises(ApiError, match="is invalid") as caught:
        await wire().client.create(VOLUMES, VOLUMES.body(metadata={"name": "a"}, spec={}))
    assert caught.value.status == 422
    assert caught.value.reason == "Invalid"


async def test_lists_come_in_pages_of_one_snapshot(wire: Callable[[], Any]) -> None:
    line = wire()
    for number in range(7):
        await line.client.create(VOLUMES, volume(f"v{number}"))
    pages = [page async for page in line.client.pages(VOLUMES, limit=3)]
    assert [len(page.items) for page in pages] == [3, 3, 1]
    assert len({page.version for page in pages}) == 1
    whole = await line.client.list(VOLUMES)
    assert [v.name for v in whole.items] == [f"v{number}" for number in range(7)]
    assert whole.version == pages[0].version


async def test_a_list_whose_snapshot_grows_too_old_between_two_pages_is_read_in_one_answer(
    wire: Callable[[], Any],
) -> None:
    line = wire()
    for number in range(501):
        await line.client.create(VOLUMES, volume(f"v{number}"))

    async def change() -> None:
        line.before_page = None
        await line.client.create(VOLUMES, volume("new"))
        line.server.store.compact()

    line.before_page = change
    listed = await line.client.list(VOLUMES)
    assert len(listed.items) == len({each.name for each in listed.items}) == 502
    assert listed.version == line.server.store.version


async def test_selectors_and_namespaces_choose_what_is_listed(wire: Callable[[], Any]) -> None:
    client = wire().client
    await client.create(VOLUMES, volume("a", labels={"x": "y"}))
    await client.create(VOLUMES, volume("b"))
    assert [v.name for v in (await client.list(VOLUMES, label_selector="x=y")).items] == ["a"]
    assert [v.name for v in (await client.list(VOLUMES, field_selector="metadata.name=b")).items] == ["b"]
    await client.create(NAMESPACES, NAMESPACES.body(metadata={"name": "other"}))
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    for namespace in ("default", "other"):
        await client.create(CLAIMS, CLAIMS.body(metadata={"name": "c", "namespace": namespace}, spec=spec))
    assert [c.key for c in (await client.list(CLAIMS, namespace="other")).items] == ["other/c"]
    assert len((await client.list(CLAIMS)).items) == 2


@pytest.mark.parametrize(
    ("code", "date", "known"),
    [
        (200, "Thu, 01 Jan 2026 00:00:09 GMT", "2026-01-01T00:00:19+00:00"),
        (500, "Thu, 01 Jan 2099 00:00:09 GMT", None),
        (200, "yesterday", None),
        (200, "", None),
    ],
)
async def test_the_clock_of_the_server_goes_on_from_its_last_answer(
    wire: Callable[[], Any], code: int, date: str, known: str | None
) -> None:
    line = wire()
    assert line.client.server_time() is None
    body = b'{"kind":"PersistentVolume","metadata":{"name":"a","resourceVersion":"1"}}'
    line.before = lambda _method, _path: Response(code, {"date": date} if date else {}, body)
    with contextlib.suppress(ApiUnavailable):
        await line.client.writing_while(lambda: True).get(VOLUMES, "a")
    await asyncio.sleep(10)
    shown = line.client.server_time()
    assert (shown.isoformat() if shown else None) == known


def _answer(code: int, *, body: bytes = b"", **headers: str) -> Response:
    return Response(code, {name.replace("_", "-"): value for name, value in headers.items()}, body)


@pytest.mark.parametrize(
    ("answer", "error", "retry_after", "message"),
    [
        (_answer(429, retry_after="3"), ApiUnavailable, 3.0, "was answered 429"),
        (
            _answer(500, body=b'{"message":"etcd is away","reason":"InternalError"}'),
            ApiUnavailable,
            None,
            "etcd is away",
        ),
        (_answer(503, body=b"upstream connect error"), ApiUnavailable, None, "upstream connect error"),
        (_answer(504, body=b'{"message":"slow","details":{"retryAfterSeconds":2}}'), ApiUnavailable, 2.0, "slow"),
        (
            _answer(504, body=b'{"message":"far","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}'),
            ApiGone,
            None,
            "far",
        ),
        (_answer(410, body=b'{"message":"too old","reason":"Expired"}'), ApiGone, None, "too old"),
        (
            _answer(404, body=b'{"message":"no such","details":{"kind":"persistentvolumes","name":"a"}}'),
            ApiNotFound,
            None,
            "no such",
        ),
        (
            _answer(404, body=b"404 page not found"),
            ApiUnavailable,
            None,
            "persistentvolumes/a was answered 404: 404 page",
        ),
        (
            _answer(404, body=b'{"message":"webhook denied it","reason":"NotFound","details":{}}'),
            ApiError,
            None,
            "webhook denied it",
        ),
        (
            _answer(404, body=b'{"message":"other","details":{"kind":"persistentvolumes","name":"b"}}'),
            ApiUnavailable,
            None,
            "other",
        ),
        (
            _answer(404, body=b'{"message":"other","details":{"kind":"persistentvolumeclaims","name":"a"}}'),
            ApiUnavailable,
            None,
            "other",
        ),
        (_answer(403, body=b'{"message":"not you","reason":"Forbidden"}'), ApiForbidden, None, "not you"),
        (_answer(302, location="elsewhere"), ApiError, None, "GET /api/v1/persistentvolumes/a was answered 302"),
    ],
)
async def test_a_refusal_becomes_the_error_of_its_code(
    wire: Callable[[], Any], answer: Response, error: type[ApiError], retry_after: float | None, message: str
) -> None:
    line = wire()
    line.before = lambda _method, _path: answer
    with pytest.raises(error, match=message) as caught:
        await line.client.get(VOLUMES, "a")
    assert type(caught.value) is error
    assert caught.value.status == answer.status
    assert caught.value.retry_after == retry_after


async def test_one_object_that_cannot_be_read_does_not_spoil_the_list(
    wire: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    items = [
        {"metadata": {"name": "good", "resourceVersion": "7"}},
        {"metadata": {"name": "bad", "resourceVersion": "8"}, "spec": {"capacity": "much"}},
        {"metadata": {"name": "odd", "resourceVersion": "x9"}},
        {"metadata": "nothing"},
    ]
    body = msgspec.json.encode({"metadata": {"resourceVersion": "9"}, "items": items})

    line = wire()
    line.before = lambda _method, _path: _answer(200, body=body)
    listing = await line.client.list(VOLUMES)
    assert [v.name for v in listing.items] == ["good"]
    assert listing.unreadable == ["bad", "odd", ""]
    assert listing.version == 9
    assert "PersistentVolume bad could not be read and is skipped" in caplog.text


class _Counts(ApiMetrics):
    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []

    def api_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        assert seconds >= 0
        self.requests.append((verb, resource, code))

    def count(self, what: Counted, *labels: str) -> None:
        self.requests.append((what, labels[0], 0))


async def test_requests_are_counted_by_verb_resource_and_code(wire: Callable[[], Any]) -> None:
    line = wire()
    counts = _Counts()
    line.client._metrics = counts
    await line.client.create(VOLUMES, volume("a"))
    await line.client.patch(VOLUMES, "a", {"status": {"phase": "Available"}}, subresource="status")
    with pytest.raises(ApiNotFound):
        await line.client.get(VOLUMES, "b")
    line.fail(("GET", "/api/v1"))
    with pytest.raises(ApiUnavailable):
        await line.client.list(VOLUMES)
    assert counts.requests == [
        ("create", "persistentvolumes", 201),
        ("patch", "persistentvolumes/status", 200),
        ("get", "persistentvolumes", 404),
        ("list", "persistentvolumes", 0),
    ]


async def test_low_priority_calls_wait_while_writes_are_many_but_not_for_ever(wire: Callable[[], Any]) -> None:
    line = wire()
    gate = line.client._gate
    order: list[str] = []

    async def write(seconds: float) -> None:
        gate.__enter__()
        await asyncio.sleep(seconds)
        gate.__exit__()
        order.append("write")

    async def event() -> None:
        await line.client.create(VOLUMES, volume("a"), low_priority=True)
        order.append(f"event at {asyncio.get_running_loop().time():.0f}")

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(write(3))
        await asyncio.sleep(0)
        group.create_task(event())
    assert order == ["write", "event at 3", "write", "write", "write"] or order[-1] == "event at 3"
    order.clear()
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(write(60))
        await asyncio.sleep(0)
        await line.client.patch(VOLUMES, "a", {"metadata": {"labels": {"x": "y"}}}, low_priority=True)
        assert asyncio.get_running_loop().time() == pytest.approx(8)


async def test_raw_answers_with_bytes(wire: Callable[[], Any]) -> None:
    assert msgspec.json.decode(await wire().client.raw("/version"))["major"] == "1"


async def test_a_closed_transport_refuses_calls(wire: Callable[[], Any]) -> None:
    line = wire()
    await line.client.close()
    with pytest.raises(ApiUnavailable, match="closed"):
        await line.client.get(VOLUMES, "a")


async def test_a_call_with_a_time_limit_of_its_own_waits_for_no_other(wire: Callable[[], Any]) -> None:
    line = wire()
    await line.client.find(VOLUMES, "a")
    await line.client.find(VOLUMES, "a", seconds=2.0)
    assert [call.request.urgent for call in line.script.requests] == [False, True]
