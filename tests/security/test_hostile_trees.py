"""Directories that a tenant made to be hard to remove or to walk: deep, oddly named, changing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from integration.node_cluster import Cluster, now, why_no_sandbox
from volplane.kube.client import Client
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.kubelet.mounts import MountError, remove_tree, set_volume_ownership
from volplane_embedded.kubelet.trees import remove_directory

DEEP = 1200
"""Levels: more than Python recurses, than a path may have characters, than a process may have open files."""
ODD = (b"\xff\xfe", b"new\nline", b"-rf", b" ", b"\xc3\xa4", b"*", b".removing-1")


def deep(top: Path, name: bytes = b"deep") -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    top = tmp_path / "tree"
    top.mkdir()
    yield top
    if top.exists():
        remove_directory(top)


def test_a_deep_tree_is_removed(tree: Path) -> None:
    deep(tree)
    remove_tree(tree)
    assert not tree.exists()


def test_names_that_are_no_text_are_removed_at_every_level(tree: Path) -> None:
    for name in map(os.fsdecode, ODD):
        (tree / name / name / name).mkdir(parents=True)
        for place in (tree / name, tree / name / name):
            (place / f"file-{name}").touch()
    remove_tree(tree)
    assert not tree.exists()


def test_links_are_removed_and_not_followed_and_locked_directories_are_opened(tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    outside.chmod(0o755)
    before = stat.S_IMODE(outside.stat().st_mode)
    (tree / "locked" / "inner").mkdir(parents=True)
    (tree / "locked" / "inner" / "link").symlink_to(outside)
    (tree / "link").symlink_to(outside)
    (tree / "locked" / "inner").chmod(0)
    (tree / "locked").chmod(0)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()
    assert stat.S_IMODE(outside.stat().st_mode) == before


def test_a_file_in_the_place_of_the_directory_is_removed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_somebody_else_removes_meanwhile_is_no_error(tree: Path) -> None:
    for number in range(300):
        (tree / f"a{number}" / "b").mkdir(parents=True)
    threads = [threading.Thread(target=remove_quietly, args=(tree,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remove_tree(tree)
    assert not tree.exists()


def remove_quietly(tree: Path) -> None:
    with contextlib.suppress(MountError):
        remove_tree(tree)


@pytest.mark.skipif(os.geteuid() != 0, reason="only user 0 gives files away")
def test_the_group_of_a_deep_tree_is_set_to_its_bottom(tree: Path) -> None:
    deep(tree, b"\xff" * 4)
    set_volume_ownership(tree, 4711, on_root_mismatch=False)
    here = os.open(tree, os.O_RDONLY)
    for _ in range(DEEP):
        below = os.open(b"\xff" * 4, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    assert (os.fstat(here).st_gid, os.stat("file", dir_fd=here).st_gid) == (4711, 4711)
    os.close(here)


@pytest.mark.real_time
async def test_the_nodes_start_whatever_lies_in_their_data(tmp_path: Path) -> None:
    if message := await asyncio.to_thread(why_no_sandbox, tmp_path / "probe"):
        pytest.skip(message)
    server = ApiServer(now=now, random=Random(1))
    cluster = Cluster(server, Client(InProcessTransport(server)), tmp_path)
    pods = cluster.state / "pods"
    (pods / "orphan" / "volumes" / "v").mkdir(parents=True)
    deep(pods / "orphan" / "volumes" / "v")
    (pods / os.fsdecode(b"\xff")).mkdir()
    (pods / "file").touch()
    (pods / "loop").symlink_to("loop")
    containers = pods / "x" / "containers" / "main"
    containers.mkdir(parents=True)
    os.mkfifo(containers / "0.json")
    (containers / "1.json").write_bytes(b"\xff not json")
    (containers / "2.json").write_text(json.dumps({"event": "started", "pid": -1, "ticks": 1}))
    (containers / "\u00b2.log").touch()
    (containers / f"{'9' * 200}.log").touch()
    (cluster.state / "check").write_text("a file where a directory is made")
    async with cluster.nodes():
        await cluster.run("p", "echo alive")
        assert (await cluster.ended("p"))["status"]["phase"] == "Succeeded"
        assert await cluster.log("p") == "alive\n"
        # What is left of other pods is removed while the node works.
        async with asyncio.timeout(60):
            while len(list(pods.iterdir())) > 1:
                await asyncio.sleep(0.02)
