"""Copies of files by the client: on servers that share blocks, copy by themselves or do neither, and on NFS-Ganesha."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from volplane_nfs.nfs4 import Address, Client, NfsError, Status
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import (
    FILEHANDLE,
    MODE,
    OWNER,
    OWNER_GROUP,
    SIZE,
    SPACE_USED,
    TIME_MODIFY,
    TIME_MODIFY_SET,
    mask_of,
)
from volplane_nfs.nfs4.copying import COPIED, FileCopier, Job, Offloads
from volplane_nfs.nfs4.files import (
    ANONYMOUS,
    directory_handle,
    entries,
    make_directory,
    read_attributes,
    root_handle,
    write_file,
)
from volplane_nfs.nfs4.operations import CLONE, COMMIT, COPY, PUTFH, READ, SEEK, SETATTR, WRITE, Request
from volplane_nfs.testing import GaneshaServer, ModelServer
from volplane_nfs.testing.model.execution import Execution
from volplane_nfs.testing.model.state import BLOCK

KIB, MIB = 1 << 10, 1 << 20
LARGE = 300 * KIB
WAYS: dict[str, set[str]] = {"READ and WRITE": set(), "COPY": {"COPY", "SEEK"}, "CLONE": {"CLONE", "SEEK"}}
FILES = {
    b"empty": b"",
    b"small": b"x" * 3000,
    b"zeros": bytes(9000),
    b"large": bytes(range(256)) * 4 * 700,
    b"odd \xff\n": b"y",
}


class Place:
    """Two directories of a server, and a copier."""

    def __init__(self, client: Client) -> None:
        self.client = client
        root = root_handle(client, (b"vol",))
        name = b"copying-%d" % next(_numbers)
        make_directory(client, root, name, 0o755)
        above = directory_handle(client, root, (name,))
        assert above is not None
        self.source, self.target = (self._below(above, each) for each in (b"source", b"target"))
        self.offloads = Offloads()
        self.copier = FileCopier(client, self.offloads)

    def _below(self, above: bytes, name: bytes) -> bytes:
        make_directory(self.client, above, name, 0o755)
        handle = directory_handle(self.client, above, (name,))
        assert handle is not None
        return handle

    def put(self, name: bytes, data: bytes, at: int = 0) -> None:
        write_file(self.client, self.source, name, b"")
        handle = self.look(self.source, name)[1]
        for offset in range(0, len(data), 128 * KIB):
            part = data[offset : offset + 128 * KIB]
            self.client.compound(PUTFH(handle), WRITE(ANONYMOUS, at + offset, 2, part))
        wanted = {MODE: 0o640, OWNER: b"1000", OWNER_GROUP: b"2000", TIME_MODIFY_SET: (1, (1_000_000_000, 5000))}
        self.client.compound(PUTFH(handle), SETATTR(ANONYMOUS, wanted))

    def look(self, directory: bytes, name: bytes) -> tuple[dict[int, Any], bytes]:
        found = read_attributes(self.client, directory, (name,), COPIED)
        assert found is not None
        return found

    def content(self, directory: bytes, name: bytes) -> bytes:
        attributes, handle = self.look(directory, name)
        offsets = range(0, attributes[SIZE], 128 * KIB)
        reads = [self.client.compound(PUTFH(handle), READ(ANONYMOUS, offset, 128 * KIB)) for offset in offsets]
        return b"".join(each[1].data for each in reads)

    def jobs(self) -> list[Job]:
        listed = entries(self.client, self.source, COPIED | mask_of(FILEHANDLE))
        return [Job(each.attributes[FILEHANDLE], each.attributes, self.target, each.name) for each in listed]

    def copy(self, should_stop: Callable[[], bool] = lambda: False) -> int:
        """Copy everything; in how many parts the large ones were."""
        jobs, parts = self.jobs(), 0
        small = [job for job in jobs if job.attributes[SIZE] <= self.copier.largest_small]
        while small:
            small = small[sum(1 for _ in self.copier.copy_small(small, should_stop)) :]
        for job in jobs:
            place: tuple[int, int] | None = (0, 0)
            while job.attributes[SIZE] > self.copier.largest_small and place is not None and place[0] >= 0:
                place = self.copier.copy_large(job, *place, should_stop)
                parts += 1
        return parts

    def same(self, name: bytes) -> bool:
        before, after = (self.look(each, name)[0] for each in (self.source, self.target))
        keys = (SIZE, MODE, OWNER, OWNER_GROUP, TIME_MODIFY)
        return [before[key] for key in keys] == [after[key] for key in keys] and self.content(
            self.source, name
        ) == self.content(self.target, name)


_numbers = itertools.count()


@pytest.fixture
def place(client: Client) -> Place:
    return Place(client)


@pytest.fixture(params=[*WAYS, "NFS-Ganesha"])
def anywhere(request: pytest.FixtureRequest, model: ModelServer, client: Client) -> Iterator[Place]:
    """On every kind of server."""
    if request.param in WAYS:
        model.offloads = WAYS[request.param]
        yield Place(client)
        assert not model.opens, "a file is open"
        return
    server: GaneshaServer = request.getfixturevalue("ganesha")
    real = Client(Address("127.0.0.1", server.port))
    yield Place(real)
    real.close()


def faulty(model: ModelServer, operation: nfs.Operation, act: Callable[[], None], times: int = 1) -> None:
    """Do something before the first COMPOUNDs that have this operation."""
    left = [None] * times

    def fault(requests: list[Request]) -> None:
        if left and any(each.operation is operation for each in requests):
            left.pop()
            act()

    model.fault = fault


def test_a_copy_has_contents_and_attributes_on_every_server(anywhere: Place) -> None:
    for name, data in FILES.items():
        anywhere.put(name, data)
    anywhere.copy()
    assert [name for name in FILES if not anywhere.same(name)] == []


def test_a_file_that_is_copied_in_parts_goes_on_where_it_was(anywhere: Place) -> None:
    anywhere.put(b"large", bytes(range(256)) * 4096)
    assert anywhere.copy(lambda: True) >= 1
    assert anywhere.same(b"large")


def test_what_is_in_the_way_is_replaced(anywhere: Place) -> None:
    for name, data in FILES.items():
        anywhere.put(name, data)
        write_file(anywhere.client, anywhere.target, name, b"of an earlier attempt")
    anywhere.copy()
    assert [name for name in FILES if not anywhere.same(name)] == []


def test_setuid_bits_survive_the_change_of_the_owner(anywhere: Place) -> None:
    for name, data in FILES.items():
        anywhere.put(name, data)
        handle = anywhere.look(anywhere.source, name)[1]
        anywhere.client.compound(PUTFH(handle), SETATTR(ANONYMOUS, {MODE: 0o6755}))
    anywhere.copy()
    modes = {anywhere.look(anywhere.target, name)[0][MODE] for name in FILES}
    assert modes == {0o6755}


def test_a_program_that_becomes_the_drivers_own_does_not_run_as_the_driver(anywhere: Place) -> None:
    anywhere.copier = FileCopier(anywhere.client, anywhere.offloads, owners=False)
    for name, data in FILES.items():
        anywhere.put(name, data)
        handle = anywhere.look(anywhere.source, name)[1]
        anywhere.client.compound(PUTFH(handle), SETATTR(ANONYMOUS, {MODE: 0o6755}))
    anywhere.copy()
    modes = {anywhere.look(anywhere.target, name)[0][MODE] for name in FILES}
    assert modes == {0o755}


def test_holes_stay_holes_on_every_server(anywhere: Place) -> None:
    """NFS-Ganesha 4.3 answers every SEEK with 0, and zeros are left out there."""
    anywhere.put(b"sparse", b"z" * BLOCK, at=MIB)
    anywhere.put(b"two", b"z" * BLOCK, at=MIB + 10 * BLOCK)
    handle = anywhere.look(anywhere.source, b"two")[1]
    anywhere.client.compound(PUTFH(handle), WRITE(ANONYMOUS, MIB, 2, b"z" * BLOCK))
    anywhere.client.compound(PUTFH(handle), SETATTR(ANONYMOUS, {SIZE: 2 * MIB + 7}))
    anywhere.copy()
    for name, most in ((b"sparse", BLOCK), (b"two", 2 * BLOCK)):
        assert anywhere.same(name)
        assert anywhere.look(anywhere.target, name)[0][SPACE_USED] <= most


@pytest.mark.parametrize("size", [3000, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("way", WAYS)
def test_what_a_server_had_in_memory_when_it_was_restarted_is_copied_again(
    model: ModelServer, place: Place, way: str, size: int
) -> None:
    model.offloads = WAYS[way]
    place.put(b"file", b"x" * size)
    faulty(model, COMMIT if size == LARGE else WRITE, model.lose)
    place.copy()
    assert place.same(b"file")
    model.lose()
    assert place.same(b"file")


Change = tuple[str, nfs.Operation, int]
CHANGES: list[Change] = [
    ("READ and WRITE", READ, 3000),
    ("READ and WRITE", READ, LARGE),
    ("COPY", COPY, LARGE),
    ("CLONE", CLONE, 3000),
    ("CLONE", CLONE, LARGE),
]


@pytest.mark.parametrize("times", [2, 50])
@pytest.mark.parametrize("case", CHANGES, ids=lambda case: f"{case[0]} {case[2]}")
def test_a_file_that_changes_meanwhile_is_copied_three_times_at_most(
    model: ModelServer, place: Place, times: int, case: Change
) -> None:
    way, operation, size = case
    model.offloads = WAYS[way]
    place.put(b"file", b"x" * size)
    faulty(model, operation, changes(model, place), times)
    place.copy()
    model.fault = lambda _requests: None
    at_once = operation is READ and size == 3000  # read in the COMPOUND that compares
    assert place.same(b"file") == (times == 2 or at_once)
    assert place.look(place.target, b"file")[0][SIZE] == size


def changes(model: ModelServer, place: Place) -> Callable[[], None]:
    """Return what writes to the file of the source."""
    node = model.nodes[int.from_bytes(place.jobs()[0].source, "big")]
    clock = itertools.count(1)

    def write() -> None:
        node.put(0, b"%6d" % next(clock))
        node.change += 1
        node.time, node.modified = float(next(clock)), (next(clock), 0)

    return write


def test_a_file_that_is_written_to_all_the_time_is_copied_once_in_parts_and_looks_unfinished(
    model: ModelServer, place: Place
) -> None:
    """So that it is copied once more later, but not for ever."""
    place.put(b"file", b"x" * 6 * LARGE)
    faulty(model, READ, changes(model, place), 1000)
    assert 1 < place.copy(lambda: True) < 12
    model.fault = lambda _requests: None
    assert place.content(place.target, b"file")[100:] == b"x" * (6 * LARGE - 100)
    assert not place.same(b"file")


def test_a_file_that_nobody_has_any_more_is_left_out(model: ModelServer, place: Place) -> None:
    place.put(b"a", b"x")
    place.put(b"large", b"x" * LARGE)
    jobs = place.jobs()
    for name in (b"a", b"large"):
        place.client.compound(PUTFH(place.source), nfs.REMOVE(name))
    assert list(place.copier.copy_small([jobs[0]], lambda: False)) == [False]
    assert place.copier.copy_large(jobs[1], 0, 0, lambda: False) is None
    assert list(entries(place.client, place.target)) == []


@pytest.mark.parametrize("way", ["COPY", "CLONE"])
def test_what_a_server_refuses_is_asked_for_once(model: ModelServer, place: Place, way: str) -> None:
    place.put(b"a", b"x" * 3000)
    place.put(b"b", b"x" * LARGE)
    place.copy()
    asked: list[str] = []
    model.fault = lambda requests: asked.extend(each.operation.name for each in requests)
    place.copier = FileCopier(place.client, place.offloads)
    place.copy()
    assert way not in asked
    assert place.offloads.refused >= {COPY, CLONE}


def test_a_full_server_is_told_and_nothing_stays_open(model: ModelServer, place: Place) -> None:
    for way in WAYS.values():
        model.offloads = way
        for name, size in ((b"small", 3000), (b"large", LARGE)):
            model.available = MIB << 20
            place.put(name, b"x" * size)
            model.available = 10
            with pytest.raises(NfsError) as raised:
                place.copy()
            assert raised.value.status == Status.NOSPC
            assert not model.opens
            place.client.compound(PUTFH(place.source), nfs.REMOVE(name))


def test_a_server_that_does_less_than_it_is_asked_is_asked_for_the_rest(model: ModelServer, place: Place) -> None:
    model.largest_io, model.largest_copy = 1000, 100_000
    place.put(b"small", b"")
    place.put(b"large", b"")
    for job in place.jobs():
        node = model.nodes[int.from_bytes(job.source, "big")]
        node.put(0, bytes(range(250)) * (20 if job.name == b"small" else 1000))
    for model.offloads in (set(), {"COPY"}):
        place.offloads.refused.clear()
        place.copy()
        assert [name for name in (b"small", b"large") if not place.same(name)] == []


def test_no_call_is_larger_than_the_server_takes(model: ModelServer) -> None:
    """The model cuts the connection, as a small Linux server does."""
    model.largest_call = 1 << 16
    place = Place(Client(Address("model.example.com"), dial=model.dial))
    assert place.copier.largest_small < 1 << 16
    node = model.nodes[int.from_bytes(place.source, "big")]
    for number in range(40):
        file = model.make(1, node)
        file.put(0, b"x" * (60 * KIB if number % 2 else 300 * KIB))
        model.enter(node, b"%d" % number, file)
    place.copy()
    assert [name for name in (b"0", b"1", b"38", b"39") if not place.same(name)] == []


LIES: dict[str, tuple[nfs.Operation, Any]] = {
    "more copied than asked for": (COPY, ([], 1 << 60, 2, bytes(8), True, True)),
    "nothing copied": (COPY, ([], 0, 2, bytes(8), True, True)),
    "copied later": (COPY, ([(1, bytes(12))], 0, 0, bytes(8), True, False)),
    "data before the place asked for": (SEEK, (False, 0)),
    "data behind the end": (SEEK, (False, 1 << 60)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_answers_nonsense_loses_no_data(
    model: ModelServer, place: Place, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    operation, answer = LIES[lie]
    model.offloads = {"COPY", "SEEK"}
    place.put(b"sparse", b"z" * BLOCK, at=MIB)
    monkeypatch.setattr(Execution, f"_{operation.name.lower()}", lambda *_: answer)
    place.copy()
    assert lie == "data behind the end" or place.same(b"sparse")


@pytest.mark.parametrize("count", [0, 1 << 31])
def test_a_server_that_writes_another_number_of_bytes_is_an_error(
    model: ModelServer, place: Place, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    place.put(b"large", b"x" * LARGE)
    monkeypatch.setattr(Execution, "_write", lambda *_: (count, 2, bytes(8)))
    with pytest.raises(NfsError, match="WRITE of 'large'"):
        place.copy()
