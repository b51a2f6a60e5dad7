"""Sections about binding and provisioning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane_testing.qualification.report import Failed, Measured
from volplane_testing.qualification.site import Site

__all__ = ["dynamic", "late", "static"]

CLAIMS_AT_ONCE = 10
NOT_YET_SECONDS = 2.0
"""How long something is watched that must not happen."""


async def static(site: Site) -> Measured:
    """Bind a volume found by size, one reserved for a claim, and one that a claim names; then release them."""
    if site.whole:
        await site.controllers.need()
    reference = {"namespace": site.run, "name": "static-reserved"}
    wanted: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("found", {}, {}),
        ("reserved", {"claimRef": reference}, {}),
        ("named", {}, {"volumeName": f"{site.run}-named"}),
    )
    seconds: list[float] = []
    for name, of_volume, of_claim in wanted:
        # Nothing is ever in this directory: binders do not look.
        await site.make_volume(name, Path(f"/var/empty/{site.run}/{name}"), "Retain", **of_volume)
        await site.phase(VOLUMES, f"{site.run}-{name}", "Available")
        await site.make_claim(f"static-{name}", f"{site.run}-static", **of_claim)
        seconds.append(await site.bound(f"static-{name}"))
        found = await site.volume_of(f"static-{name}")
        if found.name != f"{site.run}-{name}":
            raise Failed(f"claim static-{name} was bound to {found.name}, not to {site.run}-{name}")
    names = [name for name, _, _ in wanted]
    await site.delete(CLAIMS, *(f"static-{name}" for name in names))
    released = max([await site.phase(VOLUMES, f"{site.run}-{name}", "Released") for name in names])
    await site.client.patch(VOLUMES, f"{site.run}-found", {"spec": {"claimRef": None}})
    await site.phase(VOLUMES, f"{site.run}-found", "Available")
    volumes = [f"{site.run}-{name}" for name in names]
    await site.delete(VOLUMES, *volumes)
    await site.gone(VOLUMES, *volumes)
    return {"volumes": len(names), "slowest_bind_seconds": max(seconds), "release_seconds": released}


async def dynamic(site: Site) -> Measured:
    """Bind claims at once; then through two pods one after the other, if pods can run."""
    await site.controllers.need()
    storage_class = await site.make_class("dynamic")
    names = [f"dynamic-{number}" for number in range(CLAIMS_AT_ONCE)]
    await asyncio.gather(*(site.make_claim(name, storage_class) for name in names))
    seconds = await site.bound(*names)
    volumes = {(await site.volume_of(name)).name for name in names}
    if len(volumes) != len(names):
        raise Failed(f"{len(names)} claims share {len(volumes)} volumes")
    listed = await site.assets.names()
    if listed is not None and (missing := volumes - listed):
        raise Failed(f"bound, but not on the backend: {', '.join(sorted(missing))}")
    measured: dict[str, float | str] = {"claims": len(names), "all_bound_seconds": seconds}
    if not site.facts.no_pods:
        await site.run_pod("writer", "echo kept > /data/file && sync", names[0])
        await site.run_pod("reader", 'test "$(cat /data/file)" = kept', names[0])
        measured["pods"] = 2
    await site.delete(CLAIMS, *names)
    await site.gone(VOLUMES, *volumes)
    return measured


async def late(site: Site) -> Measured:
    """WaitForFirstConsumer: nothing without a pod, everything with one."""
    await site.controllers.need()
    storage_class = await site.make_class("late", volumeBindingMode="WaitForFirstConsumer")
    await site.make_claim("late", storage_class)
    await asyncio.sleep(NOT_YET_SECONDS)
    claim = (await site.claims())["late"]
    if claim.spec.volume_name or claim.status.phase != "Pending":
        raise Failed(f"the claim is {claim.status.phase} with volume {claim.spec.volume_name!r} before a pod uses it")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await site.make_pod("late", "echo here > /data/file", "late")
    bound = await site.bound("late")
    await site.phase(PODS, "late", "Succeeded")
    ran = loop.time() - begun
    volume = await site.volume_of("late")
    await site.delete(PODS, "late", grace_seconds=0)
    await site.delete(CLAIMS, "late")
    await site.gone(VOLUMES, volume.name)
    return {"bind_seconds": bound, "pod_done_seconds": ran}
