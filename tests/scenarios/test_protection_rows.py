"""Rows of in-use protection (reference attach-and-protection, part G), against the control plane with protection
alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from scenarios.differences import PROTECTION_DIFFERENCES, UNUSED_GATE
from scenarios.faults import Call, refusing
from scenarios.files import scenario_rows
from scenarios.harness import PATHS, Harness, Json
from scenarios.references import KINDS, place, resolved
from volplane.kube.client import Client
from volplane.kube.objects import Pod
from volplane_embedded.informers import Informers
from volplane_embedded.inprocess import InProcessTransport
from volplane_embedded.scheduler.scheduler import Scheduler
from volplane_testing import clock

GROUPS = ("pvc-protection", "pv-protection")
ROWS = [row for row in scenario_rows("attach-protection.json") if row["group"] in GROUPS]
ORDER = ("nodes", "pods", "claims", "volumes")
GUARDS = {"claims": "kubernetes.io/pvc-protection", "volumes": "kubernetes.io/pv-protection"}
NOTHING_ELSE = {"binder": False, "provisioner": False, "reclaimer": False}


async def _prepare(harness: Harness, row: Json) -> None:
    for kind in ORDER:
        for given in row["given"].get(kind, ()):
            body = await resolved(harness, given)
            body["metadata"].pop("uid", None)
            body.setdefault("spec", {})
            await harness.create(kind, body)


def _inject(harness: Harness, row: Json) -> None:
    inject = row.get("inject") or {}
    for lag in inject.get("informerLag", ()):
        assert lag["mode"] == "withhold-all"
        harness.rules.hide(lag["resource"], "*")
    for fault in inject.get("apiFaults", ()):
        what = f"{fault['verb']} {fault['resource']}" + (f"/{fault['subresource']}" if "subresource" in fault else "")
        before = refusing(fault["status"], "Forbidden", "by the scenario")
        harness.rules.fault(lambda c, w=what: c.what == w, times=fault["times"], before=before)


@asynccontextmanager
async def _scheduler(harness: Harness, row: Json) -> AsyncIterator[None]:
    if ((row.get("inject") or {}).get("config") or {}).get("scheduler") != "running":
        yield
        return
    client, informers = Client(InProcessTransport(harness.server)), Informers()
    following = asyncio.create_task(informers.follow(client, random.Random(3)))
    await informers.wait_synced()
    scheduling = asyncio.create_task(Scheduler(client, informers, recorder=harness, now=clock.now).run())
    try:
        yield
    finally:
        for task in (scheduling, following):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _take(harness: Harness, step: Json, row: Json) -> None:
    match step["op"]:
        case "start":
            await harness.start()
        case "settle":
            await harness.settle(float(step["within"].removesuffix("s")))
        case "expect":
            wrong = await _shortfalls(harness, step["then"])
            assert not wrong, wrong
        case "create":
            await harness.create(KINDS[_resource(step["object"])], await resolved(harness, step["object"]))
        case "delete":
            kind, name, namespace = place(step["ref"])
            await harness.delete(kind, name, namespace, grace=step.get("gracePeriodSeconds"))
        case "patch":
            kind, name, namespace = place(step["ref"])
            await harness.patch(kind, name, step["merge"], namespace, subresource=step.get("subresource", ""))
        case "deliver":
            await _deliver(harness, step)
        case op:
            raise AssertionError(f"unknown step {op}")


def _resource(body: Json) -> str:
    return {"Pod": "pods", "PersistentVolume": "persistentvolumes", "PersistentVolumeClaim": "persistentvolumeclaims"}[
        body["kind"]
    ]


async def _deliver(harness: Harness, step: Json) -> None:
    """One event of the pod watch, as the first thing that the controller hears; lists and watches bring no more
    pods.
    """
    harness.rules.hide("pods", "*")
    process = await harness.build()
    for version, key in enumerate(("old", "new"), start=10**9):
        if key in step:
            body = {**step[key], "metadata": {"uid": "uid0", **step[key]["metadata"], "resourceVersion": str(version)}}
            process.plane.state.pods.observe(msgspec.convert(body, Pod))
    if step["event"] == "delete":
        process.plane.state.pods.observe_deleted("default/pod1", "uid0")
    await process.start()


# --- comparing ---------------------------------------------------------------------------------------------------


async def _shortfalls(harness: Harness, then: Json) -> list[str]:
    wrong: list[str] = []
    for kind in ("claims", "volumes", "pods"):
        for fact in then.get(kind, ()):
            wrong += _differences(kind, await harness.get(kind, fact["name"], fact.get("namespace", "default")), fact)
    writes = [c for c in harness.rules.calls if c.verb in ("create", "update", "delete")]
    count = then.get("writeCount")
    if count is not None and len(writes) != count:
        wrong.append(f"{len(writes)} writes, expected {count}: {[c.what for c in writes]}")
    wrong += _wrong_writes(writes, then) + _wrong_lists(harness, then)
    return wrong


def _differences(kind: str, found: Json | None, fact: Json) -> list[str]:
    where = f"{kind}/{fact['name']}"
    if found is None or not fact.get("exists", True):
        return [] if (found is not None) == fact.get("exists", True) else [f"{where} exists: {found is not None}"]
    meta, status = found["metadata"], found.get("status", {})
    facts = {
        "finalizers": meta.get("finalizers") or [],
        "terminating": "deletionTimestamp" in meta,
        "phase": status.get("phase"),
        "nodeName": found.get("spec", {}).get("nodeName", ""),
    }
    wrong = [f"{where}: {k} is {v}, expected {fact[k]}" for k, v in facts.items() if k in fact and fact[k] != v]
    conditions = status.get("conditions") or []
    wanted = fact.get("conditions", conditions)
    if len(conditions) != len(wanted) or not all(map(_is_condition, conditions, wanted)):
        wrong.append(f"{where}: conditions are {conditions}")
    if "condition" in fact and not any(_is_condition(c, fact["condition"]) for c in conditions):
        wrong.append(f"{where}: no condition {fact['condition']} in {conditions}")
    return wrong


def _is_condition(found: Json, expected: Json) -> bool:
    text = expected.get("messageContains", "")
    same = all(found.get(key) == value for key, value in expected.items() if key != "messageContains")
    return same and text in found.get("message", "")


def _wrong_writes(writes: list[Call], then: Json) -> list[str]:
    if "writes" not in then:
        return []
    made = [_told(call) for call in writes]
    expected = [_expected(entry) for entry in then["writes"]]
    if then.get("writeOrder") == "any":
        made, expected = sorted(made, key=str), sorted(expected, key=str)
    return [] if made == expected else [f"writes were {made}, expected {expected}"]


def _told(call: Call) -> tuple[Any, ...]:
    outcome = "ok" if call.status < 300 else f"injected-{call.status}"
    finalizers = ((call.body or {}).get("metadata") or {}).get("finalizers") or []
    return call.verb, call.resource, call.namespace, call.name, outcome, tuple(finalizers)


def _expected(entry: Json) -> tuple[Any, ...]:
    resource = entry["resource"] + (f"/{entry['subresource']}" if "subresource" in entry else "")
    finalizers = tuple((entry.get("effect") or {}).get("finalizers") or ())
    return entry["verb"], resource, entry.get("namespace", ""), entry["name"], entry["outcome"], finalizers


def _wrong_lists(harness: Harness, then: Json) -> list[str]:
    wrong = []
    listed = [
        call.namespace
        for call in harness.rules.calls
        if call.verb == "list" and call.resource == "pods" and call.namespace
    ]
    for entry in then.get("liveLists", ()):
        count = listed.count(entry["namespace"])
        least, most = entry.get("min", entry.get("count")), entry.get("max", entry.get("count"))
        if not least <= count <= most:
            wrong.append(f"pods of {entry['namespace']} were listed {count} times, expected {least} to {most}")
    if then.get("liveLists") == [] and listed:
        wrong.append(f"pods of {listed} were listed live")
    return wrong


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in ROWS])
async def test_protection_does_what_the_scenario_says(row: Json) -> None:
    difference = PROTECTION_DIFFERENCES.get(row["id"])
    row = difference.applied(row) if difference is not None else row
    controllers = frozenset({"protection"})
    gates = ((row.get("inject") or {}).get("config") or {}).get("featureGates", {})
    settings = {**NOTHING_ELSE, "unused_condition": gates.get(UNUSED_GATE, False)}
    async with Harness(controllers=controllers, settings=settings, disabled_admission=()) as harness:
        await _prepare(harness, row)
        _inject(harness, row)
        async with _scheduler(harness, row):
            for step in row["steps"]:
                await _take(harness, step, row)
        wrong = await _shortfalls(harness, row["then"])
        assert not wrong, "\n".join([*wrong, f"reasons: {harness.reasons()}"])


def test_every_kind_of_object_has_a_path() -> None:
    assert set(KINDS.values()) <= set(PATHS)
