"""Who gets what from the page's server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any

import aiohttp
import pytest

from volplane.errors import ConfigurationError, VolplaneError
from volplane.kube.client import Client
from volplane.ui.server import serve_page
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock

Body = Callable[[aiohttp.ClientSession, str, dict[str, str]], Awaitable[Any]]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stream tell at once what has changed."""
    monkeypatch.setattr("volplane.ui.server._TICK", 0.01)


async def silent(_path: str, _query: Mapping[str, str]) -> Any:
    return None


def served(body: Body, ask: Callable[[str, Mapping[str, str]], Awaitable[Any]] = silent) -> Any:
    """Run `body(session, address, headers with the token)` while the page of a cluster with a claim is served."""

    async def main() -> Any:
        server = ApiServer(now=clock.now)
        path, headers = "/api/v1/namespaces/default/persistentvolumeclaims", {"content-type": "application/json"}
        assert server.handle("POST", path, {}, headers, json.dumps(pending("data")).encode()).status == 201
        async with (
            serve_page(Client(InProcessTransport(server)), ask) as url,
            aiohttp.ClientSession() as session,
        ):
            base, _, token = url.partition("/#token=")
            async with asyncio.timeout(30):
                return await body(session, base, {"Authorization": f"Bearer {token}"})

    return asyncio.run(main())


def pending(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "x"}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


async def got(session: aiohttp.ClientSession, url: str, **more: Any) -> tuple[int, str, Mapping[str, str]]:
    async with session.get(url, **more) as answer:
        return answer.status, await answer.text(), answer.headers


async def settled(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> dict[str, Any]:
    """The first state of the stream in which everything is read."""
    async with session.get(f"{base}/api/live", headers=token) as stream:
        async for line in stream.content:
            if line.startswith(b"data: ") and not (state := json.loads(line[6:]))["gaps"]:
                return dict(state)
    raise AssertionError


def test_the_files_hold_nothing_and_allow_no_script_but_their_own() -> None:
    async def body(session: aiohttp.ClientSession, base: str, _token: dict[str, str]) -> None:
        for path in ("/", "/page.js", "/page.css"):
            status, text, headers = await got(session, base + path)
            policy = headers["Content-Security-Policy"]
            assert (status, "default/data" in text) == (200, False)
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in policy
            assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")

    served(body)


@pytest.mark.parametrize("path", ["live", "rows?view=claims", "picture?kind=claim&key=default/data"])
def test_without_the_token_nothing_of_the_cluster_is_told(path: str) -> None:
    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": token["Authorization"] + "x"}):
            status, text, _ = await got(session, f"{base}/api/{path}", headers=headers)
            assert (status, "default/data" in text) == (401, False)

    served(body)


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:{port}", "127.0.0.1", "127.0.0.1.nip.io:{port}", ""]
)
def test_a_name_that_leads_here_is_not_answered(host: str) -> None:
    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        named = host.format(port=base.rpartition(":")[2])
        for path in ("/", "/api/rows?view=claims"):
            status, _, _ = await got(session, base + path, headers={**token, "Host": named})
            assert status in (400, 403)

    served(body)


def test_nothing_can_be_written() -> None:
    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            async with session.request(method, f"{base}/api/rows", headers=token) as answer:
                assert answer.status == 405

    served(body)


def test_rows_and_picture_are_those_of_the_cluster() -> None:
    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        state = await settled(session, base, token)
        assert (state["counts"]["waiting"], state["silence"]) == (1, "no controller answers")
        _, text, _ = await got(session, f"{base}/api/rows?view=waiting&q=data", headers=token)
        assert json.loads(text)["rows"][0]["id"] == "claim/default/data"
        _, text, _ = await got(session, f"{base}/api/picture?kind=claim&key=default/data", headers=token)
        picture = json.loads(text)
        assert (picture["found"], picture["explanation"]) == (True, {"silence": "no controller answers"})

    served(body)


def test_a_controller_that_refuses_is_quoted() -> None:
    async def refuse(path: str, _query: Mapping[str, str]) -> Any:
        raise VolplaneError("its token is\x1b[2J another user's")

    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        assert (await settled(session, base, token))["silence"] == "its token is\\x1b[2J another user's"

    served(body, refuse)


def test_a_controller_that_answers_something_else_is_of_another_version() -> None:
    async def former(path: str, _query: Mapping[str, str]) -> Any:
        return {"leads": True, "reasons": {}}

    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        state = await settled(session, base, token)
        assert state["silence"] == "the controller is of another version than this command"

    served(body, former)


def test_the_reasons_of_a_controller_are_told() -> None:
    async def ask(path: str, query: Mapping[str, str]) -> Any:
        if path == "/explain":
            assert query == {"claim": "default/data"}
            return {"situation": ["it waits"], "tried": [], "next": ["a \u202etry"]}
        status = {"leads": True, "now": 1.0, "operations": [], "drivers": [], "findings": []}
        return {**status, "reasons": {"claims": {"default/data": "no class x"}}}

    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        await settled(session, base, token)
        _, text, _ = await got(session, f"{base}/api/rows?view=waiting", headers=token)
        assert "no class x" in text
        _, text, _ = await got(session, f"{base}/api/picture?kind=claim&key=default/data", headers=token)
        explanation = json.loads(text)["explanation"]
        assert explanation == {"situation": ["it waits"], "tried": [], "next": ["a \\u202etry"]}

    served(body, ask)


@pytest.mark.parametrize("query", ["", "view=secrets", "view=claims&start=x", "view=claims&count=1e9"])
def test_a_wrong_question_is_refused(query: str) -> None:
    async def body(session: aiohttp.ClientSession, base: str, token: dict[str, str]) -> None:
        assert (await got(session, f"{base}/api/rows?{query}", headers=token))[0] == 400
        assert (await got(session, f"{base}/../server.py", headers=token))[0] == 404

    served(body)


def test_a_port_that_is_taken_is_named() -> None:
    async def body(session: aiohttp.ClientSession, base: str, _token: dict[str, str]) -> None:
        port = int(base.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 cannot be used"):
            async with serve_page(Client(InProcessTransport(ApiServer(now=clock.now))), silent, port=port):
                pass

    served(body)


def test_the_page_is_small_makes_no_markup_and_asks_nobody_else() -> None:
    static = (files("volplane.ui") / "static").iterdir()
    texts = {each.name: each.read_text() for each in static}
    assert sum(len(text.encode()) for text in texts.values()) < 100_000
    for name, text in texts.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"<script(?! type=\"module\" src)|\son\w+=|\sstyle=", text), name
