"""What a start that fails takes back: the files that it made, and a kubeconfig that it wrote over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from volplane_embedded.kubelet.mounts import MountError, remove_tree


@contextmanager
def undone_unless_started(files: Iterable[Path], directories: Iterable[Path]) -> Iterator[Callable[[], None]]:
    """Put files and directories back as they were if the block ends before it has called the yielded function.

    Absent ones are absent again, with the directories above them that were absent. An empty directory is empty again; a
    file has its former content. A directory that held anything stays as the block left it.
    """
    befores = [_file_before(path) for path in files] + [_directory_before(path) for path in directories]
    started = False

    def start() -> None:
        nonlocal started
        started = True

    try:
        yield start
    finally:
        if not started:
            for put_back in befores:
                with contextlib.suppress(OSError, MountError):
                    put_back()


def _file_before(path: Path) -> Callable[[], None]:
    absent = _absent_above(path)
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except FileNotFoundError:
        return lambda: _remove(path, absent)
    except OSError:
        return lambda: None

    def put_back() -> None:
        if path.read_bytes() != content:
            path.write_bytes(content)
            path.chmod(mode)

    return put_back


def _directory_before(path: Path) -> Callable[[], None]:
    absent = _absent_above(path)
    try:
        filled = any(path.iterdir())
    except FileNotFoundError:
        return lambda: _remove(path, absent)
    except OSError:
        filled = True

    def put_back() -> None:
        if not filled:
            for each in list(path.iterdir()):
                remove_tree(each)

    return put_back


def _absent_above(path: Path) -> list[Path]:
    """Directories above it that do not exist, the deepest first."""
    return [each for each in path.absolute().parents if not each.exists()]


def _remove(path: Path, absent: Iterable[Path]) -> None:
    remove_tree(path)
    for each in absent:
        each.rmdir()
