"""What a volume is on a node: a directory of this machine, or a share of NFS; and how it is mounted."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final, Protocol

from volplane.assets import ListedAsset
from volplane.csi import syscalls
from volplane.csi.codes import CsiError
from volplane.csi.syscalls import OF_DIRECTORY, FileSystem, Mount, mount_id, open_below

_DIRECTORIES: Final = ("hostPath", "local")
"""Kinds of sources that are a path of this machine."""
_VERSIONS: Final = ("4.2", "4.1", "4.0")
"""Of NFS, as mount.nfs tries them."""
_OF_PROGRAMS: Final = re.compile(
    r"(defaults|_netdev|(no)?auto|nofail|(no)?user|users|owner|group|[bf]g|x-.*|comment|retry)"
)
"""Options that mount(8) and mount.nfs(8) keep to themselves."""
_VERSION: Final = re.compile(r"v[234](\.\d)?|(nfs)?vers|minorversion")


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

    def is_at(self, point: int, mount: Mount) -> bool:
        """Tell whether it is what is mounted and open here."""
        ...

    def places(self, mounts: Sequence[Mount]) -> Iterator[Mount]:
        """Yield all mounts of the whole of it."""
        ...

    def mounted(self, stack: ExitStack) -> int:
        """Return a mount of it, which is nowhere yet."""
        ...


def source_of(asset: ListedAsset, options: Sequence[str] = ()) -> Source:
    """Return what a volume is on this node. options: to mount it with, after its own. Raises CsiError."""
    kind = asset.source.kind if asset.source is not None else "unknown"
    fields = asset.source.fields if asset.source is not None else {}
    path, server = fields.get("path"), fields.get("server")
    if isinstance(path, str) and path.startswith("/"):
        if kind in _DIRECTORIES:
            return Directory(path)
        if kind == "nfs" and isinstance(server, str) and server:
            return Share(server, path, (*asset.mount_options, *options))
    raise CsiError(
        "FAILED_PRECONDITION",
        f"volume {asset.handle} is of kind {kind}; this node service mounts {', '.join(_DIRECTORIES)} and nfs alone",
    )


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
                    raise OSError(error.errno, why, self.name) from None
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
