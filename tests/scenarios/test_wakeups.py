"""No wake-up is lost: once all is quiet, no claim waits beside a volume that it could have."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenarios.backends import ScriptedBackend
from scenarios.harness import Harness, Json, Refused
from scenarios.stories import DRIVER, claim, storage_class, volume
from volplane.state.matching import capacity_of, demand_of, place_of
from volplane_testing.clock import run

MODES = (["ReadWriteOnce"], ["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteMany"])
CLASSES = ("", "manual", None)

sizes = st.integers(1, 4).map(lambda gib: f"{gib}Gi")
modes = st.sampled_from(MODES)
classes = st.sampled_from(CLASSES)
labels = st.sampled_from(({}, {"tier": "a"}, {"tier": "b"}))
pauses = st.sampled_from((0.0, 0.0, 0.001, 0.5))


@st.composite
def acts(draw: st.DrawFn) -> tuple[str, Any, float]:
    kind = draw(st.sampled_from(("claim", "claim", "volume", "volume", "delete claim", "delete volume", "relabel")))
    chosen: Any
    match kind:
        case "claim":
            selector = draw(labels)
            chosen = {"accessModes": draw(modes), "storageClassName": draw(classes), "size": draw(sizes)}
            chosen["selector"] = {"matchLabels": selector} if selector else None
        case "volume":
            chosen = {"accessModes": draw(modes), "storageClassName": draw(classes) or "", "size": draw(sizes)}
            chosen["labels"] = draw(labels)
        case "relabel":
            chosen = {"number": draw(st.integers(0, 11)), "labels": draw(labels)}
        case _:
            chosen = {"number": draw(st.integers(0, 11))}
    return kind, chosen, draw(pauses)


def _without_nothing(spec: Json) -> Json:
    return {key: value for key, value in spec.items() if value is not None}


async def _act(harness: Harness, kind: str, chosen: Json, number: int) -> None:
    match kind:
        case "claim":
            spec = _without_nothing({key: value for key, value in chosen.items() if key != "size"})
            body = claim(f"c{number}", chosen["size"], **spec)
            if chosen["storageClassName"] is None:
                del body["spec"]["storageClassName"]
            await harness.create("claims", body)
        case "volume":
            body = volume(
                f"v{number}",
                chosen["size"],
                accessModes=chosen["accessModes"],
                storageClassName=chosen["storageClassName"],
            )
            body["metadata"]["labels"] = chosen["labels"]
            await harness.create("volumes", body)
        case "relabel":
            await harness.patch(
                "volumes", f"v{chosen['number']}", {"metadata": {"labels": {"tier": None} | chosen["labels"]}}
            )
        case _:
            plural = kind.removeprefix("delete ") + "s"
            await harness.delete(plural, f"{plural[0]}{chosen['number']}")


async def _try(harness: Harness, kind: str, chosen: Json, number: int) -> None:
    try:
        await _act(harness, kind, chosen, number)
    except Refused as error:
        if error.status != 404:
            raise


def _missed(harness: Harness) -> list[str]:
    """Pairs that could be bound and are not."""
    world = harness.plane.state
    waiting = [c for c in world.claims.values() if not c.spec.volume_name and not c.terminating]
    free = [
        v
        for v in world.volumes.values()
        if v.spec.claim_ref is None and v.status.phase == "Available" and not v.terminating
    ]
    missed = []
    for item, offer in itertools.product(waiting, free):
        demand = demand_of(item)
        fits = place_of(offer) == demand.place and capacity_of(offer) >= demand.request and demand.accepts(offer)
        if fits:
            missed.append(f"{item.key} and {offer.name}")
    return missed


def _doubly_bound(harness: Harness) -> list[str]:
    world = harness.plane.state
    pointers = [c.spec.volume_name for c in world.claims.values() if c.spec.volume_name]
    wrong = [name for name in pointers if pointers.count(name) > 1]
    for item in world.claims.values():
        bound = world.volumes.get(item.spec.volume_name) if item.spec.volume_name else None
        if bound is not None and (bound.spec.claim_ref is None or bound.spec.claim_ref.uid != item.uid):
            wrong.append(f"{item.key} points at {bound.name}, which belongs to somebody else")
    return wrong


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(acts(), min_size=4, max_size=24))
def test_no_claim_waits_beside_a_volume_that_fits(plan: list[tuple[str, Json, float]]) -> None:
    async def body() -> None:
        async with Harness(ScriptedBackend(DRIVER)) as harness:
            await harness.create("classes", storage_class("manual", provisioner="kubernetes.io/no-provisioner"))
            await harness.start()
            numbers = {"claim": itertools.count(), "volume": itertools.count()}
            for kind, chosen, pause in plan:
                number = next(numbers[kind]) if kind in numbers else 0
                await _try(harness, kind, chosen, number)
                await asyncio.sleep(pause)
            await harness.settle(30.0)
            assert not _missed(harness)
            assert not _doubly_bound(harness)
            assert not harness.plane.state.free._held, "a volume is kept for nobody"

    run(body())


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(acts(), min_size=4, max_size=20), st.integers(0, 30), st.sampled_from(("Conflict", "down")))
def test_no_wake_up_is_lost_with_a_write_that_failed(
    plan: list[tuple[str, Json, float]], number: int, error: str
) -> None:
    async def body() -> None:
        async with Harness(ScriptedBackend(DRIVER)) as harness:
            await harness.create("classes", storage_class("manual", provisioner="kubernetes.io/no-provisioner"))
            for what in ("update persistentvolumes", "update persistentvolumeclaims"):
                harness.fail(what, error, 2, skip=number % 5)
            await harness.start()
            numbers = {"claim": itertools.count(), "volume": itertools.count()}
            for kind, chosen, pause in plan:
                await _try(harness, kind, chosen, next(numbers[kind]) if kind in numbers else 0)
                await asyncio.sleep(pause)
            await harness.settle(60.0)
            assert not _missed(harness)
            assert not _doubly_bound(harness)

    run(body())
