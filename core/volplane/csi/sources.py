"""What a volume is on a node: a directory of this machine, an image file in one, or a share of NFS."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final, Protocol

from volplane.assets import ListedAsset, VolumeMode
from volplane.csi import syscalls
from volplane.csi.codes import CsiError
from volplane.csi.loops import Loop, Loops
from volplane.csi.syscalls import OF_DIRECTORY, FileSystem, Mount, mount_id, open_below

_DIRECTORIES: Final = ("hostPath", "local")
"""Kinds of sources that are a path of this machine."""
IMAGE: Final = "volume.img"
"""Name of the file that is a block volume, in the directory of the volume."""
_VERSIONS: Final = ("4.2", "4.1", "4.0")
"""Of NFS, as mount.nfs tries them."""
_OF_PROGRAMS: Final = re.compile(
    r"(defaults|_netdev|(no)?auto|nofail|(no)?user|users|owner|group|[bf]g|x-.*|comment|retry)"
)
"""Options that mount(8) and mount.nfs(8) keep to themselves."""
_VERSION: Final = re.compile(r"v[234](\.\d)?|(nfs)?vers|minorversion")


def is_read_only(asset: ListedAsset, options: Sequence[str]) -> bool:
    """Tell whether the options, after those of the asset, ask for a mount without writing."""
    return "ro" in ",".join((*asset.mount_options, *options)).split(",")


def grows_on_node(asset: ListedAsset, mode: VolumeMode) -> bool:
    """Tell whether a node has to do something for a volume of this driver to grow: a device over an image file."""
    return mode is VolumeMode.BLOCK and asset.source is not None and asset.source.kind in _DIRECTORIES


class Source(Protocol):
    """A volume that can be mounted. All calls may hang."""

    def opened(self, stack: ExitStack) -> Opened:
        """Open it, until the stack is left. Raises CsiError, and OSError where a next attempt may do better."""
        ...


class Opened(Protocol):
    """A volume that is being mounted, or looked for."""

    @property
    def above(self) -> int | None:
        """Return the directory that it lies in, to compare with; None: it has the figures of its file system."""
        ...

    @property
    def is_device(self) -> bool:
        """Tell whether it is a block device, whose place is a file."""
        ...

    @property
    def is_remote(self) -> bool:
        """Tell whether `is_at` needs the mount alone, since what is open may hang."""
        ...

    def is_at(self, point: int, mount: Mount) -> bool:
        """Tell whether it is what is mounted and open here."""
        ...

    def places(self, mounts: Sequence[Mount]) -> Iterator[Mount]:
        """Yield all mounts of the whole of it."""
        ...

    def mounted(self, stack: ExitStack) -> int:
        """Return a mount of it, which is nowhere yet."""
        ...

    def grow(self) -> None:
        """Let what is mounted have the size of the volume."""


def source_of(
    asset: ListedAsset,
    options: Sequence[str] = (),
    *,
    loops: Loops | None = None,
    read_only: bool = False,
    make: bool = False,
) -> Source:
    """Return what a volume is on this node. Raises CsiError.

    options: to mount it with, after its own. loops: it is to be a block device, of these; read_only: without writing;
    make: over a new file, if there is none.
    """
    kind = asset.source.kind if asset.source is not None else "unknown"
    fields = asset.source.fields if asset.source is not None else {}
    path, server = fields.get("path"), fields.get("server")
    if isinstance(path, str) and path.startswith("/"):
        if kind in _DIRECTORIES:
            return Directory(path) if loops is None else Image(path, asset.capacity_bytes, loops, read_only, make)
        if loops is None and kind == "nfs" and isinstance(server, str) and server:
            return Share(server, path, (*asset.mount_options, *options))
    known = f"{', '.join(_DIRECTORIES)} and nfs" if loops is None else f"image files in {' and '.join(_DIRECTORIES)}"
    text = f"volume {asset.handle} is of kind {kind}; this node service mounts {known} alone"
    raise CsiError("FAILED_PRECONDITION", text)


# --- directories of this machine ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of this machine. No symbolic link in its path is followed."""

    path: str

    def opened(self, stack: ExitStack) -> OpenDirectory:
        try:
            top = os.open("/", OF_DIRECTORY)
            stack.callback(os.close, top)
            above = open_below(top, os.path.dirname(self.path).lstrip("/") or ".")  # noqa: PTH120
            stack.callback(os.close, above)
            fd = open_below(above, os.path.basename(self.path))  # noqa: PTH119
        except OSError as error:
            if error.errno == errno.ELOOP:
                text = f"{self.path} leads through a symbolic link; give the backend the path without links"
                raise CsiError("FAILED_PRECONDITION", text) from None
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise CsiError("UNAVAILABLE", f"{self.path} is no directory here: is its disk mounted?") from None
            raise
        stack.callback(os.close, fd)
        return OpenDirectory(self.path, fd, above)


