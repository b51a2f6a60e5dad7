from __future__ import annotations

import json
from typing import Any

import pytest

from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.patches import json_patch, merge_patch


@pytest.mark.parametrize(
    ("original", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_follow_rfc_7386(original: Any, patch: Any, result: Any) -> None:
    assert merge_patch(original, patch) == result


@pytest.mark.parametrize(
    ("original", "operations", "result"),
    [  # RFC 6902, appendix A, and its corners
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"foo": "bar", "baz": "qux"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
        ({"a": [1, 2, 3]}, [{"op": "move", "from": "/a/0", "path": "/a/2"}], {"a": [2, 3, 1]}),
        ({"a": {"b": [1]}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": [1]}, "c": {"b": [1]}}),
        (
            {"a/b": 1, "m~n": 2},
            [{"op": "test", "path": "/a~1b", "value": 1}, {"op": "remove", "path": "/m~0n"}],
            {"a/b": 1},
        ),
        ({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        (
            {"a": {}},
            [{"op": "add", "path": "/a/x", "value": {}}, {"op": "add", "path": "/a/x/y", "value": 1}],
            {"a": {"x": {"y": 1}}},
        ),
    ],
)
def test_json_patches_follow_rfc_6902(original: Any, operations: Any, result: Any) -> None:
    assert json_patch(original, operations) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/a", "value": True},
        {"op": "remove", "path": "/absent"},
        {"op": "remove", "path": ""},
        {"op": "replace", "path": "/a/b", "value": 1},
        {"op": "add", "path": "/absent/b", "value": 1},
        {"op": "add", "path": "/list/2", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/a/b", "value": 1},
        {"op": "replace", "path": "/list/-", "value": 1},
        {"op": "copy", "from": "/absent", "path": "/b"},
        {"op": "spin", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "replace", "path": "", "value": 3},
    ],
)
def test_a_json_patch_that_cannot_be_applied_is_refused(operation: Any) -> None:
    with pytest.raises(StatusError) as refused:
        json_patch({"a": 1, "list": [1]}, [operation])
    assert refused.value.code == 422


def test_a_stock_server_is_lenient_about_what_is_replaced_and_with_what() -> None:
    operations = [{"op": "replace", "path": "/absent", "value": 1}, {"op": "add", "path": "/a"}]
    assert json_patch({"a": 1}, operations) == {"a": None, "absent": 1}


@pytest.mark.parametrize("patch", [{}, "x", [1], None])
def test_what_is_no_json_patch_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(StatusError) as refused:
        json_patch({}, patch)
    assert refused.value.code == 400


def test_an_added_value_is_not_shared_with_the_patch() -> None:
    value: dict[str, int] = {}
    patched = json_patch({}, [{"op": "add", "path": "/a", "value": value}, {"op": "add", "path": "/a/b", "value": 1}])
    assert (json.dumps(patched), value) == ('{"a": {"b": 1}}', {})
