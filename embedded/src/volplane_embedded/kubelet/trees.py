"""Removes and walks directory trees that tenants made: of any depth, with any names, and changing meanwhile.

Nothing here recurses, holds a descriptor for each level, builds a path that grows with the depth, or follows a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL: Final = stat.S_IRWXU
_RESTARTS: Final = 20
"""How often a removal begins again because something else moves or removes parts of the tree."""


class TreeChanged(OSError):
    """A directory was moved or removed while the tree was walked."""


def remove_directory(directory: Path) -> None:
    """Remove a directory and all below it. Raises OSError, after removing all that can be removed."""
    for _ in range(_RESTARTS):
        try:
            failures = _remove_below(directory)
        except FileNotFoundError:
            return
        except TreeChanged:
            continue
        if failures:
            raise failures[0]
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()
        return
    raise TreeChanged(errno.EBUSY, "it is changed as fast as it is removed", str(directory))


def _remove_below(directory: Path) -> list[OSError]:
    failures: list[OSError] = []
    visit_tree(directory, lambda name, parent: _remove(name, parent, failures), unlock=True)
    return failures


def _remove(name: str, parent: int, failures: list[OSError]) -> None:
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except OSError as error:
        failures.append(error)


def visit_tree(directory: Path, visit: Callable[[str, int], None], *, unlock: bool = False) -> None:
    """Call `visit(name, parent)` for every entry below a directory, those of a directory before the directory itself.

    parent: a descriptor of the directory that has the entry. An entry that vanishes is passed over. unlock: let this
    user list and change each directory first, if it is the user's. Raises OSError of `visit` but FileNotFoundError, and
    TreeChanged.
    """
    if unlock:
        _unlock(str(directory), None)
    here = os.open(directory, _DIRECTORY)
    above: list[tuple[tuple[int, int], str, list[str]]] = []
    try:
        names = os.listdir(here)  # noqa: PTH208 -- of a descriptor
        while True:
            while names:
                name = names.pop()
                inner = _opened(name, here, unlock=unlock)
                if inner is None:
                    _visit(visit, name, here)
                    continue
                above.append((_identity(here), name, names))
                os.close(here)
                here, names = inner, os.listdir(inner)  # noqa: PTH208
            if not above:
                return
            identity, name, names = above.pop()
            parent = _parent(here, directory)
            os.close(here)
            here = parent
            if _identity(here) != identity:
                raise TreeChanged(errno.EBUSY, "it was changed while it was walked", str(directory))
            _visit(visit, name, here)
    finally:
        os.close(here)


def _opened(name: str, parent: int, *, unlock: bool) -> int | None:
    """Return a descriptor, if it is a directory that can be read."""
    if unlock and os.geteuid() != 0:
        _unlock(name, parent)
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError:
        return None


def _unlock(name: str, parent: int | None) -> None:
    with contextlib.suppress(OSError):
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            Path(f"/proc/self/fd/{fd}").chmod(_ALL)
        finally:
            os.close(fd)


def _parent(fd: int, directory: Path) -> int:
    try:
        return os.open("..", _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        raise TreeChanged(errno.EBUSY, "it was removed while it was walked", str(directory)) from None


def _visit(visit: Callable[[str, int], None], name: str, parent: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        visit(name, parent)


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
