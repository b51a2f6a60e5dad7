"""What a controller process shows of itself."""

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from volplane.controller.http import Pages, serve_pages
from volplane.controller.http_access import DIRECTORY_VARIABLE, ActionToken, HttpAddress, read_token
from volplane.errors import ConfigurationError, InvalidArgument, VolplaneError

ANYWHERE = HttpAddress("127.0.0.1", 0)


def with_token(url: str) -> dict[str, str]:
    """The header that the commands send to this address."""
    return {"Authorization": f"Bearer {read_token(int(url.rpartition(':')[2]))[0]}"}


def ask(pages: Pages, *paths: str) -> list[tuple[int, str]]:
    async def main() -> list[tuple[int, str]]:
        async with serve_pages(ANYWHERE, pages) as url:
            headers = with_token(url) if pages.answers else {}
            session = aiohttp.ClientSession(headers=headers)
            answers = []
            async with session:
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
        (400, '{"error": "claim is missing; give ?claim=NAMESPACE/NAME"}'),
    ]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:9809", "127.0.0.1", 9809), ("[::1]:0", "::1", 0), ("localhost:1", "localhost", 1)],
)
def test_addresses_are_read(text: str, host: str, port: int) -> None:
    assert HttpAddress.parse("--http", text) == HttpAddress(host, port)


@pytest.mark.parametrize("text", ["", "9809", ":9809", "host:", "host:http", "host:99999", "host:" + "9" * 5000])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--http is"):
        HttpAddress.parse("--http", text)


@pytest.mark.real_time
async def test_an_address_that_is_taken_is_refused_by_name() -> None:
    async with serve_pages(ANYWHERE, pages()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=f"--http 127.0.0.1:{port} cannot be used"):
            async with serve_pages(HttpAddress("127.0.0.1", port), pages()):
                pass


def test_readiness_tells_in_either_case_what_cannot_work() -> None:
    def shown(*reasons: str) -> list[tuple[int, str]]:
        details = ("driver nfs is unavailable: no route",)
        return ask(Pages(unready=lambda: reasons, metrics=bytes, details=lambda: details), "/readyz")

    assert shown() == [(200, "ok\ndriver nfs is unavailable: no route\n")]
    assert shown("no driver can work") == [(503, "no driver can work\ndriver nfs is unavailable: no route\n")]


async def acted(query: Mapping[str, str]) -> Any:
    if not query:
        raise InvalidArgument("say what")
    return {"did": dict(query)}


def post(
    address: HttpAddress = ANYWHERE, *, query: str = "?what=it", to: str = "127.0.0.1", **headers: str
) -> tuple[int, Any]:
    """POST /act, by default as the commands do it."""

    async def main() -> tuple[int, Any]:
        shown = Pages(unready=tuple, metrics=bytes, actions={"/act": acted})
        async with serve_pages(address, shown) as url, aiohttp.ClientSession() as session:
            sent = {**with_token(url), **headers}
            async with session.post(f"http://{to}:{url.rpartition(':')[2]}/act{query}", headers=sent) as answer:
                return answer.status, await answer.json()

    return asyncio.run(main())


def test_a_process_of_the_same_user_on_this_machine_may_act() -> None:
    assert post() == (200, {"did": {"what": "it"}})
    assert post(query="") == (400, {"error": "say what"})


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Bearer \u00e4", "Basic eDp5"])
def test_a_process_without_the_token_may_not_act(given: str) -> None:
    status, answer = post(Authorization=given)
    assert (status, "needs the token" in answer["error"]) == (401, True)


def test_a_page_in_a_browser_may_not_act_even_with_the_token() -> None:
    status, answer = post(host="attacker.example.com")
    assert (status, "only processes on the machine" in answer["error"]) == (403, True)


def own_address() -> str:
    """An address of this machine that is not the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses the address of ours that would
        except OSError:
            pytest.skip("this machine has no address but the loopback")
        own = probe.getsockname()[0]
    if own.startswith("127."):
        pytest.skip("this machine has no address but the loopback")
    return str(own)


def test_another_machine_may_not_act_even_with_the_token() -> None:
    assert post(HttpAddress("0.0.0.0", 0), to=own_address())[0] == 403


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/say", 403)])
def test_another_machine_gets_health_and_metrics_and_nothing_else(path: str, status: int) -> None:
    own = own_address()

    async def main() -> int:
        shown = Pages(unready=tuple, metrics=bytes, answers={"/say": acted})
        async with (
            serve_pages(HttpAddress("0.0.0.0", 0), shown) as url,
            aiohttp.ClientSession() as session,
            session.get(f"http://{own}:{url.rpartition(':')[2]}{path}?what=it", headers=with_token(url)) as answer,
        ):
            return answer.status

    assert asyncio.run(main()) == status


def test_the_token_lies_in_a_file_of_the_user_and_goes_with_the_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "run"
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))

    async def main() -> Path:
        shown = Pages(unready=tuple, metrics=bytes, actions={"/act": acted})
        async with serve_pages(ANYWHERE, shown):
            [path] = directory.glob("*.token")
            assert path is not None
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            return path

    assert not asyncio.run(main()).exists()


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / name))
        token = ActionToken(1)
        assert token.path is None
        assert "is not a directory that this user owns" in token.why
        assert not token.allows("Bearer ")
        with pytest.raises(VolplaneError, match="as the user that it runs as"):
            read_token(1)


def test_where_no_file_can_be_made_nothing_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "absent" / "deeper"))

    async def main() -> int:
        shown = Pages(unready=tuple, metrics=bytes, actions={"/act": acted})
        async with (
            serve_pages(ANYWHERE, shown) as url,
            aiohttp.ClientSession() as session,
            session.post(f"{url}/act?what=it", headers={"Authorization": "Bearer "}) as answer,
        ):
            return answer.status

    assert asyncio.run(main()) == 401
    assert "no file can be made for their token" in caplog.text


@pytest.mark.real_time
async def test_an_action_is_not_to_be_had_by_reading() -> None:
    shown = Pages(unready=tuple, metrics=bytes, actions={"/act": acted})
    async with (
        serve_pages(ANYWHERE, shown) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/act?what=it", headers=with_token(url)) as answer,
    ):
        assert answer.status == 404
