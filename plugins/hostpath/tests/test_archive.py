"""What becomes of a directory when its volume is deleted, as its class says."""

from __future__ import annotations

import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    Done,
    InvalidArgument,
    ListedArchive,
    ListRequest,
    NotFound,
    ProbeRequest,
    VolumeInUse,
)
from volplane.directory import archived_volume, decode_fields, encode_fields
from volplane_hostpath import archive
from volplane_hostpath.markers import VolumeMarker


def kept(site: Any, uid: str = "u1", **parameters: Any) -> Any:
    """Delete a volume of such a class, with a file in it."""
    asset = site.provision(uid, parameters={"onDelete": "archive", **parameters}, class_name="kept")
    (site.path(asset) / "file").write_text(uid)
    site.delete(site.volume(asset, uid))
    return asset


def archives(site: Any) -> list[Path]:
    return sorted((site.root / ".volplane" / "archive").glob("*"))


def test_a_retained_directory_stays_where_it_is_and_is_no_volume(site: Any) -> None:
    asset = kept(site, onDelete="retain")
    assert (site.path(asset) / "file").read_text() == "u1"
    assert [each.owner for each in site.listed().values()] == [None]
    assert site.find() == Absent()
    assert site.room() > 0


def test_a_deletion_that_retains_can_be_repeated_by_its_owner_alone(site: Any) -> None:
    asset = kept(site, onDelete="retain")
    for process in (site, site.again().start()):
        assert process.delete_once(process.volume(asset)) == Done()
        assert process.delete_once(process.volume(asset, handle="")) == Done()
        for other in ({"owner": site.owner("u2")}, {"owner": site.owner("u1", 2), "handle": ""}):
            with pytest.raises(AlreadyExists, match="no mark"):
                process.delete_once(process.volume(asset, **other))
    assert (site.path(asset) / "file").read_text() == "u1"


