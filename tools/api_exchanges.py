"""Recorded exchanges of a real API server: how they are read, sent again and compared.

A file is a list of exchanges that are run in order on an empty server: `id`, `method`, `path`, `body`, `headers`,
`save` (name to dotted path into the response, used later as `$name` or `${name}`), `note` and `response` (`status` and
`body`, or for a watch `events`). A body that is a text is sent as it is, another one as JSON. What differs from run to
run is normalised: `<uid>`, `<time>`, `<rv>` (a resourceVersion), `<continue>`, `<rand>`; `managedFields` is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

_PATTERNS = {
    "<uid>": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    "<time>": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"),
    "<rv>": re.compile(r"[1-9]\d*"),
    "<continue>": re.compile(r"[-A-Za-z0-9_]+"),
    "gen-<rand>": re.compile(r"gen-[a-z0-9]{5}"),
}
_AGE = re.compile(r"(\d+[smhdy])+|<unknown>")
_REFERENCE = re.compile(r"\$\{?(\w+)\}?")
_GENERATED = re.compile(r"gen-[a-z0-9]{5}")


@dataclass(frozen=True)
class Exchange:
    """One recorded request and what was answered."""

    file: str
    id: str
    method: str
    path: str
    body: Any
    headers: dict[str, str]
    save: dict[str, str]
    status: int
    answer: Any
    events: list[Any] | None

    @property
    def is_watch(self) -> bool:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return self.events is not None or "/watch/" in parts.path or query.get("watch", "false") not in ("false", "0")

    def __str__(self) -> str:
        return f"{self.file}/{self.id}"


@dataclass
class Reply:
    """What our server answered."""

    status: int
    body: Any = None
    events: list[Any] = field(default_factory=list)


def read(path: Path) -> list[Exchange]:
    """The exchanges of a file."""
    return [exchange(path.stem, entry) for entry in json.loads(path.read_text())]


def exchange(file: str, entry: dict[str, Any]) -> Exchange:
    """One entry of a file. Without a response it can be sent, but not compared."""
    response = entry.get("response") or {}
    return Exchange(
        file,
        entry["id"],
        entry["method"],
        entry["path"],
        entry.get("body"),
        entry.get("headers") or {},
        entry.get("save") or {},
        response.get("status", 0),
        response.get("body"),
        response.get("events"),
    )


class Variables:
    """Values saved from earlier answers."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def request(self, exchange: Exchange) -> tuple[str, list[tuple[str, str]], bytes, dict[str, str]]:
        """Path, query, body and headers with the saved values in place."""
        parts = urlsplit(self._fill(exchange.path))
        text = exchange.body if isinstance(exchange.body, str) else json.dumps(exchange.body)
        body = b"" if exchange.body is None else self._fill(text).encode()
        headers = dict(exchange.headers)
        if body:
            headers.setdefault("Content-Type", "application/json")
        return parts.path, parse_qsl(parts.query, keep_blank_values=True), body, headers

    def keep(self, exchange: Exchange, body: Any) -> None:
        for name, path in exchange.save.items():
            value = body
            for key in path.split("."):
                value = value[key]
            self._values[name] = value

    def _fill(self, text: str) -> str:
        return _REFERENCE.sub(lambda found: self._values.get(found[1], found[0]), text)


def differences(exchange: Exchange, reply: Reply) -> list[str]:
    """How a reply differs from the recording, as far as the README of the recordings minds."""
    if reply.status != exchange.status:
        return [f"status {reply.status} instead of {exchange.status}: {json.dumps(reply.body)[:300]}"]
    if exchange.id == "watch-expired" and [event.get("type") for event in reply.events] == ["ERROR"]:
        return []  # the recording allows 410 there
    if exchange.events is not None:
        return list(_events(exchange.events, reply.events))
    if exchange.file == "discovery":
        return list(_discovery(exchange, reply.body))
    return list(_object(exchange.answer, reply.body, ""))


