"""What a controller process shows of itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import pytest

from volplane.controller.http import HttpAddress, Pages, serve_pages
from volplane.errors import ConfigurationError, InvalidArgument

ANYWHERE = HttpAddress("127.0.0.1", 0)


def ask(pages: Pages, *paths: str) -> list[tuple[int, str]]:
    async def main() -> list[tuple[int, str]]:
        async with serve_pages(ANYWHERE, pages) as url, aiohttp.ClientSession() as session:
            answers = []
            for path in paths:
                async with session.get(url + path) as answer:
                    answers.append((answer.status, await answer.text()))
            return answers

    return asyncio.run(main())


def pages(*reasons: str, **answers: Callable[[Mapping[str, str]], Awaitable[Any]]) -> Pages:
    named = {f"/{name}": answer for name, answer in answers.items()}
    return Pages(unready=lambda: reasons, metrics=lambda: b"volplane_leading 1.0\n", answers=named)


def test_health_readiness_and_metrics_are_shown() -> None:
    assert ask(pages(), "/healthz", "/readyz", "/metrics", "/nothing")[:3] == [
        (200, "ok\n"),
        (200, "ok\n"),
        (200, "volplane_leading 1.0\n"),
    ]


def test_not_ready_says_why_and_is_still_alive() -> None:
    assert ask(pages("driver nfs: hung", "not synced"), "/readyz", "/healthz") == [
        (503, "driver nfs: hung\nnot synced\n"),
        (200, "ok\n"),
    ]


def test_answers_are_json_of_what_was_asked() -> None:
    async def explain(query: Mapping[str, str]) -> Any:
        if "claim" not in query:
            raise InvalidArgument("claim is missing; give ?claim=NAMESPACE/NAME")
        return {"claim": query["claim"]}

    assert ask(pages(explain=explain), "/explain?claim=default/data", "/explain") == [
        (200, '{"claim":"default/data"}'),
        (400, '{"error":"claim is missing; give ?claim=NAMESPACE/NAME"}'),
    ]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9809", "127.0.0.1", 9809), ("[::1]:0", "::1", 0), ("localhost:1", "localhost", 1)],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert HttpAddress.parse("--http", text) == HttpAddress(host, port)


@pytest.mark.parametrize("text", ["", "9809", ":9809", "host:", "host:http", "host:99999"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--http is"):
        HttpAddress.parse("--http", text)


def test_an_address_that_is_taken_is_refused_by_name() -> None:
    async def main() -> None:
        async with serve_pages(ANYWHERE, pages()) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(ConfigurationError, match=f"--http 127.0.0.1:{port} cannot be used"):
                async with serve_pages(HttpAddress("127.0.0.1", port), pages()):
                    pass

    asyncio.run(main())
