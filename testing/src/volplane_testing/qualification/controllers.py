"""The processes under test: replicas of `volplane run`, started, killed and stopped as a cluster would."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from volplane.controller.http_access import read_token
from volplane.errors import VolplaneError
from volplane_testing.qualification.report import Failed

__all__ = ["Controllers", "Replica"]

START_SECONDS = 60.0
STOP_SECONDS = 15.0
ANSWER_SECONDS = 5.0
PAUSE = 0.1
LAST_LINES = 5
_PR_SET_PDEATHSIG = 1


class Replica:
    """One process. Its output goes to `log`, its pages to `address`."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, log: Path) -> None:
        self.address = address
        self.log = log
        self._process = process

    @classmethod
    async def start(cls, arguments: Sequence[str], log: Path) -> Replica:
        address = f"127.0.0.1:{_free_port()}"
        command = [sys.executable, "-m", "volplane", "run", *arguments, "--http", address]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the suite, which stops its processes in order
                preexec_fn=_end_with_parent,
            )
        return cls(process, address, log)

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def kill(self) -> None:
        """SIGKILL: nothing is finished, nothing is told."""
        self._signal(signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            await self.kill()
            raise Failed(
                f"`volplane run` did not end {STOP_SECONDS:g} s after SIGTERM; its log is {self.log}"
            ) from None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    async def leads(self) -> bool:
        """Tell whether it leads and its caches are synced."""
        status = await self._page("/status")
        return status is not None and json.loads(status)["leads"] and await self.ready()

    async def ready(self) -> bool:
        """Tell whether it leads, or waits for the lease."""
        return await self._page("/readyz") is not None

    async def _page(self, path: str) -> bytes | None:
        """Return a page; None while it is not there or answers with an error."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        try:
            headers = {"Authorization": f"Bearer {read_token(int(self.address.rpartition(':')[2]))[0]}"}
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False, headers=headers) as session,
                session.get(f"http://{self.address}{path}") as response,
            ):
                return await response.read() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, VolplaneError):
            return None

    def last_words(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError):
            return " | ".join(self.log.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:])
        return ""


class Controllers:
    """The replicas of a run. arguments: of `volplane run`, but for --http and --leader-elect."""

    def __init__(self, arguments: Sequence[str], logs: Path) -> None:
        self._arguments = tuple(arguments)
        self._logs = logs
        self._started = 0
        self._elects = True
        self.replicas: list[Replica] = []

    async def need(self, count: int = 1, *, leader_elect: bool = True) -> Replica:
        """Have so many replicas at work, and no other; returns the one that leads, once it does."""
        alive = [replica for replica in self.replicas if not replica.ended]
        if len(alive) != count or len(alive) != len(self.replicas) or self._elects != leader_elect:
            await self.stop()
            self._elects = leader_elect
            for _ in range(count):
                await self.start()
        return await self.leader(START_SECONDS)

    async def start(self) -> Replica:
        """Start one more replica."""
        self._started += 1
        elect = "--leader-elect" if self._elects else "--no-leader-elect"
        replica = await Replica.start([*self._arguments, elect], self._logs / f"run-{self._started}.log")
        self.replicas.append(replica)
        return replica

    async def leader(self, seconds: float) -> Replica:
        """Return the replica that leads, once one does."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            for replica in self.replicas:
                if await replica.leads():
                    return replica
            self.check()
            if loop.time() > end:
                words = "; ".join(replica.last_words() for replica in self.replicas)
                raise Failed(f"no replica of `volplane run` works after {seconds:g} s: {words}")
            await asyncio.sleep(PAUSE)

    def check(self) -> None:
        """Raise if one ended that nobody stopped."""
        for replica in self.replicas:
            if replica.ended:
                raise Failed(f"`volplane run` ended by itself: {replica.last_words()}")

    async def kill(self, replica: Replica) -> None:
        """SIGKILL one, and forget it."""
        self.replicas.remove(replica)
        await replica.kill()

    async def end(self, replica: Replica) -> None:
        """SIGTERM one, wait for its end, and forget it. Raises `Failed` if it does not end in time."""
        self.replicas.remove(replica)
        await replica.stop()

    async def ready(self, replica: Replica) -> None:
        """Wait until this one leads or could. Raises `Failed` if it does not come to it."""
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        while not await replica.ready():
            self.check()
            if loop.time() > end:
                raise Failed(f"a replica is not ready after {START_SECONDS:g} s: {replica.last_words()}")
            await asyncio.sleep(PAUSE)

    async def stop(self) -> None:
        """SIGTERM to all. Raises `Failed` if one does not end in time."""
        replicas, self.replicas = self.replicas, []
        stopped = await asyncio.gather(*(replica.stop() for replica in replicas), return_exceptions=True)
        for outcome in stopped:
            if isinstance(outcome, BaseException):
                raise outcome


def _end_with_parent() -> None:
    """Ask, in the child, for SIGTERM when the suite is gone. Source: prctl(2)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