def _events(expected: list[Any], actual: list[Any]) -> Iterator[str]:
    shown = [(event.get("type"), _name(event)) for event in actual]
    if len(expected) != len(actual):
        yield f"{len(actual)} events instead of {len(expected)}: {shown}"
        return
    for position, (left, right) in enumerate(zip(expected, actual, strict=True)):
        if left.get("kind") == "Status" or "type" not in right:
            yield from _status(left, right, f"[{position}]")
            continue
        if left.get("type") != right.get("type"):
            yield f"event {position} is {shown[position]}, not {left.get('type')}"
            continue
        yield from _object(left["object"], right["object"], f"[{position}].object")


def _name(event: Any) -> str:
    found = event.get("object") or {}
    return str((found.get("metadata") or {}).get("name"))


def _object(expected: Any, actual: Any, path: str) -> Iterator[str]:
    kind = expected.get("kind") if isinstance(expected, dict) else None
    if kind == "Status" and expected.get("status") == "Failure":
        yield from _status(expected, actual, path)
    elif kind == "Table":
        yield from _table(expected, actual, path)
    else:
        yield from _value(expected, actual, path)


def _status(expected: Any, actual: Any, path: str) -> Iterator[str]:
    """Everything but messages."""
    for key in ("kind", "apiVersion", "status", "reason", "code"):
        yield from _value(expected.get(key), actual.get(key), f"{path}.{key}")
    left, right = expected.get("details") or {}, actual.get("details") or {}
    for key in ("name", "group", "kind"):
        yield from _value(left.get(key), right.get(key), f"{path}.details.{key}")
    causes = [[(c.get("field"), c.get("reason")) for c in side.get("causes") or ()] for side in (left, right)]
    if causes[0] != causes[1]:
        yield f"{path}.details.causes: {causes[1]} instead of {causes[0]}"


def _table(expected: Any, actual: Any, path: str) -> Iterator[str]:
    """Columns that a plain `kubectl get` prints, by name; ages are whatever they are."""
    if expected["rows"] is None or actual["rows"] is None:
        yield from _value(expected["rows"], actual["rows"], f"{path}.rows")
        return
    definitions = expected.get("columnDefinitions")
    if definitions is None:
        # Later tables of a watch: the cells are compared by position, all but those that hold an age.
        if actual.get("columnDefinitions") is not None:
            yield f"{path}.columnDefinitions: sent again"
        rows = [[row["cells"] for row in side["rows"]] for side in (expected, actual)]
        for left, right in zip(*rows, strict=True):
            yield from _cells(left, right[: len(left)], f"{path}.rows")
    else:
        yield from _columns(definitions, expected, actual, path)
    for position, (left, right) in enumerate(zip(expected["rows"], actual["rows"], strict=False)):
        yield from _value(left.get("object"), right.get("object"), f"{path}.rows[{position}].object")
        yield from _value(left.get("conditions"), right.get("conditions"), f"{path}.rows[{position}].conditions")
    if len(expected["rows"]) != len(actual["rows"]):
        yield f"{path}.rows: {len(actual['rows'])} instead of {len(expected['rows'])}"
    yield from _value(expected["metadata"], actual["metadata"], f"{path}.metadata")


def _columns(definitions: list[Any], expected: Any, actual: Any, path: str) -> Iterator[str]:
    served = {column["name"]: (at, column) for at, column in enumerate(actual["columnDefinitions"])}
    printed = [(at, column) for at, column in enumerate(definitions) if not column.get("priority")]
    names = [column["name"] for column in actual["columnDefinitions"] if not column.get("priority")]
    if names != [column["name"] for _, column in printed]:
        yield f"{path}.columns: {names} instead of {[column['name'] for _, column in printed]}"
        return
    for at, column in printed:
        position, found = served[column["name"]]
        for key in ("type", "format"):
            yield from _value(column[key], found[key], f"{path}.columns[{column['name']}].{key}")
        for left, right in zip(expected["rows"], actual["rows"], strict=False):
            cells = ([left["cells"][at]], [right["cells"][position]])
            yield from _cells(*cells, f"{path}.cell[{column['name']}]")


