"""Volumes that are a snapshot themselves, read only: nothing is copied, and the snapshot stays as long as they do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Absent,
    AccessMode,
    Asset,
    DeleteSnapshotRequest,
    Done,
    InProgress,
    InspectRequest,
    InvalidArgument,
    ListedAsset,
    NotFound,
    ProvisionRequest,
    RecycleRequest,
    Snapshot,
    Unsupported,
    VolumeInUse,
)
from volplane_nfs.nfs4 import Address, Client, NfsError
from volplane_nfs.nfs4 import operations as nfs
from volplane_nfs.nfs4.files import create_link, root_handle
from volplane_nfs.testing import GaneshaServer, ModelServer
from volplane_nfs.testing.subjects import export_options

from .conftest import MIB, Site
from .test_snapshots import cut, drop, fill_model, listed

READ_ONLY = (AccessMode.READ_ONLY_MANY,)
Made = tuple[ProvisionRequest, Asset]


@pytest.fixture
def snapshot(site: Site, model: ModelServer) -> Snapshot:
    made = site.provision()
    fill_model(model, made)
    return cut(site, made)


def asked(site: Site, snapshot: Snapshot) -> ProvisionRequest:
    return site.demand(source_snapshot=snapshot.handle, access_modes=READ_ONLY, parameters={"backingSnapshot": True})


def shown(site: Site, snapshot: Snapshot, **fields: Any) -> Made:
    request = replace(asked(site, snapshot), **fields)
    answer = site.backend.provision(request)
    assert isinstance(answer, Asset)
    return request, answer


def deletion(site: Site, snapshot: Snapshot) -> Done | InProgress:
    request = DeleteSnapshotRequest(context=site.context(), handle=snapshot.handle, owner=snapshot.owner)
    return site.backend.delete_snapshot(request)


def test_a_volume_that_shows_a_snapshot_is_its_directory_read_only(
    site: Site, model: ModelServer, snapshot: Snapshot
) -> None:
    written: list[Any] = []
    model.fault = lambda requests: written.extend(each for each in requests if each.operation is nfs.WRITE)
    _, asset = shown(site, snapshot)
    name = snapshot.handle.partition("/")[2]
    assert asset.source.fields["path"] == f"/vol/.volplane/snapshots/{name}/data"
    assert asset.source.fields["readOnly"] is True
    assert "ro" in asset.mount_options
    assert asset.backing_snapshot == snapshot.handle
    assert not written


def test_the_snapshot_goes_after_its_last_volume_and_no_deletion_of_one_touches_it(
    site: Site, model: ModelServer, snapshot: Snapshot
) -> None:
    first, second = shown(site, snapshot), shown(site, snapshot)
    with pytest.raises(VolumeInUse, match=f"shown, without a copy, by volume {min(first[0].name, second[0].name)}"):
        deletion(site, snapshot)
    site.delete(site.volume(first))
    with pytest.raises(VolumeInUse, match=second[0].name):
        deletion(site, snapshot)
    assert listed(site) == [snapshot.handle]
    data = model.share.children[b".volplane"].children[b"snapshots"].children[snapshot.name.encode()].children[b"data"]
    assert len(data.children) > 4
    site.delete(site.volume(second))
    drop(site, snapshot)
    assert listed(site) == []


def test_the_leak_check_knows_such_a_volume(site: Site, snapshot: Snapshot) -> None:
    request, asset = shown(site, snapshot)
    (found,) = [each for each in site.listed() if each.name == request.name]
    assert found.source == asset.source
    seen = site.backend.inspect(InspectRequest(context=site.context(), handle=asset.handle))
    assert isinstance(seen, ListedAsset)
    assert not seen.condition
    site.delete(site.volume((request, asset)))
    assert request.name not in [each.name for each in site.listed()]
    assert site.backend.inspect(InspectRequest(context=site.context(), handle=asset.handle)) == Absent()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"access_modes": (AccessMode.READ_WRITE_MANY,)}, "not for ReadWriteMany"),
        ({"access_modes": (*READ_ONLY, AccessMode.READ_WRITE_ONCE)}, "ReadOnlyMany alone"),
        ({"source_snapshot": None}, "needs a VolumeSnapshot as dataSource"),
        ({"capacity_bytes": MIB // 2}, f"needs {MIB}"),
    ],
)
def test_what_cannot_be_a_snapshot_is_refused_with_the_reason(
    site: Site, snapshot: Snapshot, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        shown(site, snapshot, **fields)


def test_it_is_neither_emptied_nor_grown(site: Site, snapshot: Snapshot) -> None:
    volume = site.volume(shown(site, snapshot))
    with pytest.raises(Unsupported, match="read only: it cannot be emptied"):
        site.backend.recycle(RecycleRequest(context=site.context(), volume=volume))
    with pytest.raises(Unsupported, match="read only: it cannot be grown"):
        site.expand(volume, 2 * MIB)


def test_none_is_made_of_a_snapshot_that_is_being_deleted(site: Site, snapshot: Snapshot) -> None:
    drop(site, snapshot)
    with pytest.raises(NotFound, match="it is deleted"):
        shown(site, snapshot)


def test_an_entry_that_a_killed_process_left_behind_a_deletion_holds_no_snapshot(
    site: Site, model: ModelServer, snapshot: Snapshot
) -> None:
    made = shown(site, snapshot)
    del model.share.children[b".volplane"].children[b"volumes"].children[made[0].name.encode()]
    drop(site, snapshot)
    assert listed(site) == []


class Killed(BaseException):
    """The end of a process."""


def killed(model: ModelServer, number: int, act: Callable[[], object]) -> bool:
    """Do something in a process that ends before its call of this number is sent; False if it makes fewer."""
    count = 0

    def fault(_requests: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise Killed

    model.fault = fault
    try:
        act()
    except Killed:
        return True
    finally:
        model.fault = lambda _requests: None
    return False


def test_a_making_that_was_killed_anywhere_leaves_nothing_that_a_deletion_does_not_find(
    site: Site, model: ModelServer, snapshot: Snapshot
) -> None:
    number, going = 0, True
    while going:
        number += 1
        request = asked(site, snapshot)
        going = killed(model, number, partial(site.again().backend.provision, request))
        found = site.find(request)
        if isinstance(found, Asset):
            site.delete(site.volume((request, found)))
        assert request.name not in [each.name for each in site.listed()]
    assert number > 5
    drop(site, snapshot)
    assert listed(site) == []


def test_a_deletion_that_was_killed_anywhere_goes_on(site: Site, model: ModelServer, snapshot: Snapshot) -> None:
    number, going = 0, True
    while going:
        number += 1
        volume = site.volume(shown(site, snapshot))
        going = killed(model, number, partial(site.again().delete, volume))
        site.delete(volume)
    assert number > 5
    drop(site, snapshot)
    assert listed(site) == []


def test_a_deletion_of_the_snapshot_that_was_killed_anywhere_goes_on_and_no_volume_shows_it_any_more(
    site: Site, model: ModelServer
) -> None:
    number, going = 0, True
    made = site.provision()
    while going:
        number += 1
        snapshot = cut(site, made)
        going = killed(model, number, partial(drop, site.again(), snapshot))
        request = asked(site, snapshot)
        with suppress(NotFound):
            site.delete(site.volume(shown(site, snapshot)))
        drop(site, snapshot)
        with pytest.raises(NotFound):
            site.backend.provision(request)
        if isinstance(found := site.find(request), Asset):
            site.delete(site.volume((request, found)))
    assert listed(site) == []


def test_a_server_that_exports_volumes_lets_nobody_write_into_a_snapshot(memory: Path) -> None:
    with GaneshaServer(memory) as server:
        site = Site(server.share, **export_options(server)).start()
        made = site.provision()
        snapshot = cut(site, made)
        asset = shown(site, snapshot)[1]
        client = Client(Address("127.0.0.1", server.port))
        names = tuple(name.encode() for name in str(asset.source.fields["path"]).split("/") if name)
        top = root_handle(client, names)
        with pytest.raises(NfsError, match="ROFS"):
            client.compound(nfs.PUTFH(top), create_link(b"new", b"of a pod"))
        client.close()
        with pytest.raises(VolumeInUse):
            deletion(site, snapshot)
        site.stop()
