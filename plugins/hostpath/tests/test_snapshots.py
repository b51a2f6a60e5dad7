"""Snapshots, clones and restored volumes: in slices, over crashes, on full file systems, within quotas."""

from __future__ import annotations

import codecs
import hashlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from volplane import (
    Absent,
    AccessMode,
    DeleteSnapshotRequest,
    Done,
    FindSnapshotRequest,
    InProgress,
    InspectRequest,
    InvalidArgument,
    ListSnapshotsRequest,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Snapshot,
    SnapshotIdentity,
    SnapshotOwnership,
    SnapshotRequest,
    Unavailable,
    Unsupported,
    VolumeInUse,
)
from volplane.directory.local_trees import LocalTrees
from volplane_hostpath import copies
from volplane_hostpath.testing import FakeQuotas

from .conftest import file_system

MIB = 1 << 20
codecs.lookup("ascii")  # Before a test becomes a user who may not read the library.


class Cutting:
    """What a site does with snapshots."""

    def __init__(self, site: Any) -> None:
        self.site = site

    def cut_once(self, volume: Any, uid: str = "s1", state: Any = None, **parameters: Any) -> Any:
        request = SnapshotRequest(
            context=self.site.context(state=state or {}),
            name=f"snapshot-{uid}",
            volume=volume,
            owner=self.owner(uid),
            snapshot=SnapshotIdentity(namespace="default", name="snap", content=f"snapcontent-{uid}"),
            parameters=parameters,
        )
        return self.site.backend.create_snapshot(request)

    def owner(self, uid: str) -> SnapshotOwnership:
        return SnapshotOwnership(cluster_id=self.site.cluster, snapshot_uid=uid, content_name=f"snapcontent-{uid}")

    def cut(self, volume: Any, uid: str = "s1", state: Any = None, **parameters: Any) -> Snapshot:
        """Call until it is made, as the core does."""
        made, calls = self.cut_once(volume, uid, state, **parameters), 1
        while isinstance(made, InProgress):
            calls += 1
            assert calls < 10_000
            made = self.cut_once(volume, uid, state=made.state, **parameters)
        assert isinstance(made, Snapshot)
        return made

    def find(self, uid: str = "s1") -> Any:
        request = FindSnapshotRequest(context=self.site.context(), name=f"snapshot-{uid}", owner=self.owner(uid))
        return self.site.backend.find_snapshot(request)

    def drop(self, snapshot: Snapshot, uid: str = "s1") -> None:
        request = DeleteSnapshotRequest(context=self.site.context(), handle=snapshot.handle, owner=self.owner(uid))
        while self.site.backend.delete_snapshot(request) != Done():
            pass

    def listed(self) -> list[str]:
        page = self.site.backend.list_snapshots(ListSnapshotsRequest(context=self.site.context()))
        return [each.name for each in page.snapshots]

    def provision(self, uid: str, size: int = MIB, **fields: Any) -> Any:
        made = self.site.provision(uid, size, **fields)
        while isinstance(made, InProgress):
            context = self.site.context(state=made.state)
            made = self.site.provision(uid, size, **fields, context=context)
        return made


