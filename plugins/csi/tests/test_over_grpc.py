"""The same driver through gRPC on a unix socket: restarts, deadlines, answers that are none."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import AF_UNIX
from socket import socket as Socket  # noqa: N812 - a fixture has its name
from typing import Any

import grpc
import pytest

from volplane import BackendError, StartRequest, Unavailable
from volplane.csi import client
from volplane.csi.client import CallError, SocketChannel, ask
from volplane.csi.wire import build
from volplane.drivers.parameters import driver_options
from volplane_csi import CsiBackend
from volplane_csi.testing import FakeVolume, served
from volplane_testing.cloud import FaultKind

LONG = 30.0


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="csi") as directory:
        yield Path(directory) / "csi.sock"


@pytest.fixture
def connected(world: Any, socket: Path) -> Iterator[Any]:
    """The world with a backend that reaches the driver by the socket."""
    with served(world.fake, socket):
        world.backend = CsiBackend(driver_options(CsiBackend.options_schema, {"socket": str(socket)}, "driver fake"))
        world.backend.start(StartRequest(context=world.context()))
        yield world
        world.backend._calls.close()


def test_a_whole_life(connected: Any) -> None:
    asset = connected.provision(parameters={"tier": "fast"})
    assert connected.attach(asset).metadata == {"device": "/dev/vol-000001"}
    connected.detach(asset)
    made = connected.snapshot(asset)
    assert connected.provision("u2", source_snapshot=made.handle).handle == "vol-000003"
    connected.delete(asset)
    assert [each.handle for each in connected.listed()] == ["vol-000003"]


def test_an_answer_that_is_lost_leaves_the_outcome_open(connected: Any) -> None:
    request = connected.saved(connected.demand())
    connected.fault("CreateVolume", FaultKind.LOSE)
    with pytest.raises(BackendError) as error:
        connected.backend.provision(request)
    assert not error.value.nothing_done
    assert connected.backend.provision(request).handle == "vol-000001"


def test_a_driver_that_is_started_again_is_called_again(world: Any, socket: Path) -> None:
    channel = SocketChannel(socket)
    probe = build("ProbeRequest")
    with pytest.raises(CallError) as error:
        ask(channel, "Probe", probe, LONG)
    assert (error.value.code, error.value.sent) == ("UNAVAILABLE", False)
    for _ in range(2):
        with served(world.fake, socket):
            deadline = threading.Event()
            while not deadline.wait(0.05):
                with contextlib.suppress(CallError):
                    assert ask(channel, "Probe", probe, LONG).ready.value
                    break
    channel.close()


def test_a_driver_that_hangs_holds_nobody_for_longer_than_a_call_may_take(world: Any, socket: Path) -> None:
    hangs = threading.Event()
    with served(world.fake, socket, before=lambda method: hangs.wait(LONG) and None if method == "Probe" else None):
        channel = SocketChannel(socket)
        with pytest.raises(CallError) as error:
            ask(channel, "Probe", build("ProbeRequest"), 0.1)
        assert (error.value.code, error.value.sent) == ("DEADLINE_EXCEEDED", True)
        assert ask(channel, "GetPluginInfo", build("GetPluginInfoRequest"), LONG).name == "fake.csi.example.com"
        hangs.set()
        channel.close()


def test_a_driver_that_is_killed_at_work_may_have_done_it(socket: Path) -> None:
    """As after a SIGKILL its connection is closed once the whole request has come."""
    request, ended = build("DeleteVolumeRequest", volume_id="the-volume"), threading.Event()

    def work(listener: Socket) -> None:
        connection, _ = listener.accept()
        connection.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))  # the SETTINGS with which a server begins
        seen = b""
        while b"the-volume" not in seen:
            seen += connection.recv(65_536)
        connection.close()
        listener.close()
        ended.set()

    listener = Socket(AF_UNIX)
    listener.bind(str(socket))
    listener.listen()
    threading.Thread(target=work, args=(listener,), daemon=True).start()
    channel = SocketChannel(socket)
    with pytest.raises(CallError) as error:
        ask(channel, "DeleteVolume", request, LONG)
    assert ended.wait(LONG)
    assert (error.value.code, error.value.sent) == ("UNAVAILABLE", True)
    channel.close()


def test_a_list_that_is_larger_than_messages_usually_are_is_read(connected: Any) -> None:
    many = {f"{number:01000}": FakeVolume(f"{number:01000}", f"{number}", 1, b"") for number in range(5500)}
    connected.fake.behave(page=10_000)
    connected.fake.volumes.update(many)
    assert {each.handle for each in connected.listed()} == {*many}


def answering(socket: Path, content: bytes) -> Any:
    """A server that answers every Probe so."""
    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"Probe": grpc.unary_unary_rpc_method_handler(lambda _request, _context: content)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("csi.v1.Identity", handlers),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    return server


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"\xff\xff\xff", "its answer is no ProbeResponse"), (b"\0" * 3000, "its answer is larger than 2000 bytes")],
)
def test_an_answer_that_cannot_be_read_proves_nothing(
    socket: Path, content: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library itself says RESOURCE_EXHAUSTED of one that is too large, as if nothing had been done."""
    small = tuple((key, 2000 if key == "grpc.max_receive_message_length" else value) for key, value in client._OPTIONS)
    monkeypatch.setattr(client, "_OPTIONS", small)
    monkeypatch.setattr(client, "LARGEST_ANSWER", 2000)
    server, channel = answering(socket, content), SocketChannel(socket)
    with pytest.raises(CallError) as error:
        ask(channel, "Probe", build("ProbeRequest"), LONG)
    assert (error.value.code, error.value.message, error.value.sent) == ("UNKNOWN", why, True)
    channel.close()
    server.stop(0.0).wait(LONG)


def test_a_closed_connection_is_opened_by_the_next_call(connected: Any) -> None:
    connected.provision()
    connected.backend._calls.close()
    assert len(connected.listed()) == 1


def test_a_plain_file_in_the_place_of_the_socket_is_no_driver(world: Any, socket: Path) -> None:
    socket.write_text("")
    backend = CsiBackend(driver_options(CsiBackend.options_schema, {"socket": str(socket)}, "driver fake"))
    with pytest.raises(Unavailable, match="does not listen on its socket"):
        backend.start(StartRequest(context=world.context()))
