"""The engine for copies on directories of this machine: whatever is in a tree, whoever kills it, whatever changes."""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from volplane import Unsupported
from volplane.directory import DEEPEST, TreeCopy, local_trees
from volplane.directory.dirfd import MountIdentity
from volplane.directory.local_trees import LocalTrees
from volplane_hostpath.testing import MEMORY

AS_ROOT = os.geteuid() == 0


class Killed(BaseException):
    """The process ends here."""


class Steps:
    """The calls of a storage, counted. before, after: called with the number of each."""

    def __init__(self, trees: LocalTrees) -> None:
        self.trees = trees
        self.count = 0
        self.before: Callable[[int], None] = lambda _: None
        self.after: Callable[[int], None] = lambda _: None

    @property
    def open_pairs(self) -> int:
        return self.trees.open_pairs

    def __getattr__(self, name: str) -> Any:
        do = getattr(self.trees, name)
        if name == "leave":
            return do

        def step(*given: Any) -> Any:
            self.count += 1
            number = self.count
            self.before(number)
            result = do(*given)
            self.after(number)
            return result

        return step


class Copying:
    """A copy of a directory, as a driver makes it."""

    def __init__(self, directory: Path, source: Path) -> None:
        self.source = source
        self.container = directory
        self.copy = directory / "data"
        self.copy.mkdir(parents=True)
        self.hint: dict[str, Any] = {}
        self.done = False
        # What was made for a test just now was there before the copy was begun.
        probe = directory / "clock"
        while True:
            probe.touch()
            self.since = probe.stat().st_ctime_ns
            if self.since > latest(source):
                break
        probe.unlink()

    @contextmanager
    def trees(self) -> Iterator[Steps]:
        source, container = (os.open(path, os.O_RDONLY) for path in (self.source, self.container))
        try:
            yield Steps(LocalTrees(source, container, MountIdentity.of(source), label="copy"))
        finally:
            os.close(source)
            os.close(container)

    def run(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        prepare: Callable[[Steps], None] = lambda _: None,
        kept: TreeCopy[Any] | None = None,
        **given: Any,
    ) -> TreeCopy[Any]:
        """A slice, or all of it."""
        with self.trees() as trees:
            prepare(trees)
            copy = kept or TreeCopy(trees, since=self.since, hint=self.hint, **given)
            copy.trees = trees
            self.done = copy.work(should_stop)
            self.hint = copy.hint
            return copy


def latest(directory: Path) -> int:
    """When anything in a tree changed last."""
    found = [directory.stat().st_ctime_ns]
    for _, below, files, fd in os.fwalk(directory):
        found += [os.stat(name, dir_fd=fd, follow_symlinks=False).st_ctime_ns for name in (*below, *files)]
    return max(found)


def tree(directory: Path) -> dict[bytes, Any]:
    """Everything that a copy is to have of a tree."""
    found: dict[bytes, Any] = {}
    inodes: dict[int, bytes] = {}
    for above, directories, files in os.walk(os.fsencode(directory)):
        for name in [b"", *directories, *files]:
            path = above + b"/" + name if name else above
            key = os.path.relpath(path, os.fsencode(directory))
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            content: Any = None
            if kind == stat.S_IFREG:
                content = Path(os.fsdecode(path)).read_bytes()
            elif kind == stat.S_IFLNK:
                content = os.readlink(path)  # noqa: PTH115 - any bytes
            attributes = {each: os.getxattr(path, each) for each in xattrs(path)} if kind != stat.S_IFLNK else {}
            first = inodes.setdefault(status.st_ino, key) if kind != stat.S_IFDIR else key
            owner = (status.st_uid, status.st_gid) if AS_ROOT else ()
            found[key] = (
                status.st_mode,
                owner,
                status.st_mtime_ns,
                status.st_rdev,
                content,
                attributes,
                first,
            )
    return found


