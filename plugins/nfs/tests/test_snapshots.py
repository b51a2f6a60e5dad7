"""Snapshots, restored volumes and clones: what is in them, whatever happens while they are made."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from volplane import (
    Absent,
    Asset,
    BackendError,
    DeleteSnapshotRequest,
    Done,
    FindSnapshotRequest,
    InProgress,
    InvalidArgument,
    ListSnapshotsRequest,
    NotFound,
    PermissionDenied,
    ProvisionRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    Unavailable,
    Unsupported,
    VolumeInUse,
)
from volplane.directory import SNAPSHOT_PARAMETERS
from volplane.directory.local_trees import LocalTrees
from volplane_nfs import copies
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4 import Address, Client, Credentials, Status
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.attributes import (
    FILEHANDLE,
    MODE,
    OWNER,
    OWNER_GROUP,
    REGULAR,
    SIZE,
    TIME_METADATA,
    TIME_MODIFY,
    TYPE,
    mask_of,
)
from volplane_nfs.nfs4.files import entries, read_attributes, root_handle
from volplane_nfs.nfs4.operations import Request
from volplane_nfs.testing import GaneshaServer, ModelServer
from volplane_nfs.testing.model import execution
from volplane_nfs.testing.model.state import Node
from volplane_nfs.testing.subjects import export_options

from .conftest import MIB, Site, defaults

Made = tuple[ProvisionRequest, Asset]
Operation = Callable[[], Snapshot | Asset | InProgress]


def cut_request(site: Site, made: Made, **parameters: Any) -> SnapshotRequest:
    uid = str(uuid.uuid4())
    content = f"snapcontent-{uid}"
    return SnapshotRequest(
        context=site.context(),
        name=f"snapshot-{uid}",
        volume=site.volume(made),
        owner=SnapshotOwnership(cluster_id=site.cluster, snapshot_uid=uid, content_name=content),
        snapshot=SnapshotIdentity(namespace="default", name="before", content=content),
        parameters={**defaults(SNAPSHOT_PARAMETERS), **parameters},
    )


def to_the_end(site: Site, request: Any, *, at_most: int = 1000, between: Callable[[], None] = lambda: None) -> Any:
    """Call a hook until it is over, with the state of the last answer."""
    hook = site.backend.create_snapshot if isinstance(request, SnapshotRequest) else site.backend.provision
    for _ in range(at_most):
        answer = hook(request)
        if not isinstance(answer, InProgress):
            return answer
        request = replace(request, context=replace(request.context, state=dict(answer.state)))
        between()
    raise AssertionError("it never ends")


def cut(site: Site, made: Made, **parameters: Any) -> Snapshot:
    snapshot: Snapshot = to_the_end(site, cut_request(site, made, **parameters))
    assert snapshot.ready
    return snapshot


def restored(site: Site, snapshot: Snapshot, **fields: Any) -> Made:
    request = site.demand(**{"source_snapshot": snapshot.handle, **fields})
    return request, to_the_end(site, request)


def cloned(site: Site, made: Made, **fields: Any) -> Made:
    volume = site.volume(made)
    request = site.demand(source_volume=volume.handle, source_asset=volume, **fields)
    return request, to_the_end(site, request)


def drop(site: Site, snapshot: Snapshot) -> None:
    request = DeleteSnapshotRequest(context=site.context(), handle=snapshot.handle, owner=snapshot.owner)
    for _ in range(1000):
        if site.backend.delete_snapshot(request) == Done():
            return
    raise AssertionError("it never ends")


def listed(site: Site) -> list[str]:
    page = site.backend.list_snapshots(ListSnapshotsRequest(context=site.context()))
    return [each.handle for each in page.snapshots]


def path_of(server: GaneshaServer, site: Site, made: Made) -> Path:
    marker = os.fsencode((server.data / ".volplane/volumes" / made[0].name).readlink())
    return server.data / VolumeMarker.decode(marker).path


def tree(top: Path) -> dict[str, object]:
    """Everything below a directory, with contents, owners, modes, times, and which names are one file."""
    found: dict[str, object] = {}
    names: dict[int, str] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        status, name = path.lstat(), str(path.relative_to(top))
        content: object = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        first = names.setdefault(status.st_ino, name)
        time_of_change = 0 if path.is_symlink() else status.st_mtime_ns
        found[name] = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, time_of_change, first, content)
    return found


def grow(top: Path) -> None:
    """Everything that a file system can hold, but for what no server can make."""
    chance = random.Random(7)
    for number in range(20):
        below = top / f"d{number % 4}" / f"e{number % 3}"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"f{number}").write_bytes(chance.randbytes(chance.choice([0, 10, 5000, 70_000])))
    (top / "large").write_bytes(chance.randbytes(2 * MIB))
    with (top / "sparse").open("wb") as file:
        file.truncate(8 * MIB)
        file.seek(5 * MIB)
        file.write(b"x" * 5000)
    os.link(top / "large", top / "d0" / "same")
    os.link(top / "d0" / "same", top / "d1" / "same too")
    (top / "link").symlink_to("/etc/passwd")
    (top / "dangling").symlink_to("../../nowhere")
    (top / os.fsdecode(b"odd \xff\n name")).write_text("odd")
    (top / "closed").mkdir()
    (top / "closed" / "secret").write_text("secret")
    (top / "closed" / "secret").chmod(0)
    os.chown(top / "closed" / "secret", 1000, 2000)
    (top / "closed").chmod(0o2710)
    (top / "program").write_text("run")
    os.chown(top / "program", 1000, 1000)
    (top / "program").chmod(0o6755)
    deep = top
    for number in range(70):
        deep /= f"l{number}"
        deep.mkdir()
    (deep / "end").write_text("end")
    for path in (deep, top / "closed", top / "d0", top):
        os.utime(path, ns=(5, 10**18 + 7))


@pytest.fixture(params=["subdirectory", "export"])
def any_mode(request: pytest.FixtureRequest, ganesha: GaneshaServer) -> Iterator[Site]:
    options = export_options(ganesha) if request.param == "export" else {}
    site = Site(ganesha.share, **options).start()
    yield site
    site.stop()


def test_snapshots_restored_volumes_and_clones_are_equal_to_their_source(
    ganesha: GaneshaServer, any_mode: Site
) -> None:
    site = any_mode
    made = site.provision()
    top = path_of(ganesha, site, made)
    grow(top)
    before = tree(top)
    snapshot = cut(site, made, verify="content")
    data = ganesha.data / ".volplane/snapshots" / snapshot.name / "data"
    assert tree(data) == before
    assert (data / "sparse").stat().st_blocks < 100
    assert sorted(each.name for each in data.parent.iterdir()) == ["data", "marker", "volumes"]
    copy = restored(site, snapshot)
    assert tree(path_of(ganesha, site, copy)) == before
    clone = cloned(site, copy)
    assert tree(path_of(ganesha, site, clone)) == before
    drop(site, snapshot)
    for each in (made, copy, clone):
        site.delete(site.volume(each))
    assert snapshot.handle not in listed(site)
    left = [each.name for name in ("copies", "snapshots") for each in (ganesha.data / ".volplane" / name).iterdir()]
    assert not {snapshot.name, copy[0].name, clone[0].name} & {name.partition("@")[0] for name in left}


@pytest.fixture
def exporting(ganesha: GaneshaServer) -> Iterator[Site]:
    site = Site(ganesha.share, **export_options(ganesha)).start()
    yield site
    site.stop()


def test_in_mode_export_files_are_copied_on_the_servers_disk_and_the_server_knows(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "NfsTrees", None)
    with GaneshaServer(memory, export="Attr_Expiration_Time = 60;") as server:
        site = Site(server.share, **export_options(server)).start()
        made = site.provision(parameters={"mode": 0o2750, "uid": 1000, "gid": 2000})
        top = path_of(server, site, made)
        grow(top)
        os.mkfifo(top / "d0" / "pipe")
        before = tree(top)
        snapshot = cut(site, made)
        copy = restored(site, snapshot, parameters={"mode": 0o2770, "gid": 3000})
        assert tree(path_of(server, site, copy)) == {**before, ".": ANY}
        # As nodes see it, which ask the server: what it knew of the empty directory is no more.
        client = Client(Address("127.0.0.1", server.port))
        top_handle = root_handle(client, (b"vol",))
        wanted = mask_of(MODE, OWNER, OWNER_GROUP, TIME_MODIFY)
        of_snapshot = read_attributes(
            client, top_handle, (b".volplane", b"snapshots", snapshot.name.encode(), b"data"), wanted
        )
        assert of_snapshot is not None
        shown, data = of_snapshot
        assert (shown[MODE], shown[OWNER], shown[OWNER_GROUP]) == (0o2750, b"1000", b"2000")
        assert shown[TIME_MODIFY] == divmod(10**18 + 7, 10**9)
        there = root_handle(client, (b"pv", copy[0].name.encode()))
        of_copy = read_attributes(client, there, (), wanted)
        assert of_copy is not None
        assert (of_copy[0][MODE], of_copy[0][OWNER_GROUP]) == (0o2770, b"3000")
        names = {os.fsencode(each.name) for each in top.iterdir()}
        assert {each.name for each in entries(client, data, 0)} == names
        client.close()
        pod = Client(Address("127.0.0.1", server.port), credentials=Credentials(uid=7, gid=3000))
        assert {each.name for each in entries(pod, there, 0)} == names
        pod.close()
        site.stop()


def test_a_directory_that_is_not_proven_to_be_the_share_is_not_copied_in(
    ganesha: GaneshaServer, live: Site, tmp_path: Path
) -> None:
    made = live.provision()
    top = path_of(ganesha, live, made)
    (top / "file").write_text("the share's")
    other = tmp_path / "other"
    for place in (other / top.name, other / ".volplane" / "copies"):
        place.mkdir(parents=True)
    (other / top.name / "file").write_text("another's")
    for marker in (None, b'{"format": 1, "share_id": "%s"}' % (b"0" * 32)):
        if marker is not None:
            (other / ".volplane" / "share").symlink_to(os.fsdecode(marker))
        site = Site(ganesha.share, **{**export_options(ganesha), "server_path": str(other)})
        snapshot = cut(site, made)
        data = ganesha.data / ".volplane/snapshots" / snapshot.name / "data"
        assert (data / "file").read_text() == "the share's"
        drop(live, snapshot)
    assert not list((other / ".volplane" / "copies").iterdir())
    live.delete(live.volume(made))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_copy_on_the_servers_disk_that_fails_says_why(
    exporting: Site, ganesha: GaneshaServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    made = exporting.provision()
    (path_of(ganesha, exporting, made) / "file").write_text("x")
    request = cut_request(exporting, made)

    def failing(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(LocalTrees, "_fill", failing)
        error = Unavailable if number == errno.EIO else ResourceExhausted
        with pytest.raises(error) as raised:
            to_the_end(exporting, request)
    assert raised.value.nothing_done == (number != errno.EIO)
    begun = ganesha.data / ".volplane/copies" / request.name
    assert begun.exists() == (number == errno.EIO)
    snapshot = to_the_end(exporting, request)
    drop(exporting, snapshot)
    exporting.delete(exporting.volume(made))


def test_a_copy_that_a_crash_of_the_servers_machine_interrupted_is_begun_again(
    exporting: Site, ganesha: GaneshaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may have their attributes then, and lack their contents."""
    made = exporting.provision()
    top = path_of(ganesha, exporting, made)
    (top / "file").write_text("x")
    request = cut_request(exporting, made)
    with monkeypatch.context() as patch:
        patch.setattr(copies.TreeCopy, "work", lambda *_: False)
        patch.setattr(copies, "_CALL", 0.0)
        assert isinstance(exporting.backend.create_snapshot(request), InProgress)
    lost = ganesha.data / ".volplane/copies" / request.name / "data" / "file"
    lost.write_text("y")
    status = (top / "file").stat()
    lost.chmod(status.st_mode & 0o7777)
    os.utime(lost, ns=(status.st_atime_ns, status.st_mtime_ns))
    monkeypatch.setattr(copies, "boot_id", lambda: "another")
    snapshot = to_the_end(exporting.again(), request)
    assert (ganesha.data / ".volplane/snapshots" / snapshot.name / "data" / "file").read_text() == "x"
    drop(exporting, snapshot)
    exporting.delete(exporting.volume(made))