def test_the_marker_of_a_retained_directory_goes_with_it_and_no_other_keeps_it(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    asset = kept(site, onDelete="retain")
    retained = site.root / ".volplane/retained"
    (retained / "junk").write_text("hello")
    site.listed()
    assert {each.name for each in retained.iterdir()} == {"junk", "pvc-u1@1"}
    shutil.rmtree(site.path(asset))
    site.listed()
    assert [each.name for each in retained.iterdir()] == ["junk"]
    assert caplog.text.count("is skipped") == 1
    assert site.delete_once(site.volume(asset)) == Done()


def test_an_archived_directory_is_beside_a_marker_with_what_a_restored_volume_needs(site: Any) -> None:
    asset = kept(site, mode=0o2750, gid=os.getegid())
    [archive] = archives(site)
    assert archive.name.startswith("pvc-u1@1.")
    assert archive.name.endswith(".kept")
    assert (archive / "data" / "file").read_text() == "u1"
    assert (archive / "data").stat().st_mode & 0o7777 == 0o2750
    found = archived_volume(VolumeMarker, decode_fields((archive / "marker").read_bytes()))
    assert found is not None
    assert (found.owner, found.claim, found.capacity_bytes) == (site.owner("u1"), "default/data", asset.capacity_bytes)
    assert f"{site.root}/{found.path}" == str(site.path(asset))
    assert (found.mode, found.volume_type, found.class_name) == (0o2750, "local", "kept")
    assert site.listed() == {}
    assert not (site.root / "default").exists()


def test_archives_of_one_volume_do_not_collide(site: Any) -> None:
    for _ in range(3):
        kept(site)
    assert len(archives(site)) == 3


def test_an_archive_goes_when_its_time_is_over_and_not_before(site: Any) -> None:
    for uid, retention in (("u1", 0.0), ("u2", 3600.0), ("u3", None)):
        kept(site, uid, archiveRetention=retention)
    assert [each.name[:6] for each in archives(site)] == ["pvc-u1", "pvc-u2", "pvc-u3"]
    site.again().start()
    assert len(archives(site)) == 3, "not by a start"
    site.probe()
    assert [each.name[:6] for each in archives(site)] == ["pvc-u2", "pvc-u3"]
    assert list((site.root / ".volplane/trash").iterdir()) == []
    kept(site, "u4", archiveRetention=0.0)
    site.probe()
    assert [each.name[:6] for each in archives(site)] == ["pvc-u2", "pvc-u3"]


def test_a_broken_archive_keeps_no_other_and_a_longer_time_is_respected(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for uid in ("u1", "u2", "u3"):
        kept(site, uid, archiveRetention=0.0)
    first, second, _ = archives(site)
    (first / "marker").write_text("hello")
    (second / "marker").write_bytes(encode_fields({"expires_at": time.time() + 3600.0}))
    site.probe()
    site.probe()
    assert archives(site) == [first, second]
    assert caplog.text.count("is skipped") == 1


def test_threads_that_remove_archives_at_the_same_time_do_not_disturb_each_other(site: Any) -> None:
    kept(site, archiveRetention=0.0)
    others = []

    def cancelled() -> bool:
        if not others:
            others.append(site)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(site.probe).result() == Done()
        return False

    assert site.backend.probe(ProbeRequest(context=site.context(cancelled=cancelled))) == Done()
    assert others
    assert archives(site) == []


def test_an_asset_that_never_became_a_volume_is_not_archived(site: Any) -> None:
    asset = site.provision(parameters={"onDelete": "archive"})
    site.delete(replace(site.volume(asset), uid=""))
    assert archives(site) == []
    assert site.leftovers() == []


def test_a_volume_of_an_earlier_version_is_deleted(site: Any) -> None:
    asset = site.provision()
    fields = json.loads(site.marker().read_text())
    del fields["demand"]["on_delete"], fields["demand"]["retention"]
    site.marker().write_text(json.dumps(fields))
    assert site.again().start().provision() == asset
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_mounted_directory_is_neither_archived_nor_forgotten(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = site.provision(parameters={"onDelete": "archive"})

    def in_use(*_: Any) -> None:
        raise VolumeInUse("it is mounted")

    monkeypatch.setattr("volplane_hostpath.delete.refuse_in_use", in_use)
    with pytest.raises(VolumeInUse):
        site.delete(site.volume(asset))
    assert site.find() == asset


def test_a_retention_without_an_archive_is_refused(site: Any) -> None:
    with pytest.raises(InvalidArgument, match="only with onDelete archive"):
        site.validate(archiveRetention=5.0)


@pytest.mark.parametrize("after", ["mkdir", "rename", "fsync"])
def test_a_crash_while_a_directory_is_archived_loses_nothing(
    site: Any, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    asset = site.provision(parameters={"onDelete": "archive"})
    (site.path(asset) / "file").write_text("x")
    real = getattr(os, after)

    def crash(*arguments: Any, **named: Any) -> Any:
        real(*arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, after, crash)
    with pytest.raises(KeyboardInterrupt):
        site.delete(site.volume(asset))
    monkeypatch.undo()
    site = site.again().start()
    site.delete(site.volume(asset))
    assert [(each / "data" / "file").read_text() for each in archives(site)] == ["x"]
    assert site.listed() == {}


def test_an_archive_that_a_person_removed_while_the_driver_is_busy_is_made_again(site: Any) -> None:
    first, second = (site.provision(uid, parameters={"onDelete": "archive"}) for uid in ("u1", "u2"))
    (site.path(second) / "file").write_text("x")
    # Another call keeps the root open all the time.
    with site.backend._roots.checked(site.backend._root_id, site.context()):
        site.delete(site.volume(first, "u1"))
        shutil.rmtree(site.root / ".volplane" / "archive")
        site.delete(site.volume(second, "u2"))
    assert [(each / "data" / "file").read_text() for each in archives(site)] == ["x"]


def test_a_directory_that_cannot_be_moved_into_the_trash_stays_a_volume(site: Any) -> None:
    asset = site.provision()
    (site.path(asset) / "file").write_text("x")
    with site.backend._roots.checked(site.backend._root_id, site.context()) as root:
        root.directory("trash")
        (site.root / ".volplane" / "trash").rmdir()
        with pytest.raises(NotFound):
            site.delete(site.volume(asset))
    assert (site.path(asset) / "file").read_text() == "x"
    assert site.marker().exists()


def listed(site: Any) -> list[ListedArchive]:
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


def test_archives_are_listed_with_what_a_person_wants_to_know(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PAGE", 2)
    assert site.describe().archives
    assert listed(site) == []
    before = time.time()
    for uid, retention in (("u1", None), ("u2", 3600.0), ("u3", None), ("u4", None), ("u5", None)):
        kept(site, uid, archiveRetention=retention)
    (site.root / ".volplane/archive/empty").mkdir()
    known = {each.volume: each for each in listed(site)}
    assert sorted(known) == [f"pvc-u{number}" for number in range(1, 6)], "and nothing without data"
    first, second = known["pvc-u1"], known["pvc-u2"]
    assert (first.claim, first.capacity_bytes, first.until) == ("default/data", 1 << 20, None)
    assert first.archived_at is not None
    assert second.until is not None
    assert before - 1 < first.archived_at < time.time() + 1
    assert before + 3599 < second.until < time.time() + 3601
    assert [str(each) for each in archives(site) if each.name.startswith("pvc-u1@")] == [first.place]


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"",
        encode_fields({"volume": 7, "claim": ["x"], "archived_at": "now", "expires_at": 1e400}),
        encode_fields({"volume": {"name": 3, "capacity_bytes": -1}, "archived_at": -1, "expires_at": 1e300}),
    ],
)
def test_an_archive_whose_marker_says_nothing_is_listed_by_its_name(site: Any, content: bytes) -> None:
    kept(site)
    (archives(site)[0] / "marker").write_bytes(content)
    (found,) = listed(site)
    assert (found.volume, found.claim, found.capacity_bytes, found.archived_at) == ("pvc-u1", "", None, None)
    assert found.until is None
