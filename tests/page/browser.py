"""A real browser without a window, driven by its own protocol (Chrome DevTools) over a WebSocket."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp

PROGRAM: Final = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Debian: apt-get install chromium."""
_OPTIONS: Final = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-proxy-server",
        "--no-first-run",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0", "about:blank"),
)
SECONDS: Final = 60.0
"""How long anything is waited for."""


@dataclass(eq=False)
class Browser:
    """One tab. Its console is kept in `said`, without what is not an error."""

    socket: aiohttp.ClientWebSocketResponse
    said: list[str] = field(default_factory=list)
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        number = len(self._answers)
        self._answers[number] = answer = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(SECONDS):
            return await answer

    async def listen(self) -> None:
        async for message in self.socket:
            told = json.loads(message.data)
            if "id" in told:
                answer = self._answers[told["id"]]
                if not answer.done():
                    answer.set_result(told.get("result", told.get("error")))
            elif told["method"] == "Runtime.exceptionThrown":
                self.said.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.said.append(told["params"]["entry"]["text"])
            elif told["method"] == "Page.javascriptDialogOpening":
                self.said.append("a dialog was opened")

    async def run(self, script: str) -> Any:
        """Return the value of an expression, of a promise what it leads to."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def wait(self, script: str) -> Any:
        """Return the value of an expression once it is true."""
        try:
            async with asyncio.timeout(SECONDS):
                tried = f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"  # Between two pages.
                while not (value := await self.run(tried)):
                    await asyncio.sleep(0.05)
                return value
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"not within {SECONDS:g} s: {script}\n{text}\n{self.said}") from None

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def press(self, key: str) -> None:
        """Press a key, as a person does."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38}.get(key, ord(key[0].upper()))
        about: Mapping[str, Any] = {"key": key, "windowsVirtualKeyCode": code, "text": text}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def size(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Run a browser with a profile of its own until the block ends."""
    assert PROGRAM is not None
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, *_OPTIONS, f"--user-data-dir={profile}",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True, env={**os.environ, "HOME": profile},
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session:
                tab = await _tab(session, Path(profile, "DevToolsActivePort"))
                async with session.ws_connect(tab, max_msg_size=0) as socket:
                    made = Browser(socket)
                    listening = asyncio.create_task(made.listen())
                    for domain in ("Page", "Runtime", "Log"):
                        await made.call(f"{domain}.enable")
                    yield made
                    listening.cancel()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, 9)
            await process.wait()


async def _tab(session: aiohttp.ClientSession, file: Path) -> str:
    async with asyncio.timeout(SECONDS):
        while not file.exists() or not file.read_text().strip():
            await asyncio.sleep(0.05)
        port = file.read_text().split()[0]
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                for each in await answer.json():
                    if each["type"] == "page":
                        return str(each["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)