def test_a_pipe_is_left_out_and_what_comes_later_is_not_in_the_snapshot(ganesha: GaneshaServer, live: Site) -> None:
    made = live.provision()
    top = path_of(ganesha, live, made)
    os.mkfifo(top / "pipe")
    (top / "file").write_text("x")
    snapshot = cut(live, made)
    (top / "later").write_text("later")
    assert snapshot.state.endswith("1 sockets, pipes or devices are left out")
    assert [each.name for each in (ganesha.data / ".volplane/snapshots" / snapshot.name / "data").iterdir()] == ["file"]
    live.delete(live.volume(made))
    drop(live, snapshot)


def test_a_restored_volume_has_what_its_class_asks_for_and_else_what_the_source_had(
    ganesha: GaneshaServer, live: Site
) -> None:
    made = live.provision()
    top = path_of(ganesha, live, made)
    os.chown(top, 999, 999)
    top.chmod(0o700)
    snapshot = cut(live, made)
    same, other = restored(live, snapshot), restored(live, snapshot, parameters={"gid": 2000, "mode": 0o2770})
    assert live.provision(same[0])[1] == same[1]
    status = path_of(ganesha, live, same).stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o700, 999, 999)
    status = path_of(ganesha, live, other).stat()
    assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o2770, 999, 2000)
    for each in (made, same, other):
        live.delete(live.volume(each))
    drop(live, snapshot)


