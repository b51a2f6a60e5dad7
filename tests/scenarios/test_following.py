"""A control plane that follows another one: it keeps nothing of what came and went, and leads with what it has seen."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scenarios.attach_objects import node
from scenarios.backends import ScriptedBackend
from scenarios.harness import Harness, Json
from scenarios.held_memory import held_by
from scenarios.stories import DRIVER, claim, storage_class, volume
from volplane.kube import names
from volplane.process.control_plane import ControlPlane
from volplane.process.duties import ALL_CONTROLLERS
from volplane_testing.control_plane import VirtualProcess

FORGOTTEN_AFTER = 400.0
"""Seconds after which a cache knows nothing of what is gone."""


@asynccontextmanager
async def following(leader: Harness) -> AsyncIterator[VirtualProcess]:
    """A control plane with all controllers, that fills its caches and decides, and takes no step."""
    beside = Harness(
        ScriptedBackend(DRIVER), controllers=frozenset(ALL_CONTROLLERS), disabled_admission=(), beside=leader
    )
    async with beside:
        process = await beside.build()
        process.plane.follow()
        process.begin("controllers", process.plane.run())
        await process.plane.wait_synced()
        yield process
        process.check()


def selects(node_name: str | None) -> Json:
    return {"metadata": {"annotations": {names.SELECTED_NODE: node_name}}}


async def come_and_go(harness: Harness, number: int) -> None:
    """Claims of every sort, volumes and pods appear, and are gone some seconds later."""
    volumes = [f"static-{number}-{each}" for each in "ab"]
    claims: dict[str, dict[str, Any]] = {
        "static": {},
        "larger": {"size": "900Gi"},
        "classless": {"storageClassName": "missing"},
        "made": {"storageClassName": "fast"},
        "late": {"storageClassName": "late"},
        "chosen": {"selector": {"matchLabels": {"tier": f"t{number}"}}},
        "named": {"volumeName": f"absent-{number}"},
        "copied": {"storageClassName": "fast", "dataSource": {"kind": "PersistentVolumeClaim", "name": "gone"}},
    }
    for name in volumes:
        await harness.create("volumes", {**volume(name), "status": {"phase": "Available"}})
    for name, spec in claims.items():
        await harness.create("claims", claim(f"{name}-{number}", **spec))
    await harness.patch("claims", f"late-{number}", selects(f"node-{number}"))
    await harness.create("nodes", node(f"node-{number}"))
    await asyncio.sleep(10)
    await harness.patch("claims", f"late-{number}", selects(None))
    for name in claims:
        await harness.delete("claims", f"{name}-{number}")
    await asyncio.sleep(10)
    await harness.delete("nodes", f"node-{number}")
    for name in volumes:
        await harness.delete("volumes", name)
    for kind in ("claims", "volumes"):
        for each in await harness.everything(kind):
            await harness.patch(kind, each["metadata"]["name"], {"metadata": {"finalizers": None}})
    await asyncio.sleep(10)
    assert not await harness.everything("claims")
    assert not await harness.everything("volumes")


async def kept_of(harness: Harness, plane: ControlPlane, numbers: range) -> Counter[str]:
    for number in numbers:
        await come_and_go(harness, number)
    await asyncio.sleep(FORGOTTEN_AFTER)
    await come_and_go(harness, numbers.stop)  # Tombstones of caches are dropped with the next one.
    kept = held_by(plane)
    del kept["WorkQueue._waiters"]  # Idle workers, which are started when they are needed, up to a fixed number.
    return kept


async def test_a_follower_keeps_nothing_of_claims_that_came_and_went() -> None:
    async with Harness(ScriptedBackend(DRIVER)) as leader:
        for name, mode in (("fast", "Immediate"), ("late", "WaitForFirstConsumer")):
            await leader.create("classes", storage_class(name, volumeBindingMode=mode))
        await leader.start()
        async with following(leader) as process:
            first = await kept_of(leader, process.plane, range(3))
            again = await kept_of(leader, process.plane, range(10, 16))
            assert again - first == Counter()
            await leader.kill()
            alone = await kept_of(leader, process.plane, range(30, 36))
            assert alone - first == Counter()


async def test_a_leader_keeps_nothing_either() -> None:
    async with Harness(ScriptedBackend(DRIVER), controllers=frozenset(ALL_CONTROLLERS)) as leader:
        for name, mode in (("fast", "Immediate"), ("late", "WaitForFirstConsumer")):
            await leader.create("classes", storage_class(name, volumeBindingMode=mode))
        await leader.start()
        first = await kept_of(leader, leader.plane, range(3))
        again = await kept_of(leader, leader.plane, range(10, 16))
        assert again - first == Counter()
