"""What the page says of what it cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane.kube.client import Client
from volplane.kube.transport import Request, Response
from volplane.ui.watched import Watched
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock


class Way(InProcessTransport):
    """A server, the answers of which may be lost, or be others."""

    def __init__(self) -> None:
        super().__init__(ApiServer(now=clock.now))
        self.instead: Callable[[Request], Any] = lambda _request: None

    async def send(self, request: Request) -> Response:
        await asyncio.sleep(0)
        answer = self.instead(request)
        if answer == "never":
            await asyncio.Event().wait()
        return answer if isinstance(answer, Response) else await super().send(request)


async def until(way: Way, *states: Callable[[dict[str, tuple[str, str]]], bool], **more: Any) -> None:
    """Watch until the gaps (kind -> state and why) are as each of these says, one after the other."""
    watched = Watched(Client(way), **more)
    running = asyncio.create_task(watched.run())
    try:
        async with asyncio.timeout(60):
            for reached in states:
                while not reached({kind: (state, why) for kind, state, why in watched.gaps()}):
                    await asyncio.sleep(0.1)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def refusal(request: Request) -> Response | None:
    body = b'{"kind":"Status","status":"Failure","message":"not for you","reason":"Forbidden","code":403}'
    return Response(403, {}, body) if request.path.endswith("/persistentvolumes") else None


async def test_everything_is_being_read_and_then_known() -> None:
    await until(
        Way(),
        lambda gaps: gaps["persistentvolumeclaims"] == ("reading", ""),
        lambda gaps: not gaps,
    )


async def test_what_may_not_be_listed_is_not_known_and_the_rest_is() -> None:
    way = Way()
    way.instead = refusal
    await until(way, lambda gaps: set(gaps) == {"persistentvolumes"} and gaps["persistentvolumes"][0] == "unread")


async def test_a_server_that_is_silent_is_said_and_forgotten_when_it_answers() -> None:
    way = Way()

    def silence(gaps: dict[str, tuple[str, str]]) -> bool:
        way.instead = lambda request: "never" if request.path == "/version" else None
        return gaps.get("the API server", ("", ""))[0] == "stale"

    def answers(gaps: dict[str, tuple[str, str]]) -> bool:
        way.instead = lambda _request: None
        return "the API server" not in gaps

    await until(way, lambda gaps: not gaps, silence, answers)


async def test_a_refused_version_is_an_answer() -> None:
    way, asked = Way(), []

    def refuse(request: Request) -> Response | None:
        if request.path != "/version":
            return None
        asked.append(request)
        return Response(403, {}, b'{"kind":"Status","message":"no","reason":"Forbidden","code":403}')

    way.instead = refuse
    await until(way, lambda gaps: len(asked) > 3 and not gaps)


async def test_a_namespace_alone_is_asked_for_its_objects() -> None:
    way, paths = Way(), set()
    way.instead = lambda request: paths.add(request.path)
    await until(way, lambda gaps: not gaps, namespace="shop", home="storage-system")
    assert "/api/v1/namespaces/shop/persistentvolumeclaims" in paths
    assert "/api/v1/persistentvolumeclaims" not in paths
    assert "/apis/coordination.k8s.io/v1/namespaces/storage-system/leases" in paths