def xattrs(path: bytes) -> list[str]:
    return [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]


def plant(directory: Path) -> None:
    """Make a tree with something of everything."""
    directory.mkdir()
    (directory / "plain").write_text("plain text")
    (directory / "empty").touch(mode=0o600)
    (directory / "secret").write_bytes(os.urandom(70_000))
    (directory / "secret").chmod(0o4750)
    (directory / os.fsdecode(b"odd \xff\n name\x01")).write_text("odd")
    (directory / ("long" * 63)).write_text("long")
    (directory / ".hidden").mkdir(mode=0o2775)
    (directory / ".hidden" / "data").write_text("hidden")
    (directory / "link").symlink_to("/etc/passwd")
    (directory / "dangling").symlink_to("../" * 40 + "nowhere")
    os.mkfifo(directory / "pipe", 0o640)
    below = directory / "a" / "b" / "c"
    below.mkdir(parents=True)
    (below / "first").write_text("one file of three names")
    os.link(below / "first", directory / "second")
    os.link(below / "first", directory / "a" / "third")
    (directory / "closed").mkdir(mode=0o700)
    (directory / "closed" / "x").write_text("x")
    (directory / "nothing in it").mkdir()
    with (directory / "sparse").open("wb") as file:
        file.seek(256 << 10)
        file.write(b"in the middle")
        file.truncate(1 << 20)
    try:
        os.setxattr(directory / "plain", "user.note", b"kept")
        os.setxattr(directory / "a", "user.note", b"kept too")
    except OSError:
        pass  # The file system has none.
    if AS_ROOT:
        os.chown(directory / "plain", 1234, 4321)
        os.chown(directory / "a", 1234, 4321)
        os.lchown(directory / "link", 1234, 4321)
    for path in [*directory.rglob("*"), directory]:
        os.utime(path, ns=(10**18 + 7, 10**18 + path.lstat().st_ino % 10**9), follow_symlinks=False)
    (directory / "closed").chmod(0o500)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if possible: what waits for a disk takes long."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="volplane-", dir=MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    plant(tmp_path / "source")
    return tmp_path / "source"


def kill_at(step: int, *, after: bool) -> Callable[[Steps], None]:
    def prepare(steps: Steps) -> None:
        def strike(number: int) -> None:
            if number == step:
                raise Killed

        if after:
            steps.after = strike
        else:
            steps.before = strike

    return prepare


def test_a_copy_has_everything_that_is_in_a_tree(source: Path, tmp_path: Path) -> None:
    copying = Copying(tmp_path / "copy", source)
    done = copying.run()
    assert copying.done
    assert tree(copying.copy) == tree(source)
    assert (copying.copy / "sparse").stat().st_blocks * 512 < 256 << 10
    assert (done.counts.changed, done.counts.mended, done.counts.left_out) == (0, 0, 0)
    assert done.counts.entries == len(tree(source))


