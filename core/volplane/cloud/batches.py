"""Batches that one bad id would spoil: the rest is read all the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from volplane.cloud.error_table import CloudError

__all__ = ["chunks", "read_without_bad_ids"]

V = TypeVar("V")


def chunks(items: Sequence[V], size: int) -> list[Sequence[V]]:
    """The items in order, at most `size` at once."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def read_without_bad_ids(
    ids: Sequence[str],
    read: Callable[[Sequence[str]], Sequence[V]],
    *,
    is_bad: Callable[[CloudError], bool],
    named: Callable[[CloudError], Collection[str]],
) -> tuple[list[V], list[str]]:
    """What `read` returns for the ids that it accepts, and the ids that make it fail.

    is_bad: whether an error is about one of the ids, such as one that does not exist; any other error is raised.
    named: the ids in the message of the error. Where it names none of the ids that were asked for, the batch is halved
    until the bad ones are alone.
    """
    left = list(ids)
    bad: list[str] = []
    while left:
        try:
            return [*read(left)], bad
        except CloudError as error:
            if not is_bad(error):
                raise
            guilty = {*named(error)}.intersection(left)
        if guilty:
            bad += [id_ for id_ in left if id_ in guilty]
            left = [id_ for id_ in left if id_ not in guilty]
            continue
        if len(left) == 1:
            return [], [*bad, *left]
        found: list[V] = []
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            good, spoiled = read_without_bad_ids(half, read, is_bad=is_bad, named=named)
            found += good
            bad += spoiled
        return found, bad
    return [], bad
