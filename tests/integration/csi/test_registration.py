"""Registration with a kubelet, played by what its plugin watcher does."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from integration.csi.caller import driver_of
from volplane.csi.node import NodeOptions
from volplane.csi.registration import registration_path
from volplane.csi.service import ServiceOptions, serve
from volplane.csi.wire import build, message
from volplane.errors import ConfigurationError
from volplane_testing.conformance import Subject
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

pytestmark = pytest.mark.real_time
NAME = "memory.volplane.dev"
LABELS = {"topology.kubernetes.io/zone": "zone-a"}


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="reg-", dir=memory) as made:
        (Path(made) / "plugins_registry").mkdir()
        (Path(made) / "plugins" / NAME).mkdir(parents=True)
        yield Path(made)


async def asked(socket: Path, path: str, request: Any, response: str) -> Any:
    """Call a method as a kubelet does: by a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        content = await channel.unary_unary(path)(request.SerializeToString(), timeout=10.0)
        return message(response).FromString(content)


async def watch(kubelet_dir: Path, refuse: str = "") -> tuple[Any, Any]:
    """Register the first plugin that appears; return what it and its node said of it."""
    registry = kubelet_dir / "plugins_registry"
    while not (found := [each for each in registry.iterdir() if each.is_socket() and not each.name.startswith(".")]):
        await asyncio.sleep(0.01)
    (socket,) = found
    service = "/pluginregistration.Registration"
    info = await asked(socket, f"{service}/GetInfo", build("InfoRequest"), "PluginInfo")
    node = await asked(
        Path(info.endpoint), "/csi.v1.Node/NodeGetInfo", build("NodeGetInfoRequest"), "NodeGetInfoResponse"
    )
    status = build("RegistrationStatus", plugin_registered=not refuse, error=refuse)
    await asked(socket, f"{service}/NotifyRegistrationStatus", status, "RegistrationStatusResponse")
    return info, node


@asynccontextmanager
async def serving(kubelet_dir: Path, **more: Any) -> AsyncIterator[asyncio.Task[None]]:
    subject = Subject(lambda options: MemoryBackend(options, storage=MemoryStorage()), driver_name=NAME)
    options = ServiceOptions(
        path=kubelet_dir / "plugins" / NAME / "csi.sock",
        cluster="here",
        node=NodeOptions(node_id="node-a", kubelet_dir=kubelet_dir, labels=LABELS),
        controls=False,
        **{"registers": True, **more},
    )
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(serve(driver_of(subject), options, stop, ready.set))
    try:
        await within(ready.is_set)
        yield task
    finally:
        stop.set()
        await asyncio.wait([task])


async def within(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_kubelet_registers_the_driver_and_keeps_it_over_a_restart(kubelet_dir: Path) -> None:
    socket = registration_path(kubelet_dir, NAME)
    marks = []
    for _ in range(2):
        async with serving(kubelet_dir) as task:
            info, node = await watch(kubelet_dir)
            assert (info.type, info.name, list(info.supported_versions)) == ("CSIPlugin", NAME, ["1.0.0"])
            assert node.node_id == "node-a"
            marks.append(socket.stat().st_ctime_ns)
        await task
        # Removing it would take the driver from the node, which a restart must not do.
        assert socket.is_socket()
    assert marks[0] < marks[1], "kubelets take a new socket for a new start of the driver"
    assert not any(each.name.startswith(".") for each in socket.parent.iterdir())


async def test_a_driver_that_the_kubelet_refuses_ends_so_that_it_is_tried_again(kubelet_dir: Path) -> None:
    async with serving(kubelet_dir) as task:
        await watch(kubelet_dir, refuse="the label has another value")
        await asyncio.wait([task])
    with pytest.raises(ConfigurationError, match=r"refuses driver .*another value"):
        await task


async def test_nothing_is_registered_where_there_is_no_kubelet(kubelet_dir: Path) -> None:
    async with serving(kubelet_dir, registers=False) as task:
        path = kubelet_dir / "plugins" / NAME / "csi.sock"
        found = await asked(
            path,
            "/csi.v1.Identity/GetPluginCapabilities",
            build("GetPluginCapabilitiesRequest"),
            "GetPluginCapabilitiesResponse",
        )
        assert 1 not in [each.service.type for each in found.capabilities], "there is no service Controller"
        with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
            await asked(path, "/csi.v1.Controller/ListVolumes", build("ListVolumesRequest"), "ListVolumesResponse")
    await task
    assert list((kubelet_dir / "plugins_registry").iterdir()) == []
