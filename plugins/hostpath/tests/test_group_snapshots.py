"""Groups of snapshots: subvolumes of btrfs that are cut in one transaction."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    DeleteGroupSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    FindSnapshotRequest,
    GroupSnapshotRequest,
    InProgress,
    NotFound,
    SnapshotIdentity,
    SnapshotOwnership,
    Unsupported,
)
from volplane_hostpath.testing import subject_below
from volplane_testing import BackendConformance, Subject
from volplane_testing.conformance.rules import groups

MIB = 1 << 20
CONTENT = "groupsnapcontent-g"


class Grouping:
    """What a site does with groups."""

    def __init__(self, site: Any) -> None:
        self.site = site
        self.owner = SnapshotOwnership(cluster_id=site.cluster, snapshot_uid="g", content_name=CONTENT)

    def request(self, volumes: list[Any], **fields: Any) -> GroupSnapshotRequest:
        given = {
            "context": self.site.context(),
            "name": "groupsnapshot-g",
            "volumes": tuple(volumes),
            "owner": self.owner,
            "group": SnapshotIdentity(namespace="default", name="g", content=CONTENT),
        }
        return GroupSnapshotRequest(**{**given, **fields})

    def cut(self, volumes: list[Any], **fields: Any) -> Any:
        return self.site.backend.create_group_snapshot(self.request(volumes, **fields))

    def find(self, **asked: Any) -> Any:
        return self.site.backend.find_group_snapshot(FindGroupSnapshotRequest(context=self.site.context(), **asked))

    def delete(self, handle: str, **fields: Any) -> Any:
        given = {"context": self.site.context(), "handle": handle, "owner": self.owner}
        request = DeleteGroupSnapshotRequest(**{**given, **fields})
        while isinstance(result := self.site.backend.delete_group_snapshot(request), InProgress):
            pass
        return result


@pytest.fixture
def grouping(new_site: Any, btrfs: Path) -> Grouping:
    return Grouping(new_site(btrfs, overcommit_percent=1000, adopt_root=True).start())


def made(grouping: Grouping, count: int = 2) -> list[Any]:
    demand = {"parameters": {"subvolume": True}}
    assets = [grouping.site.provision(f"u{number}", **demand) for number in range(count)]
    return [grouping.site.volume(asset, f"u{number}") for number, asset in enumerate(assets)]


def test_what_was_on_the_disk_of_one_volume_first_is_in_its_copy_if_the_later_is(grouping: Grouping) -> None:
    site = grouping.site
    assets = [site.provision(f"u{number}", parameters={"subvolume": True}) for number in range(3)]
    volumes = [site.volume(asset, f"u{number}") for number, asset in enumerate(assets)]
    files = [os.open(site.path(asset) / "count", os.O_CREAT | os.O_RDWR) for asset in assets]
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            for file in files:
                os.pwrite(file, b"%08d" % number, 0)
                os.fsync(file)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        groups = [grouping.cut(volumes, name=f"groupsnapshot-{number}") for number in range(3)]
    finally:
        over.set()
        writer.join()
    order = {asset.handle: number for number, asset in enumerate(assets)}
    for group in groups:
        assert len({each.created_at for each in group.snapshots}) == 1
        seen = {}
        for member in group.snapshots:
            data = site.root / ".volplane/snapshots" / member.handle.partition("/")[2] / "data/count"
            seen[order[member.source]] = int(data.read_text() or 0) if data.exists() else 0
        numbers = [seen[number] for number in sorted(seen)]
        assert numbers == sorted(numbers, reverse=True)
        assert numbers[0] - numbers[-1] <= 1


def test_a_group_is_made_once_found_and_deleted_whole(grouping: Grouping) -> None:
    volumes = made(grouping)
    before = grouping.site.leftovers()
    group = grouping.cut(volumes)
    assert grouping.cut(list(reversed(volumes))) == group
    assert grouping.find(handle=group.handle) == group
    assert grouping.find(name="groupsnapshot-g", owner=grouping.owner) == group
    other = SnapshotOwnership(cluster_id=grouping.site.cluster, snapshot_uid="h", content_name=CONTENT)
    assert grouping.find(name="groupsnapshot-g", owner=other) == Absent()
    with pytest.raises(AlreadyExists):
        grouping.cut(volumes, owner=other)
    with pytest.raises(AlreadyExists, match="asked for was"):
        grouping.cut(volumes[:1])
    with pytest.raises(AlreadyExists):
        grouping.delete(group.handle, owner=other)
    for member in group.snapshots:
        request = FindSnapshotRequest(context=grouping.site.context(), handle=member.handle)
        assert grouping.site.backend.find_snapshot(request) == member
    for _ in range(2):
        assert grouping.delete(group.handle) == Done()
    assert grouping.find(handle=group.handle) == Absent()
    assert grouping.site.leftovers() == before
    assert not list((grouping.site.root / ".volplane/snapshots").iterdir())


def test_a_group_that_a_crash_has_left_half_moved_is_finished(grouping: Grouping) -> None:
    group = grouping.cut(made(grouping))
    snapshots = grouping.site.root / ".volplane/snapshots"
    (snapshots / "groupsnapshot-g.1").rename(snapshots.parent / "copies/groupsnapshot-g.1")
    again = Grouping(grouping.site.again().start())
    assert again.find(handle=group.handle) == group
    assert again.delete(group.handle) == Done()


def test_nothing_is_left_of_a_group_with_a_volume_that_is_gone(grouping: Grouping) -> None:
    volumes = made(grouping)
    grouping.site.delete(volumes[1])
    with pytest.raises(NotFound):
        grouping.cut(volumes)
    assert grouping.find(name="groupsnapshot-g", owner=grouping.owner) == Absent()
    assert not list((grouping.site.root / ".volplane/snapshots").iterdir())


def test_other_directories_are_refused_with_what_to_do(site: Any) -> None:
    grouping = Grouping(site)
    volumes = [site.volume(site.provision(f"u{number}"), f"u{number}") for number in range(2)]
    before = site.leftovers()
    with pytest.raises(Unsupported, match="use a class with the parameter subvolume, or make a VolumeSnapshot of each"):
        grouping.cut(volumes)
    assert site.leftovers() == before


class TestGroupsOfSubvolumes(BackendConformance):
    rules = groups.RULES

    @pytest.fixture
    def backend(self, btrfs: Path) -> Subject:
        return replace(subject_below(btrfs, overcommit_percent=1000), parameters={"subvolume": "true"})
