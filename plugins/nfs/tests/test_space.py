"""Free space and limits: what the server tells, and what a class with `quota: required` makes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from volplane import ProvisionRequest, Unavailable
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model.state import Node

from .conftest import MIB, Site

REQUIRED = {"quota": "required"}


def directory_of(model: ModelServer) -> Node:
    """Of the only volume."""
    (node,) = model.share.children[b"default"].children.values()
    return node


@pytest.fixture
def waiting(site: Site) -> ProvisionRequest:
    """A demand whose directory is made, and has no limit."""
    request = site.demand(parameters=REQUIRED)
    with pytest.raises(Unavailable, match=r"has no limit, which quota: required of its class demands: set a quota of"):
        site.provision(request)
    return request


def test_a_volume_is_handed_out_once_its_directory_is_limited(
    site: Site, model: ModelServer, waiting: ProvisionRequest
) -> None:
    directory_of(model).limit = MIB
    assert site.provision(waiting)[1].capacity_bytes == MIB


def test_a_limit_may_be_short_by_the_blocks_in_which_the_server_counts(
    site: Site, model: ModelServer, waiting: ProvisionRequest
) -> None:
    directory_of(model).limit = MIB - 4096
    site.provision(waiting)


def test_a_limit_below_the_size_is_not_enough(site: Site, model: ModelServer, waiting: ProvisionRequest) -> None:
    directory_of(model).limit = MIB // 2
    with pytest.raises(Unavailable, match=f"limited to {MIB // 2} bytes, and {MIB} are promised"):
        site.provision(waiting)


def test_the_quota_of_the_directory_in_the_attributes_of_the_protocol_is_a_limit(
    site: Site, model: ModelServer, waiting: ProvisionRequest
) -> None:
    directory_of(model).quota = (MIB - 100, 100)
    site.provision(waiting)


def test_the_quota_of_the_drivers_user_is_no_limit_of_a_volume(
    site: Site, model: ModelServer, waiting: ProvisionRequest
) -> None:
    model.share.quota = (64 * MIB, 0)
    with pytest.raises(Unavailable, match="has no limit"):
        site.provision(waiting)


def test_the_quota_of_the_drivers_user_is_what_is_free(site: Site, model: ModelServer) -> None:
    model.share.quota = (64 * MIB, 7)
    assert site.capacity() == 64 * MIB


def test_a_volume_that_waits_for_its_limit_can_be_deleted(
    site: Site, model: ModelServer, waiting: ProvisionRequest
) -> None:
    site.delete(site.volume((waiting, site.find(waiting))))
    assert b"default" not in model.share.children


def test_a_volume_grows_once_its_limit_has_grown(site: Site, model: ModelServer, waiting: ProvisionRequest) -> None:
    directory_of(model).limit = MIB
    volume = site.volume(site.provision(waiting))
    with pytest.raises(Unavailable, match="raise its quota"):
        site.expand(volume, 2 * MIB)
    assert site.listed()[0].capacity_bytes == 2 * MIB, "the server's agent reads there what to set"
    directory_of(model).limit = 2 * MIB
    assert site.expand(volume, 2 * MIB).capacity_bytes == 2 * MIB


def test_a_class_that_requires_nothing_is_served_without_a_limit(site: Site, model: ModelServer) -> None:
    site.provision(parameters={"quota": "none"})
    assert directory_of(model).limit is None


PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "provision-on-nfs.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is beside the source only")
def test_the_script_of_the_documentation_sets_each_volume_its_size(
    site: Site, model: ModelServer, tmp_path: Path
) -> None:
    """The tools that set quotas are replaced by ones that write down how they were called."""
    share, tools, called = tmp_path / "share", tmp_path / "tools", tmp_path / "called"
    markers = share / ".volplane" / "volumes"
    markers.mkdir(parents=True)
    tools.mkdir()
    volumes = [site.provision(capacity_bytes=size)[1] for size in (MIB, 3 * MIB + 1)]
    for name, node in model.share.children[b".volplane"].children[b"volumes"].children.items():
        (markers / os.fsdecode(name)).symlink_to(node.data.decode())
    directories = [share / str(volume.source.fields["path"]).removeprefix("/vol/") for volume in volumes]
    for directory in directories:
        directory.mkdir(parents=True)
    for tool in ("chattr", "setquota"):
        (tools / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {called}\n')
        (tools / tool).chmod(0o755)
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    subprocess.run(
        [shutil.which("sh") or "sh", "-euc", script, "sh", str(share)],
        check=True,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    projects = [directory.stat().st_ino % 4294967294 + 1 for directory in directories]
    assert sorted(called.read_text().splitlines()) == sorted(
        [
            *(f"chattr -p {project} +P {place}" for project, place in zip(projects, directories, strict=True)),
            f"setquota -P {projects[0]} 0 1024 0 0 {share}",
            f"setquota -P {projects[1]} 0 3073 0 0 {share}",
        ]
    )