# --- a copy in many calls ---------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that do a single step."""
    monkeypatch.setattr(copies, "SLICE", 0.0)
    monkeypatch.setattr(copies, "_CALL", 0.0)


def fill_model(model: ModelServer, made: Made) -> Node:
    """Put files into a volume of the model; its directory."""
    node = model.share
    for name in str(made[1].source.fields["path"]).removeprefix("/vol/").encode().split(b"/"):
        node = node.children[name]
    return fill_node(model, node)


def fill_node(model: ModelServer, node: Node) -> Node:
    for number in range(10):
        name = b"d%d" % (number % 5)
        below = node.children.get(name)
        if below is None:
            below = model.make(2, node, mode=0o755)
            model.enter(node, name, below)
        file = model.make(REGULAR, below, mode=0o644)
        file.put(0, b"%d" % number * 1000)
        model.enter(below, b"f%d" % number, file)
    large = model.make(REGULAR, node, mode=0o600)
    large.put(0, bytes(range(256)) * 3000)
    model.enter(node, b"large", large)
    return node


def contents(node: Node) -> dict[bytes, object]:
    return {
        name: contents(each) if each.children else (each.kind, each.data, each.mode, each.modified)
        for name, each in node.children.items()
    }


def copied(model: ModelServer, snapshot: Snapshot) -> Node:
    return model.share.children[b".volplane"].children[b"snapshots"].children[snapshot.name.encode()].children[b"data"]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("resume", ["same process", "next process", "without its state"])
