"""The client against a peer whose every answer is scripted: what a real server seldom shows."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import volplane_nfs.nfs4
from volplane import VolumeInUse
from volplane_nfs.nfs4 import (
    Address,
    Client,
    Credentials,
    NfsError,
    NoAnswer,
    NotAnNfsServer,
    OutcomeUnknown,
    ServerUnavailable,
    Status,
    Stream,
    TransportError,
    dial_tcp,
    files,
)
from volplane_nfs.nfs4 import client as client_module
from volplane_nfs.nfs4 import connection as connection_module
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.files import Pace, create_directory, directory_handle, names, read_file, root_handle, write_file
from volplane_nfs.nfs4.operations import Reply, Request
from volplane_nfs.nfs4.rpc import framed
from volplane_nfs.testing import ModelServer
from volplane_nfs.tree_removal import TreeRemoval

HOME = Address("model.example.com")
LOOK = (nfs.PUTROOTFH(), nfs.LOOKUP(b"vol"), nfs.GETFH())


def make(name: bytes) -> list[Request]:
    return [nfs.PUTROOTFH(), nfs.LOOKUP(b"vol"), create_directory(name, 0o755)]


class Script:
    """Faults for COMPOUNDs that hold an operation, one after the other."""

    def __init__(self, model: ModelServer, operation: object, *faults: Status | str | None) -> None:
        self._operation = operation
        self._faults = list(faults)
        model.fault = self

    def __call__(self, requests: list[Request]) -> Status | str | None:
        if self._faults and any(request.operation is self._operation for request in requests):
            return self._faults.pop(0)
        return None


def client_of(model: ModelServer, **options: object) -> Client:
    return Client(HOME, dial=model.dial, **options)  # type: ignore[arg-type]


def test_the_example_of_the_package_runs(model: ModelServer, capsys: pytest.CaptureFixture[str]) -> None:
    example = textwrap.dedent(re.findall(r"\n\n((?:    .*\n)+)", volplane_nfs.nfs4.__doc__ or "")[0])
    exec(example, {**vars(files), "Address": Address, "Client": partial(Client, dial=model.dial)})
    assert "b'new'" in capsys.readouterr().out


def test_a_call_whose_answer_is_lost_is_done_once(model: ModelServer) -> None:
    client = client_of(model)
    Script(model, nfs.CREATE, "lost after")
    client.compound(*make(b"once"))
    assert model.share.change == 2
    assert [*model.share.children] == [b"once"]


def test_a_call_that_is_lost_before_it_is_done_is_done_then(model: ModelServer) -> None:
    client = client_of(model)
    Script(model, nfs.CREATE, "lost before", "lost before")
    client.compound(*make(b"once"))
    assert [*model.share.children] == [b"once"]


def test_a_server_that_forgot_a_session_with_a_lost_answer_leaves_the_outcome_unknown(model: ModelServer) -> None:
    client = client_of(model)
    client.compound(*LOOK)

    def fault(requests: list[Request]) -> str | None:
        if any(request.operation is nfs.CREATE for request in requests):
            model.fault = lambda _requests: None
            threading.Timer(0.0, model.restart).run()
            return "lost after"
        return None

    model.fault = fault
    with pytest.raises(OutcomeUnknown):
        client.compound(*make(b"once"))
    assert client.compound(*LOOK)


def test_what_changes_nothing_is_called_again_after_a_restart(model: ModelServer) -> None:
    client = client_of(model)
    before = client.compound(*LOOK)
    model.restart()
    assert client.compound(*LOOK) == before


def test_a_change_after_a_restart_of_an_idle_server_is_done(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_IDLE", 0.0)
    client = client_of(model)
    client.compound(*LOOK)
    model.restart()
    client.compound(*make(b"made"))
    assert b"made" in model.share.children


@pytest.mark.parametrize("status", [Status.BADSESSION, Status.DEADSESSION, Status.CONN_NOT_BOUND_TO_SESSION])
def test_a_session_that_is_gone_is_replaced(model: ModelServer, status: Status) -> None:
    client = client_of(model)
    Script(model, nfs.CREATE, status)
    client.compound(*make(b"made"))
    assert b"made" in model.share.children


def test_delay_is_waited_for(model: ModelServer) -> None:
    client = client_of(model)
    model.minor = 0
    Script(model, nfs.CREATE, Status.DELAY, Status.DELAY)
    client.compound(*make(b"made"))
    assert b"made" in model.share.children


def test_delay_without_end_is_given_back_soon(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_DELAY_TOTAL", 0.05)
    model.minor = 0
    client = client_of(model)
    delays = Script(model, nfs.CREATE, *[Status.DELAY] * 100)
    with pytest.raises(NfsError, match="DELAY"):
        client.compound(*make(b"made"))
    assert 2 < 100 - len(delays._faults) < 8


def test_the_grace_period_is_told_and_not_waited_for(model: ModelServer) -> None:
    model.minor = 0
    client = client_of(model)
    Script(model, nfs.CREATE, Status.GRACE)
    with pytest.raises(NfsError, match="GRACE"):
        client.compound(*make(b"made"))


def test_a_server_without_41_is_spoken_to_in_40(model: ModelServer) -> None:
    model.minor = 0
    client = client_of(model)
    client.compound(*make(b"made"))
    assert client.minor == 0
    Script(model, nfs.REMOVE, "lost after")
    with pytest.raises(OutcomeUnknown):
        client.compound(nfs.PUTROOTFH(), nfs.LOOKUP(b"vol"), nfs.REMOVE(b"made"))


@pytest.mark.parametrize("minor", [0, 1])
def test_a_small_file_is_written_and_read(model: ModelServer, minor: int) -> None:
    model.minor = minor
    client = client_of(model)
    root = root_handle(client, (b"vol",))
    write_file(client, root, b"note", b"hello")
    assert read_file(client, root, b"note") == b"hello"
    assert read_file(client, root, b"other") is None


def test_a_directory_of_many_pages_is_listed_whole(model: ModelServer) -> None:
    client = client_of(model)
    root = root_handle(client, (b"vol",))
    wanted = [f"entry {number:05}".encode() for number in range(3000)]
    for name in wanted:
        model.enter(model.share, name, model.make(1, model.share))
    calls = model.calls
    assert names(client, root) == wanted
    assert model.calls - calls > 2


def test_a_server_that_repeats_a_page_of_a_directory_is_an_error(model: ModelServer) -> None:
    client = client_of(model)
    root = root_handle(client, (b"vol",))
    for number in range(3000):
        model.enter(model.share, f"entry {number:05}".encode(), model.make(1, model.share))
    model.repeats_pages = True
    with pytest.raises(TransportError, match="lists a directory without end"):
        names(client, root)


def test_a_directory_without_end_is_an_error(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ENTRIES", 20_000)
    client = client_of(model)
    model.endless = model.share
    with pytest.raises(TransportError, match="lists a directory without end: more than 20000 entries"):
        names(client, root_handle(client, (b"vol",)))


def test_the_removal_of_what_a_server_lists_and_does_not_have_ends(model: ModelServer) -> None:
    client = client_of(model)
    model.endless = model.share
    removal = TreeRemoval(client, root_handle(client, (b"vol",)), label="it", deadline=1e9, clock=lambda: 0.0)
    with pytest.raises(VolumeInUse, match="something in it cannot be removed"):
        removal.clear()


def test_the_removal_of_a_directory_in_which_a_server_lists_what_it_does_not_have_ends(model: ModelServer) -> None:
    client = client_of(model)
    for name in (b"endless", b"other"):
        model.enter(model.share, name, model.make(2, model.share))
        model.enter(model.share.children[name], b"file", model.make(1, model.share.children[name]))
    model.endless = model.share.children[b"endless"]
    removal = TreeRemoval(client, root_handle(client, (b"vol",)), label="it", deadline=1e9, clock=lambda: 0.0)
    with pytest.raises(VolumeInUse, match="something in it cannot be removed"):
        removal.clear()
    assert list(model.share.children) == [b"endless"]


@pytest.mark.parametrize("below", [False, True])
def test_more_entries_that_cannot_be_removed_than_a_page_holds_keep_nothing_else(
    model: ModelServer, below: bool
) -> None:
    client = client_of(model)
    directory = top = model.make(2, model.share)
    model.enter(model.share, b"top", top)
    if below:
        directory = model.make(2, top)
        model.enter(top, b"directory", directory)
    for number in range(500):
        exported = model.make(2, directory)
        exported.exported = True
        model.enter(directory, b"%05d" % number + b"x" * 150, exported)
    for number in range(50):
        model.enter(directory, b"z%05d" % number, model.make(1, directory))
    handle = directory_handle(client, root_handle(client, (b"vol",)), (b"top",))
    assert handle is not None
    with pytest.raises(VolumeInUse, match="cannot be"):
        TreeRemoval(client, handle, label="it", deadline=1e9, clock=lambda: 0.0).clear()
    assert not [name for name in directory.children if name.startswith(b"z")]


def test_a_directory_of_many_files_is_removed_until_the_time_is_up_and_no_longer(model: ModelServer) -> None:
    client = client_of(model)
    root = root_handle(client, (b"vol",))
    for number in range(3000):
        model.enter(model.share, f"entry {number:05}".encode(), model.make(1, model.share))
    slow = TreeRemoval(client, root, label="the trash", deadline=1.0, clock=lambda: 2.0)
    assert not slow.clear()
    assert 0 < slow.removed < 3000
    assert TreeRemoval(client, root, label="the trash", deadline=1.0, clock=lambda: 0.0).clear()
    assert names(client, root) == []


class Slow:
    """A server on which each operation takes a while, one after the other, as nfsd on a disk does."""

    operations = 63
    data_bytes = 1 << 17
    minor = 2
    moves = 0

    def __init__(self, model: ModelServer, seconds: float) -> None:
        self._client = client_of(model)
        self._seconds = seconds
        self.now = 0.0
        self.longest = 0.0
        self.close = self._client.close
        self.compound = self._client.compound

    def pipeline(self, compounds: Sequence[Sequence[Request]]) -> list[Reply]:
        took = self._seconds * sum(len(each) for each in compounds)
        self.now += took
        self.longest = max(self.longest, took)
        return self._client.pipeline(compounds)


@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_a_slow_server_is_asked_for_less_at_once(model: ModelServer, seconds: float) -> None:
    slow = Slow(model, seconds)
    root = root_handle(slow, (b"vol",))
    for number in range(400):
        directory = model.make(2, model.share)
        model.enter(directory, b"file", model.make(1, directory))
        model.enter(model.share, f"entry {number:05}".encode(), directory if number % 8 else model.make(1, model.share))
    assert TreeRemoval(slow, root, label="the trash", deadline=1e9, clock=lambda: slow.now).clear()
    found = files.several(slow, [make(b"%d" % number) for number in range(200)], Pace(lambda: slow.now))
    assert not any(reply.status for reply in found)
    assert slow.longest < 5.0, "of the time limit of a call"


def test_a_fast_server_is_asked_for_much_at_once(model: ModelServer) -> None:
    fast = Slow(model, 0.00005)
    root = root_handle(fast, (b"vol",))
    for number in range(2000):
        model.enter(model.share, b"%d" % number, model.make(1, model.share))
    before = model.calls
    assert TreeRemoval(fast, root, label="the trash", deadline=1e9, clock=lambda: fast.now).clear()
    assert model.calls - before < 2000 / 20


def test_directories_that_are_not_empty_cost_few_operations_each(model: ModelServer) -> None:
    counting = Slow(model, 1.0)
    root = root_handle(counting, (b"vol",))
    top = model.make(2, model.share)
    model.enter(model.share, b"top", top)
    for number in range(400):
        directory = model.make(2, top)
        model.enter(directory, b"file", model.make(1, directory))
        model.enter(top, b"%d" % number, directory)
    assert TreeRemoval(counting, root, label="the trash", deadline=1e9, clock=lambda: 0.0).clear()
    assert counting.now < 400 * 20, "one second an operation"


def test_a_server_rests_only_when_none_of_its_connections_answers(model: ModelServer) -> None:
    client = client_of(model, timeout=1.0)
    client.compound(*LOOK)

    def fault(requests: list[Request]) -> str | None:
        if any(request.operation is nfs.REMOVE for request in requests):
            client.compound(*LOOK)  # on another connection, meanwhile
            return "silent"
        return None

    model.fault = fault
    with pytest.raises(NoAnswer):
        client.compound(*LOOK[:2], nfs.REMOVE(b"large"))
    client.compound(*LOOK)
    model.fault = lambda _requests: "silent"
    with pytest.raises(NoAnswer):
        client.compound(*LOOK)
    with pytest.raises(ServerUnavailable, match="it is tried again in 1 s"):
        client.compound(*LOOK)


def test_several_threads_share_a_client(model: ModelServer) -> None:
    client = client_of(model, connections=2)
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for count in range(20):
                client.compound(*make(f"{number}-{count}".encode()))
        except Exception as error:  # noqa: BLE001 - it is what the test asserts
            errors.append(error)

    with model.serve() as port:
        client = Client(Address("127.0.0.1", port), connections=2)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
    assert errors == []
    assert len(model.share.children) == 120


def test_the_client_stands_alone(tmp_path: Path) -> None:
    """Without volplane, the rest of the plugin, and everything that is installed."""
    copy = tmp_path / "volplane_nfs"
    shutil.copytree(Path(volplane_nfs.nfs4.__file__).parent, copy / "nfs4")
    (copy / "__init__.py").touch()
    modules = ", ".join(f"volplane_nfs.nfs4.{each.stem}" for each in (copy / "nfs4").glob("[a-z]*.py"))
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import {modules}"], env=environment, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_host_that_does_not_resolve_is_unavailable_by_name() -> None:
    with pytest.raises(ServerUnavailable, match=r"no-such-host\.invalid.*cannot be resolved"):
        Client(Address("no-such-host.invalid")).compound(*LOOK)


def test_a_port_where_nobody_listens_is_unavailable_and_then_let_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Client(Address("127.0.0.1", port), now=lambda: 0.0)
    with pytest.raises(ServerUnavailable, match="Connection refused"):
        client.compound(*LOOK)
    with pytest.raises(ServerUnavailable, match="tried again in"):
        client.compound(*LOOK)


@contextmanager
def peer(answer: bytes) -> Iterator[int]:
    """A server that answers the first bytes with these, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # The client may leave first.
                connection.recv(1 << 16)
                connection.sendall(answer)
                connection.recv(1 << 16)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (0xFFFFFFFF).to_bytes(4, "big") + b"x" * 64,
        framed(b"abc"),
        framed(bytes(4) + b"\0\0\0\1\0\0\0\0"),
    ],
    ids=["ssh", "http", "oversized", "cut", "unknown call"],
)
def test_what_is_no_nfs_server_is_recognised(answer: bytes) -> None:
    with peer(answer) as port:
        client = Client(Address("127.0.0.1", port), timeout=2.0)
        with pytest.raises(NotAnNfsServer):
            client.compound(*LOOK)
        client.close()


