"""Sections about what happens to volumes when their claims go."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.names import TRASH, UNDELETE
from volplane.state.records import trashed
from volplane_testing.qualification.report import Failed, Measured, NotPossible
from volplane_testing.qualification.site import Site

__all__ = ["delete", "recycle", "trash"]

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
    """Recycle a warm pool, of disks too, and for a whole control plane a static volume of policy Recycle."""
    if not site.assets.can_recycle:
        raise NotPossible("the backend cannot erase volumes: it has no hook `recycle`")
    await site.controllers.need()
    storage_class = await site.make_class("recycle", parameters={"volplane.dev/on-release": "recycle"})
    measured = {"pool_scrub_seconds": await _round(site, _FILES, "pool", storage_class)}
    if site.assets.has_block_volumes:
        measured["block_scrub_seconds"] = await _round(site, _DISK, "block", storage_class)
    if site.whole and site.local is not None:
        directory = site.local / "recycled"
        directory.mkdir()
        await site.make_volume("recycled", directory, "Recycle")
        measured["static_scrub_seconds"] = await _round(site, _FILES, "static", f"{site.run}-static")
    for volume in await site.volumes():
        await site.delete(VOLUMES, volume.name)
    return measured


async def trash(site: Site) -> Measured:
    """Keep the volume of a deleted claim, give it back to its owner alone, purge it; and let one go when it is due."""
    await site.controllers.need()
    kept = await site.make_class("trash-1h", parameters={TRASH: "1h"})
    brief = await site.make_class("trash-3s", parameters={TRASH: "3s"})
    first = await site.make_claim("trash", kept)
    await site.bound("trash")
    volume = (await site.volume_of("trash")).name
    await site.delete(CLAIMS, "trash")
    await site.gone(CLAIMS, "trash")
    await _in_trash(site, volume)
    # A claim of the name gets an empty volume; one without proof waits, and one with it gets the kept volume.
    await site.make_claim("trash", kept)
    for name, proof in (("trash-thief", volume), ("trash-back", first.uid)):
        claim = await site.make_claim(name, "", volumeName=volume)
        await site.client.patch(CLAIMS, claim.key, {"metadata": {"annotations": {UNDELETE: proof}}})
    seconds = await site.bound("trash", "trash-back")
    if (await site.volume_of("trash")).name == volume or (await site.volume_of("trash-back")).name != volume:
        raise Failed(f"volume {volume} was not given to the claim of its owner")
    await site.delete(CLAIMS, "trash-thief", "trash-back")
    await site.gone(CLAIMS, "trash-thief", "trash-back")
    await _in_trash(site, volume)
    await site.delete(VOLUMES, volume)
    await site.gone(VOLUMES, volume)
    await site.assets_gone(volume)
    await site.make_claim("trash-brief", brief)
    await site.bound("trash-brief")
    late = (await site.volume_of("trash-brief")).name
    await site.delete(CLAIMS, "trash-brief")
    await site.gone(CLAIMS, "trash-brief")
    due = await site.gone(VOLUMES, late)
    if due < 2.0:
        raise Failed(f"volume {late} was to be kept for 3 s, and was gone after {due:.1f} s")
    return {"given_back_seconds": seconds, "gone_seconds": due}


async def _in_trash(site: Site, name: str) -> None:
    async def recorded() -> bool:
        volume = await site.client.find(VOLUMES, name)
        return volume is not None and trashed(volume) is not None

    await site.until(f"volume {name} is in the trash", recorded)


class _Contents(NamedTuple):
    """What the first user leaves in a volume of this mode, and how the second one looks for it."""

    mode: str
    write: str
    look: str


_FILES: Final = _Contents(
    "Filesystem",
    "mkdir -p /data/a/b && echo secret > /data/a/b/c && echo secret > /data/.hidden && ln -s /etc /data/link",
    'test -z "$(ls -A /data)"',
)
_DISK: Final = _Contents(
    "Block",
    "printf secret | dd of=/dev/data bs=1 seek=5000 conv=notrunc",
    "dd if=/dev/data bs=4096 count=4 | cmp -n 16384 - /dev/zero",
)


async def _round(site: Site, contents: _Contents, name: str, storage_class: str) -> float:
    """Write, release, take again, and look: the seconds that the scrub took."""
    first, second = f"recycle-{name}-1", f"recycle-{name}-2"
    block = contents.mode == "Block"
    await site.make_claim(first, storage_class, volumeMode=contents.mode)
    await site.bound(first)
    made = await site.volume_of(first)
    volume = made.name
    if not await site.has_node_plugin(made, site.facts.nodes):
        raise NotPossible("not every node has the node plugin by which pods mount volumes of this driver")
    await site.run_pod(f"{name}-writer", contents.write, first, block=block)
    await site.delete(CLAIMS, first)
    await site.phase(VOLUMES, volume, "Released")
    seconds = await site.phase(VOLUMES, volume, "Available", SCRUB_SECONDS)
    await site.make_claim(second, storage_class, volumeMode=contents.mode)
    await site.bound(second)
    taken = (await site.volume_of(second)).name
    if taken != volume:
        raise Failed(f"the next claim got {taken}, not {volume}, which was offered again")
    await site.run_pod(f"{name}-reader", contents.look, second, block=block)
    await site.delete(CLAIMS, second)
    await site.phase(VOLUMES, volume, "Available", SCRUB_SECONDS)
    return seconds
