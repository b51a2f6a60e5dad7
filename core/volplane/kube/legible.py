"""Text of unknown origin, made fit for places where people read it: one line, no codes that a terminal obeys."""

from __future__ import annotations

import re

__all__ = ["legible"]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\t\n]")


def legible(text: str) -> str:
    """The text with control characters, overrides of the writing direction and lone surrogates spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(_spelled, text.encode("utf-8", "backslashreplace").decode())


def _spelled(found: re.Match[str]) -> str:
    if found[0] in "\t\n":
        return " "
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
