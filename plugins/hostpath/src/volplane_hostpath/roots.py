"""The root directory: what makes it ours, and how every call makes sure that it still is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from volplane import Context, Unavailable
from volplane_hostpath.directories import open_directory, read_file
from volplane_hostpath.markers import CorruptMarker, RootMarker
from volplane_hostpath.mounts import Place
from volplane_hostpath.settings import Settings

__all__ = [
    "CONTROL",
    "LEDGER",
    "LOCKS",
    "PARENTS",
    "ROOT_MARKER",
    "SUBDIRECTORIES",
    "TMP",
    "TRASH",
    "VOLUMES",
    "Root",
    "opened",
    "refusal",
]

CONTROL = ".volplane"
ROOT_MARKER = "root.json"
LEDGER = "ledger"
LOCKS = "locks"
PARENTS = "parents"
TMP = "tmp"
TRASH = "trash"
VOLUMES = "volumes"
SUBDIRECTORIES = (LOCKS, PARENTS, TMP, TRASH, VOLUMES)


class Root:
    """The root, open for one call: descriptors of it and of the driver's directories. id: empty until it is checked.

    It is opened afresh by every call, so that an unmounted or exchanged disk is noticed and can be unmounted.
    """

    def __init__(self, path: str) -> None:
        """Open the directory; raises `Unavailable` if there is none."""
        self.path = path
        self.id = ""
        self._opened: dict[str, int] = {}
        self._stack = ExitStack()
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Unavailable(
                f"root {path} does not exist: mount its disk or make the directory (or set the option create_root)"
            ) from None
        except NotADirectoryError:
            raise Unavailable(f"root {path} is no directory") from None
        self._stack.callback(os.close, self.fd)
        try:
            self.place = Place.of(self.fd)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    @property
    def control(self) -> int:
        """Descriptor of `.volplane`; raises FileNotFoundError."""
        return self._open(CONTROL, self.fd, f"{self.path}/{CONTROL}")

    def directory(self, name: str) -> int:
        """Descriptor of a directory in `.volplane`, kept until the root is closed."""
        return self._open(name, self.control, f"{self.path}/{CONTROL}/{name}")

    def _open(self, name: str, parent: int, label: str) -> int:
        if name not in self._opened:
            fd = open_directory(name, parent, self.place, label=label)
            self._stack.callback(os.close, fd)
            self._opened[name] = fd
        return self._opened[name]

    def read_marker(self) -> RootMarker | None:
        """The root's marker, None if there is none; raises `Unavailable` if it cannot be read."""
        try:
            return RootMarker.decode(read_file(ROOT_MARKER, self.control))
        except FileNotFoundError:
            return None
        except CorruptMarker as error:
            raise Unavailable(
                f"{self.path}/{CONTROL}/{ROOT_MARKER} cannot be used: {error}; restore it from a backup"
            ) from error

    def require_writable(self) -> None:
        """Raises `Unavailable` if the file system was mounted, or has fallen, read-only."""
        if os.fstatvfs(self.fd).f_flag & os.ST_RDONLY:
            raise Unavailable(
                f"root {self.path} is on a read-only file system: look in the kernel log for disk errors and mount it "
                "writable again",
                code="EROFS",
            )


def refusal(marker: RootMarker | None, known_id: str, settings: Settings, context: Context) -> str:
    """Why this root cannot be used, empty if it can. known_id: id that it must have, empty = any."""
    if marker is None:
        return (
            f"root {settings.root} carries no {CONTROL}/{ROOT_MARKER}: its disk is not mounted; mount it "
            "(volplane goes on by itself)"
        )
    if known_id and marker.root_id != known_id:
        return (
            f"root {settings.root} has the id {marker.root_id}, not {known_id}: another disk is mounted there; mount "
            "the right one, or change option root_id and restart volplane if it was exchanged on purpose"
        )
    if marker.driver != context.driver:
        return (
            f"root {settings.root} belongs to the driver {marker.driver!r}; give every driver its own root, or set "
            "adopt_root once if the driver was renamed"
        )
    if marker.cluster_id != context.cluster_id:
        return (
            f"root {settings.root} belongs to the cluster {marker.cluster_id!r}, this one is {context.cluster_id!r}; "
            "use another root, or set adopt_root once to take it over"
        )
    return ""


@contextmanager
def opened(settings: Settings, known_id: str, context: Context) -> Iterator[Root]:
    """Open the root for one call and check its marker; raises `Unavailable` with what to do."""
    with Root(settings.root) as root:
        marker = root.read_marker()
        reason = refusal(marker, known_id, settings, context)
        if marker is None or reason:
            raise Unavailable(reason)
        root.id = marker.root_id
        yield root
