"""Builds parts of messages to people: safe text, the nearest known word, sizes, ages and file errors."""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Iterable, Mapping
from typing import Final

_CONTROL = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROL} | {9: " ", 10: " "}
"""What is shown for characters that a terminal obeys."""
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _CONTROL if code >= 0x7F}
"""Those of them that JSON need not escape."""
_LONGEST = 2_048


def sanitize(text: str) -> str:
    """Return the text on one line, without anything that a terminal obeys.

    Control characters, overrides of the writing direction and lone surrogates become escapes; tabs and line
    ends become spaces.
    """
    if text.isascii() and text.isprintable():
        return text
    return text.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)


def escaped_json(text: str) -> str:
    """Escape the characters of a JSON text that a terminal obeys. The value stays the same."""
    return text.translate(_JSON_ESCAPES)


def shortened(text: str) -> str:
    """Return at most 2,048 characters of a text that somebody else wrote, with the number of those left out."""
    left = len(text) - _LONGEST
    return text if left <= 0 else f"{text[:_LONGEST]}… (and {left} characters)"


def one_line(text: object) -> str:
    """Replace every run of white space by one space."""
    return " ".join(str(text).split()) or "no message"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the closest known word as a question, else all of them."""
    names = sorted(known)
    return near(word, names) or (f"; known: {', '.join(names)}" if names else "; there are none")


def near(word: str, known: Iterable[str]) -> str:
    """Return the closest known word as a question, or "" if none is close: the word may be right elsewhere."""
    lowered = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


def size_text(size: int | None) -> str:
    """Format a size in bytes with the largest unit that keeps two digits: "64Mi", "1.5Gi"; "-" for None."""
    if size is None:
        return "-"
    number, unit = float(size), ""
    for larger in ("Ki", "Mi", "Gi", "Ti", "Pi"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.1f}".removesuffix(".0") + unit


def age_text(seconds: float | None) -> str:
    """Format a duration as kubectl shows ages: "45s", "12m", "5h", "3d"; "-" for None."""
    if seconds is None:
        return "-"
    for unit, length, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{max(0, seconds) // length:.0f}{unit}"
    return f"{seconds // 86400:.0f}d"


def why_unusable(error: OSError) -> str:
    """Return the end of a message that names a file: why it cannot be used, and what its user can do."""
    reason = error.strerror or str(error) or type(error).__name__
    where = error.filename2 or error.filename
    at = f" ({os.fsdecode(where)})" if isinstance(where, str | bytes) else ""
    advice = _ADVICE.get(error.errno or 0, "give another one")
    return f"{reason}{at}; {advice}"


_ADVICE: Final[Mapping[int, str]] = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give one that this user may use, or change its rights"),
    errno.EROFS: "give one on a file system that can be written",
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there, or give one elsewhere"),
    errno.ENOENT: "check its spelling, or make what is missing",
    errno.ENOTDIR: "a part of this path is a file; give one beneath directories",
    errno.EISDIR: "give a file",
    errno.EEXIST: "give another one, or remove what is there",
    errno.EMFILE: "let the process open more files (ulimit -n)",
}
