"""When an object counts as gone: one answer that says so is not enough while the watch still has it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from volplane.errors import ApiNotFound, ApiUnavailable
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, LEASES
from volplane.kube.objects import Claim
from volplane.kube.transport import Response
from volplane_testing.transport import refusal

BODY = {
    "metadata": {"name": "data", "namespace": "default"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}
GONE = refusal(404, "not found", kind="persistentvolumeclaims", name="data")
OBJECT = "/api/v1/namespaces/default/persistentvolumeclaims/data"
LIST = OBJECT.rpartition("/")[0]


def empty_list(version: int) -> Response:
    return Response(200, {}, json.dumps({"metadata": {"resourceVersion": f"{version}"}, "items": []}).encode())


class Watched:
    """A claim that server and cache have. `answers`: what is answered instead, by path."""

    def __init__(self, line: Any) -> None:
        self.line = line
        self.client = line.client
        self.cache: Cache[Claim] = Cache(CLAIMS)
        self.answers: dict[str, Response] = {}
        line.before = lambda _method, path: self.answers.get(path)

    async def create(self) -> Claim:
        claim = await self.client.create(CLAIMS, BODY)
        self.cache.observe(claim)
        self.line.calls.clear()
        return claim  # type: ignore[no-any-return]

    async def refresh(self) -> Claim | None:
        return await self.client.refresh(self.cache, "default/data")  # type: ignore[no-any-return]


async def test_an_object_that_the_watch_has_no_more_is_gone_by_one_answer(wire: Callable[[], Any]) -> None:
    watched = Watched(wire())
    assert await watched.refresh() is None
    assert watched.line.calls == [("GET", OBJECT)]


async def test_an_object_that_the_watch_still_has_is_gone_only_if_a_list_agrees(wire: Callable[[], Any]) -> None:
    watched = Watched(wire())
    claim = await watched.create()
    await watched.client.patch(CLAIMS, "default/data", {"metadata": {"finalizers": None}})
    await watched.client.delete(CLAIMS, "default/data")
    watched.line.calls.clear()
    assert await watched.refresh() is None
    assert watched.line.calls == [("GET", OBJECT), ("GET", LIST)]
    assert watched.line.queries[-1]["fieldSelector"] == "metadata.name=data"
    assert watched.cache.gone(claim.uid)


async def test_an_object_that_the_list_has_exists_whatever_another_answer_said(wire: Callable[[], Any]) -> None:
    watched = Watched(wire())
    claim = await watched.create()
    watched.answers[OBJECT] = GONE
    assert await watched.refresh() == claim
    assert not watched.cache.gone(claim.uid)
    assert "default/data" in watched.cache


async def test_a_list_that_is_older_than_what_the_watch_brought_proves_nothing(wire: Callable[[], Any]) -> None:
    watched = Watched(wire())
    claim = await watched.create()
    watched.answers = {OBJECT: GONE, LIST: empty_list(claim.version - 1)}
    with pytest.raises(ApiUnavailable, match="contradict each other"):
        await watched.refresh()
    assert "default/data" in watched.cache


async def test_a_list_that_has_the_object_in_another_shape_proves_nothing(wire: Callable[[], Any]) -> None:
    watched = Watched(wire())
    claim = await watched.create()
    odd = {"metadata": {"name": "data", "namespace": "default"}, "spec": 7}
    told = json.dumps({"metadata": {"resourceVersion": f"{claim.version}"}, "items": [odd]}).encode()
    watched.answers = {OBJECT: GONE, LIST: Response(200, {}, told)}
    with pytest.raises(ApiUnavailable, match="contradict each other"):
        await watched.refresh()


@pytest.mark.parametrize("body", [b"{}", b'{"items":[]}', b'{"metadata":{"resourceVersion":""},"items":[]}'])
async def test_what_has_no_version_is_no_list(wire: Callable[[], Any], body: bytes) -> None:
    watched = Watched(wire())
    await watched.create()
    watched.answers = {OBJECT: GONE, LIST: Response(200, {}, body)}
    with pytest.raises(ApiUnavailable, match="could not be read"):
        await watched.refresh()


async def test_a_page_of_a_proxy_says_nothing_of_the_object(wire: Callable[[], Any]) -> None:
    watched = Watched(wire())
    await watched.create()
    watched.answers[OBJECT] = Response(404, {"content-type": "text/plain"}, b"404 page not found\n")
    with pytest.raises(ApiUnavailable, match=r"was answered 404: 404 page not found$"):
        await watched.refresh()
    assert "default/data" in watched.cache


async def test_the_namespace_of_what_is_to_be_created_may_be_what_is_not_found(wire: Callable[[], Any]) -> None:
    with pytest.raises(ApiNotFound, match='namespaces "missing" not found'):
        await wire().client.create(LEASES, LEASES.body(metadata={"name": "l", "namespace": "missing"}))
