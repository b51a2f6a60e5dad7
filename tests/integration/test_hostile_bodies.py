"""Bodies bent out of shape: whatever is sent, the answer is a Status that says what is wrong, never a failure
inside.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from tools.api_exchanges import read

from unit.embedded.apiserver.calls import Calls

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**63, 2**70, 1.5, 1e300),
    *("", "x", "1Gi", "-1", "A b", "a" * 300, "2026-01-01T00:00:00Z", "\u00e9"),
    *([], {}, [None], [{}], [[]], ["a"], {"a": 1}, {"a": None}, {"$patch": "replace"}, {"$patch": ["x"]}),
)
_KEYS = ("bogus", "$patch", "$retainKeys", "metadata", "spec", "status", "name", "finalizers", "gracePeriodSeconds")
_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _bend(value: Any, source: random.Random) -> Any:
    bent = copy.deepcopy(value)
    for _ in range(source.randint(1, 3)):
        places = list(_places(bent))
        if not places:
            return source.choice(_VALUES)
        *path, last = source.choice(places)
        parent = bent
        for key in path:
            parent = parent[key]
        fresh = copy.deepcopy(source.choice(_VALUES))
        change = source.random()
        if change < 0.6:
            parent[last] = fresh
        elif change < 0.8:
            del parent[last]
        elif isinstance(parent, dict):
            parent[source.choice(_KEYS)] = fresh
        else:
            parent.append(fresh)
    return bent


@pytest.mark.parametrize("seed", range(4))
def test_no_body_makes_the_server_fail(shared: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    source = random.Random(seed)
    files = sorted((shared / "apiserver").glob("*.json"))
    writes = [exchange for path in files for exchange in read(path) if exchange.method != "GET"]
    calls = Calls()
    for _ in range(1500):
        exchange = source.choice(writes)
        parts = urlsplit(exchange.path)
        headers = dict(exchange.headers)
        if exchange.method == "PATCH":
            headers["Content-Type"] = source.choice(_PATCHES)
        value = {} if exchange.body is None else exchange.body
        body = json.dumps(value if source.random() < 0.3 else _bend(value, source)).encode()
        query = [*parse_qsl(parts.query), ("fieldValidation", source.choice(("", "Ignore", "Strict")))]
        answer = calls.server.handle(exchange.method, parts.path, query, headers, body)
        assert not caplog.records, f"{exchange} {body.decode()}: {caplog.text}"
        assert json.loads(answer.body)["kind"]
    for resource in ("persistentvolumes", "persistentvolumeclaims", "pods", "nodes", "events", "configmaps", "secrets"):
        assert calls.server.handle("GET", f"/api/v1/{resource}", (), _TABLE, b"").status == 200
    assert not caplog.records
