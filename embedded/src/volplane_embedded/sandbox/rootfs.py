"""The file system of a sandboxed command: the host's programs, read-only, with the volumes mounted in it.

Built in a fresh mount namespace, in this order: a tmpfs becomes the root and the host's tree moves to /old below it;
the new root is a second tmpfs at /new in which parts of the host's tree are bound read-only; volumes are bound on top;
the host's tree is unmounted. Paths that belong to the command are resolved with /new as their root and never through
magic links, so that no symlink in a volume reaches the host.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from volplane_embedded.sandbox import libc
from volplane_embedded.sandbox.host_tree import mask_proc, show_host
from volplane_embedded.sandbox.spec import Bind, Spec

_SIZES: Final = {"run": "size=16m,nr_inodes=10k", "dev": "size=1m,nr_inodes=1k", "shm": "size=64m,nr_inodes=10k"}
"""Of the small file systems in memory that each command has of its own."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_PLAIN: Final = libc.MS_NOSUID | libc.MS_NODEV


class MountFailure(Exception):
    """Why a volume cannot be mounted. The message names source and target."""


def build(spec: Spec) -> None:
    """Make the tree that `spec` describes the root of the calling process, which is alone in a new mount namespace.

    Raises MountFailure for what is wrong with a bind, OSError where the kernel refuses the tree itself.
    """
    libc.mount(None, "/", None, libc.MS_REC | libc.MS_PRIVATE)
    sources = [_open_source(bind) for bind in spec.binds]
    libc.mount("tmpfs", spec.base, "tmpfs", _PLAIN, "mode=755,size=16m,nr_inodes=10k")
    os.chdir(spec.base)
    for name in ("old", "new", "skeletons"):
        Path(name).mkdir()
    libc.pivot_root(".", "old")
    os.chdir("/")
    libc.mount("tmpfs", "/new", "tmpfs", _PLAIN, "mode=755,size=16m,nr_inodes=10k")
    show_host(Path("/new"))
    _mount_private(spec)
    root = os.open("/new", os.O_PATH | os.O_DIRECTORY)
    _hide(root, spec.hidden)
    _make_mount_points(root, [(bind, _is_directory(fd)) for bind, fd in zip(spec.binds, sources, strict=True)])
    for bind, fd in _by_depth(spec.binds, sources):
        _bind_volume(root, bind, fd)
    mask_proc(Path("/new/proc"))
    for path in ("/new/run", "/new/proc", "/new"):
        libc.restrict_mount(path)
    libc.restrict_mount("/new/dev", devices=True)
    if not spec.scratch:
        libc.restrict_mount("/new/tmp")
        libc.restrict_mount("/new/dev/shm")
    os.chdir("/new")
    libc.pivot_root(".", ".")
    libc.unmount_detached(".")
    os.chdir("/")


def _by_depth(binds: list[Bind], sources: list[int]) -> list[tuple[Bind, int]]:
    pairs = zip(binds, sources, strict=True)
    return sorted(pairs, key=lambda pair: len(PurePosixPath(pair[0].target).parts))


