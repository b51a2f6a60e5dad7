"""The bridge on a real socket: rights, locks, deadlines, connections that break, and an end in good order."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from integration.csi.caller import WRITER, driver_of
from volplane import Asset, InProgress, ProvisionRequest, hookimpl
from volplane.csi import dispatch
from volplane.csi.server import LONGEST_PATH, owned, socket_path
from volplane.csi.service import ServiceOptions, serve, why_no_csi_driver
from volplane.csi.wire import build, message, method_path
from volplane.errors import ConfigurationError
from volplane_testing.conformance import Subject
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

pytestmark = pytest.mark.real_time(seconds=240)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "serve-a-backend-by-csi.md"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path: that of a socket has at most 107 bytes."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="csi-", dir=memory) as made:
        yield Path(made)


class Slow(MemoryBackend):
    """Makes an asset when it may."""

    may = threading.Event()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        self.may.wait(60.0)
        return super().provision(request)


@asynccontextmanager
async def served(path: Path, memory: MemoryStorage, kind: type[MemoryBackend] = MemoryBackend) -> AsyncIterator[None]:
    driver = driver_of(Subject(lambda options: kind(options, storage=memory), driver_name="memory.volplane.dev"))
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(serve(driver, ServiceOptions(path=path, cluster="here"), stop, ready.set))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    try:
        if task.done():
            waiting.cancel()
            await task
        async with calling(path) as call:
            while not (await call("Probe")).ready.value:
                await asyncio.sleep(0.01)
        yield
    finally:
        stop.set()
        await asyncio.wait([task])


@asynccontextmanager
async def calling(path: Path) -> AsyncIterator[Callable[..., Any]]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:

        async def call(method: str, *, timeout: float = 30.0, **fields: Any) -> Any:  # noqa: ASYNC109
            stub = channel.unary_unary(method_path(method))
            content = build(f"{method}Request", **fields).SerializeToString()
            return message(f"{method}Response").FromString(await stub(content, timeout=timeout))

        yield call


def demand(name: str) -> dict[str, Any]:
    return {"name": name, "capacity_range": {"required_bytes": 1 << 20}, "volume_capabilities": [WRITER]}


# --- the socket ---------------------------------------------------------------------------------------------------


async def test_the_socket_is_for_its_user_alone_and_goes_with_the_server(directory: Path) -> None:
    path = directory / "csi.sock"
    async with served(path, MemoryStorage()), calling(path) as call:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await call("GetPluginInfo")).name == "memory.volplane.dev"
    assert not path.exists()
    async with served(path, MemoryStorage()), calling(path) as call:
        assert (await call("GetPluginInfo")).name == "memory.volplane.dev"


async def test_a_living_server_is_not_replaced(directory: Path) -> None:
    path, memory = directory / "csi.sock", MemoryStorage()
    async with served(path, memory), calling(path) as call:
        with pytest.raises(ConfigurationError, match="another process serves"):
            async with served(path, MemoryStorage()):
                pass
        await call("CreateVolume", **demand("pvc-1"))
        assert list(memory.assets) == ["pvc-1"]


def test_what_is_no_socket_is_not_replaced(directory: Path) -> None:
    path = directory / "csi.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with owned(path):
        pass
    path.unlink()
    path.write_text("of somebody")
    with pytest.raises(ConfigurationError, match="no socket"), owned(path):
        pass
    assert path.read_text() == "of somebody"
    with pytest.raises(ConfigurationError, match="must exist"), owned(directory / "missing" / "csi.sock"):
        pass


async def test_the_socket_of_a_dead_server_is_replaced_and_that_of_another_program_stays(directory: Path) -> None:
    path = directory / "csi.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with socket.socket(socket.AF_UNIX) as other:
        async with served(path, MemoryStorage()), calling(path) as call:
            assert (await call("GetPluginInfo")).name == "memory.volplane.dev"
            path.unlink()
            other.bind(str(path))
        assert path.exists(), "it is not ours any more"


def test_an_endpoint_is_a_path_on_this_machine() -> None:
    assert socket_path("unix:///csi/csi.sock") == socket_path("unix:/csi/csi.sock") == Path("/csi/csi.sock")
    assert socket_path("/csi/csi.sock") == Path("/csi/csi.sock")
    for wrong in ("tcp://0.0.0.0:9000", "csi.sock", "unix://csi.sock", "", "/" + "x" * LONGEST_PATH):
        with pytest.raises(ConfigurationError):
            socket_path(wrong)


def test_a_driver_that_callers_of_csi_cannot_use_is_refused() -> None:
    class Unseen(MemoryBackend):
        inspect = list_assets = None  # type: ignore[assignment]

    assert "neither the hook inspect" in why_no_csi_driver(driver_of(Subject(Unseen, driver_name="a.example.com")))
    long = driver_of(Subject(MemoryBackend, driver_name=".".join(["x" * 30] * 3)))
    assert "more than the 63 characters" in why_no_csi_driver(long)


# --- calls --------------------------------------------------------------------------------------------------------


async def test_a_caller_is_answered_before_its_deadline_and_its_retry_joins(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, memory = directory / "csi.sock", MemoryStorage()
    heard: list[float] = []

    def before(seconds: float) -> float:
        heard.append(seconds)
        return 0.05 if len(heard) == 1 else seconds

    monkeypatch.setattr(dispatch, "before", before)
    async with served(path, memory, Slow), calling(path) as call:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call("CreateVolume", timeout=600.0, **demand("pvc-1"))
        assert error.value.code() is grpc.StatusCode.ABORTED
        assert 300.0 < heard[0] <= 600.0
        assert (await call("Probe")).ready.value, "hooks hold no thread of the server"
        retried = asyncio.create_task(call("CreateVolume", timeout=600.0, **demand("pvc-1")))
        while len(heard) == 1:
            await asyncio.sleep(0.01)
        Slow.may.set()
        assert (await retried).volume.volume_id
        assert memory.made == 1


async def test_what_is_not_served_is_unimplemented_and_errors_have_one_line(directory: Path) -> None:
    path = directory / "csi.sock"
    async with served(path, MemoryStorage()), calling(path) as call:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call("NodeGetInfo")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call("DeleteVolume", volume_id="a\nb")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "\n" not in (error.value.details() or "")


async def test_broken_silent_and_many_connections_disturb_nobody(directory: Path) -> None:
    path = directory / "csi.sock"
    async with served(path, MemoryStorage()), calling(path) as call:
        others = [await asyncio.open_unix_connection(str(path)) for _ in range(100)]
        for number, (_, writer) in enumerate(others):
            if number % 2:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await call("CreateVolume", **demand("pvc-1"))
        for _, writer in others:
            writer.close()
        assert len((await call("ListVolumes")).entries) == 1


@asynccontextmanager
async def proxied(path: Path, behind: Path, cut: dict[str, int]) -> AsyncIterator[None]:
    """Pass bytes on, and end each connection once so many bytes of requests ("up") or answers ("down") have passed."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, both: list[Any]) -> None:
        try:
            while content := await reader.read(65_536):
                cut[way] = cut.get(way, 1 << 30) - len(content)
                if cut[way] < 0:
                    break
                writer.write(content)
                await writer.drain()
        except ConnectionError:
            pass
        for each in both:
            each.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_unix_connection(str(behind))
        both = [writer, down]
        await asyncio.gather(pass_on(reader, down, "up", both), pass_on(up, writer, "down", both))

    server = await asyncio.start_unix_server(connected, str(path))
    try:
        yield
    finally:
        server.close()