def test_a_copy_goes_on_where_it_was(site: Site, model: ModelServer, resume: str) -> None:
    made = site.provision()
    source = fill_model(model, made)
    written: list[int] = []
    model.fault = lambda requests: written.extend(
        len(each.arguments[3]) for each in requests if each.operation is nfs.WRITE
    )
    request, current, calls = cut_request(site, made), site, 0
    while isinstance(answer := current.backend.create_snapshot(request), InProgress):
        calls += 1
        assert calls < 1000
        assert len(str(answer.state)) < 4096
        state = {} if resume == "without its state" and calls < 10 else dict(answer.state)
        request = replace(request, context=replace(request.context, state=state))
        if resume != "same process":
            current = site.again()
    assert calls > 4
    assert contents(copied(model, answer)) == contents(source)
    if resume != "without its state":  # else the large file is begun anew
        total = sum(
            len(data)
            for each in source.children.values()
            for data in [each.data, *(f.data for f in each.children.values())]
        )
        assert sum(written) <= total + MIB // 2


@pytest.mark.usefixtures("short")
def test_a_restore_says_how_much_of_its_snapshot_is_copied_and_records_its_place_rarely(
    site: Site, model: ModelServer
) -> None:
    made = site.provision()
    fill_model(model, made)
    request, told, states = site.demand(source_snapshot=cut(site, made).handle), [], []
    while isinstance(answer := site.backend.provision(request), InProgress):
        told.append(answer.progress)
        states.append(answer.state)
        request = replace(request, context=replace(request.context, state=answer.state))
    assert len(told) > 4
    assert all(re.fullmatch(r"[0-9,]+ of 17 entries with .*B of .*B are (copied|compared)", each) for each in told)
    assert told[-1].endswith("compared")
    assert all(state == states[0] for state in states)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("verify", ["attributes", "content"])
def test_what_was_copied_wrongly_is_mended_where_contents_are_compared(
    site: Site, model: ModelServer, verify: str
) -> None:
    made = site.provision()
    source = fill_model(model, made)
    model.now = lambda: 1000.0  # what changes while it is copied is copied again anyway
    request = cut_request(site, made, verify=verify)
    staging = model.share.children[b".volplane"].children[b"copies"].children

    damaged: list[Node] = []

    def damage() -> None:
        below = staging[request.name.encode()].children[b"data"].children.get(b"d4")
        file = None if below is None or damaged else below.children.get(b"f4")
        if file is not None:
            damaged.append(file)
            file.data = b"damaged".ljust(len(file.data))

    data = copied(model, to_the_end(site, request, between=damage))
    assert (contents(data) == contents(source)) == (verify == "content")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("fault", [pytest.param("lost before", marks=pytest.mark.soak), "lost after", "restart"])
def test_a_lost_connection_or_a_restarted_server_costs_only_the_step(
    site: Site, model: ModelServer, fault: str
) -> None:
    made = site.provision()
    source = fill_model(model, made)
    count = 0

    def every_fifteenth(_requests: list[Request]) -> str | None:
        nonlocal count
        count += 1
        if count % 15:
            return None
        if fault == "restart":
            model.restart()
            return None
        return fault

    model.fault = every_fifteenth
    snapshot = patiently(site, cut_request(site, made))
    copy_request = site.demand(source_snapshot=snapshot.handle)
    copy = copy_request, patiently(site, copy_request)
    model.fault = lambda _requests: None
    assert contents(copied(model, snapshot)) == contents(source)
    assert contents(source) == contents(fill_less(model, copy))


def fill_less(model: ModelServer, made: Made) -> Node:
    node = model.share
    for name in str(made[1].source.fields["path"]).removeprefix("/vol/").encode().split(b"/"):
        node = node.children[name]
    return node


