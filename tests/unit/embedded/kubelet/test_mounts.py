"""Directories, files and projections as volumes."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from volplane.kube.objects import Secret
from volplane_embedded.kubelet.environment import ConfigObjects, Missing
from volplane_embedded.kubelet.mounts import MountError, check_host_path, check_local, mount_nfs, set_volume_ownership
from volplane_embedded.kubelet.projected_volumes import File, projected_files, referenced_objects, write_files
from volplane_embedded.objects import ConfigMap, Pod, PodVolume

POD = msgspec.convert({"metadata": {"name": "web", "namespace": "default", "labels": {"a": "b"}}}, Pod)
FOUND = ConfigObjects({"cm": ConfigMap(data={"x": "1", "y": "2"})}, {"key": Secret(data={"token": "aHVzaA=="})})


def volume(**source: Any) -> PodVolume:
    return msgspec.convert({"name": "v", **source}, PodVolume)


@pytest.mark.skipif(os.geteuid() != 0, reason="only user 0 may mount")
def test_the_name_of_a_server_is_no_option_of_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mount", "mount.nfs"):
        (tmp_path / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/told\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    mount_nfs("-T", "/fstab", tmp_path / "target", ["vers=4"])
    told = (tmp_path / "told").read_text().splitlines()
    assert told == ["-t", "nfs", "-o", "vers=4", "--", "-T:/fstab", str(tmp_path / "target")]


@pytest.mark.parametrize(
    ("kind", "name", "fits"),
    [
        ("Directory", "dir", True),
        ("Directory", "file", False),
        ("Directory", "none", False),
        ("File", "file", True),
        ("File", "dir", False),
        ("Socket", "file", False),
        ("CharDevice", "file", False),
        ("BlockDevice", "dir", False),
        ("", "dir", True),
        ("", "file", True),
        ("Folder", "dir", False),
    ],
)
def test_a_host_path_must_be_what_its_type_says(tmp_path: Path, kind: str, name: str, fits: bool) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    if fits:
        check_host_path(str(tmp_path / name), kind)
    else:
        with pytest.raises(MountError):
            check_host_path(str(tmp_path / name), kind)


@pytest.mark.parametrize(("kind", "is_dir"), [("", True), ("DirectoryOrCreate", True), ("FileOrCreate", False)])
def test_some_types_make_what_is_missing(tmp_path: Path, kind: str, is_dir: bool) -> None:
    check_host_path(str(tmp_path / "new"), kind)
    assert (tmp_path / "new").is_dir() is is_dir


def test_a_local_volume_must_be_a_directory_that_exists(tmp_path: Path) -> None:
    check_local(str(tmp_path), block=False)
    for path, block in ((tmp_path / "none", False), (tmp_path, True)):
        with pytest.raises(MountError):
            check_local(str(path), block=block)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_group_gets_everything_below_and_nothing_beyond_a_symlink(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    root = tmp_path / "volume"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").touch(mode=0o600)
    (root / "link").symlink_to(outside)
    set_volume_ownership(root, 4321, on_root_mismatch=True)
    for path, mode in ((root, 0o2775), (root / "sub", 0o2775), (root / "sub" / "file", 0o660)):
        assert (path.stat().st_gid, path.stat().st_mode & 0o7777) == (4321, mode)
    assert (outside.stat().st_gid, outside.stat().st_mode & 0o777) == (0, 0o600)
    (root / "later").touch(mode=0o600)
    os.chown(root / "later", 0, 0)
    set_volume_ownership(root, 4321, on_root_mismatch=True)
    assert (root / "later").stat().st_gid == 0


def test_objects_become_files() -> None:
    whole = volume(configMap={"name": "cm", "defaultMode": 0o600})
    assert projected_files(POD, whole, FOUND) == [File("x", b"1", 0o600), File("y", b"2", 0o600)]
    some = volume(configMap={"name": "cm", "items": [{"key": "y", "path": "deep/z", "mode": 0o400}]})
    assert projected_files(POD, some, FOUND) == [File("deep/z", b"2", 0o400)]
    assert projected_files(POD, volume(secret={"secretName": "key"}), FOUND) == [File("token", b"hush", 0o644)]
    fields = volume(downwardAPI={"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]})
    assert projected_files(POD, fields, FOUND) == [File("labels", b'a="b"', 0o644)]
    both = volume(projected={"sources": [{"secret": {"name": "key"}}, {"configMap": {"name": "cm"}}]})
    assert [file.path for file in projected_files(POD, both, FOUND)] == ["token", "x", "y"]
    assert referenced_objects(both) == ({"cm"}, {"key"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"configMap": {"name": "cm", "items": [{"key": "q", "path": "q"}]}}, "non-existent key: q"),
        ({"configMap": {"name": "cm", "items": [{"key": "x", "path": "../x"}]}}, "no path within a volume"),
        ({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}, "serviceAccountToken"),
    ],
)
def test_what_cannot_be_projected_is_named(source: dict[str, Any], message: str) -> None:
    with pytest.raises(Missing, match=message):
        projected_files(POD, volume(**source), FOUND)


def test_an_optional_object_may_be_missing() -> None:
    assert projected_files(POD, volume(secret={"secretName": "none", "optional": True}), FOUND) == []


def test_files_are_written_with_their_modes(tmp_path: Path) -> None:
    write_files(tmp_path / "v", [File("deep/token", b"hush", 0o400)], None)
    write_files(tmp_path / "v", [File("deep/token", b"again", 0o400)], None)
    made = tmp_path / "v/deep/token"
    assert (made.read_bytes(), made.stat().st_mode & 0o777) == (b"again", 0o400)
