"""All Prometheus metrics of a process.

Metrics that client-go, the external provisioner or the controllers of Kubernetes have too carry their names here.

There is one `Metrics` a process, in the registry that is passed in or one of its own, never the global one. Its public
attributes are metrics; `metrics.lost[labels]` is one series.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from volplane._shared import COLLECTORS
from volplane.controller.workqueue import ControllerMetrics, QueueCounters
from volplane.kube.client import Counted

_LATENCY: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_HOOK: Final = (*_LATENCY, 30.0, 120.0, 600.0)
_OPERATION: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
"""The buckets of kube-controller-manager for volume operations."""
_ATTEMPT: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The buckets of the external provisioner for one attempt."""
_STORAGE_OPERATIONS: Final = frozenset({"provision", "delete", "recycle", "attach", "detach", "expand"})
"""The hooks whose calls are in `storage_operation_duration_seconds`."""

# prometheus-client would add a series "_created" to each counter and histogram.
disable_created_metrics()  # type: ignore[no-untyped-call]

MOST_SERIES: Final = 5_000
"""Series of a metric whose labels tenants choose; what has other labels counts as "(other)"."""

M = TypeVar("M", bound=MetricWrapperBase)


class Description(NamedTuple):
    """A metric as the documentation shows it."""

    name: str
    type: str
    """"counter", "gauge" or "histogram"."""
    labels: tuple[str, ...]
    documentation: str


