"""Pages of a listing, with tokens that say where the next one begins."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["page_of"]

N = TypeVar("N")


def page_of(
    items: Iterable[N], place: Callable[[N], int | str], *, size: int | None, token: str | None = None
) -> tuple[list[N], str | None]:
    """Return one page in the order of `place`, and the token of the next; None on the last page.

    An item that exists during the whole listing is in it. size: None = all. Raises ValueError for a token that no page
    had.
    """
    after = _place_in(token) if token else None
    try:
        rest = sorted((item for item in items if after is None or place(item) > after), key=place)  # type: ignore[operator]
    except TypeError:
        raise ValueError(f"{token!r} belongs to another listing") from None
    if size is None or len(rest) <= size:
        return rest, None
    return rest[:size], base64.urlsafe_b64encode(json.dumps(["after", place(rest[size - 1])]).encode()).decode()


def _place_in(token: str) -> int | str:
    try:
        word, place = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, TypeError):
        raise ValueError(f"{token!r} is no token of a page") from None
    if word != "after" or not isinstance(place, int | str):
        raise ValueError(f"{token!r} is no token of a page")
    return place
