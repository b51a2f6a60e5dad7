"""Several addresses of one server: which one is called, and that no other files are taken for the share's."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from volplane import BackendError, InvalidArgument, Unavailable
from volplane_nfs.nfs4 import Address, Client, Stream, dial_tcp
from volplane_nfs.nfs4.errors import ServerUnavailable, TransportError
from volplane_nfs.nfs4.operations import GETATTR, PUTROOTFH
from volplane_nfs.settings import Settings
from volplane_nfs.testing import GaneshaServer, ModelServer

from .conftest import Site

SHARE = "nfs://a.example.com/vol"
LOOK = (PUTROOTFH(), GETATTR(2))


class Line:
    """A connection to a head: it neither takes nor gives anything once that is silent."""

    def __init__(self, heads: Heads, host: str, stream: Stream) -> None:
        self.heads, self.host, self.stream = heads, host, stream

    def send(self, data: bytes | memoryview) -> int:
        return len(data) if self.host in self.heads.silent else self.stream.send(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if self.host in self.heads.silent:
            if flags:
                raise BlockingIOError
            raise TimeoutError("timed out")
        return self.stream.recv(size, flags)

    def close(self) -> None:
        self.stream.close()


class Heads:
    """Servers at their addresses."""

    def __init__(self, **servers: ModelServer) -> None:
        self.servers = {f"{name}.example.com": server for name, server in servers.items()}
        self.silent: set[str] = set()
        self.dialled: list[str] = []

    def dial(self, address: Address, seconds: float) -> Stream:
        self.dialled.append(address.host)
        if address.host in self.silent:
            raise TimeoutError("timed out")
        return Line(self, address.host, self.servers[address.host].dial(address, seconds))

    def site(self, **options: Any) -> Site:
        return Site(SHARE, self.dial, failover=("a.example.com=b.example.com",), **options)


def patiently(call: Any, *arguments: Any) -> Any:
    """What a call returns that is repeated a few times, as the controllers do."""
    for _ in range(4):
        with suppress(Unavailable):
            return call(*arguments)
    return call(*arguments)


def test_an_address_that_falls_silent_is_left_for_the_next_and_back(model: ModelServer) -> None:
    heads = Heads(a=model, b=model)
    site = heads.site().start()
    made = site.provision()
    assert set(heads.dialled) == {"a.example.com"}
    for silent, serves in (("a.example.com", "b.example.com"), ("b.example.com", "a.example.com")):
        heads.silent, heads.dialled = {silent}, []
        made = patiently(site.provision)
        assert heads.dialled[-1] == serves
        patiently(site.delete, site.volume(made))
    assert made[1].source.fields["server"] == "a.example.com"


def test_an_address_that_refuses_costs_no_call(model: ModelServer) -> None:
    heads = Heads(a=model, b=model)
    heads.silent = {"a.example.com"}
    site = heads.site().start()
    assert site.provision()
    assert heads.dialled == ["a.example.com", "b.example.com"], "the one that answered is called from then on"


def test_a_server_rests_once_no_address_of_it_answers(model: ModelServer) -> None:
    heads = Heads(a=model, b=model)
    client = Client(Address("a.example.com"), dial=heads.dial, others=(Address("b.example.com"),))
    client.compound(*LOOK)
    heads.silent = {"a.example.com", "b.example.com"}
    for _ in range(3):
        with suppress(TransportError):
            client.compound(*LOOK)
    with pytest.raises(ServerUnavailable, match="tried again in"):
        client.compound(*LOOK)


def test_other_files_at_a_further_address_are_not_taken_for_the_shares(model: ModelServer) -> None:
    heads = Heads(a=model, b=ModelServer())
    site = heads.site().start()
    made = site.provision()
    Site(SHARE, heads.servers["b.example.com"].dial).start()
    heads.silent = {"a.example.com"}
    for _ in range(4):
        with pytest.raises(BackendError):
            site.provision(made[0])
    assert set(heads.servers["b.example.com"].share.children) == {b".volplane"}
    heads.silent = {"b.example.com"}
    assert patiently(site.provision, made[0]) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.example.com", "is no SERVER"),
        ("c.example.com=b.example.com", "none of the servers in shares"),
        ("a.example.com=", "is no ADDRESS"),
        ("a.example.com=fd00::1", "IPv6"),
        ("a.example.com=b:99999", "is no ADDRESS"),
        ("a.example.com=b=c", "is no SERVER"),
        ("a.example.com=b/vol", "is no ADDRESS"),
        ("a.example.com=A.Example.com:2049", "named already"),
    ],
)
def test_further_addresses_that_cannot_be_meant_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Settings(shares=(SHARE,), failover=(text,))


def test_further_addresses_are_read_with_their_ports_and_in_their_order() -> None:
    settings = Settings(
        shares=("nfs://a.example.com:2050/vol",), failover=("a.example.com:2050=[fd00::1]", "a.example.com:2050=b:2051")
    )
    assert settings.other_addresses == {
        Address("a.example.com", 2050): (Address("fd00::1"), Address("b", 2051)),
    }


@contextmanager
def nobody_at_home() -> Iterator[int]:
    """A port that answers no SYN, as a machine that is off: its queue of connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            queued = socket.socket()
            queued.setblocking(False)
            with suppress(BlockingIOError):
                queued.connect(listener.getsockname())
            waiting.append(queued)
        yield listener.getsockname()[1]
        for queued in waiting:
            queued.close()