@pytest.fixture
def cutting(site: Any) -> Cutting:
    return Cutting(site)


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call does as little as it can."""
    monkeypatch.setattr(copies, "_SLICE", 0.0)
    monkeypatch.setattr(copies, "_TOLD", 0.0)


def contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def staged(site: Any) -> list[str]:
    return sorted(path.name for path in (site.root / ".volplane/copies").iterdir())


def test_a_volume_is_restored_as_it_was_and_owned_as_its_class_says(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    site.path(asset).chmod(0o2751)
    before = contents(site.path(asset))
    snapshot = cutting.cut(site.volume(asset))
    assert snapshot.ready
    assert snapshot.node_affinity == asset.node_affinity
    (site.path(asset) / "file0").write_text("written later")
    restored = cutting.provision("u2", 2 * MIB, source_snapshot=snapshot.handle, parameters={"gid": 7, "mode": 0o700})
    assert contents(site.path(restored)) == before
    # The mode is that of the source, which applications may insist on.
    assert site.path(restored).stat().st_mode & 0o7777 == 0o2751
    assert site.path(restored).stat().st_gid == 7 or os.geteuid()
    assert restored.capacity_bytes == 2 * MIB
    site.delete(site.volume(restored, "u2"))
    cutting.drop(snapshot)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


@pytest.mark.usefixtures("slices")
def test_a_copy_goes_on_in_another_process_and_is_seen_when_it_is_whole(cutting: Cutting, new_site: Any) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    made, calls = cutting.cut_once(site.volume(asset)), 1
    while isinstance(made, InProgress):
        assert isinstance(cutting.find(), Absent)
        assert cutting.listed() == []
        cutting.site = site.again() if calls % 3 else site.again().start()
        made, calls = cutting.cut_once(site.volume(asset), state=made.state), calls + 1
    assert calls > 10
    assert cutting.find() == made
    clone = cutting.provision("u2", source_volume=asset.handle, source_asset=site.volume(asset))
    assert contents(site.path(clone)) == contents(site.path(asset))
    assert contents(site.root / ".volplane/snapshots/snapshot-s1/data") == contents(site.path(asset))
    assert staged(site) == []


@pytest.mark.usefixtures("slices")
def test_the_directory_of_a_copy_appears_when_it_is_whole(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    source = {"source_volume": asset.handle, "source_asset": site.volume(asset)}
    made = site.provision("u2", **source)
    assert isinstance(made, InProgress)
    assert staged(site) == ["pvc-u2@1"]
    assert "pvc-u2" in site.listed()  # What is being filled is no leak.
    handle = asset.handle.replace("pvc-u1", "pvc-u2")
    seen = site.backend.inspect(InspectRequest(context=site.context(), handle=handle))
    assert seen.condition == "it is being filled"
    site.delete(site.volume(None, "u2"))
    assert staged(site) == []
    assert set(site.listed()) == {"pvc-u1"}


def test_a_machine_that_has_started_anew_begins_a_copy_again(cutting: Cutting, monkeypatch: pytest.MonkeyPatch) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    monkeypatch.setattr(copies, "_SLICE", 0.0)
    monkeypatch.setattr(copies, "_TOLD", 0.0)
    made = cutting.cut_once(site.volume(asset))
    while made.state["copy"]["pass"] != 2 or len(made.state["copy"]["path"]) < 2:
        made = cutting.cut_once(site.volume(asset), state=made.state)
    data = site.root / ".volplane/copies/snapshot-s1/data"
    torn = data / "file0"
    # As after a power failure: the attributes were written, the contents were not.
    status = (site.path(asset) / "file0").stat()
    torn.write_text("\0")
    os.utime(torn, ns=(status.st_atime_ns, status.st_mtime_ns))
    torn.chmod(status.st_mode & 0o7777)
    monkeypatch.setattr(copies, "boot_id", lambda: "another")
    cutting.site = site.again()
    cutting.cut(site.volume(asset), state=made.state)
    assert contents(site.root / ".volplane/snapshots/snapshot-s1/data") == contents(site.path(asset))


def test_a_volume_that_changes_while_it_is_copied_is_told_or_refused(
    cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=0)
    monkeypatch.setattr(copies, "_SLICE", 0.0)
    assert isinstance(cutting.cut_once(site.volume(asset), consistency="strict"), InProgress)
    time.sleep(0.02)
    (site.path(asset) / "file0").write_text("changed")
    with pytest.raises(VolumeInUse, match=r"1 of 4 entries .* changed while it was copied"):
        cutting.cut(site.volume(asset), consistency="strict")
    assert staged(site) == []
    assert cutting.cut(site.volume(asset), consistency="strict", verify="content").state == ""
    cutting.cut_once(site.volume(asset), "s2")
    time.sleep(0.02)
    (site.path(asset) / "file0").write_text("changed again")
    assert cutting.cut(site.volume(asset), "s2").state == "1 of 4 entries changed while it was made"


def test_what_does_not_fit_is_refused_and_removed(new_site: Any, small_disk: Any) -> None:
    disk, _ = small_disk
    site = new_site(disk, overcommit_percent=1000, adopt_root=True).start()
    cutting = Cutting(site)
    asset = site.provision(size=5 * MIB)
    (site.path(asset) / "large").write_bytes(os.urandom(5 * MIB))
    with pytest.raises(ResourceExhausted, match="no space") as caught:
        cutting.cut(site.volume(asset))
    assert caught.value.nothing_done
    with pytest.raises(ResourceExhausted, match="no space") as caught:
        cutting.provision("u2", 5 * MIB, source_volume=asset.handle, source_asset=site.volume(asset))
    assert caught.value.nothing_done
    assert set(site.listed()) == {"pvc-u1"}
    assert staged(site) == []
    assert not list((site.root / ".volplane/trash").iterdir())


def test_a_snapshot_on_a_full_file_system_is_deleted(new_site: Any, small_disk: Any) -> None:
    disk, remount = small_disk
    site = new_site(disk, overcommit_percent=1000, adopt_root=True).start()
    cutting = Cutting(site)
    asset = site.provision(size=MIB)
    site.grow(site.path(asset), depth=1)
    snapshot = cutting.cut(site.volume(asset))
    used = os.statvfs(disk)
    remount(f"nr_inodes={used.f_files - used.f_ffree}")
    with pytest.raises(OSError, match="No space"):
        (site.path(asset) / "one more").touch()
    cutting.drop(snapshot)
    assert cutting.find() == Absent()
    assert not list((site.root / ".volplane/snapshots").iterdir())
    assert not list((site.root / ".volplane/trash").iterdir())


def test_a_limit_is_set_before_the_first_file(new_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    quotas = FakeQuotas()
    site = new_site(quotas=quotas).start()
    cutting = Cutting(site)
    asset = site.provision()
    site.grow(site.path(asset), depth=0)
    found: list[Any] = []
    work = copies.Copies.work

    def look(self: Any, root: Any, key: str, *given: Any) -> Any:
        container = site.root / ".volplane/copies" / key
        found.append([quotas.limit_of(container), quotas.limit_of(container / "data")])
        assert not list((container / "data").iterdir())
        return work(self, root, key, *given)

    monkeypatch.setattr(copies.Copies, "work", look)
    source = {"source_volume": asset.handle, "source_asset": site.volume(asset)}
    clone = cutting.provision("u2", 3 * MIB, parameters={"quota": "required"}, **source)
    assert found == [[3 * MIB, 3 * MIB]]
    assert quotas.limit_of(site.path(clone)) == 3 * MIB


def test_what_is_smaller_than_its_source_is_refused(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision(size=2 * MIB)
    with pytest.raises(OutOfRange, match="1048576 bytes are less than the 2097152"):
        site.provision("u2", source_volume=asset.handle, source_asset=site.volume(asset))


@pytest.mark.usefixtures("slices")
def test_a_copy_whose_source_goes_meanwhile_leaves_nothing(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    source = {"source_volume": asset.handle, "source_asset": site.volume(asset)}
    assert isinstance(site.provision("u2", **source), InProgress)
    site.delete(site.volume(asset))
    with pytest.raises(NotFound):
        site.provision("u2", **source)
    assert site.leftovers() == []


@pytest.mark.usefixtures("slices")
def test_one_copy_at_a_time_works(cutting: Cutting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_TURN", 0.05)
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    running = site.backend._copies
    with running._turn:
        waits = cutting.cut_once(site.volume(asset))
        assert isinstance(waits, InProgress)
        assert not list((site.root / ".volplane/copies/snapshot-s1/data").iterdir())
    assert cutting.cut(site.volume(asset)).ready


def test_an_abandoned_copy_is_removed_after_a_while(cutting: Cutting, monkeypatch: pytest.MonkeyPatch) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    with monkeypatch.context() as patch:
        patch.setattr(copies, "_SLICE", 0.0)
        cutting.cut_once(site.volume(asset))
    site.again().start()
    assert staged(site) == ["snapshot-s1"]
    old = time.time() - 90_000
    os.utime(site.root / ".volplane/copies/snapshot-s1", (old, old))
    site.again().start()
    assert staged(site) == []


def test_what_is_in_snapshots_is_not_promised_again(new_site: Any) -> None:
    site = new_site(overcommit_percent=100).start()
    cutting = Cutting(site)
    asset = site.provision(size=64 * MIB)
    (site.path(asset) / "large").write_bytes(b"x" * 8 * MIB)
    index = site.backend._index
    snapshot = cutting.cut(site.volume(asset))
    with site.backend._root(site.context(), "look") as root:
        assert index.kept(root) == 8 * MIB
    cutting.drop(snapshot)
    with site.backend._root(site.context(), "look") as root:
        assert index.kept(root) == 0


def test_a_marker_that_cannot_be_read_hides_nothing(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    snapshot = cutting.cut(site.volume(asset))
    marker = site.root / ".volplane/snapshots/snapshot-s1/marker"
    marker.write_text("{")
    page = site.backend.list_snapshots(ListSnapshotsRequest(context=site.context()))
    assert [each.owner for each in page.snapshots] == [None]
    with pytest.raises(Exception, match="restore or repair it"):
        cutting.drop(snapshot)
    assert marker.exists()


def test_a_static_volume_is_copied_too(cutting: Cutting) -> None:
    site = cutting.site
    by_hand = site.root / "by-hand"
    by_hand.mkdir()
    (by_hand / "file").write_text("of a person")
    snapshot = cutting.cut(site.static(by_hand))
    restored = cutting.provision("u2", source_snapshot=snapshot.handle)
    assert contents(site.path(restored)) == {"file": "of a person"}


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(5))
def test_a_copy_survives_a_hundred_kills(cutting: Cutting, round_: int) -> None:
    """In five rounds of at least 20; each process works as the core lets it, and leaves nothing in memory."""
    site = cutting.site
    asset = site.provision()
    chance = random.Random(round_)
    for number in range(3_000):
        below = site.path(asset) / f"d{number % 40}" / f"e{number % 7}"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"f{number}").write_text(f"{number}" * (number % 50))
        if number % 10 == 0:
            os.link(below / f"f{number}", below / f"g{number}")
    (site.path(asset) / "large").write_bytes(os.urandom(20 * MIB))
    before, kills = contents_and_times(site.path(asset)), 0
    while kills < 20:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                again = Cutting(site.again())
                again.cut(site.volume(asset))
            os._exit(0)
        time.sleep(chance.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        if isinstance(cutting.find(), Snapshot):
            cutting.drop(cutting.find())
    snapshot = cutting.cut(site.volume(asset))
    assert snapshot.state == ""
    assert contents_and_times(site.root / ".volplane/snapshots/snapshot-s1/data") == before
    assert staged(site) == []


def contents_and_times(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in directory.rglob("*"):
        status = path.stat()
        content = hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
        links = status.st_nlink if path.is_file() else 0
        found[str(path.relative_to(directory))] = content, status.st_mtime_ns, status.st_mode, links
    return found


@pytest.mark.soak
def test_a_tenant_who_moves_everything_all_the_time_harms_only_the_own_copy(cutting: Cutting, tmp_path: Path) -> None:
    site = cutting.site
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file0").write_text("of others")
    asset = site.provision()
    top = site.path(asset)
    site.grow(top, depth=4)
    over = threading.Event()

    def attack() -> None:
        chance = random.Random(1)
        while not over.is_set():
            one = top.joinpath(*(f"dir{chance.randrange(3)}" for _ in range(chance.randrange(1, 4))))
            with suppress(OSError):
                one.rename(top / "dir0" / f"moved{chance.randrange(100)}")
            with suppress(OSError):
                one.symlink_to(outside)
            with suppress(OSError):
                (one.parent / "file0").unlink()
                (one.parent / "file0").symlink_to(outside / "file0")
            with suppress(OSError):
                if one.is_symlink():
                    one.unlink()
                site.grow(one.parent / f"new{chance.randrange(10**9)}", depth=1)

    tenant = threading.Thread(target=attack)
    tenant.start()
    try:
        for number in range(30):
            snapshot = cutting.cut(site.volume(asset), f"s{number}")
            data = site.root / f".volplane/snapshots/snapshot-s{number}/data"
            for above, _, files in os.walk(data):
                for name in files:
                    path = Path(above, name)
                    assert path.is_symlink() or path.read_text() == "x"
            cutting.drop(snapshot, f"s{number}")
    finally:
        over.set()
        tenant.join()
    assert (outside / "file0").read_text() == "of others"


@pytest.fixture(params=["xfs", "btrfs"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system at tmp_path/disk on which files can share blocks."""
    yield from file_system(request.param, tmp_path)


