"""Says what somebody may have meant who wrote a word that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the closest of `known` as a question, else all of them."""
    names = sorted(known)
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lowered[close[0]]!r}?"
    return f"; known: {', '.join(names)}" if names else "; there are none"
