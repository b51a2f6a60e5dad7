"""The section about deletions that must wait."""

from __future__ import annotations

import asyncio

from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane_testing.qualification.report import Failed, Measured
from volplane_testing.qualification.site import Site

__all__ = ["protection"]

WATCHED_SECONDS = 3.0


async def protection(site: Site) -> Measured:
    """Delete a claim that a pod uses, and its volume: both stay until the pod is gone."""
    await site.controllers.need()
    storage_class = await site.make_class("protection")
    await site.make_claim("used", storage_class)
    await site.bound("used")
    volume = await site.volume_of("used")
    if site.facts.no_pods:
        # A pod that has a node counts as a user, whether or not the node is there.
        await site.make_pod("user", "true", "used", nodeName=f"{site.run}-no-node")
    else:
        await site.make_pod("user", "trap 'exit 0' TERM; while :; do sleep 1; done", "used")
        await site.phase(PODS, "user", "Running")
    await site.delete(VOLUMES, volume.name)
    await site.delete(CLAIMS, "used")
    await asyncio.sleep(WATCHED_SECONDS)
    claim = (await site.claims()).get("used")
    kept = await site.get(VOLUMES, volume.name)
    if claim is None or kept is None or kept.uid != volume.uid:
        raise Failed(f"{'the claim' if claim is None else 'the volume'} is gone while a pod uses it")
    if not claim.terminating or claim.status.phase != "Bound" or kept.status.phase != "Bound":
        raise Failed(f"while a pod uses them the claim is {claim.status.phase}, the volume {kept.status.phase}")
    await site.delete(PODS, "user", grace_seconds=0)
    let_go = await site.gone(CLAIMS, "used")
    await site.gone(VOLUMES, volume.name)
    await site.assets_gone(volume.name)
    return {"held_seconds": WATCHED_SECONDS, "let_go_seconds": let_go}
