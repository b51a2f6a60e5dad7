"""The page in a real browser: every view, what changes, what is lost, many claims, hostile texts, the keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from page.browser import PROGRAM, Browser, browser
from volplane.errors import ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.transport import LineStream, Request, Response
from volplane.ui.rows import COLUMNS
from volplane.ui.server import serve_page
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium is installed (Debian: apt-get install chromium)"),
]

CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
AXE = Path(os.environ.get("AXE", "build/axe/axe.min.js"))
"""axe-core, which `make test-page` takes from its registry."""
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"&lt;{{7*7}}javascript:alert(3)\u202e"


class Way:
    """The way to the API server, which can be cut."""

    def __init__(self, server: ApiServer) -> None:
        self._inner = InProcessTransport(server)
        self.cut = asyncio.Event()
        self.server = "https://cluster.example.com"

    async def send(self, request: Request) -> Response:
        self._refuse()
        return await self._inner.send(request)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[LineStream]:
        self._refuse()
        async with self._inner.stream(request) as stream:
            yield _Cut(stream, self)

    async def close(self) -> None:
        await self._inner.close()

    def _refuse(self) -> None:
        if self.cut.is_set():
            raise ApiUnavailable("the API server https://cluster.example.com cannot be reached", status=0)


class _Cut:
    def __init__(self, stream: LineStream, way: Way) -> None:
        self._stream, self._way = stream, way
        self.status, self.headers = stream.status, stream.headers

    async def read(self) -> bytes:
        return await self._stream.read()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lines = self._stream.__aiter__()
        while True:
            line, cut = asyncio.ensure_future(lines.__anext__()), asyncio.ensure_future(self._way.cut.wait())
            await asyncio.wait({line, cut}, return_when=asyncio.FIRST_COMPLETED)
            cut.cancel()
            if self._way.cut.is_set():
                line.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await line
                raise ApiUnavailable("the connection broke off", status=0)
            try:
                yield line.result()
            except StopAsyncIteration:
                return


class World:
    """A cluster, the page that shows it, and a browser that shows the page."""

    def __init__(self, server: ApiServer, way: Way, tab: Browser, url: str) -> None:
        self.server, self.way, self.tab = server, way, tab
        self.base, _, self.token = url.partition("#")
        self.url = url

    def make(self, path: str, body: Mapping[str, Any]) -> str:
        """Create an object; its uid."""
        made = json.dumps(body).encode()
        answer = self.server.handle("POST", path, {}, {"content-type": "application/json"}, made)
        assert answer.status == 201, answer.body
        return str(json.loads(answer.body)["metadata"]["uid"])

    def change(self, path: str, body: Mapping[str, Any]) -> None:
        headers = {"content-type": "application/merge-patch+json"}
        assert self.server.handle("PATCH", path, {}, headers, json.dumps(body).encode()).status == 200

    def claim(self, name: str, namespace: str = "default", **spec: Any) -> str:
        """Create a claim; its uid."""
        base = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "x",
        }
        about = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        body = {**about, "metadata": {"name": name, "namespace": namespace}, "spec": {**base, **spec}}
        return self.make(CLAIMS.replace("default", namespace), body)

    async def sees(self, text: str) -> None:
        await self.tab.wait(f"document.body.innerText.includes({json.dumps(text)})")


Body = Callable[[World], Awaitable[None]]


async def silent(_path: str, _query: Mapping[str, str]) -> Any:
    return None


async def hostile(path: str, _query: Mapping[str, str]) -> Any:
    """A controller all of whose words are hostile."""
    finding = {
        "verdict": "ghost", "driver": HOSTILE, "handle": HOSTILE, "volume": HOSTILE, "detail": HOSTILE,
        "capacity_bytes": 1, "created_at": HOSTILE, "confirmed": True,
    }  # fmt: skip
    driver = {"name": HOSTILE, "backend": HOSTILE, "state": HOSTILE, "error": HOSTILE, "healthy": False, "hung": False}
    if path == "/explain":
        return {"situation": [HOSTILE], "tried": [HOSTILE], "next": [HOSTILE]}
    reasons = {"claims": {"default/data": HOSTILE}}
    status = {"leads": True, "now": 1.0, "operations": [], "reasons": reasons}
    return {**status, "drivers": [driver], "findings": [finding]}


def looked(body: Body, ask: Callable[[str, Mapping[str, str]], Awaitable[Any]] = silent) -> None:
    """Run `body` with an empty cluster and an open page. The console must stay empty."""

    async def main() -> None:
        server = ApiServer(now=lambda: datetime.now(UTC))
        way = Way(server)
        async with serve_page(Client(way), ask) as url, browser() as tab:
            world = World(server, way, tab, url)
            await tab.size(1280, 800)
            await body(world)
            assert tab.said == []

    asyncio.run(main())


def test_what_waits_is_shown_live_with_its_picture() -> None:
    async def body(world: World) -> None:
        await world.tab.open(world.url)
        await world.sees("Nothing waits.")
        world.claim("data")
        await world.sees("default/data")
        assert world.token not in await world.tab.run("location.href")
        await world.tab.run("document.querySelector('.body a').click()")
        await world.sees("nothing was asked of a backend")
        world.change(f"{CLAIMS}/data", {"metadata": {"finalizers": ["volplane.dev/provisioning"]}})
        await world.sees("an intent is recorded on the claim")

    looked(body)


def test_every_view_and_search_has_an_address() -> None:
    async def body(world: World) -> None:
        world.claim("data")
        world.claim("logs")
        await world.tab.open(world.url)
        await world.sees("default/logs")
        for view in COLUMNS:
            await world.tab.open(f"{world.base}#/{view}")
            await world.tab.wait(f"document.querySelector('[aria-current]')?.hash === '#/{view}'")
            await world.tab.wait("document.querySelectorAll('.head > div').length > 2")
        await world.tab.open(f"{world.base}#/claims?q=name%3Adata")
        await world.sees("1 of 2")

    looked(body)


def test_a_lost_api_server_is_said_and_what_it_missed_is_shown() -> None:
    async def body(world: World) -> None:
        await world.tab.open(world.url)
        await world.sees("Nothing waits.")
        world.way.cut.set()
        await world.sees("May be out of date")
        assert await world.tab.run("document.querySelector('main').classList.contains('stale')")
        world.claim("late")
        world.way.cut.clear()
        await world.sees("default/late")
        await world.tab.wait("!document.querySelector('main').classList.contains('stale')")

    looked(body)


def test_a_page_of_an_earlier_run_says_so() -> None:
    async def body(world: World) -> None:
        await world.tab.open(f"{world.base}#token=old")
        await world.sees("Open the one that the command printed last.")
        world.tab.said.clear()  # Answers with 401 are in the console.

    looked(body)


def test_a_command_that_is_gone_is_said_at_once() -> None:
    async def main() -> None:
        server = ApiServer(now=lambda: datetime.now(UTC))
        async with browser() as tab:
            async with serve_page(Client(Way(server)), silent) as url:
                world = World(server, Way(server), tab, url)
                world.claim("data")
                await tab.open(url)
                await world.sees("default/data")
            await world.sees("The command that serves this page does not answer. What is shown is of ")
            await world.sees("default/data")

    asyncio.run(main())


def test_hostile_texts_are_texts() -> None:
    async def body(world: World) -> None:
        uid = world.claim("data", volumeName="v")
        about = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data", "uid": uid}
        world.make(
            "/api/v1/persistentvolumes",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "v"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "csi": {"driver": "d.example.com", "volumeHandle": HOSTILE},
                    "claimRef": about,
                },
            },
        )
        world.make(
            "/api/v1/namespaces/default/events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "e", "namespace": "default"},
                "involvedObject": about,
                "type": "Warning",
                "reason": HOSTILE[:100],
                "message": HOSTILE,
            },
        )
        for view in (*COLUMNS, "claim/default/data", "claim/" + "%3Cscript%3E", "volume/x%22%3E%3Cimg"):
            await world.tab.open(world.url if view == "waiting" else f"{world.base}#/{view}")
            # The next address must not come before the page has kept the token of this one.
            shown = "document.querySelector('main').childElementCount > 0 && !location.hash.includes('token=')"
            await world.tab.wait(shown)
            await asyncio.sleep(0.3)
            made = await world.tab.run("document.querySelectorAll('main img, main script, body > script').length")
            assert made == 0, view
        for view in ("drivers", "waiting", "leaks", "claim/default/data"):
            await world.tab.open(f"{world.base}#/{view}")
            await world.sees("<script>alert(2)</script>")
            assert "\u202e" not in await world.tab.run("document.body.innerText")

    looked(body, hostile)


def test_the_keyboard_is_enough() -> None:
    async def body(world: World) -> None:
        tab = world.tab
        for name in ("a", "b", "c"):
            world.claim(name)
        await tab.open(world.url)
        await world.sees("default/c")
        await tab.press("/")
        for key in "-name:b":
            await tab.press(key)
        await world.sees("2 of 3")
        await tab.press("ArrowDown")
        assert await tab.run("document.activeElement.textContent") == "default/a"
        await tab.press("ArrowDown")
        assert await tab.run("document.activeElement.textContent") == "default/c"
        await tab.press("Enter")
        await tab.wait("location.hash === '#/claim/default/c'")
        await tab.press("Escape")
        await world.sees("2 of 3")
        await tab.run("document.activeElement.blur()")
        await tab.press("3")
        await tab.wait("location.hash === '#/volumes'")
        await tab.run("document.querySelector('.skip').focus()")
        await tab.press("Enter")
        await tab.wait("location.hash === '#main'")
        assert await tab.run("document.title") == "volumes · volplane"

    looked(body)


@pytest.mark.parametrize("width", [400, 1280, 3840])
def test_nothing_is_cut_off_at_the_side(width: int) -> None:
    async def body(world: World) -> None:
        world.claim("data-" + "x" * 200)
        await world.tab.size(width, 900)
        await world.tab.open(world.url)
        await world.sees("default/data")
        for view in (*COLUMNS, "claim/default/data-" + "x" * 200):
            await world.tab.open(f"{world.base}#/{view}")
            await asyncio.sleep(0.2)
            wider = await world.tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, view

    looked(body)


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(dark: bool) -> None:
    if not AXE.exists():
        pytest.skip(f"axe-core is not at {AXE}: `make test-page` takes it from its registry")

    async def body(world: World) -> None:
        world.claim("data")
        await world.tab.size(1280, 800, dark=dark)
        await world.tab.open(world.url)
        await world.sees("default/data")
        await world.tab.run(AXE.read_text("utf-8") + ";0")
        for view in (*COLUMNS, "claim/default/data"):
            await world.tab.run(f"location.hash = '#/{view}'")
            await asyncio.sleep(0.5)
            found = await world.tab.run(
                "axe.run().then((all) => [all.passes.length > 10,"
                " ...all.violations.map((each) => [each.id, each.nodes.map((node) => node.html)])])"
            )
            assert found == [True], view

    looked(body, hostile)


def test_twenty_thousand_claims_are_a_page_like_any_other() -> None:
    async def body(world: World) -> None:
        for number in range(20_000):
            world.claim(f"c-{number:05}")
        began = asyncio.get_running_loop().time()
        await world.tab.open(world.url)
        await world.tab.wait("document.querySelector('output')?.textContent === '20000'")
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert asyncio.get_running_loop().time() - began < 30 * busy  # Ten on a machine that is not busy.
        await world.tab.run(
            "window.long = []; new PerformanceObserver((all) => all.getEntries().forEach((each) =>"
            " window.long.push(each.duration))).observe({type: 'longtask'}); 0"
        )
        for number in range(500):
            world.change(f"{CLAIMS}/c-{number:05}", {"metadata": {"annotations": {"n": str(number)}}})
            if number % 50 == 0:
                await world.tab.run(f"document.querySelector('.body').scrollTop = {number * 1000}")
            await asyncio.sleep(0.01)
        await world.tab.wait("Number(document.querySelector('.body .row').dataset.place) > 5000")
        tasks = await world.tab.run("window.long")
        # 50 ms of time of a processor; one of which others want a part as well gives the page less of it.
        wait = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        assert len([each for each in tasks if each > 50 * wait]) <= 2, tasks
        await world.tab.press("/")
        for key in "c-1999":
            await world.tab.press(key)
        await world.sees("10 of 20000")

    looked(body)


def test_pictures_for_the_documentation() -> None:
    """Written to build/page; that of the first view is kept as docs/explanation/page.png."""

    async def busy(path: str, query: Mapping[str, str]) -> Any:
        if path == "/explain":
            return {"situation": [f"claim {query.get('claim', '')} is Pending"], "tried": [], "next": []}
        failed = {
            "name": "provision-shop/orders", "verb": "provision", "key": "shop/orders", "driver": "nfs.volplane.dev",
            "uid": uids["orders"], "phase": "waiting", "since": 0.0, "next_try": 48.0, "failures": 3,
            "error": "the share is full: 2Gi are asked for, 1.2Gi are free",
        }  # fmt: skip
        driver = {"name": "nfs.volplane.dev", "backend": "nfs", "state": "ready", "healthy": True, "hung": False}
        reasons = {
            "claims": {
                "shop/carts": 'storageclass.storage.k8s.io "fsat" not found; did you mean "fast"?',
                "shop/search": "waiting for first consumer to be created before binding",
            }
        }
        status = {"leads": True, "now": 1.0, "operations": [failed], "reasons": reasons}
        return {**status, "drivers": [{**driver, "error": ""}], "findings": []}

    uids: dict[str, str] = {}

    async def body(world: World) -> None:
        tab = world.tab
        world.make("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        for name, storage_class in (("orders", "fast"), ("carts", "fsat"), ("search", "disks")):
            uids[name] = world.claim(name, namespace="shop", storageClassName=storage_class)
        folder = Path("build/page")
        folder.mkdir(parents=True, exist_ok=True)
        await tab.size(1100, 420)
        await tab.open(world.url)
        await world.sees("the share is full")
        await tab.wait("!document.body.innerText.includes('Being read')")
        await asyncio.sleep(3)  # So that something waits for some time.
        (folder / "page.png").write_bytes(await tab.picture())
        await tab.open(f"{world.base}#/claim/shop/orders")
        await world.sees("The next try is in")
        (folder / "claim.png").write_bytes(await tab.picture())

    looked(body, busy)
