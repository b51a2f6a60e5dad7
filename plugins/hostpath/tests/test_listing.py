"""The listing for the leak check, and what the driver says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from volplane import AccessMode, BackendSpec, ListRequest, VolumeMode
from volplane_hostpath import HostPathBackend, listing


def test_everything_under_the_root_is_named(site: Any) -> None:
    asset = site.provision("u1", 5)
    (site.root / "static").mkdir()
    (site.root / "default/stray").mkdir()
    (site.root / "lost+found").mkdir()
    (site.root / "file").write_text("x")
    (site.root / "link").symlink_to("/etc")
    listed = site.listed()
    assert set(listed) == {"pvc-u1", "static", "default/stray"}
    assert listed["pvc-u1"].handle == asset.handle
    assert listed["pvc-u1"].owner == site.owner("u1")
    assert listed["pvc-u1"].capacity_bytes == 5
    assert listed["pvc-u1"].created_at > 1e9
    assert listed["pvc-u1"].source == asset.source
    assert listed["static"].owner is None
    assert listed["static"].handle == str(site.root / "static")


def test_a_volume_whose_directory_is_gone_is_no_asset(site: Any) -> None:
    asset = site.provision()
    site.path(asset).rmdir()
    assert site.listed() == {}
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_pages_name_everything_that_stays_though_things_come_and_go(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 3)
    assets = {uid: site.provision(uid, 1) for uid in (f"u{number}" for number in range(10))}
    (site.root / "static").mkdir()
    names: list[str] = []
    page, turn = None, 0
    while True:
        answer = site.backend.list_assets(ListRequest(context=site.context(), page=page))
        names += [asset.name for asset in answer.assets]
        assert len(answer.assets) <= 3
        if turn == 1:
            site.provision("u00", 1)
            site.delete(site.volume(assets["u2"], "u2"))
        page, turn = answer.next_page, turn + 1
        if page is None:
            break
    assert {f"pvc-u{number}" for number in range(10) if number != 2} | {"static"} <= set(names)
    assert len(names) == len(set(names))


def test_what_cannot_be_swept_is_named(site: Any) -> None:
    (site.root / ".volplane/tmp/pvc-u7@1").mkdir()
    (site.root / ".volplane/tmp/pvc-u7@1/impossible").mkdir()
    assert list(site.listed()) == [".volplane/tmp/pvc-u7@1"]
    (site.root / ".volplane/tmp/pvc-u7@1/impossible").rmdir()
    assert site.listed() == {}
    assert site.leftovers() == []


def test_a_name_that_is_no_text_can_be_shown(site: Any) -> None:
    Path(str(site.root / "x\udcff")).mkdir()
    (name,) = site.listed()
    assert name.encode() == b"x\\xff"


def test_the_driver_describes_itself(site: Any) -> None:
    info = site.describe()
    assert info.topology_keys == ("kubernetes.io/hostname",)
    assert info.access_modes == {AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD}
    assert info.volume_modes == {VolumeMode.FILESYSTEM}
    assert info.settle_seconds == 0
    assert not info.attach_required
    assert issubclass(HostPathBackend, BackendSpec)
    assert HostPathBackend.default_driver_name == "hostpath.volplane.dev"
    assert {parameter.name for parameter in info.parameters.parameters} == {
        "mode",
        "uid",
        "gid",
        "pathTemplate",
        "exactPath",
        "onExisting",
        "volumeType",
        "onDelete",
        "archiveRetention",
        "consistency",
        "verify",
        "quota",
        "subvolume",
        "backingSnapshot",
    }
    assert not any("root" in parameter.name.lower() for parameter in info.parameters.parameters)
