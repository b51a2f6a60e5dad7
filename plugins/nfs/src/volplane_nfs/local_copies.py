"""Copies in mode export: the driver is on the server's machine, and sees the share as a directory of its file system.

There files are copied by the kernel, which shares their blocks where it can, without a call to the server: by the trees
that hostpath has (volplane.directory.local_trees). What was copied is on the disk once it is renamed, and a copy that a
crash of the machine interrupted is begun again. The server is told of the whole copy by a change of its directory: what
it knows of that is older.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass

from volplane import BackendError, Unavailable
from volplane.directory import CONTROL, CorruptMarker, decode_fields, dirfd
from volplane.directory.dirfd import MountIdentity, closing, open_directory, open_path
from volplane.directory.local_trees import DATA, LocalTrees
from volplane_nfs.nfs4 import Compounds
from volplane_nfs.nfs4.attributes import FILEID, MODE, TIME_MODIFY_SET, mask_of
from volplane_nfs.nfs4.files import ANONYMOUS, Path
from volplane_nfs.nfs4.operations import GETATTR, PUTFH, SETATTR


@dataclass(frozen=True, slots=True)
class LocalShare:
    """The open directory of a share on this machine, and the source of a copy in it."""

    root: int
    mount: MountIdentity
    source: int
    label: str
    client: Compounds

    @contextmanager
    def trees(self, key: bytes, container: bytes) -> Iterator[LocalTrees]:
        """Yield the trees of a copy. key: name of its directory. container: its handle. Raises `Unavailable`."""
        with self._container(key) as directory:
            if not _is_same(self.client, container, directory):
                raise Unavailable(f"{self.label}: copy {os.fsdecode(key)} is another directory on the server than here")
            yield LocalTrees(self.source, directory, self.mount, label=self.label)

    def settle(self, key: bytes, data: bytes) -> None:
        """Write what was copied to the disk, and let the server look at its directory. data: the handle of that."""
        with self._container(key) as above, closing(self._below(DATA, above)) as copy:
            dirfd.syncfs(above)
            status = os.fstat(copy)
        times = (1, divmod(status.st_mtime_ns, 10**9))
        wanted = {MODE: status.st_mode & 0o7777, TIME_MODIFY_SET: times}
        self.client.compound(PUTFH(data), SETATTR(ANONYMOUS, wanted))

    def _container(self, key: bytes) -> AbstractContextManager[int]:
        path = f"{CONTROL}/copies/{os.fsdecode(key)}"
        return closing(open_path(path, self.root, self.mount, label=self.label))

    def _below(self, name: str, above: int) -> int:
        return open_directory(name, above, self.mount, label=self.label)


@contextmanager
def local_share(
    path: str, share_id: str, client: Compounds, *, source: bytes, source_path: Path
) -> Iterator[LocalShare | None]:
    """Yield the share as a directory of this machine; None where copies are made by calls: the path is empty, or it is
    not proven to be the share, or this process is not root, who alone reads everything and gives it away.

    path: where the share is said to be. source: handle of what is copied; source_path: where that is in the share.
    """
    with ExitStack() as held:
        local = None
        if path and os.geteuid() == 0:
            with suppress(BackendError, CorruptMarker, FileNotFoundError, NotADirectoryError):
                root = held.enter_context(closing(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
                mount = MountIdentity.of(root)
                directory = held.enter_context(closing(_open_source(path, root, mount, share_id, source_path)))
                if _is_same(client, source, directory):
                    local = LocalShare(root, mount, directory, path, client)
        yield local


def _open_source(path: str, root: int, mount: MountIdentity, share_id: str, names: Path) -> int:
    """Open the source of a copy. Raises OSError, BackendError, and `CorruptMarker` if this is another share."""
    with closing(open_directory(CONTROL, root, mount, label=path)) as control:
        known = decode_fields(os.fsencode(os.readlink("share", dir_fd=control))).get("share_id")
    if known != share_id:
        raise CorruptMarker(f"{path} is share {known}, not {share_id}")
    return open_path("/".join(map(os.fsdecode, names)), root, mount, label=path)


def _is_same(client: Compounds, handle: bytes, directory: int) -> bool:
    """Return whether a handle of the server is that of an open directory."""
    (known,) = client.compound(PUTFH(handle), GETATTR(mask_of(FILEID)))[-1:]
    return bool(known.get(FILEID) == os.fstat(directory).st_ino)
