"""NFS exports of this machine: pods get their volumes by a bind of the exported directory, without a mount of NFS."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from volplane.errors import ConfigurationError
from volplane_embedded.kubelet.mounts import MountError


@dataclass(frozen=True, slots=True)
class LocalExport:
    """What `path` of the NFS server `server` is on this machine."""

    server: str
    path: str
    directory: Path

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "SERVER:/PATH=DIRECTORY"; raises ConfigurationError."""
        source, equals, directory = text.partition("=")
        server, slash, path = source.partition(":/")
        if not equals or not server or not slash or not directory.startswith("/"):
            raise ConfigurationError(
                f"--nfs-export {text!r}: write SERVER:/PATH=DIRECTORY, such as 127.0.0.1:/vol=/srv/nfs"
            )
        return cls(server, "/" + path.strip("/"), Path(directory))


def local_directory(exports: Iterable[LocalExport], server: str, path: str) -> Path | None:
    """Return the directory of an nfs source, None if it is in no export of this machine.

    Raises MountError if it does not exist, or if a symbolic link is on the way to it.
    """
    names = [name for name in path.split("/") if name not in {"", "."}]
    for export in exports:
        above = [name for name in export.path.split("/") if name]
        if server.lower() != export.server.lower() or names[: len(above)] != above or ".." in names:
            continue
        root = os.path.realpath(export.directory)
        wanted = os.path.join(root, *names[len(above) :])  # noqa: PTH118 - compared with realpath's text
        if os.path.realpath(wanted) != wanted:
            raise MountError(f"{server}:{path} is {wanted} on this machine, and a symbolic link is on the way to it")
        if not Path(wanted).is_dir():
            raise MountError(f"{server}:{path} is {wanted} on this machine, which is no directory")
        return Path(wanted)
    return None
