"""Exact paths, and directories that a class lets volumes use as they are."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import AlreadyExists, BackendError, InvalidArgument, Unsupported, VolumeMode

USE = {"pathTemplate": "${namespace}/${claim}", "exactPath": True, "onExisting": "use"}
EXACT = {**USE, "onExisting": "refuse"}


@pytest.fixture
def data(site: Any) -> Path:
    """A directory of another provisioner, in the place of the claim `data` of the namespace `default`."""
    directory: Path = site.root / "default/data"
    directory.mkdir(parents=True)
    (directory / "file").write_text("kept")
    directory.chmod(0o751)
    return directory


def kept(directory: Path) -> bool:
    return (directory / "file").read_text() == "kept" and directory.stat().st_mode & 0o777 == 0o751


def test_an_exact_path_is_what_the_template_says(site: Any) -> None:
    asset = site.provision(parameters=EXACT)
    assert site.path(asset) == site.root / "default/data"
    assert site.provision(parameters=EXACT) == asset
    site.delete(site.volume(asset))
    assert site.leftovers() == []


def test_a_second_claim_gets_no_exact_path_that_a_volume_has(site: Any) -> None:
    asset = site.provision(parameters=USE)
    (site.path(asset) / "file").write_text("x")
    with pytest.raises(AlreadyExists, match="carries the mark of volume pvc-u1"):
        site.provision("u2", parameters=USE)
    assert [each.name for each in site.listed().values()] == ["pvc-u1"]


def test_data_that_is_there_is_used_as_it_is_and_stays_when_its_volume_is_deleted(site: Any, data: Path) -> None:
    asset = site.provision(parameters={**USE, "mode": 0o700, "gid": 7})
    assert site.path(asset) == data
    assert kept(data)
    assert site.find() == asset
    assert site.again().start().provision(parameters={**USE, "mode": 0o700, "gid": 7}) == asset
    assert site.listed()["pvc-u1"].owner == site.owner("u1")
    site.delete(site.volume(asset))
    assert kept(data)
    assert data.stat().st_gid == os.getgid()
    site.delete(site.volume(asset))
    assert kept(data)
    assert "pvc-u1" not in site.listed()


def test_without_consent_data_that_is_there_is_refused(site: Any, data: Path) -> None:
    with pytest.raises(AlreadyExists, match="was not made by this driver"):
        site.provision(parameters=EXACT)
    assert kept(data)
    assert "pvc-u1" not in site.listed()


def test_a_claim_that_is_made_again_gets_what_the_former_one_left(site: Any) -> None:
    before = site.room()
    for uid in ("u1", "u2", "u3"):
        asset = site.provision(uid, parameters=USE)
        (site.path(asset) / uid).touch()
        site.probe()
        assert site.room() <= before - asset.capacity_bytes
        site.delete(site.volume(asset, uid))
    assert sorted(entry.name for entry in (site.root / "default/data").iterdir()) == ["u1", "u2", "u3"]
    site.provision("u4", parameters=USE)
    site.probe()
    assert len(list((site.root / ".volplane/retained").iterdir())) == 0


def test_a_deletion_that_is_repeated_after_another_claim_took_the_directory_leaves_it(site: Any) -> None:
    former = site.volume(site.provision(parameters=USE))
    site.delete(former)
    asset = site.provision("u2", parameters=USE)
    (site.path(asset) / "file").write_text("x")
    site.probe()
    site.delete(former)
    assert (site.path(asset) / "file").read_text() == "x"


def test_a_class_that_says_delete_removes_what_was_there(site: Any, data: Path) -> None:
    asset = site.provision(parameters={**USE, "onDelete": "delete"})
    site.delete(site.volume(asset))
    assert not data.exists()
    assert data.parent.exists()


def test_what_never_became_a_volume_keeps_its_data_whatever_the_class_says(site: Any, data: Path) -> None:
    asset = site.provision(parameters={**USE, "onDelete": "delete"})
    site.delete(replace(site.volume(asset), uid=""))
    assert kept(data)


def test_data_that_was_there_is_emptied_only_where_the_class_says_delete(site: Any, data: Path) -> None:
    asset = site.provision(parameters=USE)
    with pytest.raises(Unsupported, match="onDelete: delete"):
        site.recycle(site.volume(asset))
    site.delete(site.volume(asset))
    again = site.provision("u2", parameters={**USE, "onDelete": "delete"})
    assert site.recycle(site.volume(again, "u2")).sub_path == "default/data"
    assert kept(data)


def test_what_a_claim_of_another_namespace_left_is_not_used(site: Any) -> None:
    left = site.provision(parameters={"pathTemplate": "team/${claim}", "exactPath": True, "onDelete": "retain"})
    (site.path(left) / "file").write_text("secret")
    site.delete(site.volume(left))
    with pytest.raises(AlreadyExists, match="left by a volume of namespace default"):
        site.provision("u2", namespace="team", parameters=USE)
    assert "pvc-u2" not in site.listed()


@pytest.mark.parametrize("template", ["${namespace}", "${namespace}/data/below"])
def test_a_directory_above_or_below_a_volume_is_not_used(site: Any, template: str) -> None:
    asset = site.provision(parameters=USE)
    (site.path(asset) / "below").mkdir()
    with pytest.raises(AlreadyExists, match=r"mark of volume pvc-u1|made by volplane to hold volumes"):
        site.provision("u2", parameters={**USE, "pathTemplate": template})


def test_a_volume_with_a_path_of_its_own_is_not_used(site: Any) -> None:
    own = site.provision(parameters={"pathTemplate": "${volume}"})
    with pytest.raises(AlreadyExists, match="mark of volume pvc-u1"):
        site.provision("u2", namespace="pvc-u1", parameters={**USE, "pathTemplate": "${namespace}"})
    assert site.path(own).is_dir()


def test_no_link_is_used(site: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (site.root / "default").mkdir()
    (site.root / "default/data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackendError, match="symbolic link"):
        site.provision(parameters=USE)


def test_below_a_directory_that_others_can_write_into_nothing_is_used(site: Any, data: Path) -> None:
    data.parent.chmod(0o777)
    with pytest.raises(AlreadyExists, match="could exchange volumes"):
        site.provision(parameters=USE)


def test_beside_data_that_is_there_a_new_directory_is_made(site: Any, data: Path) -> None:
    asset = site.provision(claim="other", parameters=USE)
    assert site.path(asset) == data.parent / "other"
    assert list(site.path(asset).iterdir()) == []


@pytest.mark.parametrize("fields", [{"source_volume": "old"}, {"volume_mode": VolumeMode.BLOCK}])
def test_neither_a_copy_nor_an_image_is_put_onto_data_that_is_there(
    new_site: Any, data: Path, fields: dict[str, Any]
) -> None:
    site = new_site(data.parents[1], images=True).start()
    if "source_volume" in fields:
        source = site.provision("u0", parameters={"pathTemplate": "${volume}"})
        fields = {"source_volume": source.handle, "source_asset": site.volume(source, "u0")}
    with pytest.raises(AlreadyExists, match="without a source"):
        site.provision(parameters=USE, **fields)
    assert kept(data)
    assert "pvc-u1" not in site.listed()


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"onExisting": "use"}, "needs exactPath"),
        ({**USE, "pathTemplate": "${claim}"}, "namespace"),
        ({**USE, "pathTemplate": "${namespace}-${claim}"}, "namespace"),
        ({**USE, "pathTemplate": "${label:namespace}/${claim}"}, "namespace"),
        ({**USE, "quota": "required"}, "no quota"),
        ({**USE, "subvolume": True}, "no subvolume"),
    ],
)
def test_a_class_by_which_tenants_could_choose_anothers_directory_is_refused(
    site: Any, parameters: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        site.validate(**parameters)
