"""The embedded API server tells its users apart, reviews them for others, and leads to ports of pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest

from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.users import User

POD = b'{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}'
ACCOUNT = b'{"metadata":{"name":"robot"}}'
PODS = "/api/v1/namespaces/default/pods"
PROTOCOL = "v4.channel.k8s.io"


class Caller:
    def __init__(self, session: aiohttp.ClientSession, server: ApiServer, url: str) -> None:
        self.session, self.server, self.url = session, server, url

    async def __call__(self, method: str, path: str, body: Any = None, *, token: str = "admin") -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.request(method, self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def review(self, kind: str, spec: Any, *, token: str = "admin") -> Any:
        group = "authentication" if "Token" in kind else "authorization"
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        status, answer = await self("POST", f"/apis/{group}.k8s.io/v1/{kind.lower()}s", body, token=token)
        assert status == 201
        return answer["status"]


@pytest.fixture
async def call() -> AsyncIterator[Caller]:
    server = ApiServer(now=lambda: datetime.now(UTC))
    server.users.by_token["reader"] = User("bob", ("readers",), lambda wanted: wanted.verb in ("get", "list"))
    assert server.handle("POST", PODS, {}, {}, POD).status == 201
    assert server.handle("POST", "/api/v1/namespaces/default/serviceaccounts", {}, {}, ACCOUNT).status == 201
    listener = await serve(server, port=0, token="admin")
    async with aiohttp.ClientSession() as session:
        yield Caller(session, server, listener.url)
    await listener.close()


@pytest.mark.real_time
async def test_a_user_is_refused_what_he_may_not_in_the_words_of_a_stock_server(call: Caller) -> None:
    assert (await call("GET", f"{PODS}/p", token="reader"))[0] == 200
    status, refused = await call("DELETE", f"{PODS}/p", token="reader")
    words = 'pods "p" is forbidden: User "bob" cannot delete resource "pods" in API group "" in the namespace "default"'
    assert (status, refused["reason"], refused["message"]) == (403, "Forbidden", words)
    status, refused = await call("GET", "/api/v1/nodes?watch=true", token="reader")
    assert refused["message"].endswith('cannot watch resource "nodes" in API group "" at the cluster scope')
    assert (await call("GET", PODS, token="unknown"))[0] == 401


@pytest.mark.real_time
async def test_tokens_and_rights_are_reviewed(call: Caller) -> None:
    known = await call.review("TokenReview", {"token": "reader"})
    assert (known["authenticated"], known["user"]["username"]) == (True, "bob")
    assert "authenticated" not in await call.review("TokenReview", {"token": "unknown"})
    assert "authenticated" not in await call.review("TokenReview", {"token": "reader", "audiences": ["other"]})
    for verb, allowed in (("get", True), ("delete", False)):
        wanted = {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"}}
        assert (await call.review("SubjectAccessReview", {"user": "bob", **wanted}))["allowed"] is allowed
        assert (await call.review("SelfSubjectAccessReview", wanted, token="reader"))["allowed"] is allowed
        assert (await call.review("SubjectAccessReview", {"user": "nobody", **wanted}))["allowed"] is False


@pytest.mark.real_time
async def test_an_account_gets_a_token_for_whom_it_asks(call: Caller) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/robot/token"
    _, made = await call("POST", path, {"spec": {"audiences": ["volplane"]}})
    token = made["status"]["token"]
    assert (await call("GET", PODS, token=token))[0] == 401
    review = await call.review("TokenReview", {"token": token, "audiences": ["volplane", "x"]})
    assert (review["user"]["username"], review["audiences"]) == ("system:serviceaccount:default:robot", ["volplane"])
    assert (await call("GET", PODS, token=(await call("POST", path, {}))[1]["status"]["token"]))[0] == 200
    assert (await call("POST", path.replace("robot", "absent"), {}))[0] == 404


@pytest.mark.real_time
async def test_a_port_of_a_pod_is_reached_over_a_websocket(call: Caller) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    at: list[tuple[str, str, int]] = []
    echoing = await asyncio.start_server(echo, "127.0.0.1", 0)

    async def connect(namespace: str, pod: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        at.append((namespace, pod, port))
        if port == 81:
            raise OSError("nothing listens there")
        return await asyncio.open_connection(*echoing.sockets[0].getsockname())

    headers, url = {"Authorization": "Bearer admin"}, f"{call.url}{PODS}/p/portforward?ports="
    status, refused = await call("GET", f"{PODS}/p/portforward?ports=80")
    assert (status, "kubectl port-forward does not work" in refused["message"]) == (501, True)
    call.server.forward_source = connect
    async with call.session.ws_connect(f"{url}80,81", protocols=[PROTOCOL], headers=headers) as socket:
        await socket.send_bytes(b"\x00hello\n")
        told: dict[int, bytes] = {}
        async for message in socket:
            told[message.data[0]] = told.get(message.data[0], b"") + message.data[1:]
    port, error = (81).to_bytes(2, "little"), told.pop(3)
    assert told == {0: b"\x50\x00HELLO\n", 1: b"\x50\x00", 2: port}
    assert error.startswith(port + b"error forwarding port 81")
    assert at == [("default", "p", 80), ("default", "p", 81)]
    for wrong, status in (("p/portforward", 400), ("p/portforward?ports=x", 400), ("absent/portforward?ports=1", 404)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await call.session.ws_connect(f"{call.url}{PODS}/{wrong}", protocols=[PROTOCOL], headers=headers)
        assert refusal.value.status == status
    reader = {"Authorization": "Bearer reader"}
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await call.session.ws_connect(f"{url}80", protocols=[PROTOCOL], headers=reader)
    assert refusal.value.status == 403
    echoing.close()