def _cells(expected: list[Any], actual: list[Any], path: str) -> Iterator[str]:
    for left, right in zip(expected, actual, strict=True):
        if isinstance(left, str) and isinstance(right, str):
            if _AGE.fullmatch(left) and _AGE.fullmatch(right):
                continue
            if _GENERATED.fullmatch(left) and _GENERATED.fullmatch(right):
                continue
        yield from _value(left, right, path)


def _value(expected: Any, actual: Any, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            yield from _value(expected.get(key, "(absent)"), actual.get(key, "(absent)"), f"{path}.{key}")
        return
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for position, (left, right) in enumerate(zip(expected, actual, strict=True)):
            yield from _value(left, right, f"{path}[{position}]")
        return
    pattern = _PATTERNS.get(expected) if isinstance(expected, str) else None
    if pattern is not None and isinstance(actual, str) and pattern.fullmatch(actual):
        return
    if expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield f"{path}: {json.dumps(actual)[:200]} instead of {json.dumps(expected)[:200]}"


SERVED = {
    "": "configmaps events namespaces nodes persistentvolumeclaims persistentvolumes pods secrets serviceaccounts",
    "storage.k8s.io": (
        "csidrivers csinodes csistoragecapacities storageclasses volumeattachments volumeattributesclasses"
    ),
    "coordination.k8s.io": "leases",
    "events.k8s.io": "events",
    "authorization.k8s.io": "selfsubjectaccessreviews",
}
"""What has to be there, by group; what else the recorded server has is free."""


def _discovery(exchange: Exchange, actual: Any) -> Iterator[str]:
    """Our part of what the recorded server serves, entry by entry the same."""
    expected = exchange.answer
    if exchange.id == "version":
        for key in ("major", "minor"):
            yield from _value(expected[key], actual.get(key), key)
        if set(expected) - set(actual):
            yield f"/version lacks {sorted(set(expected) - set(actual))}"
        return
    if not isinstance(expected, dict) or expected.get("kind") in (None, "Status"):
        yield from _object(expected, actual, "")
        return
    for key in ("kind", "apiVersion", "groupVersion", "versions", "name", "preferredVersion"):
        yield from _value(expected.get(key), actual.get(key), key)
    yield from _entries(expected.get("groups"), actual.get("groups"), "name", set(SERVED) - {""})
    group = (expected.get("groupVersion") or "").rpartition("/")[0]
    yield from _entries(expected.get("resources"), actual.get("resources"), "name", set(SERVED[group].split()))
    yield from _aggregated(expected.get("items"), actual.get("items"))


def _entries(expected: Any, actual: Any, key: str, needed: set[str]) -> Iterator[str]:
    if expected is None:
        return
    recorded = {entry[key]: entry for entry in expected}
    names = {entry[key] for entry in actual}
    if needed - names:
        yield f"not served: {sorted(needed - names)}"
    for entry in actual:
        if entry[key] in recorded:
            yield from _value(recorded[entry[key]], entry, entry[key])
        else:
            yield f"served, but not by the recorded server: {entry[key]}"


def _aggregated(expected: Any, actual: Any) -> Iterator[str]:
    if expected is None:
        return
    recorded = {item["metadata"].get("name", ""): item["versions"] for item in expected}
    for item in actual:
        group = item["metadata"].get("name", "")
        for version in item["versions"]:
            there = next(entry for entry in recorded[group] if entry["version"] == version["version"])
            yield from _value(there["freshness"], version["freshness"], f"{group}.freshness")
            resources = [[dict(entry) for entry in side["resources"]] for side in (there, version)]
            known = {entry["resource"]: entry.pop("subresources", []) for entry in resources[0]}
            for entry in resources[1]:
                mine = entry.pop("subresources", [])
                yield from _entries(known.get(entry["resource"], []), mine, "subresource", set())
            yield from _entries(resources[0], resources[1], "resource", set(SERVED.get(group, "").split()))
