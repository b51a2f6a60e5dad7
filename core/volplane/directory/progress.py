"""How far a copy is, in words for people."""

from __future__ import annotations

from typing import Any, Final

from volplane.directory.copies import CopyCounts, TreeCopy

__all__ = ["copy_progress", "human"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def human(size: int) -> str:
    """Return a size as text, such as "1.5 GiB"."""
    figure = float(size)
    for unit in _UNITS:
        if figure < 1024 or unit == _UNITS[-1]:
            return f"{figure:.0f} {unit}" if figure == int(figure) else f"{figure:.1f} {unit}"
        figure /= 1024
    raise AssertionError(size)


def copy_progress(copy: TreeCopy[Any], whole: CopyCounts | None = None) -> str:
    """Return what is copied, or compared, of how much. whole: what the source has in it, as far as that is known."""
    counts, whole, doing = copy.counts, copy.copied or whole or CopyCounts(), "compared" if copy.checking else "copied"
    entries, size = max(whole.entries, counts.entries), counts.bytes + copy.offset
    of_entries = f" of {entries:,}" if whole.entries else ""
    of_bytes = f" of {human(max(whole.bytes, size))}" if whole.bytes else ""
    return f"{counts.entries:,}{of_entries} entries with {human(size)}{of_bytes} are {doing}"