async def until_cut(call: Callable[..., Any], name: str) -> None:
    for _ in range(100):  # until enough bytes have passed
        await call("CreateVolume", timeout=5.0, **demand(name))


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_call_that_is_cut_off_and_repeated_makes_one_volume(directory: Path, way: str) -> None:
    behind, memory = directory / "csi.sock", MemoryStorage()
    async with served(behind, memory):
        for number, length in enumerate((0, 20, 60, 120, 200, 260, 320)):
            cut: dict[str, int] = {way: length}
            path = directory / f"proxy-{number}"
            async with proxied(path, behind, cut), calling(path) as call:
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await until_cut(call, f"pvc-{number}")
                assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            cut.clear()
            async with proxied(directory / "whole", behind, cut), calling(directory / "whole") as call:
                first = await call("CreateVolume", **demand(f"pvc-{number}"))
            (directory / "whole").unlink()
            async with calling(behind) as call:
                assert await call("CreateVolume", **demand(f"pvc-{number}")) == first
        assert memory.made == number + 1


# --- the process --------------------------------------------------------------------------------------------------


@contextmanager
def process(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of the how-to, as it stands there."""
    (line,) = re.findall(r"^\$ volplane (csi .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    arguments = shlex.split(line.replace("$ROOT", str(directory / "root")).replace("$SOCKETS", str(directory)))
    with subprocess.Popen([sys.executable, "-m", "volplane", *arguments], stderr=subprocess.DEVNULL) as made:
        try:
            yield made
        finally:
            made.kill()
            made.wait()


async def until_ready(call: Callable[..., Any]) -> None:
    for _ in range(600):
        try:
            if (await call("Probe", timeout=5.0)).ready.value:
                return
        except grpc.aio.AioRpcError as error:
            if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
                raise
        await asyncio.sleep(0.1)
    raise AssertionError("the bridge is never ready")


async def test_a_bridge_that_is_killed_at_work_loses_and_doubles_nothing(directory: Path) -> None:
    root = directory / "root"
    root.mkdir()
    path, names = directory / "csi.sock", [f"pvc-{number}" for number in range(20)]
    with process(directory) as killed:
        async with calling(path) as call:
            await until_ready(call)
            calls = [asyncio.create_task(call("CreateVolume", **demand(name))) for name in names]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            killed.send_signal(signal.SIGKILL)
            answers = await asyncio.gather(*calls, return_exceptions=True)
    made = {a.volume.volume_id for a in answers if not isinstance(a, BaseException)}
    assert made
    with process(directory) as next_one:
        async with calling(path) as call:
            await until_ready(call)
            volumes = [(await call("CreateVolume", **demand(name))).volume.volume_id for name in names]
            assert made <= set(volumes)
            listed = [each.volume.volume_id for each in (await call("ListVolumes")).entries]
            assert sorted(listed) == sorted(volumes)
            for volume in volumes:
                await call("DeleteVolume", volume_id=volume)
            assert not (await call("ListVolumes")).entries
        next_one.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(next_one.wait, 60) == 0
    assert not path.exists()
    assert not list(root.glob("csi/*"))
