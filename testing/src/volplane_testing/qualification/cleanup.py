"""Removing everything that a run made, whatever state it is in."""

from __future__ import annotations

from collections.abc import Awaitable

from volplane.errors import ApiError, ApiNotFound, BackendError, PluginError
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, NAMESPACES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.names import TRASHED
from volplane.kube.objects import Volume
from volplane.snapshots.objects import (
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    VolumeSnapshotContent,
)
from volplane_testing.qualification.report import Failed
from volplane_testing.qualification.site import LABEL, Site

__all__ = ["clean", "empty"]

ORDERLY_SECONDS = 90.0


async def empty(site: Site) -> None:
    """Remove pods, snapshots, claims and volumes, with the controllers at work: assets go too. Raises `Failed`."""
    pods = (await site.client.list(PODS, namespace=site.run)).items
    await site.delete(PODS, *(pod.name for pod in pods), grace_seconds=0)
    attachments = await site.attachments()
    claims, volumes = await site.claims(), await site.volumes()
    snapshots, contents = await site.snapshots(), await site.contents()
    if not claims and not volumes and not attachments and not snapshots and not contents:
        return
    await site.controllers.need()
    await site.delete(ATTACHMENTS, *attachments)
    await site.delete(VOLUME_SNAPSHOTS, *(each.name for each in snapshots))
    await site.delete(CLAIMS, *claims)

    async def nothing_left() -> bool:
        left = await site.volumes()
        for volume in left:
            await _let_go(site, volume)
        contents = await site.contents()
        for content in contents:
            await _let_content_go(site, content)
        held = left or contents or await site.snapshots()
        return not held and not await site.claims() and not await site.attachments()

    await site.until("the claims, volumes and snapshots of the run are gone", nothing_left, ORDERLY_SECONDS)


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


async def _let_content_go(site: Site, content: VolumeSnapshotContent) -> None:
    """Delete a content with its snapshot, whatever its policy was."""
    if content.terminating:
        return
    if content.spec.deletion_policy != "Delete":
        await site.client.patch(VOLUME_SNAPSHOT_CONTENTS, content.name, {"spec": {"deletionPolicy": "Delete"}})
    await site.delete(VOLUME_SNAPSHOT_CONTENTS, content.name)


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
    """Take the finalizers off what is still there: only of what the run has."""
    for name in await site.claims():
        await site.remove(CLAIMS, name)
        left.append(f"claim {name} went only without its finalizers")
    for name in await site.attachments():
        await site.remove(ATTACHMENTS, name)
        left.append(f"attachment {name} went only without its finalizers")
    for snapshot in await site.snapshots():
        await site.remove(VOLUME_SNAPSHOTS, snapshot.name)
        left.append(f"snapshot {snapshot.name} went only without its finalizers")
    for content in await site.contents():
        await site.remove(VOLUME_SNAPSHOT_CONTENTS, content.name)
        left.append(f"content {content.name} went only without its finalizers")
    for volume in await site.volumes():
        await site.remove(VOLUMES, volume.name)
        left.append(f"volume {volume.name} went only without its finalizers")


async def _assets(site: Site, left: list[str]) -> None:
    """Name what is left on a storage that is not only the run's."""
    found = site.made.intersection(await site.assets.names() or ())
    left += [f"the asset {name} is still on the backend" for name in sorted(found)]
    for handle in sorted(site.cut):
        if await site.assets.snapshot(handle) is not None:
            left.append(f"the snapshot {handle} is still on the backend")


async def _rest(site: Site) -> None:
    """Classes, then the namespaces."""
    for each in (await site.client.list(STORAGE_CLASSES, label_selector=f"{LABEL}={site.run}")).items:
        await site.delete(STORAGE_CLASSES, each.name)
    classes = await site.served(VOLUME_SNAPSHOT_CLASSES, label_selector=f"{LABEL}={site.run}") or ()
    await site.delete(VOLUME_SNAPSHOT_CLASSES, *(each.name for each in classes))
    names = (site.run, site.system)
    for name in names:
        try:
            await site.client.delete(NAMESPACES, name)
        except ApiNotFound:
            continue
    await site.gone(NAMESPACES, *names)
