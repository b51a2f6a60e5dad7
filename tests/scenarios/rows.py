"""Scenario rows: what they mean, and how an outcome is compared with them."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scenarios.backends import ScriptedBackend
from scenarios.harness import NAMESPACED, Harness, Json, Refused
from volplane.kube.quantity import parse

ORDER = ("classes", "nodes", "claims", "volumes", "pods")
PROTECTION = frozenset({"kubernetes.io/pv-protection", "kubernetes.io/pvc-protection"})
_UID = re.compile(r"\$uid\(([^)]+)\)")
_STALE = re.compile(r"\$stale-uid\(([^)]+)\)")
_SCRUBBER = re.compile(r"\$scrubber\(([^){]+)\)")
_EACH_POD = re.compile(r"exactly one pod (\S+) with hostPath (\S+) per PV")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def read_rows(file: Path) -> list[Json]:
    rows: list[Json] = json.loads(file.read_text(encoding="utf-8"))
    return rows


class Meaning:
    """Turns the placeholders of one row into what they stand for once objects exist."""

    def __init__(self) -> None:
        self.uids: dict[str, str] = {}
        """By name of a claim; kept after it is gone."""
        self.volumes: dict[str, str] = {}
        """The same for volumes."""

    def learn(self, kind: str, made: Mapping[str, Any]) -> None:
        known = {"claims": self.uids, "volumes": self.volumes}.get(kind)
        if known is not None:
            known[made["metadata"]["name"]] = made["metadata"]["uid"]

    def scrubber(self, volume: str) -> str:
        """Name of the scrubber pod of a volume."""
        return f"volplane-scrub-{hashlib.sha256(self.volumes[volume].encode()).hexdigest()[:16]}"

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self(entry) for entry in value]
        if not isinstance(value, str):
            return value
        value = _SCRUBBER.sub(lambda match: self.scrubber(match[1]), value)
        value = _UID.sub(lambda match: self.uids[match[1]], value)
        return _STALE.sub(lambda match: str(uuid.uuid5(uuid.NAMESPACE_DNS, match[1])), value)


def generated(entry: Mapping[str, Any]) -> list[Json]:
    """Objects from..to of a template with `{i}` and `{i+1}`."""
    text = json.dumps(entry["template"])
    numbers = range(entry["from"], entry["to"] + 1)
    return [json.loads(text.replace("{i+1}", str(i + 1)).replace("{i}", str(i))) for i in numbers]


def spread(name: str) -> list[str]:
    """`x-{0..3}` as names."""
    found = _RANGE.search(name)
    if found is None:
        return [name]
    return [name.replace(found[0], str(i)) for i in range(int(found[1]), int(found[2]) + 1)]


def backends_of(row: Mapping[str, Any]) -> list[ScriptedBackend]:
    given = row["given"].get("backend")
    if not given:
        return []
    if given.get("recycler") == "pod":
        return [ScriptedBackend("kubernetes.io/host-path", recycler_pod=True, owns=lambda s: s.kind == "hostPath")]
    parameters = {key for entry in row["given"].get("classes", ()) for key in entry.get("parameters") or {}}
    return [ScriptedBackend(given["plugin"], given["script"], parameters=sorted(parameters))]


async def prepare(harness: Harness, row: Mapping[str, Any], meaning: Meaning) -> None:
    """Create what the row starts with."""
    given = row["given"]
    entries = given.get("generate") or []
    for kind in ORDER:
        bodies = list(given.get(kind) or [])
        for entry in entries if isinstance(entries, list) else [entries]:
            if entry["kind"] == kind:
                bodies += generated(entry)
        for body in bodies:
            await make(harness, kind, body, meaning)


async def make(harness: Harness, kind: str, body: Mapping[str, Any], meaning: Meaning) -> None:
    made = await harness.create(kind, meaning(body))
    meaning.learn(kind, made)


# --- steps -------------------------------------------------------------------------------------------------------


async def take(harness: Harness, step: Mapping[str, Any], meaning: Meaning) -> None:
    """One entry of `steps`."""
    match step:
        case {"start": what}:
            await _start(harness, what)
        case {"create": objects}:
            for kind in ORDER:
                for body in objects.get(kind, ()):
                    await make(harness, kind, body, meaning)
        case {"generate": entry}:
            for body in generated(entry):
                await make(harness, entry["kind"], body, meaning)
        case {"delete": objects}:
            for kind, names in objects.items():
                await _delete(harness, kind, meaning(names))
        case {"wait": wanted}:
            await _wait(harness, wanted, meaning)
        case {"set-status": objects}:
            for kind, bodies in objects.items():
                await _set_status(harness, kind, meaning(bodies))
        case _:
            raise AssertionError(f"unknown step {step}")


async def _delete(harness: Harness, kind: str, names: list[str]) -> None:
    for name in (each for pattern in names for each in spread(pattern)):
        namespace, _, plain = name.rpartition("/")
        await harness.delete(kind, plain, namespace or "default", grace=0 if kind == "pods" else None)


async def _set_status(harness: Harness, kind: str, bodies: list[Json]) -> None:
    for body in bodies:
        meta, status = body["metadata"], {"status": body["status"]}
        await harness.patch(kind, meta["name"], status, meta.get("namespace", "default"), subresource="status")


async def _start(harness: Harness, what: str) -> None:
    match what:
        case "controller":
            await harness.start()
        case "pod-finisher":
            harness.follow("pods", lambda event, pod: _finish(harness, event, pod))
        case _:
            raise AssertionError(f"cannot start {what}")


async def _finish(harness: Harness, event: str, pod: Json) -> None:
    """A node that runs every pod it may run, and at once: it sees no pod that a scheduling gate holds back."""
    if event == "DELETED" or pod["status"].get("phase") == "Succeeded" or pod["spec"].get("schedulingGates"):
        return
    meta = pod["metadata"]
    try:
        await harness.patch(
            "pods", meta["name"], {"status": {"phase": "Succeeded"}}, meta["namespace"], subresource="status"
        )
    except Refused as error:
        if error.status != 404:
            raise


async def _wait(harness: Harness, wanted: Mapping[str, Any], meaning: Meaning) -> None:
    last: list[str] = []

    async def holds() -> bool:
        last[:] = await shortfalls(harness, {k: v for k, v in wanted.items() if k != "events"}, meaning, exact=False)
        missing = [event for event in wanted.get("events", ()) if event not in harness.events]
        return not last and not missing

    try:
        await harness.until(holds, 30.0)
    except AssertionError as error:
        raise AssertionError(f"{error}; {last}") from None


# --- comparing ---------------------------------------------------------------------------------------------------


async def shortfalls(harness: Harness, then: Mapping[str, Any], meaning: Meaning, *, exact: bool) -> list[str]:
    """What is not as `then` says. exact: no other volumes and claims may exist."""
    wrong: list[str] = []
    for kind in ("volumes", "claims", "pods"):
        if kind not in then:
            continue
        found = {_key(kind, item): _unsealed(harness, item) for item in await harness.everything(kind)}
        expected = {_key(kind, item): item for item in meaning(then[kind])}
        for key, item in expected.items():
            wrong += _differences(item, found[key], key, exact) if key in found else [f"{key} does not exist"]
        if exact and "assert" not in then and (surplus := sorted(set(found) - set(expected))):
            wrong += [f"{name} exists" for name in surplus]
    for claim in then.get("assert", ()):
        wrong += await _count(harness, claim)
    return wrong


def _unsealed(harness: Harness, item: Json) -> Json:
    """The object with the driver's name instead of an intent, if the intent carries our seal for this very object."""
    annotations = item["metadata"].get("annotations") or {}
    text = annotations.get("volplane.dev/intent")
    intent = harness.plane.state.sealer.open(item["metadata"]["uid"], text) if text else None
    if intent is not None:
        annotations["volplane.dev/intent"] = f"$sealed({intent.driver})"
    return item