def test_a_server_that_says_nothing_costs_the_time_limit_once() -> None:
    with peer(b"") as port:
        client = Client(Address("127.0.0.1", port), timeout=0.3, now=lambda: 0.0)
        with pytest.raises((NoAnswer, ServerUnavailable)):
            client.compound(*LOOK)
        for _ in range(50):
            with pytest.raises(ServerUnavailable, match="tried again in 1 s"):
                client.compound(*LOOK)


class Clock:
    """Time in the client's pool; its connections have that of the machine."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        return self.now


@contextmanager
def unanswered(model: ModelServer, client: Client, *requests: Request) -> Iterator[threading.Thread]:
    """A call that the server has got and does not answer, in a thread, as long as the block lasts."""
    got = threading.Event()

    def fault(given: list[Request]) -> str | None:
        if given[-1].operation is not requests[-1].operation:
            return None
        got.set()
        return "silent"

    def call() -> None:
        with suppress(TransportError):
            client.compound(*requests)

    model.fault = fault
    waiting = threading.Thread(target=call, daemon=True)
    waiting.start()
    assert got.wait(30.0)
    yield waiting
    model.fault = lambda _requests: None
    client.close()
    waiting.join()


def test_a_silent_server_holds_no_more_threads_than_asked_it_at_first(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "time", clock := Clock())
    with model.serve() as port:
        client = Client(Address("127.0.0.1", port), timeout=20.0)
        client.compound(*LOOK)
        with unanswered(model, client, *LOOK) as waiting:
            clock.now = time.monotonic() + client_module._SILENCE + 0.1
            with pytest.raises(ServerUnavailable, match="does not answer other calls"):
                client.compound(*LOOK)
            assert waiting.is_alive()


def test_a_server_that_answers_other_calls_is_not_taken_for_silent(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "time", clock := Clock())
    with model.serve() as port:
        client = Client(Address("127.0.0.1", port), timeout=20.0)
        client.compound(*LOOK)
        with unanswered(model, client, *make(b"late")) as waiting:
            for _ in range(5):
                clock.now += client_module._SILENCE * 0.7
                client.compound(*LOOK)
            assert waiting.is_alive()


def test_calls_at_one_time_have_a_connection_each_while_there_are_some(model: ModelServer) -> None:
    dialled: list[Address] = []
    second, third = threading.Event(), threading.Event()

    def dial(address: Address, seconds: float) -> Stream:
        dialled.append(address)
        if len(dialled) == 2:
            second.set()
        return dial_tcp(address, seconds)

    def hold(requests: list[Request]) -> None:
        if any(request.operation is nfs.CREATE for request in requests):
            assert third.wait(5.0)

    with model.serve() as port:
        client = Client(Address("127.0.0.1", port), connections=2, dial=dial)
        client.compound(*LOOK)
        client.compound(*LOOK)
        assert len(dialled) == 1
        model.fault = hold
        threads = [threading.Thread(target=client.compound, args=make(name)) for name in (b"a", b"b", b"c")]
        for thread in threads:
            thread.start()
        assert second.wait(5.0)
        third.set()
        for thread in threads:
            thread.join()
        client.close()
    assert len(dialled) == 2
    assert {*model.share.children} == {b"a", b"b", b"c"}


def test_a_server_that_is_not_reached_holds_one_thread_of_those_that_call_it_at_once(model: ModelServer) -> None:
    held = threading.Event()
    errors: list[str] = []
    dialled: list[Address] = []

    def dial(address: Address, seconds: float) -> Stream:
        dialled.append(address)
        assert held.wait(10.0)
        return model.dial(address, seconds)

    client = Client(HOME, dial=dial)

    def call() -> None:
        try:
            client.compound(*LOOK)
        except ServerUnavailable as error:
            errors.append(str(error))
            if len(errors) == 3:
                held.set()

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(dialled) == 1
    assert len(errors) == 3
    assert all("being connected to" in error for error in errors)


def test_a_call_larger_than_the_server_takes_is_refused_and_the_next_one_served(model: ModelServer) -> None:
    model.largest_call = 4096
    client = client_of(model)
    root = root_handle(client, (b"vol",))
    with pytest.raises(NfsError, match="REQ_TOO_BIG"):
        write_file(client, root, b"note", bytes(8192))
    write_file(client, root, b"note", b"hello")
    assert read_file(client, root, b"note") == b"hello"


def test_credentials_are_sent_with_every_call() -> None:
    encoded = Credentials(uid=1000, gid=100, groups=(4, 5), machine="node").encode()
    assert encoded[:4] == b"\0\0\0\1"
    assert (1000).to_bytes(4, "big") in encoded
