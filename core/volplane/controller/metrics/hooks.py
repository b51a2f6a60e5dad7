"""Calls of hooks, and the operations that make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from volplane.controller.metrics.families import LATENCY, OPERATION, Families, MetricsPart

__all__ = ["HookMetrics"]

_BUCKETS: Final = (*LATENCY, 30.0, 120.0, 600.0)
_OPERATIONS: Final = frozenset({"provision", "delete", "recycle", "attach", "detach", "expand"})
"""Hooks whose calls are `storage_operation_duration_seconds`."""


class HookMetrics(MetricsPart):
    """Methods are named after what happened."""

    def __init__(self, make: Families) -> None:
        self._operations = make.histogram(
            "storage_operation_duration_seconds",
            "How long calls of hooks took that change storage",
            OPERATION,
            "volume_plugin",
            "operation_name",
            "status",
            "migrated",
        )
        self._hook_calls = make.counter(
            "volplane_hook_calls_total",
            "Calls of hooks; result: ok, in_progress or the class of the error",
            "driver",
            "hook",
            "result",
        )
        self._hook_seconds = make.histogram(
            "volplane_hook_seconds", "How long calls of hooks took", _BUCKETS, "driver", "hook"
        )
        self._runs = make.histogram(
            "volplane_operation_seconds",
            "How long runs of operations took, live checks included",
            OPERATION,
            "driver",
            "operation",
        )
        self._operations_now = make.gauge(
            "volplane_operations",
            "Operations now, by phase: queued, running, overrun, waiting",
            "driver",
            "operation",
            "phase",
        )
        self._operation_errors = make.counter(
            "volume_operation_errors_total", "Operations that failed", "plugin_name", "operation_name"
        )
        self._drivers = make.gauge("volplane_driver_healthy", "1: the driver can be used now", "driver")
        super().__init__(make)

    def hook_ended(self, driver: str, hook: str, seconds: float, result: str) -> None:
        """A call of a hook. result: "ok", "in_progress", or the class of the error."""
        self._hook_calls[driver, hook, result].inc()
        self._hook_seconds[driver, hook].observe(seconds)
        if hook in _OPERATIONS and result != "in_progress":
            status = "success" if result == "ok" else "fail-unknown"
            self._operations[driver, f"volume_{hook}", status, "false"].observe(seconds)

    def attach_detach_ended(self, plugin: str, operation: str, seconds: float, *, failed: bool) -> None:
        """What attach-detach asked an attacher for. operation: "volume_attach", "volume_detach" or
        "verify_volumes_are_attached_per_node".
        """
        status = "fail-unknown" if failed else "success"
        self._operations[plugin, operation, status, "false"].observe(seconds)

    def operation_ended(self, driver: str, operation: str, seconds: float, *, failed: bool) -> None:
        """A run of an operation, live checks included. operation: "provision", "delete", "recycle", …"""
        self._runs[driver, operation].observe(seconds)
        if failed:
            self._operation_errors[driver, operation].inc()

    def operations_running(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """How many operations there are, by driver, verb and phase; others than these there are none."""
        self._operations_now.forget()
        for labels, count in counts.items():
            self._operations_now[labels].set(count)

    def drivers_healthy(self, health: Mapping[str, bool]) -> None:
        """Every driver of this process by name; others than these there are none."""
        self._drivers.forget()
        for driver, healthy in health.items():
            self._drivers[(driver,)].set(healthy)
