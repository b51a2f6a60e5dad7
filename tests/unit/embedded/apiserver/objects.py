"""Random objects of the served kinds, right in their types and wrong in everything else."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from volplane_embedded.apiserver.definitions import Definition, Type, definition
from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.resources import Resource

BY_KIND: dict[str, Resource] = {resource.kind: resource for resource in reversed(RESOURCES)}
"""Kind to resource; Event is that of core/v1."""

_DEPTH = 9
_words = st.sampled_from(
    ["", "a", "x/y", "Always", "In", "..", "ReadWriteOnce", "kubernetes.io/hostname", "/a/../b", "A" * 70, "1Gi"]
)
_scalars: dict[str, st.SearchStrategy[Any]] = {
    "any": st.dictionaries(_words, st.integers(), max_size=1),
    "bool": st.booleans(),
    "bytes": st.sampled_from(["", "dg=="]),
    "i32": st.sampled_from([-1, 0, 1, 80, 2**31 - 1]),
    "i64": st.sampled_from([-1, 0, 1, 2**63 - 1]),
    "int-or-str": st.sampled_from([0, 80, "http"]),
    "micro-time": st.just("2026-01-01T00:00:00.000001Z"),
    "quantity": st.sampled_from(["0", "1Gi", "-5", "1e3", 7, "0.3"]),
    "str": _words,
    "time": st.just("2026-01-01T00:00:00Z"),
}


def objects(shape: Definition, depth: int = _DEPTH) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of a definition with a few of its fields each, some of them null."""
    deep = [key for key, field in shape.fields.items() if depth > 0 or not _refers(field.type)]
    chosen = st.lists(st.sampled_from(deep), max_size=5, unique=True) if deep else st.just([])
    return chosen.flatmap(
        lambda keys: st.fixed_dictionaries(
            {key: st.one_of(_values(shape.fields[key].type, depth - 1), st.none()) for key in keys}
        )
    )


def _refers(kind: Type) -> bool:
    return bool(kind.refers) or (kind.element is not None and _refers(kind.element))


def _values(kind: Type, depth: int) -> st.SearchStrategy[Any]:
    if kind.refers:
        return st.deferred(lambda: objects(definition(kind.refers), depth))
    if kind.element is None:
        return _scalars[kind.scalar]
    element = st.one_of(_values(kind.element, depth), st.none())
    if kind.shape == "list":
        return st.lists(element, max_size=2)
    return st.dictionaries(_words, element, max_size=2)
