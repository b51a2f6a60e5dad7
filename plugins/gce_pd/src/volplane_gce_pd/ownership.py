"""Whose a disk is: list the marked disks, adopt one from another cluster, refuse calls of a former leader.

The marks are labels. Compute Engine changes them only for a caller that knows their fingerprint, so that two leaders
cannot both write the fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from volplane import AdoptRequest, AlreadyExists, AssetPage, Done, ListedAsset, ListRequest, NotFound, Throttled
from volplane.cloud import LABELS, Fences, HookCall, RetryLater
from volplane_gce_pd.api import Method
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.resources import GIB, Disk, disk_key, request_id

__all__ = ["FOREIGN_LABELS", "Fencing", "adopt", "list_page", "set_labels"]

FOREIGN_LABELS = ("goog-gke-volume", "goog-k8s-cluster-name")
"""Labels by which other drivers mark what they make."""
_ADOPT_RETRY = 1.0


def list_page(compute: Compute, request: ListRequest) -> AssetPage:
    """One page of the region's disks with ownership labels of any cluster, without those that are being deleted.

    Raises GceError, and Unavailable while a zone cannot be read.
    """
    disks, following = compute.marked_disks(LABELS.cluster, request.page)
    listed = [disk for disk in disks if disk.state != "DELETING"]
    return AssetPage(assets=tuple(_listed(compute, disk, request) for disk in listed), next_page=following)


def _listed(compute: Compute, disk: Disk, request: ListRequest) -> ListedAsset:
    owner = LABELS.owner(disk.labels, request.context.cluster_id)
    return ListedAsset(
        handle=disk.handle(compute.settings.project),
        name=owner.volume_name if owner is not None else disk.name,
        capacity_bytes=disk.size * GIB,
        owner=owner,
        created_at=_unix_time(disk.created),
        attached_to=tuple("/".join(vm) for vm in disk.users),
    )


def _unix_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def adopt(compute: Compute, fencing: Fencing, request: AdoptRequest, call: HookCall) -> Done:
    """Replace the labels of `request.former` by those of the new owner.

    The fence number becomes that of the new owner's leader: numbers of two clusters cannot be compared. Raises GceError
    and the errors of the contract: AlreadyExists if the disk is neither owner's, Throttled until the labels are there.
    """
    owner = request.volume.owner
    key = disk_key(request.volume, compute.settings)
    disk = compute.disk_now(key)
    if disk is None or disk.state == "DELETING":
        raise NotFound(f"the disk {request.volume.handle} of {request.volume.name} does not exist (any more)")
    if owner is None:
        raise AlreadyExists(f"{request.volume.name} was not made by this driver: it carries no marks")
    found = LABELS.owner(disk.labels, owner.cluster_id)
    if found == owner:
        return Done()
    if found is None or {**LABELS.of(found)} != LABELS.of(request.former):
        whose = (
            f"{found.volume_name} of cluster {found.cluster_id!r}"
            if found is not None
            else "nobody that volplane knows"
        )
        raise AlreadyExists(
            f"{disk.name} belongs to {whose}, not to cluster {request.former.cluster_id!r}: it is not touched"
        )
    if request.former.cluster_id == owner.cluster_id:
        fencing.refuse_former_leader(disk, call)
    labels = {**disk.labels, **LABELS.of(owner), **LABELS.of_term(call.context)}
    seconds = _ADOPT_RETRY
    try:
        set_labels(compute, disk, labels, call)
    except RetryLater as retry:
        seconds = max(retry.seconds, seconds)
    fencing.forget(disk)
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
    try:
        compute.change(
            method,
            disk.key,
            call,
            request_id=request_id(method, disk.id, disk.fingerprint, sorted(labels.items())),
            **fields,
        )
    finally:
        compute.changed(disk.key)


class Fencing:
    """Refuses late calls of a former leader by comparing the terms of calls per disk. Safe for threads."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._fences = Fences(LABELS)

    def refuse_former_leader(self, disk: Disk, call: HookCall) -> None:
        """Raise Unavailable if a newer leader has changed this disk."""
        self._fences.refuse_former_leader(_asset(disk), disk.labels, call.context)

    def forget(self, disk: Disk) -> None:
        """Drop what this process knows of the disk's leaders: its label has a new number."""
        self._fences.forget(_asset(disk))

    def write(self, disk: Disk, call: HookCall) -> None:
        """Label one of our disks with this leader's number; raises RetryLater until the label is there."""
        mark = self._fences.mark_to_write(disk.labels, call.context)
        if mark:
            set_labels(self._compute, disk, {**disk.labels, **mark}, call)
            raise RetryLater(self._compute.disks.next_poll(disk.key, after=0.5))


def _asset(disk: Disk) -> str:
    return f"{disk.place}/{disk.name}"
