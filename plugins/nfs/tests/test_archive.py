"""Archives: when they go, in which order, and what they cost while they stay."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from volplane import BackendError, Done, ListedArchive, ListRequest, ResourceExhausted, Unavailable
from volplane.directory import archived_volume, decode_fields, encode_fields
from volplane_nfs import expiry, listing
from volplane_nfs.archive import DATA, MARKER
from volplane_nfs.markers import VolumeMarker
from volplane_nfs.nfs4 import Status
from volplane_nfs.nfs4.attributes import DIRECTORY, LINK
from volplane_nfs.nfs4.operations import REMOVE, RENAME, Request
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model.state import Node

from .conftest import MIB, Site

HOUR = 3600.0


def archives(model: ModelServer) -> Node:
    return model.share.children[b".volplane"].children[b"archive"]


def put(model: ModelServer, name: str, expires_at: float | None) -> None:
    """An archive of the form of earlier versions: only the marker says when it goes."""
    container = model.make(DIRECTORY, None)
    fields = {"path": "default/x", "claim": "default/x", "archived_at": 1.0, "expires_at": expires_at}
    model.enter(container, b"marker", model.make(LINK, None, data=encode_fields(fields)))
    model.enter(container, b"data", model.make(DIRECTORY, None))
    model.enter(archives(model), name.encode(), container)


def calls(model: ModelServer, site: Site) -> int:
    before = model.calls
    site.start()
    site.listed()
    return model.calls - before


def test_neither_a_start_nor_a_listing_looks_at_archives(site: Site, model: ModelServer) -> None:
    none = calls(model, site)
    for number in range(3000):
        put(model, f"pvc-{number}@1.20260101T000000Z-0", None if number % 2 else time.time() + HOUR)
    assert calls(model, site) == none


def test_archives_are_read_once_and_their_names_tell_when_they_go(site: Site, model: ModelServer) -> None:
    until = time.time() + HOUR
    for number in range(500):
        put(model, f"pvc-{number}@1.20260101T000000Z-0", None if number % 2 else until)
    site.probe()
    assert {name.rpartition(b".")[2] for name in archives(model).children} == {b"kept", b"until-%d" % until}
    idle = site.again()
    idle.start()
    idle.probe()
    before = model.calls
    idle.probe()
    quiet = model.calls - before
    assert quiet < 10, "nothing is due: archives are not even listed"
    made = site.provision(parameters={"onDelete": "archive", "archiveRetention": 0.0})
    site.delete(site.volume(made))
    site.probe()
    assert len(archives(model).children) == 500, "what was archived meanwhile and is due has gone"


def test_archives_go_in_the_order_of_their_time(
    site: Site, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (3, 1, 2, 0):
        put(model, f"pvc-{number}@1.20260101T000000Z-0", time.time() - HOUR + number)
    monkeypatch.setattr(expiry, "MOST_AT_ONCE", 2)
    site.probe()
    assert sorted(name[:5] for name in archives(model).children) == [b"pvc-2", b"pvc-3"]
    site.probe()
    assert not archives(model).children
    assert not model.share.children[b".volplane"].children[b"trash"].children


def test_a_person_may_lengthen_the_time_of_an_archive(site: Site, model: ModelServer) -> None:
    made = site.provision(parameters={"onDelete": "archive", "archiveRetention": 0.0})
    site.delete(site.volume(made))
    [container] = archives(model).children.values()
    container.children[b"marker"].data = encode_fields({"expires_at": time.time() + HOUR})
    site.probe()
    site.again().start().probe()
    assert len(archives(model).children) == 1


@pytest.mark.parametrize("renames_take_space", [False, True])
def test_expired_archives_give_their_space_back_when_the_share_is_full(
    site: Site, model: ModelServer, renames_take_space: bool
) -> None:
    put(model, "pvc-0@1.20260101T000000Z-0", time.time() - HOUR)
    made = site.provision(parameters={"onDelete": "archive"})
    model.available, model.renames_take_space = 0, renames_take_space
    with pytest.raises(ResourceExhausted) as caught:
        site.delete(site.volume(made))
    assert "delete volumes" not in str(caught.value)
    assert not archives(model).children
    model.available = 1 << 20
    site.delete(site.volume(made))
    assert len(archives(model).children) == 1


def test_an_archive_holds_what_a_volume_that_is_restored_from_it_needs(site: Site, model: ModelServer) -> None:
    parameters = {"onDelete": "archive", "mode": 0o2750, "uid": 1000, "gid": 2000}
    options = ("nfsvers=4.1", "hard")
    request = site.demand(parameters=parameters, mount_options=options, capacity_bytes=3 * MIB, class_name="shared")
    made = site.provision(request)
    volume = site.expand(site.volume(made), 5 * MIB)
    site.delete(site.volume((request, volume)))
    [container] = archives(model).children.values()
    found = archived_volume(VolumeMarker, decode_fields(container.children[b"marker"].data))
    assert found is not None
    assert (found.name, found.owner, found.claim, found.path) == (
        request.name,
        request.owner,
        "default/data",
        str(made[1].source.fields["path"]).removeprefix("/vol/"),
    )
    assert (found.capacity_bytes, found.mount_options, found.mode) == (5 * MIB, ("nfsvers=4.1", "hard"), 0o2750)
    assert found.class_name == "shared"
    assert (found.demand["uid"], found.gid, found.demand["access_modes"]) == (1000, 2000, ["ReadWriteOnce"])


def test_an_archive_of_a_volume_with_a_long_path_and_many_options_has_a_marker_that_servers_take(
    site: Site, model: ModelServer
) -> None:
    template = "/".join(["x" * 200] * 6)
    options = tuple(f"option-{number}" for number in range(90))
    made = site.provision(parameters={"onDelete": "archive", "pathTemplate": template}, mount_options=options)
    site.delete(site.volume(made))
    [container] = archives(model).children.values()
    assert len(container.children[b"marker"].data) < 4096
    assert decode_fields(container.children[b"marker"].data)["claim"] == "default/data"


@pytest.mark.parametrize("on_delete", ["archive", "delete"])
def test_a_directory_whose_new_place_is_removed_meanwhile_stays_a_volume(
    site: Site, model: ModelServer, on_delete: str
) -> None:
    made = site.provision(parameters={"onDelete": on_delete})
    directory = model.share
    for part in str(made[1].source.fields["path"]).split("/")[2:]:
        directory = directory.children[part.encode()]
    model.enter(directory, b"file", model.make(LINK, None, data=b"x"))
    new_places = [model.share.children[b".volplane"].children[name] for name in (b"archive", b"trash")]

    def somebody_removes_them(_: list[Request]) -> None:
        for new_place in new_places:
            for name in list(new_place.children):
                model.leave(new_place, name)

    model.fault = somebody_removes_them
    with pytest.raises(Unavailable, match=r"is archived by another call|was removed while it was made"):
        site.delete(site.volume(made))
    model.fault = lambda _requests: None
    assert directory.children
    site.delete(site.volume(made))
    assert len(archives(model).children) == (on_delete == "archive")
    assert not site.listed()


def test_a_dead_server_keeps_the_archives_of_no_other_one() -> None:
    servers = {f"{name}.example.com": ModelServer() for name in ("dead", "alive")}
    shares = ",".join(f"nfs://{host}/vol" for host in servers)
    site = Site(shares, lambda address, seconds: servers[address.host].dial(address, seconds)).start()
    for number in range(20):
        put(servers["alive.example.com"], f"pvc-{number}@1.20260101T000000Z-0", time.time() - HOUR)
    servers["dead.example.com"].restart()
    servers["dead.example.com"].reachable = False
    for _ in range(50):
        with suppress(Unavailable):
            site.probe()
    assert not archives(servers["alive.example.com"]).children


def test_an_archive_that_cannot_be_removed_where_it_is_keeps_its_marker_until_it_can(
    site: Site, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    put(model, "pvc-0@1.20260101T000000Z-0", time.time() - HOUR)
    model.available, model.renames_take_space = 0, True
    [data] = (each.children[DATA] for each in archives(model).children.values())

    def write(requests: list[Request]) -> None:
        """A client still has it mounted."""
        if requests[-1] == REMOVE(DATA) and not data.children:
            model.enter(data, b"late", model.make(DIRECTORY, None))

    model.fault = write
    site.probe()
    [container] = archives(model).children.values()
    assert set(container.children) == {MARKER, DATA}
    assert "is skipped" in caplog.text
    model.fault = lambda _requests: None
    site.again().start().probe()
    assert not archives(model).children


def test_an_archive_that_has_lost_its_marker_is_told_unless_it_is_empty(
    site: Site, model: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        put(model, f"pvc-{number}@1.20260101T000000Z-0.until-1", time.time() - HOUR)
        model.leave(archives(model).children[b"pvc-%d@1.20260101T000000Z-0.until-1" % number], MARKER)
    model.leave(archives(model).children[b"pvc-0@1.20260101T000000Z-0.until-1"], DATA)
    site.probe()
    assert list(archives(model).children) == [b"pvc-1@1.20260101T000000Z-0.until-1"]
    assert "pvc-1@1.20260101T000000Z-0.until-1 is skipped: it has no marker" in caplog.text


def test_archives_go_once_while_several_calls_have_time_for_them(site: Site, model: ModelServer) -> None:
    """As probes and deletions on a full share."""
    for number in range(60):
        put(model, f"pvc-{number}@1.20260101T000000Z-0.until-1", time.time() - HOUR)
    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(site.probe) for _ in range(8)]
    assert [each.result() for each in answers] == [Done()] * 8
    assert not archives(model).children


def test_calls_that_are_lost_before_the_directory_is_archived_leave_one_archive(site: Site, model: ModelServer) -> None:
    made, other = (site.provision(parameters={"onDelete": "archive"}) for _ in range(2))
    left = 3

    def fault(requests: list[Request]) -> Status | None:
        nonlocal left
        if left and requests[-1][0] is RENAME and requests[-1][1][1] == DATA:
            left -= 1
            return Status.SERVERFAULT
        # The call ends, as with its process, before it removes what it has made.
        return Status.SERVERFAULT if requests[-1] == REMOVE(MARKER) and left == 2 else None

    model.fault = fault
    for _ in range(3):
        with suppress(BackendError):
            site.delete_once(site.volume(made))
    site.delete(site.volume(made))
    site.delete(site.volume(other))
    assert [set(each.children) for each in archives(model).children.values()] == [{MARKER, DATA}] * 2


def listed(site: Site) -> list[ListedArchive]:
    """All pages of archives."""
    found: list[ListedArchive] = []
    page = None
    while True:
        answer = site.backend.list_assets(ListRequest(context=site.context(), page=page, archives=True))
        assert answer.assets == ()
        found += answer.archives
        page = answer.next_page
        if page is None:
            return found


def test_archives_are_listed_with_what_a_person_wants_to_know(
    site: Site, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    assert listed(site) == []
    before = time.time()
    made = [
        site.provision(parameters={"onDelete": "archive", "archiveRetention": retention})
        for retention in (HOUR, None, None)
    ]
    for each in made:
        site.delete(site.volume(each))
    put(model, "pvc-old@1.20260101T000000Z-0", None)
    del archives(model).children[b"pvc-old@1.20260101T000000Z-0"].children[b"marker"]
    put(model, "pvc-empty@1.20260101T000000Z-0.kept", None)
    del archives(model).children[b"pvc-empty@1.20260101T000000Z-0.kept"].children[b"data"]
    known = {each.volume: each for each in listed(site)}
    assert set(known) == {*(request.name for request, _ in made), "pvc-old"}
    first, second = known[made[0][0].name], known[made[1][0].name]
    assert (first.claim, first.capacity_bytes, second.until) == ("default/data", MIB, None)
    assert first.archived_at is not None
    assert first.until is not None
    assert before - 1 < first.archived_at < time.time() + 1
    assert before + HOUR - 1 < first.until < time.time() + HOUR + 1
    assert first.place.startswith(f"model.example.com:/vol/.volplane/archive/{first.volume}@1.")
    assert (known["pvc-old"].claim, known["pvc-old"].capacity_bytes) == ("", None)
