"""Random lives of claims beside stock controllers: whatever people, crashes and the backend do, nothing is lost or
left.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from integration.beside import LATE, Beside, fast, ours, pod
from scenarios.backends import ScriptedBackend
from scenarios.harness import Refused
from scenarios.stories import DRIVER, storage_class, volume
from schedules import schedules
from volplane import InProgress, ResourceExhausted

ACTS = 14


class MoodyBackend(ScriptedBackend):
    """Fails before and after its effects by chance; says when it destroys what a living claim is bound to."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(DRIVER, info={"topology_keys": ("kubernetes.io/hostname",)})
        self.chance = chance
        self.moody = True
        self.wrongs: list[str] = []
        self.bound: Any = lambda _name: False

    def _play(self, hook: str, request: Any, effect: Any) -> Any:
        if hook == "delete" and self.bound(request.volume.name):
            self.wrongs.append(f"{request.volume.name} was deleted while its claim is bound to it")
        self.calls[hook] += 1
        mood = self.chance.random() if self.moody else 1.0
        if mood < 0.15:
            raise RuntimeError("before the effect")
        if hook == "provision" and mood < 0.22:
            raise ResourceExhausted("full", reschedule=True, nothing_done=request.name not in self.assets)
        if mood < 0.3:
            return InProgress(retry_after=self.chance.choice([0.1, 3.0]), state={"n": self.calls[hook]})
        result = effect()
        if mood < 0.45:
            raise RuntimeError("after the effect")
        return result


class World:
    """What people do, and what must hold."""

    def __init__(self, harness: Beside, backend: MoodyBackend, chance: random.Random) -> None:
        self.harness, self.backend, self.chance = harness, backend, chance
        self.claims: list[str] = []
        self.pods: list[str] = []
        self.number = 0
        backend.bound = self.bound

    def bound(self, name: str) -> bool:
        """Whether a living claim points at the volume of this name that also points at it, on the server itself."""
        answer = self.harness.server.handle("GET", "/api/v1/persistentvolumeclaims", {}, {}, b"")
        for item in json.loads(answer.body)["items"]:
            made_for = name == f"pvc-{item['metadata']['uid']}"
            if made_for and item["spec"].get("volumeName") == name and item["status"].get("phase") == "Bound":
                return True
        return False

    async def act(self) -> None:
        often = (self.claim, self.late_claim, self.delete_claim)
        seldom = (
            self.delete_pod,
            self.delete_volume,
            self.static_volume,
            self.crash,
            self.stock_crash,
            self.renew_class,
        )
        try:
            await self.chance.choice([*often, *often, *seldom])()
        except Refused as error:
            if error.status not in (404, 409):
                raise

    async def claim(self) -> None:
        self.number += 1
        await self.harness.create("claims", ours(f"c{self.number}"))
        self.claims.append(f"c{self.number}")

    async def late_claim(self) -> None:
        self.number += 1
        await self.harness.create("claims", ours(f"c{self.number}", storageClassName="late"))
        self.claims.append(f"c{self.number}")
        await self.harness.create("pods", pod(f"p{self.number}", f"c{self.number}"))
        self.pods.append(f"p{self.number}")

    async def delete_claim(self) -> None:
        if self.claims:
            await self.harness.delete("claims", self.claims.pop(self.chance.randrange(len(self.claims))))

    async def delete_pod(self) -> None:
        if self.pods:
            await self.harness.delete("pods", self.pods.pop(0), grace=0)

    async def delete_volume(self) -> None:
        if found := await self.harness.everything("volumes"):
            await self.harness.delete("volumes", self.chance.choice(found)["metadata"]["name"])

    async def static_volume(self) -> None:
        self.number += 1
        await self.harness.create(
            "volumes", volume(f"v{self.number}", storageClassName=self.chance.choice(["fast", "late"]))
        )

    async def crash(self) -> None:
        await self.harness.kill()
        await asyncio.sleep(self.chance.choice([0.0, 2.0]))
        await self.harness.start()

    async def stock_crash(self) -> None:
        await self.harness.stock.stop()
        await asyncio.sleep(self.chance.choice([0.0, 2.0]))
        await self.harness.stock.start()

    async def renew_class(self) -> None:
        await self.harness.request("DELETE", self.harness.path("classes", "fast"))
        await asyncio.sleep(self.chance.choice([0.0, 1.0]))
        await self.harness.create("classes", fast())

    async def delete_everything(self) -> None:
        for kind in ("pods", "claims"):
            for item in await self.harness.everything(kind):
                await self.harness.delete(kind, item["metadata"]["name"], grace=0 if kind == "pods" else None)
        await self.harness.settle()
        for item in await self.harness.everything("volumes"):
            if item["metadata"]["name"].startswith("v"):
                await self.harness.delete("volumes", item["metadata"]["name"])
        await self.harness.settle()


@pytest.mark.parametrize("seed", schedules(range(300), few=30))
async def test_no_schedule_loses_or_leaves_anything(seed: int) -> None:
    chance = random.Random(seed)
    backend = MoodyBackend(chance)

    async with Beside(backend) as harness:
        for name in ("node-1", "node-2"):
            await harness.create("nodes", {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
        await harness.create("classes", fast())
        await harness.create("classes", storage_class("late", **LATE))
        world = World(harness, backend, chance)
        await harness.start_both()
        for _ in range(ACTS):
            await world.act()
            await asyncio.sleep(chance.choice([0.0, 0.003, 0.02, 1.0, 20.0]))
        backend.moody = False
        await harness.settle()
        await _all_bound(harness)
        await world.delete_everything()
        assert backend.wrongs == []
        assert not [item["metadata"]["name"] for item in await harness.everything("claims")], harness.reasons()
        assert not [item["metadata"]["name"] for item in await harness.everything("volumes")], harness.reasons()
        assert backend.assets == {}


async def _all_bound(harness: Beside) -> None:
    """Every living claim that can be is bound; assets and volumes of ours belong together, one to one."""
    for item in await harness.everything("claims"):
        waits = item["spec"]["storageClassName"] == "late" and "deletionTimestamp" not in item["metadata"]
        unbound = item["status"]["phase"] not in ("Bound", "Lost")
        used = await harness.get("pods", item["metadata"]["name"].replace("c", "p")) if waits else True
        assert not unbound or not used, (item, harness.reasons())
    made = {
        item["metadata"]["name"]
        for item in await harness.everything("volumes")
        if item["metadata"]["name"].startswith("pvc-")
    }
    assert made == set(harness.backend.assets), harness.reasons()
