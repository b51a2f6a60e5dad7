"""What may still be promised."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane import NotFound, ResourceExhausted, Unsupported
from volplane_hostpath.capacity import Space, room, used_by_others

MIB = 1 << 20
GIB = 1 << 30
sizes = st.integers(min_value=0, max_value=1 << 60)


@given(total=sizes, available=sizes, promised=sizes, others=sizes, percent=st.integers(1, 100_000))
def test_room_is_never_negative_nor_more_than_is_free(
    total: int, available: int, promised: int, others: int, percent: int
) -> None:
    space = Space(total=max(total, available), available=available)
    free = room(space, promised=promised, others=others, overcommit_percent=percent)
    assert 0 <= free <= available * max(percent, 100) // 100
    assert used_by_others(space, promised=promised, others=others) <= space.used


@given(total=sizes, sizes_asked=st.lists(sizes, max_size=8), used=st.floats(0, 1), written=st.floats(0, 1))
def test_promises_never_exceed_what_others_leave(
    total: int, sizes_asked: list[int], used: float, written: float
) -> None:
    others = int(total * used)
    promised = 0
    for asked in sizes_asked:
        space = Space(total=total, available=max(0, total - others - int(promised * written)))
        if asked <= room(space, promised=promised, others=others, overcommit_percent=100):
            promised += asked
    assert promised <= total - others


def test_what_is_promised_counts_once_whether_written_or_not() -> None:
    for written in (0, 30, 60):
        space = Space(total=100, available=100 - written)
        assert room(space, promised=60, others=0, overcommit_percent=100) == 40
    assert room(Space(total=100, available=20), promised=0, others=80, overcommit_percent=100) == 20
    assert room(Space(total=100, available=20), promised=15, others=80, overcommit_percent=100) == 5
    assert room(Space(total=100, available=100), promised=60, others=0, overcommit_percent=300) == 240
    assert room(Space(total=100, available=5), promised=60, others=0, overcommit_percent=300) == 15
    assert room(Space(total=100, available=100), promised=0, others=0, overcommit_percent=80) == 80


@pytest.fixture
def disk(new_site: Any, small_disk: tuple[Path, Callable[[str], None]]) -> Any:
    """A driver on 8 MiB of its own."""
    return new_site(small_disk[0]).start()


def test_promises_add_up_and_come_free(disk: Any) -> None:
    whole = disk.room()
    assert 7 * MIB < whole <= 8 * MIB
    first = disk.provision("u1", 3 * MIB)
    second = disk.provision("u2", 4 * MIB)
    assert disk.room() <= whole - 7 * MIB
    assert disk.again().start().room() == disk.room()
    with pytest.raises(ResourceExhausted, match="7 MiB are promised to 2 volumes"):
        disk.provision("u3", 2 * MIB)
    assert disk.provision("u1", 3 * MIB) == first
    (disk.path(first) / "file").write_bytes(b"x" * 2 * MIB)
    assert disk.room() <= whole - 7 * MIB
    disk.delete(disk.volume(first, "u1"))
    disk.delete(disk.volume(second, "u2"))
    assert whole - 64 * 1024 <= disk.room() <= whole


def test_space_of_a_deleted_volume_is_promised_only_when_it_is_free(disk: Any) -> None:
    asset = disk.provision("u1", 6 * MIB)
    for number in range(100):
        (disk.path(asset) / str(number)).write_bytes(b"x" * 50_000)
    while True:
        with pytest.raises(ResourceExhausted):
            disk.provision("u2", 6 * MIB)
        if disk.delete(disk.volume(asset), timeout=0):
            break
    assert disk.provision("u2", 6 * MIB)


@pytest.mark.parametrize("on_delete", ["archive", "retain"])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_kept_holds_its_promise_until_it_goes(disk: Any, on_delete: str, restarted: bool) -> None:
    whole = disk.room()
    living = disk.provision("u1", 3 * MIB)
    assert disk.room() <= whole - 3 * MIB
    asset = disk.provision("u2", 2 * MIB, parameters={"onDelete": on_delete})
    (disk.path(asset) / "file").write_bytes(b"x" * MIB)
    disk.delete(disk.volume(asset, "u2"))
    disk = disk.again().start() if restarted else disk
    assert whole - 5 * MIB - 64 * 1024 <= disk.room() <= whole - 5 * MIB
    with pytest.raises(ResourceExhausted, match="2 MiB held for what is archived or retained"):
        disk.provision("u3", 4 * MIB)
    disk.delete(disk.volume(living, "u1"))
    assert whole - 2 * MIB - 64 * 1024 <= disk.room() <= whole - 2 * MIB
    shutil.rmtree(next((disk.root / ".volplane/archive").iterdir()) if on_delete == "archive" else disk.path(asset))
    disk.probe()
    assert whole - 64 * 1024 <= disk.room() <= whole


def test_what_another_process_archives_is_counted_though_its_marker_comes_late(disk: Any) -> None:
    whole, other = disk.room(), disk.again().start()
    asset = disk.provision("u1", 2 * MIB, parameters={"onDelete": "archive"})
    disk.delete(disk.volume(asset))
    [archive] = (disk.root / ".volplane/archive").iterdir()
    os.utime(archive.parent, (1, 1))
    (archive / "marker").rename(archive / "late")
    assert other.room() > whole - 2 * MIB
    (archive / "late").rename(archive / "marker")
    assert other.room() <= whole - 2 * MIB


def test_what_others_use_is_not_promised(new_site: Any, small_disk: tuple[Path, Callable[[str], None]]) -> None:
    point, _ = small_disk
    (point / "photos").write_bytes(b"x" * 5 * MIB)
    site = new_site(point, adopt_root=True).start()
    assert 2 * MIB < site.room() <= 3 * MIB
    site.provision("u1", 2 * MIB)
    assert site.room() <= MIB
    assert site.again().start().room() == site.room()


def test_processes_see_each_others_promises(disk: Any) -> None:
    other = disk.again().start()
    disk.provision("u1", 3 * MIB)
    with pytest.raises(ResourceExhausted):
        other.provision("u2", 6 * MIB)
    asset = other.provision("u2", 4 * MIB)
    with pytest.raises(ResourceExhausted):
        disk.provision("u3", 2 * MIB)
    other.delete(other.volume(asset, "u2"))
    assert disk.provision("u3", 2 * MIB)


def test_a_marker_taken_away_by_hand_frees_its_promise(disk: Any) -> None:
    disk.provision("u1", 6 * MIB)
    disk.marker("u1").unlink()
    assert disk.provision("u2", 6 * MIB)


def test_a_race_for_the_last_room_has_one_winner(disk: Any) -> None:
    def attempt(number: int) -> bool:
        try:
            disk.provision(f"u{number}", 5 * MIB)
        except ResourceExhausted as error:
            assert error.nothing_done  # noqa: PT017
            return False
        return True

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(attempt, range(20))) == 1
    assert not list((disk.root / ".volplane/tmp").iterdir())


def test_overcommit_promises_more_than_there_is(disk: Any) -> None:
    thin = disk.again(overcommit_percent=500).start()
    assert thin.provision("u1", 30 * MIB)
    with pytest.raises(ResourceExhausted, match="now 500"):
        thin.provision("u2", 30 * MIB)


def test_places_that_the_root_cannot_serve_have_no_room(site: Any) -> None:
    assert site.room({"kubernetes.io/hostname": "node-b"}) == 0
    assert site.room({"kubernetes.io/hostname": "node-a"}) > 0
    assert site.room({"topology.kubernetes.io/zone": "a"}) > 0


def test_expanding_raises_the_promise_if_there_is_room(disk: Any) -> None:
    asset = disk.provision("u1", 3 * MIB)
    grown = disk.expand(disk.volume(asset), 5 * MIB)
    assert grown.capacity_bytes == 5 * MIB
    assert grown.handle == asset.handle
    assert disk.expand(disk.volume(asset), 4 * MIB) == grown
    with pytest.raises(ResourceExhausted, match="more"):
        disk.expand(disk.volume(asset), 50 * MIB)
    assert disk.expand(disk.volume(asset), 1) == grown
    assert disk.find("u1") == grown
    assert disk.provision("u1", 3 * MIB) == grown
    with pytest.raises(NotFound):
        disk.expand(disk.volume(uid="u9"), MIB)
    with pytest.raises(Unsupported):
        disk.expand(disk.static(disk.root / "team"), MIB)
    assert not list((disk.root / ".volplane/tmp").iterdir())


def test_ten_thousand_markers_are_read_once(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        site.provision(f"u{number}", 1)
    other = site.again().start()
    reads = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest, **named: (reads.append(path), real(path, *rest, **named))[1])
    for _ in range(5):
        other.room()
    assert not [path for path in reads if str(path).startswith("pvc-")]
