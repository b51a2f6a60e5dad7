"""Removing everything that a run made, whatever state it is in."""

from __future__ import annotations

from collections.abc import Awaitable

from volplane.errors import ApiError, ApiNotFound, BackendError, PluginError
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NAMESPACES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.names import TRASHED
from volplane.kube.objects import Volume
from volplane_testing.qualification.report import Failed
from volplane_testing.qualification.site import LABEL, Site

__all__ = ["clean", "empty"]

ORDERLY_SECONDS = 90.0


async def empty(site: Site) -> None:
    """Remove pods, claims and volumes in order, with the controllers at work: assets go too. Raises `Failed`."""
    pods = (await site.client.list(PODS, namespace=site.run)).items
    await site.delete(PODS, *(pod.name for pod in pods), grace_seconds=0)
    attachments = await site.attachments()
    claims, volumes = await site.claims(), await site.volumes()
    if not claims and not volumes and not attachments:
        return
    await site.controllers.need()
    await site.delete(ATTACHMENTS, *attachments)
    await site.delete(CLAIMS, *claims)

    async def nothing_left() -> bool:
        left = await site.volumes()
        for volume in left:
            await _let_go(site, volume)
        return not left and not await site.claims() and not await site.attachments()

    await site.until("the claims and volumes of the run are gone", nothing_left, ORDERLY_SECONDS)


async def _let_go(site: Site, volume: Volume) -> None:
    """Delete what nobody would: kept assets, pools, static volumes."""
    if volume.status.phase == "Bound" or volume.terminating:
        return
    ours = volume.annotation("pv.kubernetes.io/provisioned-by") == site.driver
    if ours and volume.spec.persistent_volume_reclaim_policy != "Delete":
        policy = {"spec": {"persistentVolumeReclaimPolicy": "Delete"}}
        await site.client.patch(VOLUMES, volume.name, policy)
    elif volume.spec.claim_ref is None or not ours or volume.annotation(TRASHED) is not None:
        await site.delete(VOLUMES, volume.name)


async def clean(site: Site) -> tuple[str, ...]:
    """Remove everything; what could not be removed, or only by force, with the reason. Ends the controllers."""
    left: list[str] = []
    await _noted(left, empty(site))
    await _noted(left, site.controllers.stop())
    await _noted(left, _force(site, left))
    await _noted(left, _assets(site, left))
    await _noted(left, _rest(site))
    return tuple(left)


async def _noted(left: list[str], work: Awaitable[None]) -> None:
    """Go on after a failure, and keep it."""
    try:
        await work
    except (ApiError, BackendError, PluginError, Failed, OSError) as error:
        left.append(str(error))


async def _force(site: Site, left: list[str]) -> None:
    """Take the finalizers off what is still there: only of claims and volumes of the run."""
    for name in await site.claims():
        await site.remove(CLAIMS, name)
        left.append(f"claim {name} went only without its finalizers")
    for name in await site.attachments():
        await site.remove(ATTACHMENTS, name)
        left.append(f"attachment {name} went only without its finalizers")
    for volume in await site.volumes():
        await site.remove(VOLUMES, volume.name)
        left.append(f"volume {volume.name} went only without its finalizers")


async def _assets(site: Site, left: list[str]) -> None:
    """Name what is left on a storage that is not only the run's."""
    found = site.made.intersection(await site.assets.names() or ())
    left += [f"the asset {name} is still on the backend" for name in sorted(found)]


async def _rest(site: Site) -> None:
    """Classes, then the namespaces."""
    for each in (await site.client.list(STORAGE_CLASSES, label_selector=f"{LABEL}={site.run}")).items:
        await site.delete(STORAGE_CLASSES, each.name)
    names = (site.run, site.system)
    for name in names:
        try:
            await site.client.delete(NAMESPACES, name)
        except ApiNotFound:
            continue
    await site.gone(NAMESPACES, *names)