def strange_pods(harness: Harness, row: Mapping[str, Any], meaning: Meaning) -> list[str]:
    """Scrubber pods that are not those, or not so many, as the row says."""
    said = row["then"].get("each_pod_seen")
    if said is None:
        return []
    found = _EACH_POD.search(said)
    assert found is not None, f"cannot read: {said}"
    (entry,) = row["given"]["generate"]
    expected = {}
    for i in range(entry["from"], entry["to"] + 1):
        name, path = (meaning(part.replace("{i}", str(i))) for part in found.groups())
        expected[name] = {path}
    paths, uids = {}, {}
    for name, pods in harness.pods_seen.items():
        paths[name] = {pod["spec"]["volumes"][0]["hostPath"]["path"] for pod in pods}
        uids[name] = {pod["metadata"]["uid"] for pod in pods}
    wrong = [f"{len(each)} pods {name} were seen" for name, each in uids.items() if len(each) > 1]
    return wrong if paths == expected else [*wrong, f"pods seen: {paths}, expected {expected}"]


def _key(kind: str, item: Mapping[str, Any]) -> str:
    meta = item["metadata"]
    return (
        f"{kind}/{meta.get('namespace', 'default')}/{meta['name']}" if kind in NAMESPACED else f"{kind}/{meta['name']}"
    )


