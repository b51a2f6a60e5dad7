"""Sections in which the controllers are killed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from volplane.errors import ApiUnavailable
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane_testing.qualification.report import Failed, Measured
from volplane_testing.qualification.site import Site

__all__ = ["kills", "leader"]

MOST_ALIVE = 60
LONGEST_PAUSE = 0.12
MORE_CLAIMS = 0.55
"""Share of steps that make a claim; the others delete one."""
TAKEOVER_SECONDS = 20.0
"""After a kill: the lease and 2 s, and what it takes to list everything and to provision."""
HANDOVER_SECONDS = 5.0
"""After the end of a process that released its lease: 1.5 s, and the same."""
CLAIMS_BEFORE = 3


async def kills(site: Site) -> Measured:
    """Kill the only replica at random moments while claims come and go; in the end nothing is amiss."""
    # Without an election: a lease would outlive each kill for longer than the next process lives.
    await site.controllers.need(leader_elect=False)
    churn = _Churn(site, await site.make_class("kills"))
    async with asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        group.create_task(churn.run(stop))
        try:
            killed = await _kill_at_random(site)
        finally:
            stop.set()
    # A binder that is slower than the churn has a backlog now.
    backlog, settled = await site.until_none("claims that wait to be bound, or to go", churn.waiting)
    volumes = {(await site.volume_of(name)).name for name in churn.alive}
    listed = await site.assets.names()
    if listed is not None and (lost := volumes - listed):
        raise Failed(f"bound, but not on the backend: {', '.join(sorted(lost)[:3])} ({len(lost)} in all)")
    await site.delete(CLAIMS, *churn.alive)

    async def remaining() -> int:
        return len(await site.volumes()) + len(await site.claims())

    await site.until_none("claims and volumes that are to go", remaining)

    await site.assets_gone(*churn.assets)
    return {
        "kills": killed,
        "claims_made": churn.made,
        "claims_deleted": churn.made - len(churn.alive),
        "backlog": backlog,
        "settled_seconds": settled,
        "settled_per_second": backlog / settled if backlog else 0.0,
    }


class _Churn:
    """Claims that come and go. alive: names of those that were not deleted. assets: names of all that were made."""

    def __init__(self, site: Site, storage_class: str) -> None:
        self.alive: list[str] = []
        self.assets: set[str] = set()
        self.made = 0
        self._site = site
        self._class = storage_class
        self._chance = Random(1)  # noqa: S311 - a load, not a secret

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with suppress(ApiUnavailable):
                await self._step()
            await asyncio.sleep(self._chance.uniform(0.0, LONGEST_PAUSE))

    async def _step(self) -> None:
        if self._chance.random() < MORE_CLAIMS and len(self.alive) < MOST_ALIVE:
            name = f"churn-{self.made}"
            self.made += 1
            claim = await self._site.make_claim(name, self._class)
            self.assets.add(f"pvc-{claim.uid}")
            self.alive.append(name)
        elif self.alive:
            name = self._chance.choice(self.alive)
            self.alive.remove(name)
            await self._site.delete(CLAIMS, name)

    async def waiting(self) -> int:
        """Count the claims that are to be bound and are not, and those that are to go and have not gone."""
        claims = await self._site.claims()
        bound = {name for name, claim in claims.items() if claim.status.phase == "Bound"}
        return len(set(self.alive) - bound) + len(claims.keys() - set(self.alive))


async def _kill_at_random(site: Site) -> int:
    """Kill and start anew, at random moments of the given time; how often."""
    chance = Random(2)  # noqa: S311
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for moment in sorted(chance.uniform(0.0, site.churn_seconds) for _ in range(site.kills)):
        await asyncio.sleep(max(0.0, begun + moment - loop.time()))
        site.controllers.check()
        (replica,) = site.controllers.replicas
        await site.controllers.kill(replica)
        await site.controllers.start()
    await asyncio.sleep(max(0.0, begun + site.churn_seconds - loop.time()))
    return site.kills


async def leader(site: Site) -> Measured:
    """Kill the leader of two replicas, then stop the next one; another one serves new claims."""
    leading = await site.controllers.need(2)
    storage_class = await site.make_class("leader")
    names = [f"leader-{number}" for number in range(CLAIMS_BEFORE)]
    for name in names:
        await site.make_claim(name, storage_class)
    await site.bound(*names)
    await site.controllers.kill(leading)
    await site.make_claim("leader-after", storage_class)
    takeover = await site.bound("leader-after", seconds=TAKEOVER_SECONDS)
    leading = await site.controllers.leader(TAKEOVER_SECONDS)
    await site.controllers.ready(await site.controllers.start())
    await site.controllers.end(leading)
    await site.make_claim("leader-next", storage_class)
    handover = await site.bound("leader-next", seconds=HANDOVER_SECONDS)
    names += ["leader-after", "leader-next"]
    volumes = [(await site.volume_of(name)).name for name in names]
    await site.delete(CLAIMS, *names)
    await site.gone(VOLUMES, *volumes)
    await site.assets_gone(*volumes)
    return {"takeover_seconds": takeover, "handover_seconds": handover}
