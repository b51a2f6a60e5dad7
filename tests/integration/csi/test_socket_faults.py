"""What goes wrong between a caller and the bridge: nothing is made twice, nothing leaks, the bridge goes on."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from integration.csi.caller import bridged
from integration.csi.test_bridge import subject
from integration.csi.test_socket import calling, demand, directory, process, served, until_ready
from volplane import Asset, AssetPage, InProgress, ListedAsset, ListRequest, ProvisionRequest, hookimpl
from volplane.csi.server import owned
from volplane.errors import ConfigurationError
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

__all__ = ["directory"]
LARGEST = 4 << 20
"""Bytes of an answer that a caller in Go takes."""


@dataclass(eq=False)
class Way:
    """What becomes of the bytes that go one way."""

    late: float = 0.0
    """Seconds."""
    swallowed: bool = False
    """They never arrive, and the connection stays open."""

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(65_536):
            await asyncio.sleep(self.late)
            if not self.swallowed:
                writer.write(content)
                await writer.drain()


@asynccontextmanager
async def between(path: Path, behind: Path, up: Way, down: Way) -> AsyncIterator[None]:
    """Pass on what comes at a path, requests as `up` and answers as `down` say."""
    running: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_unix_connection(str(behind))
        for each in (up.pass_on(reader, requests), down.pass_on(answers, writer)):
            running.add(task := asyncio.ensure_future(each))
            task.add_done_callback(lambda _task: [it.close() for it in (writer, requests)])

    server = await asyncio.start_unix_server(connected, str(path))
    try:
        yield
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def refused(call: Any, method: str, timeout: float, **fields: Any) -> str:  # noqa: ASYNC109
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(method, timeout=timeout, **fields)
    return str(error.value.code().name)


@pytest.mark.real_time(seconds=240)
@pytest.mark.parametrize("fault", ["late requests", "late answers", "no requests", "no answers"])
async def test_a_volume_is_made_once_though_bytes_are_late_or_never_come(directory: Path, fault: str) -> None:
    behind, path, memory = directory / "csi.sock", directory / "proxy.sock", MemoryStorage()
    kind, _, what = fault.partition(" ")
    bad = Way(late=0.6) if kind == "late" else Way(swallowed=True)
    ways = (bad, Way()) if what == "requests" else (Way(), bad)
    async with served(behind, memory), calling(behind) as direct:
        async with between(path, behind, *ways), calling(path) as call:
            assert await refused(call, "CreateVolume", 0.3, **demand("pvc-1")) in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
            assert (await direct("Probe")).ready.value
        volume = (await direct("CreateVolume", **demand("pvc-1"))).volume
        assert (await direct("CreateVolume", **demand("pvc-1"))).volume == volume
        assert memory.made == 1


@pytest.mark.real_time(seconds=240)
async def test_a_flood_of_connections_and_a_stop_leave_nothing_behind(directory: Path) -> None:
    """Kubelets open a connection for each call, and some never close it in good order."""
    (directory / "root").mkdir()
    path = directory / "csi.sock"

    async def once() -> None:
        async with calling(path) as call:
            await call("ControllerGetCapabilities")

    with process(directory) as bridge:
        async with calling(path) as call:
            await until_ready(call)
            await asyncio.gather(*(once() for _ in range(10)))
            before = resources(bridge.pid)
            rude = [await asyncio.open_unix_connection(str(path)) for _ in range(100)]
            for _ in range(4):
                await asyncio.gather(*(once() for _ in range(25)))
            for number, (_, writer) in enumerate(rude):
                if number % 2:
                    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00")
                writer.close()
            for _ in range(200):
                if resources(bridge.pid)[0] <= before[0] + 5:
                    break
                await asyncio.sleep(0.1)
            descriptors, threads = resources(bridge.pid)
            assert descriptors <= before[0] + 5
            assert threads <= before[1] + 5
            bridge.send_signal(signal.SIGSTOP)
            assert await refused(call, "CreateVolume", 0.5, **demand("pvc-1")) == "DEADLINE_EXCEEDED"
            bridge.send_signal(signal.SIGCONT)
            volume = (await call("CreateVolume", **demand("pvc-1"))).volume
            assert [each.volume.volume_id for each in (await call("ListVolumes")).entries] == [volume.volume_id]


def resources(pid: int) -> tuple[int, int]:
    """Return how many file descriptors and threads a process has."""
    descriptors, threads = (len([*Path(f"/proc/{pid}/{what}").iterdir()]) for what in ("fd", "task"))
    return descriptors, threads


# --- another server -----------------------------------------------------------------------------------------------


@pytest.fixture
def other(directory: Path) -> Iterator[socket.socket]:
    """Listen where a bridge is to be, without any lock."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "csi.sock"))
        listening.listen()
        yield listening


def test_the_socket_of_a_living_program_that_holds_no_lock_is_not_taken(directory: Path, other: socket.socket) -> None:
    path = directory / "csi.sock"
    with pytest.raises(ConfigurationError, match="another program listens"), owned(path):
        pass
    other.close()
    with owned(path):
        pass


@pytest.mark.real_time(seconds=240)
async def test_a_server_that_takes_the_path_keeps_it_and_ours_goes_on_for_those_that_it_has(directory: Path) -> None:
    path, memory = directory / "csi.sock", MemoryStorage()
    async with served(path, memory), calling(path) as call:
        await call("CreateVolume", **demand("pvc-1"))
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            other.listen()
            assert (await call("CreateVolume", **demand("pvc-2"))).volume.volume_id
            with pytest.raises(ConfigurationError, match="another process serves"), owned(path):
                pass
    assert path.exists(), "it is not ours any more"
    assert memory.made == 2


# --- large answers ------------------------------------------------------------------------------------------------


async def test_a_list_is_cut_to_what_callers_take() -> None:
    class Crowd(MemoryBackend):
        """Assets with long handles, in one page."""

        @hookimpl
        def list_assets(self, request: ListRequest) -> AssetPage:
            made = self.storage.assets["pvc-1"]
            long = (f"{'x' * 1000}{number:05}" for number in range(2500))
            return AssetPage(
                assets=tuple(
                    ListedAsset(handle=each, name="pvc-1", owner=made.owner, capacity_bytes=1, condition="bad" * 1000)
                    for each in long
                )
            )

    async with bridged(subject(Crowd)) as csi:
        await csi.create("pvc-1")
        seen, token = set(), ""
        while True:
            response = await csi.call("ListVolumes", starting_token=token)
            assert response.ByteSize() < LARGEST
            seen |= {each.volume.volume_id for each in response.entries}
            if not (token := response.next_token):
                break
        assert len(seen) == 2500


async def test_an_answer_that_no_caller_takes_is_no_end() -> None:
    """The caller's library would say RESOURCE_EXHAUSTED, which sidecars take for a proof that nothing was made."""

    class Talkative(MemoryBackend):
        @hookimpl
        def provision(self, request: ProvisionRequest) -> Asset | InProgress:
            made = super().provision(request)
            assert isinstance(made, Asset)
            return Asset(
                handle=made.handle,
                source=made.source,
                capacity_bytes=made.capacity_bytes,
                attributes={"notes": "x" * (5 << 20)},
            )

    async with bridged(subject(Talkative)) as csi:
        assert "callers take" in await csi.refused("ABORTED", "CreateVolume", **csi.demand("pvc-1"))
