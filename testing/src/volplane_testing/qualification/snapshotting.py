"""Sections about snapshots, and about volumes that are made of them or of other volumes."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from functools import partial
from typing import Any, Final

from volplane.kube import names
from volplane.kube.kinds import CLAIMS, LEASES, VOLUMES, Kind
from volplane.kube.objects import Volume
from volplane.kube.quantity import parse
from volplane.snapshots.objects import (
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    VolumeSnapshot,
    VolumeSnapshotContent,
)
from volplane.snapshots.state import STOCK_LEASE, handle_in_source
from volplane.state.naming import handle_of
from volplane_testing.qualification.report import Failed, Measured, NotPossible
from volplane_testing.qualification.site import LABEL, Site

__all__ = ["restore", "snapshots"]

READY_SECONDS: Final = 300.0
"""An upload takes its time; and a Lease that a stock controller left behind counts for a minute."""
RENEWED_SECONDS: Final = 20.0
"""A stock controller renews its Lease every five."""
GROUP: Final = "snapshot.storage.k8s.io"


async def snapshots(site: Site) -> Measured:
    """Cut, show and delete a snapshot; keep one by policy Retain, and bind it by a content that a person writes."""
    await _possible(site)
    stock = await _stock(site)
    await site.controllers.need()
    storage_class = await site.make_class("snapshots")
    # A storage may refuse a second snapshot of a volume at once.
    for name in ("snapshots-deleted", "snapshots-kept"):
        await site.make_claim(name, storage_class)
    await site.bound("snapshots-deleted", "snapshots-kept")
    volume = await site.volume_of("snapshots-deleted")
    _named_alike(site, volume, stock)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await _cut(site, "deleted", "snapshots-deleted", await _class(site, "deleted", "Delete"))
    content = await _ready(site, "deleted")
    measured: dict[str, float | str] = {"ready_seconds": loop.time() - begun, "bound_by": stock or "volplane"}
    await _as_stock(site, "deleted", content, volume)
    await _released(site, "snapshots-deleted")
    begun = loop.time()
    await _deleted(site, "deleted", content)
    measured["deleted_seconds"] = loop.time() - begun
    await _cut(site, "kept", "snapshots-kept", await _class(site, "kept", "Retain"))
    content = await _ready(site, "kept")
    handle = content.status.snapshot_handle
    await site.delete(VOLUME_SNAPSHOTS, "kept")
    await site.gone(VOLUME_SNAPSHOTS, "kept")
    if await site.get(VOLUME_SNAPSHOT_CONTENTS, content.name) is None:
        raise Failed(f"content {content.name} of policy Retain went with its VolumeSnapshot")
    await site.delete(VOLUME_SNAPSHOT_CONTENTS, content.name)
    await site.gone(VOLUME_SNAPSHOT_CONTENTS, content.name)
    if await site.assets.snapshot(handle) is None:
        raise Failed(f"snapshot {handle} was to be kept, and is not on the storage any more")
    await _given(site, "given", handle)
    await _deleted(site, "given", await _ready(site, "given"))
    return measured


async def restore(site: Site) -> Measured:
    """Make a volume of a snapshot, refuse one that is too small, and copy a claim, if the driver does that."""
    await _possible(site)
    stock = await _stock(site)
    await site.controllers.need()
    storage_class = await site.make_class("restore")
    await site.make_claim("origin", storage_class)
    await site.bound("origin")
    volume = await site.volume_of("origin")
    _named_alike(site, volume, stock)
    pods = not site.facts.no_pods and await site.has_node_plugin(volume, site.facts.nodes)
    measured: dict[str, float | str] = {"data": "read by pods" if pods else "not looked at: no pod can mount it"}
    if pods:
        await site.run_pod("before", "echo before > /data/file && sync", "origin")
    await _cut(site, "origin", "origin", await _class(site, "restore", "Delete"))
    content = await _ready(site, "origin")
    if pods:
        await site.run_pod("after", "echo after > /data/file && sync", "origin")
    of_snapshot = {"apiGroup": GROUP, "kind": VOLUME_SNAPSHOTS.kind, "name": "origin"}
    await site.make_claim("restored", storage_class, dataSource=of_snapshot)
    measured["restore_seconds"] = await site.bound("restored", seconds=READY_SECONDS)
    if pods:
        await site.run_pod("restored", 'test "$(cat /data/file)" = before', "restored")
    if least := content.status.restore_size or 0:
        asked = least // 2
        small = {"requests": {"storage": str(asked)}}
        await site.make_claim("restored-small", storage_class, dataSource=of_snapshot, resources=small)
        what = f"claim restored-small is told that {asked} is less than {least}"
        await site.until(what, partial(_told, site, "restored-small", str(asked), str(least)))
        if (await site.claims())["restored-small"].spec.volume_name:
            raise Failed(f"claim restored-small asks for {asked} bytes, and got a volume of a snapshot of {least}")
        await site.delete(CLAIMS, "restored-small")
    claims = ["restored"]
    if site.assets.clones:
        await site.make_claim("cloned", storage_class, dataSource={"kind": CLAIMS.kind, "name": "origin"})
        measured["clone_seconds"] = await site.bound("cloned", seconds=READY_SECONDS)
        if pods:
            await site.run_pod("cloned", 'test "$(cat /data/file)" = after', "cloned")
        claims.append("cloned")
    else:
        measured["clone"] = "the driver copies no volumes"
    made = [(await site.volume_of(name)).name for name in claims]
    if len({volume.name, *made}) != 1 + len(made):
        raise Failed(f"origin and {', '.join(claims)} share a volume")
    await _deleted(site, "origin", content)
    await site.delete(CLAIMS, "origin", *claims)
    await site.gone(VOLUMES, volume.name, *made)
    await site.assets_gone(volume.name, *made)
    return measured


# --- whether it is possible ---------------------------------------------------------------------------------------


async def _possible(site: Site) -> None:
    """Raise NotPossible if the cluster does not serve the kinds, or the backend makes no snapshots."""
    kinds: tuple[Kind[Any], ...] = (VOLUME_SNAPSHOTS, VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOT_CLASSES)
    for kind in kinds:
        if await site.served(kind) is None:
            raise NotPossible(f"the API server does not serve {kind.plural}.{GROUP}: its CRD is not installed")
    if not site.assets.makes_snapshots:
        raise NotPossible("the backend makes no snapshots: it has no hook `create_snapshot`")


async def _stock(site: Site) -> str:
    """Return the Lease that a stock snapshot-controller holds and renews; "" if none does. No clock is compared."""
    first = await _held_leases(site)
    loop = asyncio.get_running_loop()
    end = loop.time() + RENEWED_SECONDS
    while first and loop.time() < end:
        now = await _held_leases(site)
        for key in now.keys() & first.keys():
            if now[key] != first[key]:
                return f"the holder of Lease {key}"
        await asyncio.sleep(0.5)
    return ""


async def _held_leases(site: Site) -> dict[str, str]:
    """Return key and version of each Lease of a stock snapshot-controller that has a holder."""
    found = await site.client.list(LEASES, field_selector=f"metadata.name={STOCK_LEASE}")
    return {lease.key: lease.metadata.resource_version for lease in found.items if lease.spec.holder_identity}


def _named_alike(site: Site, volume: Volume, stock: str) -> None:
    """Raise NotPossible where a stock controller would look for the driver under another name."""
    csi = str((volume.spec.csi or {}).get("driver", ""))
    if stock and csi != site.driver:
        known = f'knows the driver as "{csi}", from the volumes' if csi else "takes CSI volumes only"
        raise NotPossible(f"{stock} binds snapshots here, and {known}; that of this run is {site.driver}")


# --- what people do -----------------------------------------------------------------------------------------------


async def _class(site: Site, name: str, policy: str) -> str:
    """Create a class of snapshots of our driver. Returns its name in the cluster."""
    full = f"{site.run}-{name}"
    metadata = {"name": full, "labels": {LABEL: site.run}}
    body = VOLUME_SNAPSHOT_CLASSES.body(metadata=metadata, driver=site.driver, deletionPolicy=policy)
    await site.client.create(VOLUME_SNAPSHOT_CLASSES, body)
    return full


async def _cut(site: Site, name: str, claim: str, of_class: str) -> None:
    source = {"persistentVolumeClaimName": claim}
    await _snapshot(site, name, source=source, volumeSnapshotClassName=of_class)


async def _snapshot(site: Site, name: str, **spec: Any) -> None:
    metadata = {"name": name, "namespace": site.run, "labels": {LABEL: site.run}}
    await site.client.create(VOLUME_SNAPSHOTS, VOLUME_SNAPSHOTS.body(metadata=metadata, spec=spec))


async def _given(site: Site, name: str, handle: str) -> None:
    """Write a content for a snapshot that is on the storage, and a VolumeSnapshot that names it."""
    full = f"{site.run}-{name}"
    spec = {
        "driver": site.driver,
        "deletionPolicy": "Delete",
        "source": {"snapshotHandle": handle},
        "volumeSnapshotRef": {"namespace": site.run, "name": name},
    }
    metadata = {"name": full, "labels": {LABEL: site.run}}
    await site.client.create(VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOT_CONTENTS.body(metadata=metadata, spec=spec))
    await _snapshot(site, name, source={"volumeSnapshotContentName": full})


# --- what they see ------------------------------------------------------------------------------------------------


async def _ready(site: Site, name: str) -> VolumeSnapshotContent:
    """Wait until the VolumeSnapshot is ready, and shows its moment and size. Returns its content."""

    async def ready() -> VolumeSnapshot | None:
        found: VolumeSnapshot | None = await site.get(VOLUME_SNAPSHOTS, name)
        return found if found is not None and found.status.ready_to_use else None

    status = (await site.until(f"VolumeSnapshot {name} is ready", ready, READY_SECONDS)).status
    content = await site.get(VOLUME_SNAPSHOT_CONTENTS, status.bound_volume_snapshot_content_name)
    if not isinstance(content, VolumeSnapshotContent):
        raise Failed(f"VolumeSnapshot {name} is ready, and names content {status.bound_volume_snapshot_content_name!r}")
    handle, at = content.status.snapshot_handle, content.status.creation_time
    site.cut.add(handle)
    if status.creation_time is None or at is None:
        raise Failed(f"VolumeSnapshot {name} is ready, and does not show its moment")
    if int(datetime.fromisoformat(status.creation_time).timestamp()) != at // 10**9:
        raise Failed(f"VolumeSnapshot {name} is of {status.creation_time}, its content of {at}")
    size = await site.assets.snapshot(handle)
    if size is None:
        raise Failed(f"VolumeSnapshot {name} is ready, and its snapshot {handle} is not on the storage")
    if not parse(str(status.restore_size or 0)).as_bytes() == (content.status.restore_size or 0) == size:
        shown = f"{status.restore_size}, its content {content.status.restore_size}"
        raise Failed(f"VolumeSnapshot {name} shows the size {shown}, the storage says {size}")
    return content


async def _as_stock(site: Site, name: str, content: VolumeSnapshotContent, volume: Volume) -> None:
    """Check what the stock pair leaves on the objects of a dynamic snapshot of policy Delete."""
    snapshot = await site.get(VOLUME_SNAPSHOTS, name)
    if not isinstance(snapshot, VolumeSnapshot):
        raise Failed(f"VolumeSnapshot {name} is gone")
    wrong: list[str] = []
    held: tuple[tuple[Kind[Any], VolumeSnapshot | VolumeSnapshotContent, str], ...] = (
        (VOLUME_SNAPSHOTS, snapshot, names.SNAPSHOT_AS_SOURCE),
        (VOLUME_SNAPSHOTS, snapshot, names.SNAPSHOT_BOUND),
        (VOLUME_SNAPSHOT_CONTENTS, content, names.CONTENT_BOUND),
    )
    wrong += [f"{kind.kind} lacks the finalizer {what}" for kind, each, what in held if not each.has_finalizer(what)]
    reference, spec = content.spec.volume_snapshot_ref, content.spec
    if content.name != f"snapcontent-{snapshot.uid}":
        wrong.append(f"the content is called {content.name}")
    if (reference.key, reference.uid) != (snapshot.key, snapshot.uid):
        wrong.append(f"the content is of VolumeSnapshot {reference.key} with uid {reference.uid}")
    if spec.source.volume_handle not in (handle_of(volume), handle_in_source(volume)):
        wrong.append(f"the content is of volume {spec.source.volume_handle}, the claim of {handle_of(volume)}")
    if (spec.driver, spec.deletion_policy) != (site.driver, "Delete"):
        wrong.append(f"the content is of driver {spec.driver}, with policy {spec.deletion_policy}")
    wrong += [f"{each.name} shows an error" for each in (snapshot, content) if each.status.error is not None]
    if wrong:
        raise Failed(f"VolumeSnapshot {name}: {'; '.join(wrong)}")

    async def unmarked() -> bool:
        now = await site.get(VOLUME_SNAPSHOT_CONTENTS, content.name)
        return now is not None and now.annotation(names.SNAPSHOT_BEING_CREATED) is None

    await site.until(f"content {content.name} is not marked as being cut any more", unmarked)


async def _released(site: Site, name: str) -> None:
    async def released() -> bool:
        claim = await site.get(CLAIMS, name)
        return claim is not None and not claim.has_finalizer(names.CLAIM_AS_SOURCE)

    await site.until(f"claim {name} is not held for a snapshot any more", released)


async def _deleted(site: Site, name: str, content: VolumeSnapshotContent) -> None:
    """Delete a VolumeSnapshot whose content has policy Delete: nothing stays, neither here nor on the storage."""
    await site.delete(VOLUME_SNAPSHOTS, name)
    await site.gone(VOLUME_SNAPSHOTS, name)
    await site.gone(VOLUME_SNAPSHOT_CONTENTS, content.name)
    handle = content.status.snapshot_handle

    async def absent() -> bool:
        return await site.assets.snapshot(handle) is None

    await site.until(f"snapshot {handle} is gone from the storage", absent)


async def _told(site: Site, claim: str, *values: str) -> bool:
    """Tell whether a warning about the claim has all these values."""
    events = json.loads(await site.client.raw(f"/api/v1/namespaces/{site.run}/events"))["items"]
    return any(
        event.get("type") == "Warning"
        and (event.get("involvedObject") or {}).get("name") == claim
        and all(value in str(event.get("message")) for value in values)
        for event in events
    )
