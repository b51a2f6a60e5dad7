"""The page beside a controller that works: what it shows of both, and that it only reads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from integration.controller_process import DRIVER, Asked, Site, running_process
from volplane.asking.leader import Leader
from volplane.cli.framework.endpoints import Answers
from volplane.kube.client import Client
from volplane.process.duties import ALL_CONTROLLERS
from volplane.ui.rows import COLUMNS
from volplane.ui.server import serve_page
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing.transport import FaultTransport


class Page:
    def __init__(self, site: Site, session: aiohttp.ClientSession, url: str) -> None:
        self._site, self._session = site, session
        self._base, _, self._token = url.partition("#token=")

    async def get(self, path: str, **query: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.get(f"{self._base}api/{path}", params=query, headers=headers) as answer:
            assert answer.status == 200
            return await answer.json()

    async def rows(self, view: str, search: str = "") -> list[dict[str, Any]]:
        found = (await self.get("rows", view=view, q=search))["rows"]
        return [dict(zip(COLUMNS[view], each["cells"], strict=True)) for each in found]

    async def picture(self, claim: str) -> Any:
        return await self.get("picture", kind="claim", key=f"default/{claim}")

    async def shows(self, view: str, search: str) -> dict[str, Any]:
        """The first row that the search finds, as soon as there is one."""
        found: list[dict[str, Any]] = []

        async def reached() -> bool:
            found[:] = await self.rows(view, search)
            return bool(found)

        await self._site.until(f"{view} shows {search}", reached)
        return found[0]


@asynccontextmanager
async def shown(site: Site, *, in_process: bool) -> AsyncIterator[tuple[Page, FaultTransport]]:
    transport = FaultTransport(InProcessTransport(site.server))
    asks = Answers(site.process).ask if in_process else Leader("ours", site.url.removeprefix("http://")).ask
    async with serve_page(Client(transport), asks) as url, aiohttp.ClientSession() as session:
        yield Page(site, session, url), transport


@pytest.mark.real_time
@pytest.mark.parametrize("in_process", [True, False], ids=["in its process", "over its address"])
async def test_what_waits_is_shown_with_the_reasons_and_tries_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, in_process: bool
) -> None:
    monkeypatch.setattr("volplane.ui.told._SECONDS", 0.05)
    async with (
        running_process(tmp_path, frozenset(ALL_CONTROLLERS)) as site,
        shown(site, in_process=in_process) as (page, transport),
    ):
        await site.make_class("fast")
        await site.make_claim("good", "fast")
        await site.make_claim("lost", "absent")
        assert (await page.shows("claims", "good bound"))["class"] == "fast"
        assert (await page.shows("drivers", "state:ready"))["name"] == DRIVER
        assert "absent" in (await page.shows("waiting", "lost absent"))["why"]

        async def settled() -> bool:  # The controller is asked now and then.
            return "between" not in [each["state"] for each in (await page.picture("good"))["parts"]]

        await site.until("nothing is in between", settled)
        picture = await page.picture("good")
        assert [each["role"] for each in picture["parts"] if each["state"] == "there"] == ["claim", "volume", "asset"]
        assert picture["explanation"]["next"] == ["nothing: everything is as it should be"]
        assert any("ProvisioningSucceeded" in each["text"] for each in picture["timeline"])
        site.root.rename(site.root.with_name("unmounted"))
        await site.make_claim("late", "fast")
        due: list[float] = []

        async def counts_down() -> bool:
            found = await page.rows("waiting", 'late "the last with"')
            due.extend(each["next"]["due"] for each in found if each["next"] != "-")
            return bool(due)

        await site.until("a failed try has a next one", counts_down)
        assert time.time() - 60 < due[0] < time.time() + 300
        asked = {Asked.of_call(each).verb for each in transport.script.requests}
        assert asked <= {"get", "list", "watch"}