def patiently(site: Site, request: Any) -> Any:
    """As `to_the_end`, over whatever the server does."""
    hook = site.backend.create_snapshot if isinstance(request, SnapshotRequest) else site.backend.provision
    for _ in range(1000):
        try:
            answer = hook(request)
        except Unavailable:
            continue
        if not isinstance(answer, InProgress):
            return answer
        request = replace(request, context=replace(request.context, state=dict(answer.state)))
    raise AssertionError("it never ends")


def test_one_copy_at_once_and_none_beside_a_deletion(site: Site, model: ModelServer) -> None:
    made = site.provision()
    fill_model(model, made)
    first, second = cut_request(site, made), cut_request(site, made)
    [share] = site.backend._shares.all
    copying = site.backend._copies[share]
    with copying._lock:
        busy = site.backend.create_snapshot(second)
    assert isinstance(busy, InProgress)
    assert busy.retry_after > 0
    with share.deleting():
        assert isinstance(site.backend.create_snapshot(first), InProgress)
    assert to_the_end(site, first).ready
    assert to_the_end(site, second).ready


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [1, 0], ids=["renames as on ext4", "renames as on btrfs"])
def test_a_copy_that_fills_the_share_is_removed_at_once(site: Site, model: ModelServer, left: int) -> None:
    model.renames_take_space = not left
    made = site.provision()
    fill_model(model, made)
    snapshot = cut(site, made)
    before = model.available
    for act in (lambda: site.backend.create_snapshot(cut_request(site, made)), lambda: restored(site, snapshot)):

        def fill_up(requests: list[Request]) -> None:
            if any(each.operation is nfs.WRITE for each in requests):
                model.available = left

        model.available, model.fault = before, fill_up
        with pytest.raises(ResourceExhausted, match=r"what was copied of .* is removed") as raised:
            act()
        assert raised.value.nothing_done
        model.fault = lambda _requests: None
        assert not model.share.children[b".volplane"].children[b"copies"].children
        assert not model.share.children[b".volplane"].children[b"trash"].children
    assert listed(site) == [snapshot.handle]


