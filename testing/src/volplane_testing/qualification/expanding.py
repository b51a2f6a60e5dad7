"""The section about growing claims."""

from __future__ import annotations

import asyncio

from volplane.errors import ApiError
from volplane.kube.kinds import CLAIMS, PODS
from volplane.kube.quantity import parse
from volplane_testing.qualification.report import Failed, Measured, NotPossible
from volplane_testing.qualification.site import Site

__all__ = ["expand"]


async def expand(site: Site) -> Measured:
    """Grow a claim while a pod uses it, if pods can run. It must not shrink, nor grow where its class forbids that."""
    if not site.assets.can_expand:
        raise NotPossible("volumes of this backend cannot grow: it has no hook `expand`")
    await site.controllers.need()
    await site.make_claim("grown", await site.make_class("expand", allowVolumeExpansion=True))
    await site.make_claim("fixed", await site.make_class("fixed", allowVolumeExpansion=False))
    await site.bound("grown", "fixed")
    user = not site.facts.no_pods and not site.assets.attaches
    if user:
        await site.make_pod("user", "trap 'exit 0' TERM; while :; do sleep 1; done", "grown")
        await site.phase(PODS, "user", "Running")
    before = parse(site.capacity).as_bytes()
    await _ask(site, "grown", 2 * before)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    done = await site.until(f"the volume of claim grown has {2 * before} bytes", lambda: _grown(site, 2 * before))
    seconds = loop.time() - begun
    volume = await site.volume_of("grown")
    listed = await site.assets.listed()
    asset = (listed or {}).get(volume.name)
    if asset is not None and asset.capacity_bytes < 2 * before:
        raise Failed(f"{volume.name} should have {2 * before} bytes, and the storage has {asset.capacity_bytes}")
    for name, size, what in (
        ("grown", before, "shrunk"),
        ("fixed", 2 * before, "grown, which its class does not allow"),
    ):
        if await _accepted(site, name, size):
            raise Failed(f"claim {name} could be {what}")
    return {"grow_seconds": seconds, "then": done, "in_use": "yes" if user else "no"}


async def _grown(site: Site, size: int) -> str:
    """Return what the claim shows once its volume has the size; "" before."""
    claim, volume = (await site.claims())["grown"], await site.volume_of("grown")
    if parse((volume.spec.capacity or {})["storage"]).as_bytes() < size:
        return ""
    if parse((claim.status.capacity or {})["storage"]).as_bytes() >= size:
        return "done"
    state = (claim.status.allocated_resource_statuses or {}).get("storage", "")
    # Without a pod no node grows the file system.
    return "the node grows the file system" if state == "NodeResizePending" else ""


async def _accepted(site: Site, name: str, size: int) -> bool:
    try:
        await _ask(site, name, size)
    except ApiError as refused:
        if refused.status in (403, 422):
            return False
        raise
    return True


async def _ask(site: Site, name: str, size: int) -> None:
    body = {"spec": {"resources": {"requests": {"storage": str(size)}}}}
    await site.client.patch(CLAIMS, f"{site.run}/{name}", body)