def test_a_copy_takes_no_space_where_blocks_can_be_shared(new_site: Any, sharing: Path) -> None:
    site = new_site(sharing, overcommit_percent=1000, adopt_root=True).start()
    cutting = Cutting(site)
    asset = site.provision()
    (site.path(asset) / "large").write_bytes(os.urandom(100 * MIB))
    os.sync()
    for number in range(5):  # 500 MiB on a disk of 400.
        snapshot = cutting.cut(site.volume(asset), f"s{number}")
    restored = cutting.provision("u2", source_snapshot=snapshot.handle)
    assert (site.path(restored) / "large").read_bytes() == (site.path(asset) / "large").read_bytes()


def test_a_snapshot_of_a_subvolume_is_of_one_moment_and_deleted_like_others(new_site: Any, btrfs: Path) -> None:
    site = new_site(btrfs, overcommit_percent=1000, adopt_root=True).start()
    cutting = Cutting(site)
    demand: dict[str, Any] = {"parameters": {"subvolume": True, "gid": 7}}
    asset = site.provision(**demand)
    assert site.path(asset).stat().st_ino == 256
    site.grow(site.path(asset))
    before = contents(site.path(asset))
    snapshot = cutting.cut(site.volume(asset), consistency="strict")
    (site.path(asset) / "file0").write_text("written later")
    data = site.root / ".volplane/snapshots/snapshot-s1/data"
    with pytest.raises(OSError, match="Read-only"):
        (data / "file0").write_text("written into a snapshot")
    restored = cutting.provision("u2", source_snapshot=snapshot.handle, **demand)
    assert site.path(restored).stat().st_ino == 256
    plain = cutting.provision("u3", source_snapshot=snapshot.handle)
    for copy in (restored, plain):
        assert contents(site.path(copy)) == before
        (site.path(copy) / "file1").write_text("of the copy")
    with pytest.raises(Unsupported, match="is no subvolume"):
        cutting.provision("u4", source_volume=plain.handle, source_asset=site.volume(plain, "u3"), **demand)
    again = site.again().start()
    for uid, made in (("u1", asset), ("u2", restored), ("u3", plain)):
        again.delete(again.volume(made, uid))
    assert contents(data) == before
    cutting.drop(snapshot)
    assert again.leftovers() == []


