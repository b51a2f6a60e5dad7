"""What a control plane holds: every container that its objects lead to, with how much is in it."""

from __future__ import annotations

import functools
import types
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from sortedcontainers import SortedList

__all__ = ["held_by"]

_CONTAINERS = (dict, list, set, tuple, frozenset, deque, SortedList)


def held_by(root: object) -> Counter[str]:
    """Return how many entries the containers of each attribute have in all, by class and attribute.

    Objects of the API are not looked into: how many there are is what the containers say.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        where, item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, _CONTAINERS):
            found[where] += len(item)
            inside = [*item.keys(), *item.values()] if isinstance(item, Mapping) else item
            todo.extend((where, each) for each in inside)
        else:
            todo.extend(_parts(item))
    return +found


def _parts(item: object) -> Iterator[tuple[str, Any]]:
    """Yield what an object of ours leads to, each with the name of class and attribute."""
    if isinstance(item, types.MethodType):
        yield "", item.__self__
    elif isinstance(item, functools.partial):
        yield from (("", each) for each in (item.func, *item.args, *item.keywords.values()))
    elif isinstance(item, types.FunctionType):
        yield from (("", cell.cell_contents) for cell in item.__closure__ or ())
    elif type(item).__module__.startswith("volplane.") and type(item).__module__ != "volplane.kube.objects":
        kind = type(item)
        slots = [name for each in kind.__mro__ for name in getattr(each, "__slots__", ())]
        for name in dict.fromkeys((*getattr(item, "__dict__", ()), *slots)):
            if hasattr(item, name):
                yield f"{kind.__name__}.{name}", getattr(item, name)
