"""One pass over one object, as one worker makes it: for the rows of unit tables, which look at a single decision
chain.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from backends import start_all
from scenarios import rows
from scenarios.harness import Harness, Json
from volplane.controller.actions import Run
from volplane.controller.controller import Work
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane.operations.registry import OperationRegistry
from volplane.state.naming import volume_source
from volplane_embedded.inprocess import InProcessTransport

_MISSING = re.compile(r"(\S+) is absent from the controller cache but GET finds it")
_OUTDATED = re.compile(r"controller cache holds (\S+) with its old UID; GET answers \S+ with the UID the PV refers to")
_FREED = re.compile(r"(\S+): claimRef null, annotations null, phase Available")
_REAPPEARED = re.compile(r"(\S+) with the UID in claimRef, volumeName (\S+), phase Bound")


def hold(operations: OperationRegistry, before: Callable[[str], Awaitable[None]]) -> None:
    """Let something happen once an operation was accepted and before it starts; `before` gets its name."""
    start = operations.start

    def held(run: Run, work: Work, requeue: Callable[[], None]) -> None:
        async def later() -> str | None:
            await before(run.name)
            return await work()

        start(run, later, requeue)

    operations.start = held  # type: ignore[method-assign]


async def one_sync(harness: Harness, kind: str, name: str, *, before: Callable[[], Awaitable[None]]) -> None:
    """Fill the caches, decide about one object until it waits, and let the operation that it started end.

    Whose the static volumes are is known before: asking for it would be an operation of its own, and end the pass.
    """
    plane = (await harness.build()).plane
    await start_all(plane.drivers)
    client = Client(InProcessTransport(harness.server))
    for cache in plane.caches.values():
        listing = await client.list(cache.kind)
        hidden = {key for resource, key in harness.rules.hidden if resource == cache.kind.plural}
        for item in listing.items:
            if item.key not in hidden:
                cache.observe(item)
        cache.listed.set()
    await before()
    for volume in plane.state.volumes.values():
        await plane.drivers.identify(volume_source(volume))
    runner = {r.name: r for r in plane.runners}[kind]
    await runner._reconcile(name if kind == "volumes" else f"default/{name}")
    while any(state.next_try is None for state in plane.operations.snapshot()):
        await asyncio.sleep(0.01)


async def divert(harness: Harness, row: Mapping[str, Any], meaning: rows.Meaning) -> None:
    """What `inject` says about caches."""
    for entry in row.get("inject", ()):
        text = entry.get("cache", "")
        if found := _MISSING.fullmatch(text) or _OUTDATED.fullmatch(text):
            harness.rules.hide("persistentvolumeclaims", f"default/{found[1]}")
        elif text:
            raise AssertionError(f"cannot read: {text}")


async def outdate(harness: Harness, row: Mapping[str, Any]) -> None:
    """Put an older incarnation of a claim into the cache."""
    for entry in row.get("inject", ()):
        if found := _OUTDATED.fullmatch(entry.get("cache", "")):
            claim = await Client(InProcessTransport(harness.server)).get(CLAIMS, f"default/{found[1]}")
            claim.metadata.uid = "00000000-0000-0000-0000-00000000dead"
            claim.metadata.resource_version = "1"
            harness.plane.state.claims.observe(claim)


async def act(harness: Harness, row: Mapping[str, Any], meaning: rows.Meaning, operation: str) -> None:
    """What happens while an operation waits to start."""
    for entry in row.get("inject", ()):
        if "at" not in entry:
            continue
        expected = entry["at"].removeprefix("before-operation ").removesuffix("[*]")
        assert operation.startswith(f"{expected}["), f"{operation} was started, expected {expected}"
        for deed in entry["do"]:
            for verb, what in deed.items():
                await _do(harness, meaning, verb, what, row)


async def _do(harness: Harness, meaning: rows.Meaning, verb: str, what: str, row: Mapping[str, Any]) -> None:
    match verb:
        case "delete":
            kind, name = what.removeprefix("persistent").split("/")
            await harness.delete(kind, name)
            held = await harness.get(kind, name)
            if held is not None:  # our finalizer holds it; somebody who wants it gone at once takes that away too
                await harness.patch(kind, name, {"metadata": {"finalizers": None}})
        case "update" if found := _FREED.fullmatch(what):
            body = {"metadata": {"annotations": None}, "spec": {"claimRef": None}}
            await harness.patch("volumes", found[1], body)
            await harness.patch("volumes", found[1], {"status": {"phase": "Available"}}, subresource="status")
        case "create-bound" if found := _REAPPEARED.fullmatch(what):
            harness.rules.absent.clear()
        case "set-phase":
            name, phase = what.split()
            await harness.patch("volumes", name, {"status": {"phase": phase}}, subresource="status")
        case "cache-add":
            claim = await Client(InProcessTransport(harness.server)).get(CLAIMS, f"default/{what}")
            harness.plane.state.claims.observe(claim)
        case "create" if what.startswith("PV "):
            await _create_provisioned(harness, meaning, row)
        case _:
            raise AssertionError(f"cannot read: {verb} {what}")


async def _create_provisioned(harness: Harness, meaning: rows.Meaning, row: Mapping[str, Any]) -> None:
    """The volume of the row's `then`, as it is, and in the cache as a watch would bring it."""
    (body,) = row["then"]["volumes"]
    volume: Json = meaning(body)
    volume["spec"]["hostPath"] = {"path": "/made-elsewhere"}
    await harness.create("volumes", volume)
    for item in (await Client(InProcessTransport(harness.server)).list(harness.plane.state.volumes.kind)).items:
        harness.plane.state.volumes.observe(item)


async def foretell(harness: Harness, row: Mapping[str, Any], meaning: rows.Meaning) -> None:
    """Create claims that reappear later with a uid that a volume names already; nobody sees them before."""
    for entry in row.get("inject", ()):
        for deed in entry.get("do", ()) if "at" in entry else ():
            if "create-bound" in deed:
                (body,) = row["then"]["claims"]
                spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
                given = {**body, "spec": {**spec, **body["spec"]}}
                given["metadata"] = {k: v for k, v in body["metadata"].items() if v is not None}
                await rows.make(harness, "claims", given, meaning)
                key = ("persistentvolumeclaims", f"default/{body['metadata']['name']}")
                harness.rules.hide(*key)
                harness.rules.absent.add(key)