class Series(dict[tuple[str, ...], M]):
    """The series of one metric by the values of its labels. `labels()` of prometheus-client takes 2 us every time."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> M:
        child = self[labels] = self._metric.labels(*labels) if labels else self._metric
        return child

    def show(self: Series[Gauge], values: Mapping[Any, float]) -> None:
        """Set the gauge to these values, by its label or its labels, and remove every other series."""
        self._metric.clear()
        self.clear()
        for labels, value in values.items():
            self[labels if isinstance(labels, tuple) else (labels,)].set(value)


class Metrics(ControllerMetrics):
    """The metrics of a process. Methods are named after the events that they count."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.descriptions: list[Description] = []
        """Every metric, for the documentation."""
        for collector, labels in COLLECTORS:
            [family] = collector.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.descriptions.append(Description(name, family.type, labels, family.documentation))
            self.registry.register(collector)

        counter, gauge = partial(self._make, Counter), partial(self._make, Gauge)
        histogram = partial(self._make, Histogram)
        self.leading = gauge("volplane_leading{lease}", "1: this process holds the lease and works")

        # Calls of the API server, under the names of client-go.
        self._requests = counter(
            "rest_client_requests_total{method,resource,code}", "Calls of the API server, by status code"
        )
        self._request_seconds = histogram(
            "rest_client_request_duration_seconds{method,resource}", "How long calls of the API server took", _LATENCY
        )
        self._counters: dict[Counted, Series[Counter]] = {
            "undecodable": counter(
                "volplane_undecodable_objects_total{resource}", "Objects skipped because they break the schema"
            ),
            "listed": counter(
                "volplane_reflector_lists_total{resource}",
                "Times a kind was listed: at the start and after a watch was lost",
            ),
            "watch ended": counter("volplane_reflector_watch_ends_total{resource,why}", "Watches that ended, and why"),
            "event dropped": counter("volplane_events_dropped_total{why}", "Events not written, and why"),
        }

        # Work queues and passes, under the names of client-go's workqueue.
        self._added = counter("workqueue_adds_total{name}", "Keys added to a queue")
        self._depth = gauge("workqueue_depth{name}", "Keys waiting in a queue")
        self._waited = histogram(
            "workqueue_queue_duration_seconds{name}", "How long keys waited until a worker took them", _LATENCY
        )
        self._worked = histogram("workqueue_work_duration_seconds{name}", "How long workers took for a key", _LATENCY)
        self._retried = counter("workqueue_retries_total{name}", "Keys that came back after a failure")
        self._counters["pass ended"] = counter(
            "volplane_reconcile_total{controller,result}", "Passes over an object, by how they ended"
        )

        # Hooks, and the operations that call them.
        self._storage_operations = histogram(
            "storage_operation_duration_seconds{volume_plugin,operation_name,status,migrated}",
            "How long calls of hooks took that change storage",
            _OPERATION,
        )
        self._hook_calls = counter(
            "volplane_hook_calls_total{driver,hook,result}",
            "Calls of hooks; result: ok, in_progress or the class of the error",
        )
        self._hook_seconds = histogram("volplane_hook_seconds{driver,hook}", "How long calls of hooks took", _HOOK)
        self._runs = histogram(
            "volplane_operation_seconds{driver,operation}",
            "How long runs of operations took, live checks included",
            _OPERATION,
        )
        self.operations = gauge(
            "volplane_operations{driver,operation,phase}", "Operations now, by phase: queued, running, overrun, waiting"
        )
        self._operation_errors = counter(
            "volume_operation_errors_total{plugin_name,operation_name}", "Operations that failed"
        )
        self.drivers = gauge("volplane_driver_healthy{driver}", "1: the driver can be used now")

        # Lives of claims and volumes, under the names of the external provisioner and the binder.
        self.lives = histogram(
            "volume_operation_total_seconds{plugin_name,operation_name}",
            "From the first attempt until the claim is bound or the volume gone",
            _OPERATION,
        )
        self._attempts = {}
        for hook, name, given, did in (
            ("provision", "controller_persistentvolumeclaim_provision", "{class,source}", "made"),
            ("delete", "controller_persistentvolume_delete", "{class}", "deleted"),
        ):
            self._attempts[hook] = (
                counter(f"{name}_total{given}", f"Calls of `{hook}` that {did} an asset"),
                counter(f"{name}_failed_total{given}", f"Calls of `{hook}` that failed"),
                histogram(
                    f"{name}_duration_seconds{given}", f"How long calls of `{hook}` took that {did} an asset", _ATTEMPT
                ),
            )
        self.retroactive = counter("retroactive_storageclass_total", "Claims given the default class later")
        self.retroactive_errors = counter("retroactive_storageclass_errors_total", "The same, refused by the server")
        self.inventory = {
            "total_pv": gauge("pv_collector_total_pv_count{plugin_name,volume_mode}", "Volumes"),
            "bound_pv": gauge("pv_collector_bound_pv_count{storage_class}", "Bound volumes"),
            "unbound_pv": gauge("pv_collector_unbound_pv_count{storage_class}", "Volumes that are not bound"),
            "bound_pvc": gauge(
                "pv_collector_bound_pvc_count{namespace,storage_class,volume_attributes_class}", "Bound claims"
            ),
            "unbound_pvc": gauge(
                "pv_collector_unbound_pvc_count{namespace,storage_class,volume_attributes_class}",
                "Claims that are not bound",
            ),
            "trash": gauge("volplane_trash_volumes{storage_class}", "Volumes of deleted claims that are kept"),
            "trash_bytes": gauge("volplane_trash_bytes{storage_class}", "Their capacity together, in bytes"),
        }
        self.counted: collections.Counter[tuple[str, tuple[str, ...]]] = collections.Counter()
        """How many objects there are, by the key in `inventory` and the labels; changed in the loop."""

        self.snapshots, self.groups, self.schedules, self.late_schedules = (
            gauge(
                "volplane_snapshots{driver,state}",
                "VolumeSnapshots, by state: ready, pending, error (tried again), failed",
            ),
            gauge("volplane_group_snapshots{driver,state}", "VolumeGroupSnapshots, by the same states"),
            gauge(
                "volplane_snapshot_schedules{driver,state}",
                "Schedules of snapshots, by state: followed, late (the last good one is too old), suspended, refused",
            ),
            gauge(
                "volplane_snapshot_schedule_late_seconds{namespace,persistentvolumeclaim}",
                "For how long the last good snapshot of a claim with a schedule has been too old",
            ),
        )

        # Attachments, under the names of the attach-detach controller.
        self.forced_detaches = gauge(
            "attach_detach_controller_attachdetach_controller_forced_detaches{reason}",
            "Volumes detached though their node may use them, since the start; reason: timeout, out-of-service",
        )
        self.forced_detaches.show({"timeout": 0, "out-of-service": 0})
        self.attached_volumes = gauge(
            "attachdetach_controller_total_volumes{plugin_name,state}",
            "Volumes on nodes, by what wants them (desired_state_of_world) and what has them (actual_state_of_world)",
        )
        self.attachable_in_use = gauge(
            "storage_count_attachable_volumes_in_use{node,volume_plugin}",
            "Volumes of pods that need attaching, by node",
        )

        # Leaks, and volumes whose nodes are gone.
        self.findings = gauge(
            "volplane_leak_findings{driver,verdict}", "What the last leak check found: orphan, ghost, drifted, foreign"
        )
        self._leak_checks = counter("volplane_leak_checks_total{driver,result}", "Leak checks, complete or failed")
        self._leak_checked = gauge(
            "volplane_leak_check_last_success_timestamp_seconds{driver}",
            "Unix time at which the last complete leak check ended",
        )
        self.lost = gauge("volplane_lost_volumes{driver}", "Volumes of distributed drivers whose node is gone")

    def _make(self, kind: type[M], name: str, documentation: str, *buckets: tuple[float, ...]) -> Series[M]:
        """Make a metric. name: with its labels, as in `name{label,other}`."""
        name, _, given = name.rstrip("}").partition("{")
        labels = tuple(given.split(",")) if given else ()
        self.descriptions.append(Description(name, kind.__name__.lower(), labels, documentation))
        options: dict[str, Any] = {"buckets": buckets[0]} if buckets else {}
        return Series(kind(name, documentation, labels, registry=self.registry, **options))

    def exposition(self) -> bytes:
        """Return all metrics in the text format of Prometheus. Called in one thread at a time."""
        shown: dict[str, dict[tuple[str, ...], int]] = {what: {} for what in self.inventory}
        # dict() copies in one step of the interpreter; the loop may go on.
        for (what, labels), count in dict(self.counted).items():
            key = labels if len(shown[what]) < MOST_SERIES else ("(other)",) * len(labels)
            shown[what][key] = shown[what].get(key, 0) + count
        for what, values in shown.items():
            self.inventory[what].show(values)
        return generate_latest(self.registry)

    def api_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._requests[verb, resource, str(code)].inc()
        self._request_seconds[verb, resource].observe(seconds)

    def count(self, what: Counted, *labels: str) -> None:
        self._counters[what][labels].inc()

    def queue_made(self, queue: str, depth: Callable[[], int]) -> QueueCounters:
        self._depth[(queue,)].set_function(depth)
        return QueueCounters(
            added=self._added[(queue,)].inc,
            retried=self._retried[(queue,)].inc,
            waited=self._waited[(queue,)].observe,
            worked=self._worked[(queue,)].observe,
        )

    def hook_ended(self, driver: str, hook: str, seconds: float, result: str) -> None:
        """Count a call of a hook. result: "ok", "in_progress", or the class of the error."""
        self._hook_calls[driver, hook, result].inc()
        self._hook_seconds[driver, hook].observe(seconds)
        if hook in _STORAGE_OPERATIONS and result != "in_progress":
            status = "success" if result == "ok" else "fail-unknown"
            self._storage_operations[driver, f"volume_{hook}", status, "false"].observe(seconds)

    def attach_detach_ended(self, plugin: str, operation: str, seconds: float, *, failed: bool) -> None:
        """Count a request of attach-detach to an attacher.

        operation: "volume_attach", "volume_detach" or "verify_volumes_are_attached_per_node".
        """
        status = "fail-unknown" if failed else "success"
        self._storage_operations[plugin, operation, status, "false"].observe(seconds)

    def operation_ended(self, driver: str, operation: str, seconds: float, *, failed: bool) -> None:
        """Count a run of an operation, live checks included. operation: "provision", "delete", "recycle", …"""
        self._runs[driver, operation].observe(seconds)
        if failed:
            self._operation_errors[driver, operation].inc()

    def attempt_ended(self, hook: str, labels: tuple[str, ...], seconds: float | None) -> None:
        """Count a call of `provision` (labels: class, kind of the claim's dataSource) or `delete` (its class).

        seconds: None if it failed.
        """
        ended, failed, took = self._attempts[hook]
        (failed if seconds is None else ended)[labels].inc()
        if seconds is not None:
            took[labels].observe(seconds)

    def leak_checked(self, driver: str, at: float | None) -> None:
        """Count a leak check. at: Unix time of its end, None if it failed."""
        self._leak_checks[driver, "failed" if at is None else "complete"].inc()
        if at is not None:
            self._leak_checked[(driver,)].set(at)
