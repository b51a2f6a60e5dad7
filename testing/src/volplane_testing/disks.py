"""The disks of a mocked cloud as directories of this machine, for pods of `volplane dev --disks`.

A disk's contents are in `contents/<disk>`, those of a device in `contents/<disk>.device`, and those of a snapshot
likewise; the cloud keeps no others (`DiskContents`). While it is attached, `nodes/<node>/<disk>` is a link to the first
of them. The names are the first 32 hex digits of the SHA-256 of handle and node id, so that no handle is a path.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from volplane_embedded.kubelet.attached_disks import device_path, disk_path

__all__ = ["DiskDirectory"]


class DiskDirectory:
    """Shows the disks of one mocked cloud below `root`. Several clouds may share it. Thread-safe."""

    def __init__(self, root: Path) -> None:
        """Makes the directory if there is none, for its owner alone. Raises OSError."""
        self._root = root.absolute()
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._shown: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    def show(self, disks: Mapping[str, Iterable[str]]) -> None:
        """Make the directory what the cloud has now: handle of every disk -> ids of the nodes it is attached to.

        A snapshot is a disk without nodes. A disk that the cloud has no more loses its contents; those that were never
        shown by this object are left alone. Raises OSError.
        """
        wanted = {handle: frozenset(nodes) for handle, nodes in disks.items()}
        with self._lock:
            for handle, nodes in self._shown.items():
                for node in nodes - wanted.get(handle, frozenset()):
                    disk_path(self._root, node, handle).unlink(missing_ok=True)
                if handle not in wanted:
                    self._remove(handle)
            for handle, nodes in wanted.items():
                self._show(handle, nodes - self._shown.get(handle, frozenset()))
            self._shown = wanted

    def _show(self, handle: str, nodes: Iterable[str]) -> None:
        contents = self._contents(handle)
        contents.mkdir(mode=0o777, parents=True, exist_ok=True)
        for node in nodes:
            link = disk_path(self._root, node, handle)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(contents)

    def begin(self, handle: str, source: str | None) -> None:
        """Let a new disk or snapshot have what is in the source now; nothing if there is none. Raises OSError."""
        contents = self._contents(handle)
        with self._lock:
            self._remove(handle)
            held = self._contents(source) if source is not None else None
            if held is None or not held.is_dir():
                return
            shutil.copytree(held, contents, symlinks=True)
            if device_path(held).exists():
                shutil.copyfile(device_path(held), device_path(contents))

    def write(self, handle: str, text: str) -> None:
        """Write a file of this name into a disk. Raises OSError."""
        contents = self._contents(handle)
        contents.mkdir(mode=0o777, parents=True, exist_ok=True)
        (contents / text).touch()

    def written(self, handle: str) -> list[str]:
        """Return the names of the files in a disk or snapshot, sorted."""
        contents = self._contents(handle)
        return sorted(path.name for path in contents.iterdir()) if contents.is_dir() else []

    def _remove(self, handle: str) -> None:
        shutil.rmtree(self._contents(handle), ignore_errors=True)
        device_path(self._contents(handle)).unlink(missing_ok=True)

    def _contents(self, handle: str) -> Path:
        return self._root / "contents" / disk_path(self._root, "", handle).name