@pytest.mark.parametrize("way", ["ranges", "reads"])
def test_every_way_to_copy_a_file_copies_all_of_it(
    source: Path, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    if way == "reads":
        monkeypatch.setattr(os, "copy_file_range", refuse)
    copying = Copying(tmp_path / "copy", source)
    copying.run()
    assert tree(copying.copy) == tree(source)
    assert (copying.copy / "sparse").stat().st_blocks * 512 < 256 << 10


def test_a_copy_that_is_killed_at_any_step_goes_on(source: Path, tmp_path: Path) -> None:
    """Before each step, and after it."""
    whole = tree(source)
    for step in itertools.count(1):
        copying = Copying(tmp_path / f"copy{step}", source)
        try:
            copying.run(prepare=kill_at(-(-step // 2), after=not step % 2))
        except Killed:
            done = copying.run()  # No hint: it is found by comparing.
        else:
            assert step > 100
            return
        assert copying.done
        assert tree(copying.copy) == whole, f"killed at step {step}"
        assert (done.counts.changed, done.counts.entries) == (0, len(whole))
        shutil.rmtree(copying.container)


def test_a_copy_in_the_smallest_slices_counts_everything_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_trees, "_PART", 30_000)
    copying = Copying(tmp_path / "copy", source)
    (source / "plain").write_text("written meanwhile")
    slices = 1
    done = copying.run(should_stop=lambda: True, contents=True)
    while not copying.done:
        slices += 1
        assert slices < 1_000
        done = copying.run(should_stop=lambda: True, contents=True)
    assert slices > 30
    assert tree(copying.copy) == tree(source)
    assert (done.counts.changed, done.counts.entries) == (1, len(tree(source)))


def test_a_large_file_goes_on_where_a_slice_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_trees, "_PART", 1 << 20)
    monkeypatch.setattr(local_trees.LocalTrees, "_cloned", lambda *_: False)
    asked: list[int] = []
    ranges = local_trees.LocalTrees._copy_range

    def copy_range(self: Any, source: int, copy: int, offset: int, count: int) -> int:
        asked.append(offset)
        return ranges(self, source, copy, offset, count)

    monkeypatch.setattr(local_trees.LocalTrees, "_copy_range", copy_range)
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(5 << 20))
    copying = Copying(tmp_path / "copy", source)
    copying.run(should_stop=lambda: True)
    while not copying.done:
        copying.run(should_stop=lambda: True)
    assert asked == [number << 20 for number in range(5)]
    assert tree(copying.copy) == tree(source)


def test_what_changes_meanwhile_is_counted_and_copied(source: Path, tmp_path: Path) -> None:
    copying = Copying(tmp_path / "copy", source)

    def change(steps: Steps) -> None:
        def strike(_: int) -> None:
            if not (source / "a" / "new").exists() and (copying.copy / "a" / "b" / "c").exists():
                (source / "a" / "new").write_text("new")
                (source / "plain").write_text("changed")
                (source / "empty").unlink()

        steps.after = strike

    done = copying.run(prepare=change)
    assert (copying.copy / "plain").read_text() == "changed"
    assert (copying.copy / "a" / "new").read_text() == "new"
    # The file, the two that came and went, and the directories of these.
    assert done.counts.changed == 5
    assert done.counts.mended == 0


def test_a_copy_that_was_tampered_with_is_mended(source: Path, tmp_path: Path) -> None:
    copying = Copying(tmp_path / "copy", source)
    copying.run()
    (copying.copy / "plain").write_text("tampered")
    secret = copying.copy / "secret"
    kept = secret.stat()
    with secret.open("r+b") as file:
        file.write(b"tampered")
    os.utime(secret, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    secret.chmod(0o4750)
    # As when the second pass has begun: the first only copies what is missing.
    copying.hint = {"pass": 2, "since": copying.since}
    done = copying.run(contents=True)
    assert tree(copying.copy) == tree(source)
    assert done.counts.mended == 2


def test_holes_of_terabytes_are_compared_at_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"data")
    copying = Copying(tmp_path / "copy", source)
    slices = 0
    while not copying.done:
        copying.run(should_stop=lambda: True, contents=True)
        slices += 1
        assert slices < 20
    with (copying.copy / "sparse").open("r+b") as file:
        file.seek(1 << 39)
        assert file.read(4) == b"data"
        file.seek(1 << 30)
        file.write(b"tampered")
    os.utime(copying.copy / "sparse", ns=(0, (source / "sparse").stat().st_mtime_ns))
    copying.hint = {"pass": 2, "since": copying.since}
    assert copying.run(contents=True).counts.mended == 1


@pytest.mark.parametrize("start", range(0, 48, 4))
def test_a_hostile_tenant_leads_a_copy_nowhere(tmp_path: Path, start: int) -> None:
    """From some step on, directories become links to others' data, and files links, pipes and directories."""
    outside, source = tmp_path / "outside", tmp_path / "source"
    for top, text in ((outside, "of others"), (source, "ours")):
        for place in (top, top / "d", top / "d" / "d"):
            place.mkdir()
            for name in ("x", "y", "z"):
                (place / name).write_text(text)
    copying = Copying(tmp_path / "copy", source)

    def attack(number: int) -> None:
        if number in {start, start + 1}:
            away = source / "d" / "d" if number == start else source / "d"
            away.rename(tmp_path / f"away{number}")
            away.symlink_to(outside)
        if number == start + 2:
            (source / "x").unlink()
            (source / "x").symlink_to(outside / "x")
            (source / "y").unlink()
            os.mkfifo(source / "y")
            (source / "z").unlink()
            (source / "z").mkdir()

    def prepare(steps: Steps) -> None:
        steps.before = attack

    copying.run(prepare=prepare)
    assert copying.done
    for where, _, files in os.walk(copying.copy):
        for name in files:
            path = Path(where, name)
            assert path.is_symlink() or path.is_fifo() or path.read_text() == "ours"
    assert (outside / "x").read_text() == "of others"


def test_a_file_that_grows_without_end_is_copied_up_to_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "log").write_bytes(b"x" * 100_000)
    monkeypatch.setattr(local_trees.LocalTrees, "_cloned", lambda *_: False)
    ranges = local_trees.LocalTrees._copy_range

    def growing(self: Any, of: int, copy: int, offset: int, count: int) -> int:
        with (source / "log").open("ab") as file:
            file.write(b"y" * 50_000)
        return ranges(self, of, copy, offset, min(count, 40_000))

    monkeypatch.setattr(local_trees.LocalTrees, "_copy_range", growing)
    copying = Copying(tmp_path / "copy", source)
    done = copying.run()
    assert copying.done
    assert done.counts.changed == 1
    assert (source / "log").read_bytes().startswith((copying.copy / "log").read_bytes())


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_deep_tree_needs_few_descriptors_and_short_hints(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fd = os.open(source, os.O_RDONLY)
    for _ in range(120):
        os.mkdir("d" * 100, dir_fd=fd)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(fd)
        fd = below
    os.close(fd)
    copying = Copying(tmp_path / "copy", source)
    gc.collect()  # What other tests left open.
    before = descriptors()
    most = 0

    def stop() -> bool:
        nonlocal most
        most = max(most, descriptors())
        return next(ticks) % 50 == 0

    ticks = itertools.count(1)
    copy: TreeCopy[Any] | None = None
    while not copying.done:
        copy = copying.run(should_stop=stop, kept=copy)
        assert len(json.dumps(copy.hint)) < 3_500
    assert most - before < 45
    assert copy is not None
    assert copy.counts.entries == 241
    assert descriptors() <= before
    shutil.rmtree(source)
    shutil.rmtree(copying.container)


def test_a_tree_deeper_than_any_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEEPEST >= 2048
    monkeypatch.setattr("volplane.directory.copies.DEEPEST", 20)
    (tmp_path / "source" / "/".join("d" * 30)).mkdir(parents=True)
    with pytest.raises(Unsupported, match="more than 20 levels"):
        Copying(tmp_path / "copy", tmp_path / "source").run()


def test_a_hint_that_cannot_be_read_is_none(source: Path, tmp_path: Path) -> None:
    copying = Copying(tmp_path / "copy", source)
    for hint in ({"pass": "2", "path": 7, "file": "abc"}, {"path": [["zz", "source", 0]], "counts": [1], "next": 7}):
        copying.hint = {"since": copying.since, **hint}
        copying.run()
        assert tree(copying.copy) == tree(source)


def test_an_empty_tree_is_copied(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    copying = Copying(tmp_path / "copy", tmp_path / "source")
    assert copying.run().counts.entries == 1
    assert latest(copying.copy)
    assert isinstance(copying.run(), TreeCopy)