def read_only(snapshot: Snapshot) -> dict[str, Any]:
    modes = (AccessMode.READ_ONLY_MANY,)
    return {"source_snapshot": snapshot.handle, "access_modes": modes, "parameters": {"backingSnapshot": True}}


def test_a_volume_for_readers_is_a_read_only_subvolume_that_holds_no_snapshot(new_site: Any, btrfs: Path) -> None:
    site = new_site(btrfs, overcommit_percent=1000, adopt_root=True, shared=True).start()
    cutting = Cutting(site)
    asset = site.provision(parameters={"subvolume": True, "gid": 7})
    site.grow(site.path(asset))
    snapshot = cutting.cut(site.volume(asset))
    shown = cutting.provision("u2", **read_only(snapshot))
    assert contents(site.path(shown)) == contents(site.path(asset))
    with pytest.raises(OSError, match="Read-only"):
        (site.path(shown) / "file0").write_text("written into a snapshot")
    with pytest.raises(Unsupported, match="cannot be emptied"):
        site.recycle(site.volume(shown, "u2"))
    cutting.drop(snapshot)
    assert contents(site.path(shown)) == contents(site.path(asset))
    site.delete(site.volume(shown, "u2"))
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_snapshot_of_a_plain_directory_has_to_be_copied_for_readers(new_site: Any) -> None:
    site = new_site(shared=True).start()
    cutting = Cutting(site)
    asset = site.provision()
    snapshot = cutting.cut(site.volume(asset))
    with pytest.raises(Unsupported, match="no subvolume of btrfs, and nothing else keeps pods from writing"):
        cutting.provision("u2", **read_only(snapshot))
    demand = {**read_only(snapshot), "access_modes": (AccessMode.READ_WRITE_ONCE,)}
    with pytest.raises(InvalidArgument, match="not for ReadWriteOnce"):
        cutting.provision("u3", **demand)
    site.delete(site.volume(asset))
    cutting.drop(snapshot)
    assert site.leftovers() == []