async def _count(harness: Harness, claim: Mapping[str, Any]) -> list[str]:
    items = await harness.everything(claim["kind"])
    matching = [i for i in items if all(_same(v, _at(i, path), path) for path, v in claim["where"].items())]
    if len(matching) == claim["count"]:
        return []
    return [f"{len(matching)} {claim['kind']} are {claim['where']}, expected {claim['count']}"]


def _at(item: Any, path: str) -> Any:
    for part in path.split("."):
        item = item.get(part) if isinstance(item, Mapping) else None
    return item


def _differences(expected: Any, found: Any, where: str, exact: bool) -> list[str]:
    if isinstance(expected, Mapping) and not (exact and where.endswith("/annotations")):
        inside = found if isinstance(found, Mapping) else {}
        return [
            d for key, value in expected.items() for d in _differences(value, inside.get(key), f"{where}/{key}", exact)
        ]
    if isinstance(expected, list) and expected and isinstance(expected[0], Mapping) and isinstance(found, list):
        pairs = zip(expected, found, strict=False)
        short = [f"{where} has {len(found)} entries"] if len(found) != len(expected) else []
        return short + [d for wanted, given in pairs for d in _differences(wanted, given, where, exact)]
    if _same(expected, found, where):
        return []
    return [f"{where} is {json.dumps(found)}, expected {json.dumps(expected)}"]


def _same(expected: Any, found: Any, where: str) -> bool:
    if where.endswith("finalizers"):
        found = [name for name in found or () if name not in PROTECTION or name in (expected or ())]
    if expected in (None, "", [], {}):
        return found in (None, "", [], {})
    if where.endswith(("/storage", ".storage")) and isinstance(found, str):
        return parse(expected) == parse(found)
    return bool(expected == found)


def strange_events(harness: Harness, row: Mapping[str, Any]) -> list[str]:
    """Events that are missing, and events that nobody expects."""
    seen, needed, allowed = set(harness.events), set(row["events"]), set(row.get("events_optional", ()))
    wrong = [f"event {event} is missing" for event in sorted(needed - seen)]
    for event in sorted(seen - needed - allowed):
        texts = [n.message for n in harness.recorded if f"{n.type} {n.reason}" == event]
        wrong.append(f"event {event} was not expected: {texts[:2]}")
    return wrong


def wrong_calls(harness: Harness, row: Mapping[str, Any]) -> list[str]:
    """Backend calls that were made too often or too rarely, or with the wrong parameters."""
    wrong = [text for backend in harness.backends.values() for text in backend.complaints]
    for hook, count in (row["then"].get("backend_calls") or {}).items():
        made = sum(backend.calls[hook] for backend in harness.backends.values())
        if made != count:
            wrong.append(f"the backend's {hook} was called {made} times, expected {count}")
    return wrong


# --- differences -------------------------------------------------------------------------------------------------


class Gone:
    """In place of a value: the key is not there."""


def changed(row: Json, edits: Mapping[str, Any]) -> Json:
    """A copy of the row with values replaced. Paths are `then/volumes/pv-1/status/phase`; list entries go by name."""
    row = copy.deepcopy(row)
    for path, value in edits.items():
        *way, last = path.split("/") if isinstance(path, str) else path
        place: Any = row
        for part in way:
            place = _step_into(place, part)
        if value is Gone:
            del place[last]
        else:
            place[last] = value
    return row


def _step_into(place: Any, part: str) -> Any:
    if isinstance(place, list):
        return next(entry for entry in place if entry.get("metadata", entry)["name"] == part)
    return place.setdefault(part, {}) if place.get(part) is not None else place.__setitem__(part, {}) or place[part]


Edit = Callable[[Json], Json]
