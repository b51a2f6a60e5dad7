"""Prometheus metrics under the names of what they stand for elsewhere: client-go, the external provisioner, the binder.

One `Metrics` per process, in the registry that is passed in or one of its own, never the global one. What the
simulation counts too is written against the protocols `ApiMetrics` and `ControllerMetrics`, which it implements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from volplane.cloud.call_metrics import COLLECTORS

__all__ = ["Metrics"]

CLAIM_LABELS = ("namespace", "storage_class", "volume_attributes_class")

LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OPERATION = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
"""The reference controller's buckets for volume operations."""
HOOK = (*LATENCY, 30.0, 120.0, 600.0)
_OPERATIONS = frozenset({"provision", "delete", "recycle", "attach", "detach", "expand"})
"""Hooks whose calls are `storage_operation_duration_seconds`."""
ATTEMPT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The external provisioner's buckets for one attempt."""


disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series, "_created", for each counter and histogram

M = TypeVar("M", bound=MetricWrapperBase)


class Description(NamedTuple):
    """What a metric is, as the documentation shows it. type: "counter", "gauge" or "histogram"."""

    name: str
    type: str
    labels: tuple[str, ...]
    documentation: str


class _Children(dict[tuple[str, ...], M]):
    """The children of one metric by the values of its labels. `labels()` of prometheus-client takes 2 us every time."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> M:
        child = self[labels] = self._metric.labels(*labels) if labels else self._metric
        return child

    def forget(self) -> None:
        """Remove every child."""
        self._metric.clear()
        self.clear()


class _Maker:
    """Makes metrics in a registry, and describes them."""

    def __init__(self, registry: CollectorRegistry, descriptions: list[Description]) -> None:
        self._registry = registry
        self._descriptions = descriptions

    def counter(self, name: str, documentation: str, *labels: str) -> _Children[Counter]:
        self._descriptions.append(Description(name, "counter", labels, documentation))
        return _Children(Counter(name, documentation, labels, registry=self._registry))

    def gauge(self, name: str, documentation: str, *labels: str) -> _Children[Gauge]:
        self._descriptions.append(Description(name, "gauge", labels, documentation))
        return _Children(Gauge(name, documentation, labels, registry=self._registry))

    def histogram(
        self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str
    ) -> _Children[Histogram]:
        self._descriptions.append(Description(name, "histogram", labels, documentation))
        return _Children(Histogram(name, documentation, labels, buckets=buckets, registry=self._registry))

    def shared(self, metric: MetricWrapperBase, labels: tuple[str, ...]) -> None:
        """Show a metric that is made elsewhere."""
        [family] = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        self._descriptions.append(Description(name, family.type, labels, family.documentation))
        self._registry.register(metric)


class Metrics:
    """All metrics of a process. Methods are named after what happened."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self.descriptions: list[Description] = []
        """Every metric, for the documentation."""
        make = _Maker(self.registry, self.descriptions)
        for metric, labels in COLLECTORS:
            make.shared(metric, labels)
        self._requests = make.counter(
            "rest_client_requests_total", "Calls of the API server, by status code", "method", "resource", "code"
        )
        self._request_seconds = make.histogram(
            "rest_client_request_duration_seconds",
            "How long calls of the API server took",
            LATENCY,
            "method",
            "resource",
        )
        self._undecodable = make.counter(
            "volplane_undecodable_objects_total", "Objects skipped because they break the schema", "resource"
        )
        self._lists = make.counter(
            "volplane_reflector_lists_total",
            "Times a kind was listed: at the start and after a watch was lost",
            "resource",
        )
        self._watch_ends = make.counter(
            "volplane_reflector_watch_ends_total", "Watches that ended, and why", "resource", "why"
        )
        self._added = make.counter("workqueue_adds_total", "Keys added to a queue", "name")
        self._depth = make.gauge("workqueue_depth", "Keys waiting in a queue", "name")
        self._waited = make.histogram(
            "workqueue_queue_duration_seconds", "How long keys waited until a worker took them", LATENCY, "name"
        )
        self._worked = make.histogram(
            "workqueue_work_duration_seconds", "How long workers took for a key", LATENCY, "name"
        )
        self._retried = make.counter("workqueue_retries_total", "Keys that came back after a failure", "name")
        self._passes = make.counter(
            "volplane_reconcile_total", "Passes over an object, by how they ended", "controller", "result"
        )
        self._events_dropped = make.counter("volplane_events_dropped_total", "Events not written, and why", "why")
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
            "volplane_hook_seconds", "How long calls of hooks took", HOOK, "driver", "hook"
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
        self._operation_total = make.histogram(
            "volume_operation_total_seconds",
            "From the first attempt until the claim is bound or the volume gone",
            OPERATION,
            "plugin_name",
            "operation_name",
        )
        # The external provisioner's own.
        claim, volume = "controller_persistentvolumeclaim_provision", "controller_persistentvolume_delete"
        self._provisioned = make.counter(f"{claim}_total", "Calls of `provision` that made an asset", "class", "source")
        self._provision_failed = make.counter(
            f"{claim}_failed_total", "Calls of `provision` that failed", "class", "source"
        )
        self._provision_seconds = make.histogram(
            f"{claim}_duration_seconds",
            "How long calls of `provision` took that made an asset",
            ATTEMPT,
            "class",
            "source",
        )
        self._deleted = make.counter(f"{volume}_total", "Calls of `delete` that deleted an asset", "class")
        self._delete_failed = make.counter(f"{volume}_failed_total", "Calls of `delete` that failed", "class")
        self._delete_seconds = make.histogram(
            f"{volume}_duration_seconds", "How long calls of `delete` took that deleted an asset", ATTEMPT, "class"
        )
        self._retroactive = make.counter("retroactive_storageclass_total", "Claims given the default class later")
        self._retroactive_errors = make.counter(
            "retroactive_storageclass_errors_total", "The same, refused by the server"
        )
        self._drivers = make.gauge("volplane_driver_healthy", "1: the driver can be used now", "driver")
        self._findings = make.gauge(
            "volplane_leak_findings",
            "What the last leak check found: orphan, ghost, drifted, foreign",
            "driver",
            "verdict",
        )
        self._lost = make.gauge("volplane_lost_volumes", "Volumes of distributed drivers whose node is gone", "driver")
        self._leak_checks = make.counter(
            "volplane_leak_checks_total", "Leak checks, complete or failed", "driver", "result"
        )
        self._leak_checked = make.gauge(
            "volplane_leak_check_last_success_timestamp_seconds",
            "Unix time at which the last complete leak check ended",
            "driver",
        )
        self._inventory = {
            "total_pv": make.gauge("pv_collector_total_pv_count", "Volumes", "plugin_name", "volume_mode"),
            "bound_pv": make.gauge("pv_collector_bound_pv_count", "Bound volumes", "storage_class"),
            "unbound_pv": make.gauge("pv_collector_unbound_pv_count", "Volumes that are not bound", "storage_class"),
            "bound_pvc": make.gauge("pv_collector_bound_pvc_count", "Bound claims", *CLAIM_LABELS),
            "unbound_pvc": make.gauge("pv_collector_unbound_pvc_count", "Claims that are not bound", *CLAIM_LABELS),
        }
        self._forced_detaches = make.gauge(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            "Volumes detached though their node may use them, since the start; reason: timeout, out-of-service",
            "reason",
        )
        self._attached_volumes = make.gauge(
            "attachdetach_controller_total_volumes",
            "Volumes on nodes, by what wants them (desired_state_of_world) and what has them (actual_state_of_world)",
            "plugin_name",
            "state",
        )
        self._attachable_in_use = make.gauge(
            "storage_count_attachable_volumes_in_use",
            "Volumes of pods that need attaching, by node",
            "node",
            "volume_plugin",
        )
        for reason in ("timeout", "out-of-service"):
            self._forced_detaches[(reason,)].set(0)
        self._leading = make.gauge("volplane_leading", "1: this process holds the lease and works", "lease")

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus."""
        return generate_latest(self.registry)

    # --- client and caches

    def api_request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self._requests[verb, resource, str(code)].inc()
        self._request_seconds[verb, resource].observe(seconds)

    def undecodable(self, resource: str) -> None:
        self._undecodable[(resource,)].inc()

    def listed(self, resource: str) -> None:
        self._lists[(resource,)].inc()

    def watch_ended(self, resource: str, why: str) -> None:
        self._watch_ends[resource, why].inc()

    def event_dropped(self, why: str) -> None:
        self._events_dropped[(why,)].inc()

    # --- queues and runners

    def queue_added(self, queue: str) -> None:
        self._added[(queue,)].inc()

    def queue_made(self, queue: str, depth: Callable[[], int]) -> None:
        self._depth[(queue,)].set_function(depth)

    def queue_waited(self, queue: str, seconds: float) -> None:
        self._waited[(queue,)].observe(seconds)

    def queue_worked(self, queue: str, seconds: float) -> None:
        self._worked[(queue,)].observe(seconds)

    def queue_retried(self, queue: str) -> None:
        self._retried[(queue,)].inc()

    def pass_ended(self, runner: str, result: str) -> None:
        self._passes[runner, result].inc()

    def counted(self, what: str, labels: tuple[str, ...], change: int) -> None:
        """So many more or less of what `controller.inventory` counts."""
        self._inventory[what][labels].inc(change)

    def uncounted(self) -> None:
        """Nothing is counted any more."""
        for gauge in self._inventory.values():
            gauge.forget()

    # --- operations, drivers, leases

    def operation_ended(self, driver: str, operation: str, seconds: float, *, failed: bool) -> None:
        """A run of an operation, live checks included. operation: "provision", "delete", "recycle", …"""
        self._runs[driver, operation].observe(seconds)
        if failed:
            self._operation_errors[driver, operation].inc()

    def hook_ended(self, driver: str, hook: str, seconds: float, result: str) -> None:
        """A call of a hook. result: "ok", "in_progress", or the class of the error."""
        self._hook_calls[driver, hook, result].inc()
        self._hook_seconds[driver, hook].observe(seconds)
        if hook in _OPERATIONS and result != "in_progress":
            status = "success" if result == "ok" else "fail-unknown"
            self._operations[driver, f"volume_{hook}", status, "false"].observe(seconds)

    def operations_running(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """How many operations there are, by driver, verb and phase; others than these there are none."""
        self._operations_now.forget()
        for labels, count in counts.items():
            self._operations_now[labels].set(count)

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

    def detach_forced(self, reason: str) -> None:
        """A volume was detached though its node may use it. reason: "timeout" or "out-of-service"."""
        self._forced_detaches[(reason,)].inc()

    def attach_detach_ended(self, plugin: str, operation: str, seconds: float, *, failed: bool) -> None:
        """What attach-detach asked an attacher for. operation: "volume_attach", "volume_detach" or
        "verify_volumes_are_attached_per_node".
        """
        status = "fail-unknown" if failed else "success"
        self._operations[plugin, operation, status, "false"].observe(seconds)

    def volumes_on_nodes(self, worlds: Mapping[tuple[str, str], int], in_use: Mapping[tuple[str, str], int]) -> None:
        """Present numbers, by plugin and state, and by node and plugin; others than these there are none."""
        for gauge, counts in ((self._attached_volumes, worlds), (self._attachable_in_use, in_use)):
            gauge.forget()
            for labels, count in counts.items():
                gauge[labels].set(count)

    def volumes_lost(self, counts: Mapping[str, int]) -> None:
        """Volumes whose node is gone, by driver; of others than these there are none."""
        self._lost.forget()
        for driver, count in counts.items():
            self._lost[(driver,)].set(count)

    def drivers_healthy(self, health: Mapping[str, bool]) -> None:
        """Every driver of this process by name; others than these there are none."""
        self._drivers.forget()
        for driver, healthy in health.items():
            self._drivers[(driver,)].set(healthy)

    def leak_checked(self, driver: str, at: float | None) -> None:
        """A check for leaks is over. at: Unix time of its end, None if it failed."""
        self._leak_checks[driver, "failed" if at is None else "complete"].inc()
        if at is not None:
            self._leak_checked[(driver,)].set(at)

    def leak_findings(self, driver: str, verdict: str, count: int) -> None:
        self._findings[driver, verdict].set(count)

    def leading(self, lease: str, leading: bool) -> None:
        self._leading[(lease,)].set(leading)
