"""What people put into `.volplane`, or break in it: it is reported once and skipped, and everything else goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from volplane import Done
from volplane.directory import encode_fields
from volplane_nfs.markers import parent_file, parent_marker
from volplane_nfs.nfs4 import Client
from volplane_nfs.nfs4.attributes import LINK
from volplane_nfs.nfs4.files import create_directory, create_link, directory_handle, make_directory, names, write_file
from volplane_nfs.nfs4.operations import PUTFH
from volplane_nfs.testing import ModelServer

from .conftest import Site

Put = Callable[[Client, bytes, bytes], object]
KINDS: dict[str, Put] = {
    "file": lambda client, folder, name: write_file(client, folder, name, b"x"),
    "directory": lambda client, folder, name: make_directory(client, folder, name, 0o755),
    "link": lambda client, folder, name: client.compound(PUTFH(folder), create_link(name, b"/etc")),
    "directory with a broken marker": lambda client, folder, name: client.compound(
        PUTFH(folder), create_directory(name, 0o755), create_link(b"marker", b"hello")
    ),
    "directory with a file as marker": lambda client, folder, name: (
        make_directory(client, folder, name, 0o755),
        write_file(client, directory_handle(client, folder, (name,)) or b"", b"marker", b"hello"),
    ),
    "marker of a later version": lambda client, folder, name: client.compound(
        PUTFH(folder), create_link(name, b'{"format":99}')
    ),
    "marker without its fields": lambda client, folder, name: client.compound(
        PUTFH(folder), create_link(name, encode_fields({"owner": 7, "freed_at": "x"}))
    ),
}
FOLDERS = ("volumes", "trash", "parents", "archive", "exports", "tmp")


@pytest.fixture
def late() -> ModelServer:
    """A server whose files are all as old as 1970."""
    return ModelServer()


@pytest.mark.parametrize("kind", KINDS)
def test_what_somebody_put_into_a_folder_of_the_driver_stops_nothing(
    late: ModelServer, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    site = Site(dial=late.dial).start()
    known = site.provision()
    archived = site.provision(parameters={"onDelete": "archive", "archiveRetention": 0.0})
    site.delete(site.volume(archived))
    client = Client(site.backend._settings.addresses[0].server, dial=late.dial)
    control = late.share.children[b".volplane"]
    for folder in FOLDERS:
        for name in (b"junk", b"77", b"78.free", b"other@1", b"\xff\xfe", b"a" * 255):
            KINDS[kind](client, control.children[folder.encode()].fileid.to_bytes(8, "big"), name)
    with caplog.at_level(logging.WARNING):
        site = site.again().start()
        assert site.probe() == Done()
        assert known[0].name in {each.name for each in site.listed()}
        assert site.find(known[0]) == known[1]
        site.delete(site.volume(site.provision()))
        site.delete(site.volume(known))
        reported = [record.getMessage() for record in caplog.records]
        site.probe()
        site.listed()
    assert [record.getMessage() for record in caplog.records] == reported, "once"
    expired = [each for each in control.children[b"archive"].children if each.startswith(archived[0].name.encode())]
    assert expired == [], "what is broken keeps nothing else from expiring"


def test_trash_that_cannot_be_removed_keeps_no_other_trash(
    site: Site, model: ModelServer, client: Client, root: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    trash = model.share.children[b".volplane"].children[b"trash"]
    handle = trash.fileid.to_bytes(8, "big")
    for name in (b"a@1", b"b@1", b"c@1"):
        make_directory(client, handle, name, 0o700)
        make_directory(client, directory_handle(client, handle, (name,)) or b"", b"data", 0o700)
    trash.children[b"a@1"].children[b"data"].exported = True
    site.again().start()
    assert names(client, handle) == [b"a@1"]
    assert "a@1" in caplog.text


@pytest.mark.parametrize("made", [True, False])
def test_a_directory_above_a_volume_that_never_was_is_removed(site: Site, model: ModelServer, made: bool) -> None:
    """A process ended before it made the marker of the volume, and maybe before it made the directory."""
    volume = site.volume(site.provision())
    above = model.share.children[b"default"]
    site.delete(volume)
    parents = model.share.children[b".volplane"].children[b"parents"]
    assert not parents.children
    marker = parent_marker((b"default",))
    model.enter(parents, parent_file((b"default",)), model.make(LINK, None, data=marker))
    if made:
        model.enter(model.share, b"default", model.make(above.kind, None, mode=0o755))
    site.again().start()
    assert list(model.share.children) == [b".volplane"]
    assert not parents.children


def test_a_directory_above_volumes_stays(site: Site, model: ModelServer) -> None:
    made = site.provision()
    site.again().start()
    assert site.listed()[0].owner == made[0].owner
    assert len(model.share.children[b".volplane"].children[b"parents"].children) == 1
    site.delete(site.volume(made))
    assert list(model.share.children) == [b".volplane"]
