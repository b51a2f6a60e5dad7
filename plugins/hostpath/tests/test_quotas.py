"""Project quotas: each volume of a class that demands it is limited to its size, or is not made."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane import AlreadyExists, BackendError, ResourceExhausted, Unsupported
from volplane_hostpath.project_quotas import KernelQuotas, choose_number, limit_for, numbers_for
from volplane_hostpath.rmtree import DEPTH
from volplane_hostpath.testing import FakeQuotas

from .test_crashes import crashes, nothing

MIB = 1 << 20
LIMITED = {"quota": "required"}


@pytest.fixture
def quotas() -> FakeQuotas:
    return FakeQuotas()


@pytest.fixture
def limiting(site: Any, quotas: FakeQuotas) -> Any:
    site.quotas = quotas
    return site.again().start()


def test_a_volume_is_limited_to_its_size_as_it_is_made_and_as_it_grows(limiting: Any, quotas: FakeQuotas) -> None:
    asset = limiting.provision(size=MIB + 1, parameters=LIMITED)
    assert quotas.limit_of(limiting.path(asset)) == MIB + 1024
    assert limiting.provision(size=MIB + 1, parameters=LIMITED) == asset
    limiting.again().start().expand(limiting.volume(asset), 3 * MIB)
    assert quotas.limit_of(limiting.path(asset)) == 3 * MIB
    assert quotas.limit_of(limiting.path(limiting.provision("u2"))) is None
    limiting.delete(limiting.volume(asset))
    assert set(quotas.limits.values()) == {0}


def test_volumes_have_projects_of_their_own(limiting: Any, quotas: FakeQuotas) -> None:
    made = [limiting.provision(f"u{number}", parameters=LIMITED) for number in range(20)]
    assert len({quotas.projects[limiting.path(asset).stat().st_ino] for asset in made}) == 20


def test_a_growth_that_ended_before_the_limit_was_raised_is_finished(limiting: Any, quotas: FakeQuotas) -> None:
    asset = limiting.provision(parameters=LIMITED)
    quotas.fails = errno.EIO
    with pytest.raises(BackendError):
        limiting.expand(limiting.volume(asset), 2 * MIB)
    quotas.fails = 0
    assert quotas.limit_of(limiting.path(asset)) == MIB
    limiting.expand(limiting.volume(asset), 2 * MIB)
    assert quotas.limit_of(limiting.path(asset)) == 2 * MIB


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (errno.ENOTTY, "without project quotas"),
        (errno.EOPNOTSUPP, "without project quotas"),
        (errno.ESRCH, "mounted with prjquota"),
        (errno.ENOSYS, "Linux 5.14"),
        (errno.EPERM, "as root"),
    ],
)
def test_where_no_limit_can_be_set_no_volume_is_made(limiting: Any, quotas: FakeQuotas, fails: int, words: str) -> None:
    quotas.fails = fails
    with pytest.raises(Unsupported, match=words):
        limiting.provision(parameters=LIMITED)
    assert limiting.leftovers() == []
    assert limiting.provision("u2")


def test_a_limit_that_is_counted_and_not_enforced_is_none(limiting: Any, quotas: FakeQuotas) -> None:
    quotas.enforced = False
    with pytest.raises(Unsupported, match="does not limit them"):
        limiting.provision(parameters=LIMITED)
    assert limiting.leftovers() == []


def test_a_volume_without_a_limit_is_not_given_to_a_class_that_demands_one(limiting: Any) -> None:
    limiting.provision()
    with pytest.raises(AlreadyExists, match="was made with quota 'none', not 'required'"):
        limiting.provision(parameters=LIMITED)


def test_a_volume_is_deleted_though_quotas_are_off(limiting: Any, quotas: FakeQuotas) -> None:
    asset = limiting.provision(parameters=LIMITED)
    quotas.fails = errno.ESRCH
    limiting.delete(limiting.volume(asset))
    assert limiting.leftovers() == []


def test_what_is_archived_keeps_its_project_and_its_number(limiting: Any, quotas: FakeQuotas) -> None:
    for _ in range(2):
        asset = limiting.provision(parameters={**LIMITED, "onDelete": "archive"})
        (limiting.path(asset) / "file").write_text("x")
        limiting.delete(limiting.volume(asset))
    kept = [each / "data" for each in (limiting.root / ".volplane/archive").iterdir()]
    assert len({quotas.projects[each.stat().st_ino] for each in kept}) == 2
    assert [quotas.limit_of(each) for each in kept] == [MIB, MIB]


def test_a_number_that_is_taken_is_not_used_and_the_same_name_asks_for_the_same_numbers() -> None:
    first, second, *_ = numbers_for("pvc-1")
    assert (first, second) == tuple(numbers_for("pvc-1"))[:2]
    assert choose_number("pvc-1", lambda _number: True) == first
    assert choose_number("pvc-1", lambda number: number != first) == second
    assert all(1 << 24 <= number < 1 << 31 for number in numbers_for("pvc-2"))
    with pytest.raises(ResourceExhausted, match="pvc-1"):
        choose_number("pvc-1", lambda _number: False)


@pytest.mark.parametrize(("size", "limit"), [(1, 1024), (1024, 1024), (1025, 2048), (MIB, MIB)])
def test_a_limit_is_in_whole_blocks_and_no_less_than_the_size(size: int, limit: int) -> None:
    assert limit_for(size) == limit


@contextmanager
def ext4(directory: Path) -> Iterator[Path]:
    """A file system with the features quota and project, if this machine lets us mount one."""
    image, point = directory / "image", directory / "disk"
    point.mkdir()
    image.touch()
    os.truncate(image, 16 * MIB)
    limits = ["-O", "quota,project", "-E", "quotatype=prjquota"]
    for features, options in ((limits, "loop,prjquota"), ([], "loop")):  # Kernels without quotas refuse the first.
        make = ["mkfs.ext4", "-q", "-F", *features, str(image)]
        commands = (make, ["mount", "-o", options, str(image), str(point)])
        if not any(subprocess.run(each, check=False, capture_output=True).returncode for each in commands):
            break
    else:
        pytest.skip("mkfs.ext4 is not installed, or mount(2) is not allowed here")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def test_the_kernel_limits_a_directory_or_it_is_refused(new_site: Any, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    with ext4(tmp_path) as point:
        site = new_site(point / "root", create_root=True).start()
        try:
            asset = site.provision(parameters=LIMITED)
        except Unsupported as error:
            assert "prjquota" in error.message  # noqa: PT017 - a kernel without quotas
            assert site.leftovers() == []
            return
        fd = os.open(site.path(asset), os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert KernelQuotas().size_of(fd) == MIB
        finally:
            os.close(fd)
        with pytest.raises(OSError, match="quota"):
            (site.path(asset) / "file").write_bytes(bytes(2 * MIB))
        site.expand(site.volume(asset), 3 * MIB)
        (site.path(asset) / "file").write_bytes(bytes(2 * MIB))
        site.delete(site.volume(asset))
        assert site.leftovers() == []


def test_a_volume_is_limited_wherever_its_making_was_interrupted(
    limiting: Any, quotas: FakeQuotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(site: Any, _prepared: Any) -> None:
        site.provision(parameters=LIMITED)

    for after, _ in crashes(limiting, monkeypatch, nothing, act):
        asset = after.provision(parameters=LIMITED)
        assert quotas.limit_of(after.path(asset)) == MIB


def test_a_deep_tree_that_a_pod_has_put_into_another_project_is_removed(
    limiting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = limiting.provision(parameters=LIMITED)
    below = limiting.path(asset)
    for _ in range(2 * DEPTH):
        below /= "deeper"
        below.mkdir()
    rename = os.rename

    def between_projects(source: str, target: str, **directories: Any) -> None:
        if source == "deeper":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target, **directories)

    monkeypatch.setattr(os, "rename", between_projects)
    limiting.delete(limiting.volume(asset))
    assert limiting.leftovers() == []
