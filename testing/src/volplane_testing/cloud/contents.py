"""What is on the disks and snapshots of a fake cloud: in memory for tests, or in directories for pods."""

from __future__ import annotations

from typing import Protocol

__all__ = ["DiskContents", "MemoryContents"]


class DiskContents(Protocol):
    """The contents of disks and snapshots by handle. A fake says when they begin, so that their moment is its own."""

    def begin(self, handle: str, source: str | None) -> None:
        """Let a new disk or snapshot have what is in the source now; nothing if there is none."""

    def write(self, handle: str, text: str) -> None:
        """Write into a disk, as a pod would."""

    def written(self, handle: str) -> list[str]:
        """Return what was written into a disk, or is in a snapshot, sorted."""


class MemoryContents:
    """Contents that no pod sees."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, ...]] = {}

    def begin(self, handle: str, source: str | None) -> None:
        """Let a new disk or snapshot have what is in the source now."""
        self._texts[handle] = self._texts.get(source or "", ())

    def write(self, handle: str, text: str) -> None:
        """Write into a disk."""
        self._texts[handle] = (*self._texts.get(handle, ()), text)

    def written(self, handle: str) -> list[str]:
        """Return what was written."""
        return sorted(self._texts.get(handle, ()))