def test_the_second_address_of_a_name_is_tried_soon(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with nobody_at_home() as dead, model.serve() as port:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in (dead, port)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        begun = time.monotonic()
        stream = dial_tcp(Address("filer.example.com"), 60.0)
        assert time.monotonic() - begun < 30.0
        stream.close()


@pytest.mark.parametrize(
    ("server", "other"), [("10.0.0.1", "[::ffff:10.0.0.1]"), ("[fd00::1]", "[fd00:0:0::0:1]:2049"), ("a", "b,a=b")]
)
def test_an_address_that_is_the_servers_own_or_named_twice_is_refused(server: str, other: str) -> None:
    with pytest.raises(InvalidArgument, match="named already"):
        Settings(shares=(f"nfs://{server}/vol",), failover=tuple(f"{server}={other}".split(",")))


def test_two_ganeshas_of_one_file_system_stand_in_for_each_other(memory: Path) -> None:
    data = memory / "data"
    with GaneshaServer(memory / "a", data=data) as first, GaneshaServer(memory / "b", data=data) as second:
        failover = (f"127.0.0.1:{first.port}=127.0.0.1:{second.port}",)
        site = Site(first.share, timeout=60.0, failover=failover).start()
        made = site.provision()
        first.stop(kill=True)
        begun = time.monotonic()
        later = patiently(site.provision)
        assert time.monotonic() - begun < 30.0, "a refused connection is not waited for"
        patiently(site.delete, site.volume(made))
        assert [each.name for each in site.listed()] == [later[0].name]
        first.start()
        second.stop()
        patiently(site.delete, site.volume(later))
        assert {each.name for each in data.iterdir()} == {".volplane"}
        site.stop()
        second.start()


def test_a_ganesha_that_is_stopped_fails_no_call(memory: Path) -> None:
    data = memory / "data"
    with GaneshaServer(memory / "a", data=data) as first, GaneshaServer(memory / "b", data=data) as second:
        site = Site(first.share, timeout=2.0, failover=(f"127.0.0.1:{first.port}=127.0.0.1:{second.port}",)).start()
        made = site.provision()
        first.process.send_signal(signal.SIGSTOP)
        try:
            assert site.provision(made[0]) == made
            site.delete(site.volume(made))
        finally:
            first.process.send_signal(signal.SIGCONT)
        site.stop()


def test_a_server_is_reached_by_an_ipv6_address(memory: Path) -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):  # noqa: PTH110
        pytest.skip("this machine has no IPv6")
    with GaneshaServer(memory, host="::1") as server:
        site = Site(server.share).start()
        made = site.provision()
        assert made[1].source.fields["server"] == "::1", "a kubelet puts the brackets"
        assert site.find(made[0]) == made[1]
        site.delete(site.volume(made))
        assert site.listed() == []
        site.stop()
