"""Where a container gets a cgroup of its own, and what stands in it. On a directory in the shape of a cgroup tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from volplane_embedded.sandbox.limits import Cgroup, own_cgroup, why_no_cgroup
from volplane_embedded.sandbox.spec import Spec

OWN = "/user.slice/session-3.scope"
SPEC = Spec(argv=[], env={}, base="", log="", result="", memory_bytes=1000, processes=7)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A session whose parent enables the controllers."""
    (tmp_path / OWN.lstrip("/")).mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    parent = tmp_path / "user.slice"
    (parent / "cgroup.subtree_control").write_text("memory pids\n")
    (parent / "cgroup.procs").touch()
    (parent / "session-3.scope" / "cgroup.procs").touch()
    return tmp_path


def test_the_cgroup_of_version_2_is_told_from_those_of_version_1() -> None:
    assert own_cgroup("9:name=systemd:/x\n0::/user.slice/a\n") == "/user.slice/a"
    assert own_cgroup("1:cpu:/x\n") == ""


def test_a_command_gets_a_cgroup_beside_ours_with_its_limits(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_dir = tree / "user.slice" / f"volplane-container-{os.getpid()}"
    mkdir = Path.mkdir

    def with_files(path: Path, *arguments: object, **options: object) -> None:
        mkdir(path, *arguments, **options)  # type: ignore[arg-type]
        for name in ("memory.max", "memory.oom.group", "pids.max", "cgroup.procs"):
            (path / name).touch()

    monkeypatch.setattr(Path, "mkdir", with_files)
    cgroup = Cgroup.make(SPEC, tree, OWN)
    assert cgroup is not None
    found = {path.name: path.read_text() for path in made_dir.iterdir()}
    assert found == {"memory.max": "1000", "memory.oom.group": "1", "pids.max": "7", "cgroup.procs": ""}
    cgroup.enter()
    assert (made_dir / "cgroup.procs").read_text() == str(os.getpid())
    cgroup.leave()
    assert (tree / "user.slice" / "session-3.scope" / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("spoil", "own", "why"),
    [
        (lambda tree: (tree / "cgroup.controllers").unlink(), OWN, "no cgroup file system of version 2 is mounted"),
        (lambda _tree: None, "/", "this process is in the root cgroup"),
        (lambda _tree: None, "", "this process is in the root cgroup"),
        (
            lambda tree: (tree / "user.slice" / "cgroup.subtree_control").write_text("pids"),
            OWN,
            "does not enable memory for its children",
        ),
        (lambda tree: (tree / "user.slice" / "cgroup.procs").unlink(), OWN, "is not delegated to this user"),
        (lambda _tree: None, "/absent/scope", "No such file or directory"),
    ],
)
def test_where_none_can_be_had_the_reason_is_told_and_none_is_made(
    tree: Path, spoil: object, own: str, why: str
) -> None:
    spoil(tree)  # type: ignore[operator]
    assert why in why_no_cgroup(tree, own)
    assert Cgroup.make(SPEC, tree, own) is None
