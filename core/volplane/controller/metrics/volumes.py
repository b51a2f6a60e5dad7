"""Lives of claims and volumes, under the names of the external provisioner and the binder."""

from __future__ import annotations

from typing import Final

from volplane.controller.metrics.families import OPERATION, Families, MetricsPart

__all__ = ["VolumeMetrics"]

_CLAIM_LABELS: Final = ("namespace", "storage_class", "volume_attributes_class")
_ATTEMPT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The external provisioner's buckets for one attempt."""


class VolumeMetrics(MetricsPart):
    """Methods are named after what happened."""

    def __init__(self, make: Families) -> None:
        self._operation_total = make.histogram(
            "volume_operation_total_seconds",
            "From the first attempt until the claim is bound or the volume gone",
            OPERATION,
            "plugin_name",
            "operation_name",
        )
        claim, volume = "controller_persistentvolumeclaim_provision", "controller_persistentvolume_delete"
        self._provisioned = make.counter(f"{claim}_total", "Calls of `provision` that made an asset", "class", "source")
        self._provision_failed = make.counter(
            f"{claim}_failed_total", "Calls of `provision` that failed", "class", "source"
        )
        self._provision_seconds = make.histogram(
            f"{claim}_duration_seconds",
            "How long calls of `provision` took that made an asset",
            _ATTEMPT,
            "class",
            "source",
        )
        self._deleted = make.counter(f"{volume}_total", "Calls of `delete` that deleted an asset", "class")
        self._delete_failed = make.counter(f"{volume}_failed_total", "Calls of `delete` that failed", "class")
        self._delete_seconds = make.histogram(
            f"{volume}_duration_seconds", "How long calls of `delete` took that deleted an asset", _ATTEMPT, "class"
        )
        self._retroactive = make.counter("retroactive_storageclass_total", "Claims given the default class later")
        self._retroactive_errors = make.counter(
            "retroactive_storageclass_errors_total", "The same, refused by the server"
        )
        self._inventory = {
            "total_pv": make.gauge("pv_collector_total_pv_count", "Volumes", "plugin_name", "volume_mode"),
            "bound_pv": make.gauge("pv_collector_bound_pv_count", "Bound volumes", "storage_class"),
            "unbound_pv": make.gauge("pv_collector_unbound_pv_count", "Volumes that are not bound", "storage_class"),
            "bound_pvc": make.gauge("pv_collector_bound_pvc_count", "Bound claims", *_CLAIM_LABELS),
            "unbound_pvc": make.gauge("pv_collector_unbound_pvc_count", "Claims that are not bound", *_CLAIM_LABELS),
        }
        super().__init__(make)

    def provision_succeeded(self, storage_class: str, seconds: float, *, source: str = "") -> None:
        """One call that made an asset. source: kind of the claim's dataSource."""
        self._provisioned[storage_class, source].inc()
        self._provision_seconds[storage_class, source].observe(seconds)

    def provision_failed(self, storage_class: str, *, source: str = "") -> None:
        self._provision_failed[storage_class, source].inc()

    def delete_succeeded(self, storage_class: str, seconds: float) -> None:
        """One call that deleted an asset."""
        self._deleted[(storage_class,)].inc()
        self._delete_seconds[(storage_class,)].observe(seconds)

    def delete_failed(self, storage_class: str) -> None:
        self._delete_failed[(storage_class,)].inc()

    def operation_finished(self, plugin: str, operation: str, seconds: float) -> None:
        """What a user waits for: first "provision" attempt until bound; reclaim until the volume is gone ("delete")."""
        self._operation_total[plugin, operation].observe(seconds)

    def class_given_later(self, *, refused: bool = False) -> None:
        """A claim without a class got the default one, or the server refused it."""
        (self._retroactive_errors if refused else self._retroactive)[()].inc()

    def counted(self, what: str, labels: tuple[str, ...], change: int) -> None:
        """So many more or less of what `controller.inventory` counts."""
        self._inventory[what][labels].inc(change)

    def uncounted(self) -> None:
        """Nothing is counted any more."""
        for gauge in self._inventory.values():
            gauge.forget()
