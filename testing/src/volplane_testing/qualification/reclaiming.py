"""Sections about what happens to volumes when their claims go."""

from __future__ import annotations

import asyncio

from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane_testing.qualification.report import Failed, Measured, NotPossible
from volplane_testing.qualification.site import Site

__all__ = ["delete", "recycle"]

CLAIMS_AT_ONCE = 10
SCRUB_SECONDS = 180.0


async def delete(site: Site) -> Measured:
    """Volume and asset go with the claim; and with the object of the volume, if a person deletes that first."""
    await site.controllers.need()
    storage_class = await site.make_class("delete")
    names = [f"delete-{number}" for number in range(CLAIMS_AT_ONCE)]
    await asyncio.gather(*(site.make_claim(name, storage_class) for name in names))
    await site.bound(*names)
    volumes = [(await site.volume_of(name)).name for name in names]
    await site.delete(VOLUMES, volumes[0])
    await site.delete(CLAIMS, *names)
    await site.gone(CLAIMS, *names)
    seconds = await site.gone(VOLUMES, *volumes)
    await site.assets_gone(*volumes)
    return {"claims": len(names), "all_gone_seconds": seconds}


async def recycle(site: Site) -> Measured:
    """A warm pool; as the whole control plane also a static volume of policy Recycle."""
    if not site.assets.can_recycle:
        raise NotPossible("the backend cannot erase volumes: it has no hook `recycle`")
    await site.controllers.need()
    storage_class = await site.make_class("recycle", parameters={"volplane.dev/on-release": "recycle"})
    measured = {"pool_scrub_seconds": await _round(site, "pool", storage_class)}
    if site.whole and site.local is not None:
        directory = site.local / "recycled"
        directory.mkdir()
        await site.make_volume("recycled", directory, "Recycle")
        measured["static_scrub_seconds"] = await _round(site, "static", f"{site.run}-static")
    for volume in await site.volumes():
        await site.delete(VOLUMES, volume.name)
    return measured


async def _round(site: Site, name: str, storage_class: str) -> float:
    """Write, release, take again, and look: the seconds that the scrub took."""
    first, second = f"recycle-{name}-1", f"recycle-{name}-2"
    await site.make_claim(first, storage_class)
    await site.bound(first)
    volume = (await site.volume_of(first)).name
    script = "mkdir -p /data/a/b && echo secret > /data/a/b/c && echo secret > /data/.hidden && ln -s /etc /data/link"
    await site.run_pod(f"{name}-writer", script, first)
    await site.delete(CLAIMS, first)
    await site.phase(VOLUMES, volume, "Released")
    seconds = await site.phase(VOLUMES, volume, "Available", SCRUB_SECONDS)
    await site.make_claim(second, storage_class)
    await site.bound(second)
    taken = (await site.volume_of(second)).name
    if taken != volume:
        raise Failed(f"the next claim got {taken}, not {volume}, which was offered again")
    await site.run_pod(f"{name}-reader", 'test -z "$(ls -A /data)"', second)
    await site.delete(CLAIMS, second)
    await site.phase(VOLUMES, volume, "Available", SCRUB_SECONDS)
    return seconds
