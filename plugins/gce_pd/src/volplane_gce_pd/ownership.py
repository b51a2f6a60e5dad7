"""Whose a disk is: list the marked disks, adopt one from another cluster, refuse calls of a former leader.

The marks are labels. Compute Engine changes them only for a caller that knows their fingerprint, so that two leaders
cannot both write the fence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from volplane import (
    Absent,
    AdoptRequest,
    AssetPage,
    Done,
    InspectRequest,
    ListedAsset,
    ListRequest,
    Ownership,
    Throttled,
    VolumeMode,
)
from volplane.cloud import GIB, LABELS, Fences, HookCall, OfficialDriver, RetryLater, csi_source
from volplane_gce_pd.api import Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.resources import Disk, DiskSnapshot, disk_key, disk_key_from, existing, request_id, unix_time

_FOREIGN_LABELS = ("goog-gke-volume", "goog-k8s-cluster-name")
"""Labels by which other drivers mark what they make."""
OFFICIAL = OfficialDriver(
    name="pd.csi.storage.gke.io",
    volume="kubernetes.io/created-for/pv/name",
    snapshot="kubernetes.io/created-for/volumesnapshot/name",
)
"""It writes these into descriptions, as JSON with other keys. The name of a snapshot is that of the resource."""
_OFFICIAL_TEXT = "GCE-PD CSI Driver"
"""In descriptions of snapshots that it makes where it is not told the names of their objects."""
_CREATED_BY = "storage.gke.io/created-by"
_ADOPT_RETRY = 1.0


def refuse_foreign(disk: Disk, expected: Ownership | None) -> None:
    """Raise AlreadyExists unless the disk is marked as `expected`'s. None = a static volume: raise if a driver made it.

    The generation is not compared.
    """
    LABELS.refuse_foreign(disk.name, _marks(disk), expected, others=(*_FOREIGN_LABELS, OFFICIAL.volume))


def list_page(compute: Compute, request: ListRequest) -> AssetPage:
    """Return one page of the region's disks with ownership labels of any cluster, without those that are being deleted.

    A driver with the official one's name also lists the disks of that one. Most of them have no label, so that it reads
    all disks. Raises GceError, and Unavailable while a zone cannot be read.
    """
    official = request.context.driver == OFFICIAL.name
    disks, following = compute.marked_disks("" if official else LABELS.cluster, request.page, request.max_entries)
    owned = (disk for disk in disks if {LABELS.cluster, OFFICIAL.volume} & _marks(disk).keys())
    listed = [disk for disk in owned if disk.state != "DELETING"]
    return AssetPage(assets=tuple(_listed(compute, disk, request) for disk in listed), next_page=following)


def _listed(compute: Compute, disk: Disk, request: ListRequest | InspectRequest) -> ListedAsset:
    owner = LABELS.owner(_marks(disk), request.context.cluster_id, official=OFFICIAL)
    return ListedAsset(
        handle=disk.handle(compute.settings.project),
        name=owner.volume_name if owner is not None else disk.name,
        capacity_bytes=disk.size * GIB,
        owner=owner,
        created_at=unix_time(disk.created),
        attached_to=tuple("/".join(vm) for vm in disk.users),
        changed_in=str(LABELS.term(disk.labels) or ""),
        type=disk.disk_type,
    )


def inspect(compute: Compute, request: InspectRequest) -> ListedAsset | Absent:
    """Return the disk with this handle, by a call that begins now. Raises GceError."""
    key = disk_key_from(request.handle, compute.settings.project)
    where = key[0].partition("/")[2] if key is not None else ""
    ours = where == compute.settings.region or compute.settings.in_region(where)
    disk = compute.disk_now(key) if key is not None and ours else None
    if disk is None or disk.state == "DELETING":
        return Absent()
    condition = "Compute Engine could not make it (state FAILED)" if disk.state == "FAILED" else ""
    source = csi_source(compute.settings, request.handle, VolumeMode.BLOCK, "")
    return replace(_listed(compute, disk, request), source=source, condition=condition)


def _marks(disk: Disk) -> dict[str, str]:
    """Return the labels of a disk, and what the official driver has written into its description.

    Where that names no volume, the disk's name is the volume's, as the official driver gives it. Anybody who may make
    disks writes descriptions.
    """
    written = _written(disk.description)
    of_official = written.get(_CREATED_BY) == OFFICIAL.name
    if not of_official and _FOREIGN_LABELS[0] not in disk.labels:
        return dict(disk.labels)
    name = written.get(OFFICIAL.volume) if of_official else None
    named = isinstance(name, str) and name.isprintable()
    return {**disk.labels, OFFICIAL.volume: (name if named else "") or disk.name}


def _written(description: str) -> dict[str, Any]:
    """Return the JSON in a description; empty if there is none. Anybody who may make resources writes them."""
    try:
        written = json.loads(description or "{}")
    except (ValueError, RecursionError):
        return {}
    return written if isinstance(written, dict) else {}


def snapshot_marks(snapshot: DiskSnapshot) -> dict[str, str]:
    """Return the labels of a snapshot; of one that the official driver has made, its name as that driver's mark."""
    written = _written(snapshot.description)
    if written.get(_CREATED_BY) == OFFICIAL.name or _OFFICIAL_TEXT.lower() in snapshot.description.lower():
        return {**snapshot.labels, OFFICIAL.snapshot: snapshot.name}
    return dict(snapshot.labels)


def adopt(compute: Compute, fences: Fences, request: AdoptRequest, call: HookCall) -> Done:
    """Replace the labels of `request.former` by those of the new owner.

    Raises GceError and the errors of the contract: AlreadyExists if the disk is neither owner's, Throttled until the
    labels are there.
    """
    disk = existing(compute.disk_now(disk_key(request.volume, compute.settings)), request.volume)
    labels = fences.marks_to_adopt(disk.asset, _marks(disk), request, official=OFFICIAL)
    if not labels:
        return Done()
    seconds = _ADOPT_RETRY
    try:
        set_labels(compute, disk, {**disk.labels, **labels}, call)
    except RetryLater as retry:
        seconds = max(retry.seconds, seconds)
    fences.forget(disk.asset)
    # The hook `adopt` has no InProgress.
    raise Throttled(
        f"{disk.name} is being marked; ask again in {seconds:.0f} s", retry_after=seconds, nothing_done=True
    )


def set_labels(compute: Compute, disk: Disk, labels: Mapping[str, str], call: HookCall) -> None:
    """Replace the labels of a disk, unless they have changed since it was read. Raises RetryLater, GceError."""
    kind, _, where = disk.place.partition("/")
    regional = kind == "regions"
    method = Method.REGION_DISKS_SET_LABELS if regional else Method.DISKS_SET_LABELS
    message = {"labels": dict(labels), "label_fingerprint": disk.fingerprint}
    fields: dict[str, Any] = {
        kind.removesuffix("s"): where,
        "resource": disk.name,
        "region_set_labels_request_resource" if regional else "zone_set_labels_request_resource": message,
    }
    number = request_id(method, disk.id, disk.fingerprint, sorted(labels.items()))
    compute.change(method, disk.key, call, request_id=number, **fields)


def write_term(compute: Compute, fences: Fences, disk: Disk, call: HookCall) -> None:
    """Label one of our disks with this leader's term; raises RetryLater until the label is there."""
    mark = fences.mark_to_write(disk.labels, call.context)
    if mark:
        set_labels(compute, disk, {**disk.labels, **mark}, call)
        raise RetryLater(compute.disks.next_poll(disk.key, after=0.5))