def _is_directory(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def _fd_path(fd: int) -> str:
    """Return the path of an open descriptor, for system calls that take a path."""
    return f"/new/proc/self/fd/{fd}"


# --- sources ------------------------------------------------------------------------------------------------------


def _open_source(bind: Bind) -> int:
    try:
        fd = os.open(bind.source, os.O_PATH)
    except OSError as failure:
        raise MountFailure(f"cannot open {bind.source} for {bind.target}: {failure.strerror}") from failure
    parts, where = PurePosixPath(bind.sub_path).parts, f"sub path {bind.sub_path!r} of {bind.source}"
    if not {"..", "/"}.isdisjoint(parts):
        raise MountFailure(f"{where} must be relative and without '..'")
    mode = stat.S_IMODE(os.fstat(fd).st_mode) & 0o777 if bind.make_sub_path else None
    for part in parts:
        fd = _step_into(fd, part, where, mode)
    return fd


def _step_into(parent: int, part: str, where: str, mode: int | None) -> int:
    """Open one directory or file of a sub path. mode: of the directory that is made if nothing is there; None: none
    is. As the volume's own mode it lets the pod's fsGroup write; setgid is inherited.
    """
    try:
        if mode is not None:
            _make_directory(part, parent, mode)
        fd = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as failure:
        raise MountFailure(f"cannot open {where}: {part}: {failure.strerror}") from failure
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        raise MountFailure(f"{where} leads over the symlink {part}, which is not followed")
    os.close(parent)
    return fd


def _make_directory(name: str, parent: int, mode: int) -> None:
    umask = os.umask(0)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
    finally:
        os.umask(umask)


# --- private directories ------------------------------------------------------------------------------------------


def _mount_private(spec: Spec) -> None:
    Path("/new/proc").mkdir()
    try:
        libc.mount("proc", "/new/proc", "proc", _PLAIN | libc.MS_NOEXEC)
    except PermissionError:
        # Inside a container that covers parts of /proc the kernel forbids a new one; the covered one serves as well.
        libc.mount("/old/proc", "/new/proc", None, libc.MS_BIND | libc.MS_REC)
        libc.restrict_mount("/new/proc", recursive=True)
    tmp = f"mode=1777,size={spec.tmp_bytes},nr_inodes=100k"
    for name, options in (("run", f"mode=755,{_SIZES['run']}"), ("tmp", tmp), ("dev", f"mode=755,{_SIZES['dev']}")):
        Path("/new", name).mkdir()
        libc.mount("tmpfs", f"/new/{name}", "tmpfs", _PLAIN, options)
    _mount_devices()


def _mount_devices() -> None:
    for name in _DEVICES:
        Path(f"/new/dev/{name}").touch()
        with contextlib.suppress(FileNotFoundError):
            libc.mount(f"/old/dev/{name}", f"/new/dev/{name}", None, libc.MS_BIND)
            # Devices can still be written; this keeps user 0 from changing the mode of the host's.
            libc.restrict_mount(f"/new/dev/{name}", devices=True)
    for name, target in _DEVICE_LINKS.items():
        Path("/new/dev", name).symlink_to(target)
    Path("/new/dev/shm").mkdir()
    libc.mount("tmpfs", "/new/dev/shm", "tmpfs", _PLAIN, f"mode=1777,{_SIZES['shm']}")
    Path("/new/dev/pts").mkdir()
    # Without devpts only commands that open a terminal fail.
    with contextlib.suppress(OSError):
        libc.mount("devpts", "/new/dev/pts", "devpts", libc.MS_NOSUID | libc.MS_NOEXEC, "newinstance,ptmxmode=0666")


def _hide(root: int, hidden: list[str]) -> None:
    for path in hidden:
        try:
            fd = libc.open_in_root(root, path)
        except FileNotFoundError:
            continue
        if _is_directory(fd):
            libc.mount("tmpfs", _fd_path(fd), "tmpfs", _PLAIN | libc.MS_RDONLY, "mode=555")
        else:
            libc.mount("/old/dev/null", _fd_path(fd), None, libc.MS_BIND)
            _restrict(root, path, read_only=True, devices=True)
        os.close(fd)


def _restrict(root: int, path: str, *, read_only: bool, devices: bool, recursive: bool = False) -> None:
    """Call `libc.restrict_mount`. Opens the path again: a descriptor from before the mount leads below it."""
    top = libc.open_in_root(root, path)
    libc.restrict_mount(_fd_path(top), read_only=read_only, devices=devices, recursive=recursive)
    os.close(top)


# --- mount points -------------------------------------------------------------------------------------------


def _make_mount_points(root: int, wanted: list[tuple[Bind, bool]]) -> None:
    """Make a mount point for every target that does not exist in the host's read-only directories.

    A read-only overlay joins the host's directory with a skeleton that holds only the missing mount points.
    """
    ours = {Path("/new", name).stat().st_dev for name in ("", "dev", "run", "tmp")}
    missing: dict[str, tuple[int, list[tuple[str, bool]]]] = {}
    targets = [PurePosixPath(bind.target) for bind, _ in wanted]
    for (_, is_directory), target in zip(wanted, targets, strict=True):
        if any(other != target and target.is_relative_to(other) for other in targets):
            continue  # within another volume: made there
        fd, rest = _deepest(root, target)
        if not rest or os.fstat(fd).st_dev in ours:
            os.close(fd)
            continue
        path = str(Path(_fd_path(fd)).readlink())
        missing.setdefault(path, (fd, []))[1].append((rest, is_directory))
    for number, path in enumerate(sorted(missing)):
        fd, places = missing[path]
        _overlay(root, path, fd, places, Path("/skeletons", str(number)))


def _deepest(root: int, target: PurePosixPath) -> tuple[int, str]:
    """Return a descriptor of the deepest existing directory on the path to `target`, and the rest of the path."""
    parts = target.parts[1:]
    for length in range(len(parts), -1, -1):
        with contextlib.suppress(FileNotFoundError):
            return libc.open_in_root(root, "/".join(("", *parts[:length])) or "/"), "/".join(parts[length:])
    raise MountFailure(f"cannot open the root directory for {target}")


def _overlay(root: int, path: str, fd: int, places: list[tuple[str, bool]], skeleton: Path) -> None:
    skeleton.mkdir()
    skeleton.chmod(stat.S_IMODE(os.fstat(fd).st_mode))
    for place, is_directory in places:
        _make_place(skeleton / place, is_directory=is_directory)
    inner = [(inside, libc.open_in_root(root, inside)) for inside in _mounts_below(path)]
    try:
        libc.mount("overlay", _fd_path(fd), "overlay", _PLAIN | libc.MS_RDONLY, f"lowerdir={skeleton}:{_fd_path(fd)}")
    except OSError as failure:
        names = ", ".join(f"{path.removeprefix('/new')}/{place}" for place, _ in places)
        raise MountFailure(
            f"{names} does not exist on this host, and no place for it can be made without overlayfs: "
            f"{failure.strerror}"
        ) from failure
    os.close(fd)
    for inside, tree in inner:
        target = libc.open_in_root(root, inside)
        libc.mount(_fd_path(tree), _fd_path(target), None, libc.MS_BIND | libc.MS_REC)
        os.close(target)
        os.close(tree)


def _make_place(path: Path, *, is_directory: bool) -> None:
    if is_directory:
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _mounts_below(path: str) -> Iterator[str]:
    """Return the topmost mounts strictly below `path`, as paths within the new root: an overlay would cover them."""
    lines = Path("/new/proc/self/mountinfo").read_bytes().splitlines()
    points = sorted(_unescaped(line.split()[4]) for line in lines)
    last = ""
    for point in points:
        if point.startswith(f"{path}/") and not (last and point.startswith(f"{last}/")) and point != last:
            last = point
            yield point.removeprefix("/new")


def _unescaped(field: bytes) -> str:
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return os.fsdecode(field)


def _bind_volume(root: int, bind: Bind, source: int) -> None:
    is_directory = _is_directory(source)
    target = _ensure(root, bind, is_directory=is_directory)
    if _is_directory(target) != is_directory:
        have, want = ("a directory", "a file") if is_directory else ("a file", "a directory")
        raise MountFailure(f"{bind.source} is {have}, but {bind.target} is {want}")
    try:
        libc.mount(_fd_path(source), _fd_path(target), None, libc.MS_BIND | libc.MS_REC)
    except OSError as failure:
        raise MountFailure(f"cannot mount {bind.source} at {bind.target}: {failure.strerror}") from failure
    device = stat.S_ISBLK(os.fstat(source).st_mode) or stat.S_ISCHR(os.fstat(source).st_mode)
    os.close(target)
    os.close(source)
    _restrict(root, bind.target, read_only=bind.read_only, devices=device, recursive=True)


def _ensure(root: int, bind: Bind, *, is_directory: bool) -> int:
    """Open the target. If it is missing, make it: on a tmpfs of the sandbox, or within a volume bound before."""
    parts = PurePosixPath(bind.target).parts[1:]
    parent = os.dup(root)
    for depth, part in enumerate(parts, 1):
        path = "/" + "/".join(parts[:depth])
        try:
            fd = libc.open_in_root(root, path)
        except FileNotFoundError:
            _make_entry(parent, part, bind, is_directory=is_directory or depth < len(parts))
            fd = libc.open_in_root(root, path)
        except OSError as failure:
            raise MountFailure(f"cannot open {path} for {bind.target}: {failure.strerror}") from failure
        os.close(parent)
        parent = fd
    return parent


def _make_entry(parent: int, name: str, bind: Bind, *, is_directory: bool) -> None:
    try:
        if is_directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
    except OSError as failure:
        raise MountFailure(f"cannot make {name} on the way to {bind.target}: {failure.strerror}") from failure
