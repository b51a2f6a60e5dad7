"""Free space and limits: what the server tells, and what a class with `quota: required` makes of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from volplane import CapacityRequest, ProvisionRequest, Unavailable
from volplane_nfs.nfs4.attributes import DIRECTORY
from volplane_nfs.parameters import PARAMETERS
from volplane_nfs.testing import ModelServer
from volplane_nfs.testing.model.state import Node

from .conftest import MIB, Site, defaults

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


TOOLS = {
    "findmnt": "echo /srv",
    "chattr": 'echo chattr "$@" >> {called}',
    "setquota": 'echo setquota "$@" >> {called}; test ! -e {broken} && cat >> {called}',
}
"""In place of the tools that set quotas: they write down how they were called."""


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is beside the source only")
def test_the_script_of_the_documentation_sets_each_volume_its_size(
    site: Site, model: ModelServer, tmp_path: Path
) -> None:
    share, tools, called = tmp_path / "share", tmp_path / "tools", tmp_path / "called"
    markers, broken = share / ".volplane" / "volumes", tmp_path / "broken"
    markers.mkdir(parents=True)
    tools.mkdir()
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    for name, text in TOOLS.items():
        (tools / name).write_text(f"#!/bin/sh\n{text.format(called=called, broken=broken)}\n")
        (tools / name).chmod(0o755)

    def run(*sizes: int) -> tuple[list[Path], list[str]]:
        """Make volumes and run the script once; their directories, and the calls of tools that set something."""
        made = [site.provision(capacity_bytes=size)[1] for size in sizes]
        for name, node in model.share.children[b".volplane"].children[b"volumes"].children.items():
            (markers / os.fsdecode(name)).unlink(missing_ok=True)
            (markers / os.fsdecode(name)).symlink_to(node.data.decode())
        places = [share / str(each.source.fields["path"]).removeprefix("/vol/") for each in made]
        for place in places:
            place.mkdir(parents=True)
        called.write_text("")
        command = [shutil.which("sh") or "sh", "-uc", script, "sh", str(share)]
        subprocess.run(command, check=False, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
        return places, called.read_text().splitlines()

    def project(place: Path) -> int:
        return place.stat().st_ino % 4294967294 + 1

    def limit(place: Path, blocks: int) -> str:
        return f"{project(place)} 0 {blocks} 0 0"

    (first, second), calls = run(MIB, 3 * MIB + 1)
    assert sorted(calls) == sorted(
        [
            *(f"chattr -p {project(place)} +P {place}" for place in (first, second)),
            "setquota -P -b /srv",
            limit(first, 1024),
            limit(second, 3073),
        ]
    )
    assert run() == ([], []), "nothing changed"
    broken.touch()
    (third,), _ = run(5 * MIB)
    broken.unlink()
    assert limit(third, 5120) in run()[1], "what failed is done again"
    volumes = model.share.children[b".volplane"].children[b"volumes"].children
    [grown] = [node for node in volumes.values() if first.name.encode() in node.data]
    grown.data = grown.data.replace(b'"capacity_bytes":%d,"demand"' % MIB, b'"capacity_bytes":%d,"demand"' % (2 * MIB))
    assert run()[1] == [f"chattr -p {project(first)} +P {first}", "setquota -P -b /srv", limit(first, 2048)]


def test_the_space_of_shares_on_one_file_system_counts_once(model: ModelServer) -> None:
    for name in (b"a", b"b", b"limited"):
        model.enter(model.share, name, model.make(DIRECTORY, model.share))
    other = ModelServer()
    other.available = 5 * MIB
    shares = [f"nfs://model.example.com/vol/{name}" for name in ("a", "b", "limited")] + ["nfs://other.example.com/vol"]
    model.available = 64 * MIB
    model.share.children[b"limited"].limit = 3 * MIB
    dials = {"model.example.com": model.dial, "other.example.com": other.dial}
    site = Site(",".join(shares), lambda address, seconds: dials[address.host](address, seconds)).start()
    answer = site.backend.get_capacity(CapacityRequest(context=site.context(), parameters=defaults(PARAMETERS)))
    assert answer.available_bytes == (64 + 3 + 5) * MIB
    assert answer.maximum_volume_bytes == 64 * MIB
