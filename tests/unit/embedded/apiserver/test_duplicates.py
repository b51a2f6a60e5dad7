from __future__ import annotations

import pytest

from volplane_embedded.apiserver.schema import duplicate_fields


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (b'{"a": {"b": [{"c": 1}]}}', ()),
        (b'{"a": 1, "a": 2, "a": 3}', ("a",)),
        (b'{"a": {"b": 1, "b": 2}}', ("a.b",)),
        (b'{"a": [{}, {"b": 1, "b": 2, "c": 1, "c": 1}]}', ("a[1].b", "a[1].c")),
        (b'{"a": {"x": 1, "x": 1}, "b": {"y": 1, "y": 1}}', ("a.x", "b.y")),
        (b"[1, 2]", ()),
        (b"no json", ()),
        (b"\xff", ()),
        (b"", ()),
    ],
)
def test_fields_that_stand_twice_are_named_by_their_paths(body: bytes, paths: tuple[str, ...]) -> None:
    assert duplicate_fields(body) == paths
