"""Counts of volumes and claims, kept up to date by the changes of the caches, so that a scrape walks no cache.

Names and labels are those of the reference controller's `pv_collector_*`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from volplane.controller.metrics import Metrics
from volplane.kube.cache import Cache
from volplane.kube.objects import Claim, KubeObject, Volume

__all__ = ["count_inventory"]

_SOURCES = {
    "host_path": "kubernetes.io/host-path",
    "local": "kubernetes.io/local-volume",
    "nfs": "kubernetes.io/nfs",
    "aws_elastic_block_store": "kubernetes.io/aws-ebs",
    "gce_persistent_disk": "kubernetes.io/gce-pd",
    "iscsi": "kubernetes.io/iscsi",
    "fc": "kubernetes.io/fc",
    "rbd": "kubernetes.io/rbd",
}

T = TypeVar("T", bound=KubeObject)
Count = tuple[str, tuple[str, ...]]
_End = Callable[[], None]


def count_inventory(volumes: Cache[Volume], claims: Cache[Claim], metrics: Metrics) -> _End:
    """Count the objects in the caches and follow their changes. Call what is returned to end that and clear the
    counts.
    """
    leave = (_follow(volumes, _of_volume, metrics), _follow(claims, _of_claim, metrics))

    def end() -> None:
        for each in leave:
            each()
        metrics.uncounted()

    return end


def _follow(cache: Cache[T], counts: Callable[[T], tuple[Count, ...]], metrics: Metrics) -> _End:
    def changed(old: T | None, new: T | None) -> None:
        before = counts(old) if old is not None else ()
        after = counts(new) if new is not None else ()
        if before == after:
            return
        for count in before:
            if count not in after:
                metrics.counted(*count, -1)
        for count in after:
            if count not in before:
                metrics.counted(*count, 1)

    leave = cache.subscribe(changed)
    for obj in cache.values():
        changed(None, obj)
    return leave


def _of_volume(volume: Volume) -> tuple[Count, ...]:
    spec = volume.spec
    total = "total_pv", (_plugin(volume), spec.volume_mode or "Filesystem")
    bound = "bound_pv" if volume.status.phase == "Bound" else "unbound_pv", (spec.storage_class_name,)
    return total, bound


def _of_claim(claim: Claim) -> tuple[Count, ...]:
    spec = claim.spec
    what = "bound_pvc" if claim.status.phase == "Bound" else "unbound_pvc"
    return ((what, (claim.namespace, spec.storage_class_name or "", spec.volume_attributes_class_name or "")),)


def _plugin(volume: Volume) -> str:
    """The plugin's name as in the reference controller; for CSI, where that has one name for all, the driver's."""
    if volume.spec.csi is not None:
        return str(volume.spec.csi.get("driver", "N/A"))
    for field, name in _SOURCES.items():
        if getattr(volume.spec, field) is not None:
            return name
    return "N/A"