@dataclass(frozen=True, slots=True)
class OpenDirectory:
    """It, and the one above."""

    path: str
    fd: int
    above: int | None
    is_device: bool = False
    is_remote: bool = False

    def is_at(self, point: int, mount: Mount) -> bool:
        first, second = os.fstat(self.fd), os.fstat(point)
        return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)

    def places(self, mounts: Sequence[Mount]) -> Iterator[Mount]:
        number, path = mount_id(self.fd), os.readlink(f"/proc/self/fd/{self.fd}")  # noqa: PTH115
        own = next((each for each in mounts if each.number == number), None)
        if own is None:
            raise OSError(errno.EAGAIN, "the mounts have changed meanwhile", path)
        inside = own.root.rstrip("/") + path[len(own.point.rstrip("/")) :] or "/"
        return (each for each in mounts if (each.device, each.root) == (own.device, inside))

    def mounted(self, stack: ExitStack) -> int:
        mount = syscalls.clone(self.fd, self.path)
        stack.callback(os.close, mount)
        return mount

    def grow(self) -> None:
        """Do nothing: a limit is the backend's."""


# --- image files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """A block device over the file `IMAGE` in the directory of a volume."""

    path: str
    """Of the directory."""
    size: int
    loops: Loops
    read_only: bool
    make: bool
    """Whether the file is made if it is missing."""

    def opened(self, stack: ExitStack) -> OpenImage:
        directory = Directory(self.path).opened(stack)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(IMAGE, flags, dir_fd=directory.fd)
        except FileNotFoundError:
            if not self.make:
                raise CsiError("NOT_FOUND", f"{self.path} has no {IMAGE}: it is no block volume") from None
            if os.listdir(f"/proc/self/fd/{directory.fd}"):  # noqa: PTH208
                text = f"{self.path} has files, and no {IMAGE}: it is no block volume"
                raise CsiError("FAILED_PRECONDITION", text) from None
            fd = os.open(IMAGE, flags | os.O_CREAT, 0o600, dir_fd=directory.fd)
        stack.callback(os.close, fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CsiError("FAILED_PRECONDITION", f"{self.path}/{IMAGE} is no file")
        return OpenImage(self, fd)


@dataclass(frozen=True, slots=True)
class OpenImage:
    """It, open."""

    image: Image
    fd: int
    above: int | None = None
    is_device: bool = True
    is_remote: bool = False

    def is_at(self, point: int, mount: Mount) -> bool:
        return any(mount.root == f"/loop{each.number}" for each in self._loops()) and stat.S_ISBLK(
            os.fstat(point).st_mode
        )

    def places(self, mounts: Sequence[Mount]) -> Iterator[Mount]:
        roots = {f"/loop{each.number}" for each in self._loops()}
        return (each for each in mounts if each.root in roots)

    def mounted(self, stack: ExitStack) -> int:
        self.grow()
        loop = self.image.loops.attach(self.fd, read_only=self.image.read_only)
        device = os.open(loop.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, device)
        mount = syscalls.clone(device, loop.path)
        stack.callback(os.close, mount)
        return mount

    def grow(self) -> None:
        """Give file and devices the size of the volume; they never shrink."""
        if os.fstat(self.fd).st_size < self.image.size:
            os.ftruncate(self.fd, self.image.size)
        for each in self._loops():
            self.image.loops.resize(each)

    def _loops(self) -> list[Loop]:
        seen = os.fstat(self.fd)
        return [each for each in self.image.loops.attached() if each.backs(seen)]


# --- NFS ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """A directory of an NFS server, mounted by the kernel's client alone: no program of nfs-common is needed.

    That leaves out what those programs do for NFSv3 (locks, by rpc.statd), and needs rpc.gssd for Kerberos as ever.
    """

    server: str
    path: str
    options: tuple[str, ...]
    above: int | None = None
    is_device: bool = False
    is_remote: bool = True

    @property
    def name(self) -> str:
        """Return the share as the kernel names it."""
        host = f"[{self.server}]" if ":" in self.server else self.server
        return f"{host}:/{self.path.strip('/')}"

    def opened(self, stack: ExitStack) -> Share:
        return self

    def is_at(self, point: int, mount: Mount) -> bool:
        return mount.source == self.name

    def places(self, mounts: Sequence[Mount]) -> Iterator[Mount]:
        return (each for each in mounts if each.source == self.name)

    def mounted(self, stack: ExitStack) -> int:
        attributes, given = self.read()
        given.append(("addr", self._address()))
        chosen = any(_VERSION.fullmatch(key) for key, _ in given)
        tries = [given] if chosen else [[*given, ("vers", version)] for version in _VERSIONS]
        for options in tries:
            try:
                mount = self._mount(attributes, options)
            except OSError as error:
                if error.errno != errno.EPROTONOSUPPORT or options is tries[-1]:
                    raise
            else:
                break
        stack.callback(os.close, mount)
        return mount

    def grow(self) -> None:
        """Do nothing: a limit is the server's."""

    def _mount(self, attributes: int, options: Sequence[tuple[str, str | None]]) -> int:
        try:
            made = FileSystem("nfs", self.name)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            text = "the kernel of this node has no NFS client: its modules nfs and nfsv4 are not installed"
            raise CsiError("FAILED_PRECONDITION", f"{self.name} cannot be mounted: {text}") from None
        with closing(made):
            made.set("source", self.name)
            for key, value in options:
                try:
                    made.set(key, value)
                except OSError as error:
                    # Not the value: it may be secret.
                    why = made.messages() or error.strerror
                    raise CsiError("INVALID_ARGUMENT", f"mount option {key}: {why}") from None
            try:
                return made.mount(attributes)
            except OSError as error:
                if why := made.messages():
                    raise OSError(error.errno, f"{error.strerror} ({why})", self.name) from None
                raise

    def _address(self) -> str:
        found = socket.getaddrinfo(self.server, None, proto=socket.IPPROTO_TCP)
        return str(found[0][4][0])

    def read(self) -> tuple[int, list[tuple[str, str | None]]]:
        """Return the attributes of the mount, and the options of the client."""
        attributes = 0
        given: list[tuple[str, str | None]] = []
        for option in filter(None, ",".join(self.options).split(",")):
            key, equals, value = option.partition("=")
            if key in ("addr", "mountaddr", "source"):
                raise CsiError("INVALID_ARGUMENT", f"mount option {key}: it follows from the volume, leave it out")
            if option in syscalls.ATTRIBUTES:
                attributes |= syscalls.ATTRIBUTES[option]
            elif not _OF_PROGRAMS.fullmatch(key):
                given.append((key, value if equals else None))
        keys = {key for key, _ in given}
        old = {"v2", "v3"} & keys or any(_VERSION.fullmatch(key) and value in ("2", "3") for key, value in given)
        if old and not {"nolock", "local_lock"} & keys:
            text = "nothing on this node starts rpc.statd, as mount.nfs does: add nolock, or take version 4"
            raise CsiError("FAILED_PRECONDITION", f"{self.name}: locks of NFSv3 need rpc.statd, and {text}")
        return attributes, given