def test_a_subvolume_is_refused_on_another_file_system(site: Any) -> None:
    with pytest.raises(Unsupported, match="not on btrfs"):
        site.provision(parameters={"subvolume": True})
    assert site.leftovers() == []


def test_a_source_whose_marker_cannot_be_read_is_not_gone(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    site.marker().write_text("{")
    with pytest.raises(Unavailable, match="restore or repair it"):
        cutting.cut(site.volume(asset))


@pytest.mark.usefixtures("slices")
def test_a_copy_that_is_begun_again_is_another_to_the_process_that_knew_the_first(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=1)
    copying = site.backend._copies
    made = cutting.cut_once(site.volume(asset))
    while not copying._works["snapshot-s1"].copy.checking:
        made = cutting.cut_once(site.volume(asset), state=made.state)
    # Another process has removed it meanwhile; a new directory may get the inode of the old one.
    container = site.root / ".volplane/copies/snapshot-s1"
    shutil.rmtree(container / "data")
    (container / "copy").unlink()
    cutting.cut(site.volume(asset), state=made.state)
    assert contents(site.root / ".volplane/snapshots/snapshot-s1/data") == contents(site.path(asset))


@pytest.fixture
def goes_during(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let something happen in the next slice of a copy, which has opened its source."""

    def happens(what: Callable[[], object]) -> None:
        page = LocalTrees.page
        left = [what]

        def with_it(*arguments: Any) -> Any:
            if left:
                left.pop()()
            return page(*arguments)

        monkeypatch.setattr(LocalTrees, "page", with_it)

    return happens


def test_no_snapshot_is_made_of_a_volume_that_is_deleted_in_its_last_slice(cutting: Cutting, goes_during: Any) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=2)
    volume = site.volume(asset)
    goes_during(lambda: site.delete(volume))
    with pytest.raises(NotFound):
        cutting.cut(volume)
    assert cutting.find() == Absent()
    assert site.leftovers() == []


def test_nothing_is_restored_of_a_snapshot_that_is_deleted_in_the_last_slice(
    cutting: Cutting, goes_during: Any
) -> None:
    site = cutting.site
    asset = site.provision()
    site.grow(site.path(asset), depth=2)
    snapshot = cutting.cut(site.volume(asset))
    goes_during(lambda: cutting.drop(snapshot))
    with pytest.raises(NotFound) as raised:
        cutting.provision("u2", 2 * MIB, source_snapshot=snapshot.handle)
    assert raised.value.nothing_done
    assert isinstance(site.find("u2"), Absent)
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_driver_that_cannot_give_files_away_makes_none_that_runs_as_itself(
    cutting: Cutting, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = cutting.site
    asset = site.provision()
    program = site.path(asset) / "program"
    program.write_text("#!/bin/sh")
    program.chmod(0o6755)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    made = cutting.provision("u2", source_volume=asset.handle, source_asset=site.volume(asset))
    assert (site.path(made) / "program").stat().st_mode & 0o7777 == 0o755


def test_a_copy_that_is_being_deleted_is_not_made_again(cutting: Cutting) -> None:
    site = cutting.site
    asset = site.provision()
    source = {"source_volume": asset.handle, "source_asset": site.volume(asset)}
    made = cutting.provision("u2", **source)
    # As a deletion leaves it that has not emptied the trash yet.
    trash = site.root / ".volplane/trash/pvc-u2@1"
    trash.mkdir()
    site.path(made).rename(trash / "data")
    with pytest.raises(Unavailable, match="is being deleted"):
        cutting.provision("u2", **source)
    assert not site.path(made).exists()
    site.delete(site.volume(made, "u2"))
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_driver_that_is_not_root_copies_again_what_may_not_be_written(
    new_site: Any, unprivileged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutting = Cutting(new_site(unprivileged).start())
    site = cutting.site
    asset = site.provision()
    below = site.path(asset) / "below"
    below.mkdir()
    file = below / "file"
    file.write_text("before")
    file.chmod(0o444)
    below.chmod(0o555)
    monkeypatch.setattr(copies, "_SLICE", 0.0)
    made: Any = cutting.cut_once(site.volume(asset))
    while not (site.root / ".volplane/copies/snapshot-s1/data/below/file").exists():
        made = cutting.cut_once(site.volume(asset), state=made.state)
    made = cutting.cut_once(site.volume(asset), state=made.state)
    below.chmod(0o755)
    file.chmod(0o644)
    file.write_text("after that")
    (below / "new").write_text("x")
    file.chmod(0o444)
    below.chmod(0o555)
    snapshot = cutting.cut(site.volume(asset), state=made.state)
    restored = cutting.provision("u2", source_snapshot=snapshot.handle)
    assert contents(site.path(restored)) == {"below/file": "after that", "below/new": "x"}
    modes = [
        path.stat().st_mode & 0o7777 for path in (site.path(restored) / "below", site.path(restored) / "below/file")
    ]
    assert modes == [0o555, 0o444]