def test_a_copy_that_cannot_fit_is_not_begun(site: Site, model: ModelServer) -> None:
    made = site.provision()
    node = fill_model(model, made)
    node.children[b"large"].put(0, b"x" * 2 * MIB)
    snapshot = cut(site, made)
    node.quota = (3 * MIB // 2, 2 * MIB)
    model.available = 3 * MIB // 2
    model.fault = lambda requests: (
        pytest.fail("begun") if any(each.operation is nfs.READ for each in requests) else None
    )
    for request in (cut_request(site, made), site.demand(source_snapshot=snapshot.handle)):
        with pytest.raises(ResourceExhausted, match="needs") as raised:
            to_the_end(site, request)
        assert raised.value.nothing_done
    model.offloads = {"CLONE"}
    model.fault = lambda _requests: None
    [share] = site.backend._shares.all
    site.backend._copies[share]._offloads.refused.clear()
    site.backend._copies[share]._offloads.cloned = True
    assert to_the_end(site, site.demand(source_snapshot=snapshot.handle))


@pytest.mark.usefixtures("short")
def test_a_volume_that_lost_its_rename_is_moved_to_its_place_and_never_made_empty(
    site: Site, model: ModelServer
) -> None:
    made = site.provision()
    source = fill_model(model, made)
    snapshot = cut(site, made)
    request = site.demand(source_snapshot=snapshot.handle)

    def fail(requests: list[Request]) -> Status | None:
        renames = [each for each in requests if each.operation is nfs.RENAME]
        return Status.IO if renames and renames[0].arguments[0] == b"data" else None

    model.fault = fail
    with pytest.raises(BackendError):
        to_the_end(site, request)
    model.fault = lambda _requests: None
    assert request.name.encode() in model.share.children[b".volplane"].children[b"volumes"].children
    later = site.again()
    copy = request, to_the_end(later, request)
    assert contents(fill_less(model, copy)) == contents(source)
    later.delete(later.volume(copy))


def test_strict_takes_no_copy_of_what_changes_and_any_says_how_much_did(site: Site, model: ModelServer) -> None:
    clock = [1000.0]
    model.now = lambda: clock[0]
    made = site.provision()
    node = fill_model(model, made)
    clock[0] = 2000.0

    def change(requests: list[Request]) -> None:
        if any(each.operation is nfs.READ for each in requests):
            clock[0] += 1
            node.children[b"large"].change += 1
            node.children[b"large"].time = clock[0]

    assert cut(site, made, consistency="strict").state == ""
    model.fault = change
    with pytest.raises(VolumeInUse, match=r"1 of 17 entries .* changed .* pause what writes"):
        cut(site, made, consistency="strict")
    assert cut(site, made).state == "1 of 17 entries changed while it was made"
    model.fault = lambda _requests: None
    clock[0] += 1
    assert cut(site, made, consistency="strict").state == ""


def test_copies_that_nobody_goes_on_with_are_removed_after_an_hour(site: Site, model: ModelServer) -> None:
    model.now = time.time
    made = site.provision()
    fill_model(model, made)
    [share] = site.backend._shares.all
    request = cut_request(site, made)
    with share.deleting():
        assert isinstance(site.backend.create_snapshot(request), InProgress)
    staging = model.share.children[b".volplane"].children[b"copies"]
    site.again().start()
    assert list(staging.children) == [request.name.encode()]
    staging.children[request.name.encode()].time -= 4000.0
    site.again().start()
    assert not staging.children
    assert site.backend.find_snapshot(FindSnapshotRequest(context=site.context(), name=request.name)) == Absent()
    assert to_the_end(site, request).ready


@pytest.mark.parametrize("lost", [b"data", b"copy"])
def test_a_copy_whose_beginning_was_interrupted_goes_on(site: Site, model: ModelServer, lost: bytes) -> None:
    made = site.provision()
    source = fill_model(model, made)
    [share] = site.backend._shares.all
    request = cut_request(site, made)
    with share.deleting():
        assert isinstance(site.backend.create_snapshot(request), InProgress)
    container = model.share.children[b".volplane"].children[b"copies"].children[request.name.encode()]
    model.leave(container, lost)
    assert contents(copied(model, to_the_end(site.again(), request))) == contents(source)


def test_a_source_that_goes_while_it_is_copied_leaves_nothing(site: Site, model: ModelServer) -> None:
    made = site.provision()
    fill_model(model, made)
    [share] = site.backend._shares.all
    request = cut_request(site, made)
    with share.deleting():
        assert isinstance(site.backend.create_snapshot(request), InProgress)
    site.delete(site.volume(made))
    with pytest.raises(NotFound):
        site.backend.create_snapshot(request)
    assert not model.share.children[b".volplane"].children[b"copies"].children


def test_a_source_that_is_deleted_in_the_last_step_makes_no_copy_that_lacks_something(
    site: Site, model: ModelServer
) -> None:
    made = site.provision()
    fill_model(model, made)
    snapshot = cut(site, made)
    gone: list[object] = []

    def delete(act: Callable[[], object]) -> Callable[[list[Request]], None]:
        def fault(requests: list[Request]) -> None:
            if not gone and any(each.operation is nfs.READ for each in requests):
                gone.append(None)
                act()

        return fault

    control = model.share.children[b".volplane"].children
    for request, act in (
        (site.demand(source_snapshot=snapshot.handle), control[b"snapshots"].children.clear),
        (cut_request(site, made), control[b"volumes"].children.clear),
    ):
        gone.clear()
        model.fault = delete(act)
        with pytest.raises(NotFound):
            to_the_end(site, request)
        assert not control[b"copies"].children
        assert request.name.encode() not in {*control[b"volumes"].children, *control[b"snapshots"].children}


def test_a_copy_of_something_else_under_the_same_name_is_begun_anew(site: Site, model: ModelServer) -> None:
    one, two = site.provision(), site.provision()
    fill_model(model, one)
    first, second = cut(site, one), cut(site, two)
    request = site.demand(source_snapshot=first.handle)
    [share] = site.backend._shares.all
    with share.deleting():
        assert isinstance(site.backend.provision(request), InProgress)
    copy = to_the_end(site, replace(request, source_snapshot=second.handle))
    assert contents(fill_less(model, (request, copy))) == {}


def test_what_cannot_be_copied_is_refused_with_the_reason(model: ModelServer) -> None:
    model.minor = 0
    site = Site(dial=model.dial).start()
    made = site.provision()
    with pytest.raises(Unsupported, match=r"copies are made by NFSv4\.1 or later"):
        cut(site, made)
    with pytest.raises(NotFound, match="is none of this driver"):
        site.provision(source_snapshot="no-such-snapshot")


def test_a_copy_is_made_on_the_share_of_its_source(model: ModelServer) -> None:
    for name in (b"a", b"b"):
        model.enter(model.share, name, model.make(2, model.share))
    shares = ",".join(f"nfs://model.example.com/vol/{name}" for name in "ab")
    site = Site(shares, model.dial).start()
    made = site.provision(parameters={"share": "/vol/b"})
    snapshot = cut(site, made)
    assert restored(site, snapshot)[1].source.fields["path"].startswith("/vol/b/")
    with pytest.raises(InvalidArgument, match="a copy is made on the share of its source"):
        restored(site, snapshot, parameters={"share": "/vol/a"})


def test_access_lists_and_extended_attributes_are_copied_where_the_server_has_them(
    site: Site, model: ModelServer
) -> None:
    model.acls, model.offloads = True, {"SETXATTR", "GETXATTR", "LISTXATTRS"}
    made = site.provision()
    node = fill_model(model, made)
    for each in (node.children[b"large"], node.children[b"d1"], node.children[b"d1"].children[b"f1"]):
        each.xattrs = {b"color": b"blue"}
        each.acl = ((0, 0, 7, b"alice@example.com"), (0, 0, 7, b"OWNER@"))
    data = copied(model, cut(site, made))
    for each in (data.children[b"large"], data.children[b"d1"], data.children[b"d1"].children[b"f1"]):
        assert each.xattrs == {b"color": b"blue"}
        assert [ace[3] for ace in each.acl] == [b"alice@example.com", b"OWNER@"]
    assert contents(data) == contents(node)


def test_a_driver_that_is_not_root_copies_what_its_user_may_read(memory: Path) -> None:
    memory.chmod(0o755)
    server = GaneshaServer(memory, export="Squash = root_squash;")
    os.chown(server.data, 1000, 1000)
    with server:
        site = Site(server.share, uid=1000, gid=1000).start()
        made = site.provision()
        top = path_of(server, site, made)
        (top / "theirs").write_text("x")
        os.chown(top / "theirs", 2000, 2000)
        copy = cloned(site, made)
        there = path_of(server, site, copy) / "theirs"
        assert (there.read_text(), there.stat().st_uid) == ("x", 1000)
        (top / "theirs").chmod(0o600)
        with pytest.raises(PermissionDenied, match="'theirs'"):
            cut(site, made)
        site.stop()


# --- tenants ----------------------------------------------------------------------------------------------------------


def restless(top: Path, secret: Path, going: threading.Event) -> None:
    """Exchange directories and files for links and others, as a tenant may."""
    chance = random.Random(3)
    while not going.is_set():
        place = top / f"d{chance.randrange(20)}"
        file = place / f"f{chance.randrange(10)}"
        with suppress(OSError):
            match chance.randrange(3):
                case 0:
                    place.rename(top / "away")
                    place.symlink_to(secret)
                    time.sleep(0.001)
                    place.unlink()
                    (top / "away").rename(place)
                case 1:
                    file.unlink()
                    file.symlink_to(secret / "f0")
                case _:
                    file.unlink()
                    file.write_text("mine" * chance.randrange(1, 3000))


def test_a_tenant_that_changes_everything_meanwhile_gets_nothing_from_elsewhere(
    ganesha: GaneshaServer, any_mode: Site
) -> None:
    """Directories become links to others, files are exchanged, and a copy ends all the same."""
    live = any_mode
    made = live.provision()
    top = path_of(ganesha, live, made)
    secret = ganesha.data / "secret"
    secret.mkdir(exist_ok=True)
    (secret / "f0").write_text("secret")
    for number in range(20):
        (top / f"d{number}").mkdir()
        for each in range(10):
            (top / f"d{number}" / f"f{each}").write_text("mine")
    over = threading.Event()
    tenant = threading.Thread(target=restless, args=(top, secret, over))
    tenant.start()
    try:
        snapshots = [cut(live, made) for _ in range(2)]
    finally:
        over.set()
        tenant.join()
    for snapshot in snapshots:
        data = ganesha.data / ".volplane/snapshots" / snapshot.name / "data"
        files = [each for each in data.rglob("*") if each.is_file() and not each.is_symlink()]
        assert not any("secret" in each.read_text() for each in files)
        drop(live, snapshot)
    live.delete(live.volume(made))


def test_another_file_system_in_a_volume_is_not_entered(site: Site, model: ModelServer, monkeypatch: Any) -> None:
    made = site.provision()
    node = fill_model(model, made)
    mounted = node.children[b"d3"]
    usual = execution.Execution._attributes

    def attributes(self: Any, each: Node, mask: int) -> dict[int, Any]:
        values = usual(self, each, mask)
        return {**values, 8: (9, 9)} if each is mounted and 8 in values else values

    monkeypatch.setattr(execution.Execution, "_attributes", attributes)
    with pytest.raises(Unsupported, match="another file system is mounted at 'd3'"):
        cut(site, made)


def test_a_server_that_fails_over_the_attributes_of_a_listing_is_asked_for_names(
    site: Site, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = site.provision()
    source = fill_model(model, made)
    usual = execution.Execution._readdir

    def readdir(self: Any, *arguments: Any) -> Any:
        if arguments[-1] & mask_of(TYPE):
            raise execution.Refused(Status.SERVERFAULT)
        return usual(self, *arguments)

    monkeypatch.setattr(execution.Execution, "_readdir", readdir)
    assert contents(copied(model, cut(site, made))) == contents(source)


@pytest.mark.parametrize("attribute", [SIZE, MODE, TIME_MODIFY, TIME_METADATA, TYPE, FILEHANDLE])
def test_a_server_that_does_not_tell_an_attribute_is_told_or_asked_otherwise(
    site: Site, model: ModelServer, monkeypatch: pytest.MonkeyPatch, attribute: int
) -> None:
    made = site.provision()
    source = fill_model(model, made)
    usual = execution.Execution._attributes

    def attributes(self: Any, each: Node, mask: int) -> dict[int, Any]:
        return {number: value for number, value in usual(self, each, mask).items() if number != attribute}

    request = cut_request(site, made)
    [share] = site.backend._shares.all
    with share.deleting():
        site.backend.create_snapshot(request)
    if attribute == TYPE:
        monkeypatch.setattr(execution.Execution, "_readdir", without_types(execution.Execution._readdir))
    else:
        monkeypatch.setattr(execution.Execution, "_attributes", attributes)
    if attribute in {TYPE, FILEHANDLE}:
        assert contents(copied(model, to_the_end(site, request))) == contents(source)
        return
    with pytest.raises(Unavailable, match=f"does not tell attribute {attribute} "):
        to_the_end(site, request)


def without_types(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return a READDIR that tells no types: they are asked for by themselves."""

    def readdir(*arguments: Any) -> Any:
        verifier, entries, eof = usual(*arguments)
        less = [each._replace(attributes={n: v for n, v in each.attributes.items() if n != TYPE}) for each in entries]
        return verifier, less, eof

    return readdir


def test_a_server_that_lists_without_end_ends_no_copy_but_is_told(site: Site, model: ModelServer) -> None:
    made = site.provision()
    node = fill_model(model, made)
    model.repeats_pages = True
    request = cut_request(site, made)
    model.endless = node.children[b"d2"]
    with pytest.raises(Unavailable, match="without end"):
        to_the_end(site, request)


# --- long ones --------------------------------------------------------------------------------------------------------


def life(share: str, request: Any, saved: Path, options: dict[str, Any]) -> None:
    """Go on with a hook from the state that a former process saved, as this one does after each call."""
    site = Site(share, **options).start()
    hook = site.backend.create_snapshot if isinstance(request, SnapshotRequest) else site.backend.provision
    while True:
        state = json.loads(saved.read_text()) if saved.exists() else {}
        answer = hook(replace(request, context=replace(request.context, state=state)))
        if not isinstance(answer, InProgress):
            return
        saved.with_suffix(".new").write_text(json.dumps(dict(answer.state)))
        saved.with_suffix(".new").rename(saved)


def killed(share: str, request: Any, saved: Path, kills: int, options: dict[str, Any]) -> int:
    """Kill the process that makes a copy so often at any moment, then let it end; how often it was killed."""
    chance = random.Random(kills)
    for done in range(kills + 1):
        child = os.fork()
        if not child:
            try:
                copies._CALL = 0.05
                life(share, request, saved, options)
            finally:
                os._exit(0)
        if done < kills:
            time.sleep(chance.uniform(0.05, 0.4))
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not status:
            return done
    return kills


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["subdirectory", "export"])
def test_a_hundred_kills_lose_and_change_nothing_of_a_copy(memory: Path, mode: str) -> None:
    with GaneshaServer(memory) as server:
        options = export_options(server) if mode == "export" else {}
        site = Site(server.share, **options).start()
        made = site.provision()
        top = path_of(server, site, made)
        grow(top)
        for number in range(20_000):
            below = top / f"many{number // 500}"
            below.mkdir(exist_ok=True)
            (below / f"{number}").write_bytes(b"%d" % number * 500)
        (top / "huge").write_bytes(os.urandom(64 * MIB))
        before = tree(top)
        request = cut_request(site, made)
        count = killed(server.share, request, memory / "state", 60, options)
        snapshot = to_the_end(site, request)
        assert tree(server.data / ".volplane/snapshots" / snapshot.name / "data") == before
        restore = site.demand(source_snapshot=snapshot.handle)
        count += killed(server.share, restore, memory / "state-2", 60, options)
        assert tree(path_of(server, site, (restore, to_the_end(site, restore)))) == before
        assert tree(top) == before
        assert count >= 100
        site.stop()


@pytest.mark.soak
def test_a_million_files_are_copied_in_50_mb(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        site = Site(server.share, timeout=60.0).start()
        made = site.provision()
        top = path_of(server, site, made)
        for number in range(1_000_000):
            if not number % 100_000:
                (top / f"d{number // 100_000}").mkdir()
            (top / f"d{number // 100_000}" / f"file-{number}").touch()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        snapshot = to_the_end(site, cut_request(site, made), at_most=10_000)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
        data = server.data / ".volplane/snapshots" / snapshot.name / "data"
        assert sum(1 for each in data.iterdir() for _ in each.iterdir()) == 1_000_000
        site.stop()
