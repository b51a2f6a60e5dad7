"""How much memory and how many processes a sandboxed command can use.

In a cgroup of its own, where one can be made: beside the cgroup of this process, if its parent may be written and has
the controllers memory and pids enabled for its children, as in a session of systemd. Elsewhere each process has a limit
of its own (RLIMIT_DATA), and the number of processes is limited by the process id namespace (Linux 6.14) or, for users
other than 0, by RLIMIT_NPROC.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final, Self

from volplane_embedded.sandbox.spec import Spec

_ROOT: Final = Path("/sys/fs/cgroup")
_NEEDED: Final = frozenset({"memory", "pids"})
_FEWEST_IDS: Final = 301
"""The kernel takes no smaller kernel.pid_max."""


def own_cgroup(text: str | None = None) -> str:
    """Path of this process's cgroup of version 2, "" if there is none. text: of /proc/self/cgroup."""
    lines = (Path("/proc/self/cgroup").read_text() if text is None else text).splitlines()
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def why_no_cgroup(root: Path = _ROOT, own: str | None = None) -> str:
    """Explain why no cgroup can be made for a command, or "". Changes nothing."""
    path = own_cgroup() if own is None else own
    here = root / path.lstrip("/")
    if not (root / "cgroup.controllers").exists():
        return f"no cgroup file system of version 2 is mounted at {root}"
    if path in {"", "/"}:
        return "this process is in the root cgroup"
    try:
        enabled = set((here.parent / "cgroup.subtree_control").read_text().split())
    except OSError as error:
        return f"{here.parent}: {error.strerror}"
    if missing := sorted(_NEEDED - enabled):
        return f"{here.parent} does not enable {', '.join(missing)} for its children"
    if not all(os.access(place, os.W_OK) for place in (here.parent, here.parent / "cgroup.procs")):
        return f"{here.parent} is not delegated to this user"
    return ""


class Cgroup:
    """The cgroup of one command. The process that makes it enters it to fork the command, and leaves it then."""

    def __init__(self, path: Path, home: Path) -> None:
        self._path = path
        self._home = home

    @classmethod
    def make(cls, spec: Spec, root: Path = _ROOT, own: str | None = None) -> Self | None:
        """None where none can be made. Raises OSError if the kernel refuses one that should be possible."""
        path = own_cgroup() if own is None else own
        if why_no_cgroup(root, path):
            return None
        home = root / path.lstrip("/")
        made = cls(home.parent / f"volplane-container-{os.getpid()}", home)
        made._path.mkdir()
        try:
            made._set(spec)
        except OSError:
            made.remove()
            raise
        return made

    def _set(self, spec: Spec) -> None:
        values = {"memory.max": spec.memory_bytes, "memory.swap.max": 0, "memory.oom.group": 1}
        for name, value in {**values, "pids.max": spec.processes}.items():
            # A kernel without swap accounting has no such file.
            with contextlib.suppress(FileNotFoundError):
                _write(self._path / name, str(value))

    def enter(self) -> None:
        """Move this process, and what it starts from now on, into the cgroup."""
        _write(self._path / "cgroup.procs", str(os.getpid()))

    def leave(self) -> None:
        """Move this process back; what it has started stays."""
        _write(self._home / "cgroup.procs", str(os.getpid()))

    def remove(self) -> None:
        """Remove it, once it is empty."""
        with contextlib.suppress(OSError):
            self._path.rmdir()


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def default_memory() -> int:
    """Return the bytes for a container that names no limit: half of this machine's."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def limit_process_ids(spec: Spec) -> None:
    """Limit the process ids of the calling process's namespace, where the kernel can."""
    with contextlib.suppress(OSError):
        _write(Path("/proc/sys/kernel/pid_max"), str(max(spec.processes, _FEWEST_IDS)))


def limit_process(spec: Spec) -> None:
    """Limit the calling process and what it starts, each alone."""
    for what, most in ((resource.RLIMIT_DATA, spec.memory_bytes), (resource.RLIMIT_NPROC, spec.processes)):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
