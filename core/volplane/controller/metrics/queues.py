"""Work queues and passes of runners, under the names of client-go's workqueue."""

from __future__ import annotations

from collections.abc import Callable

from volplane.controller.metrics.families import LATENCY, Families, MetricsPart

__all__ = ["QueueMetrics"]


class QueueMetrics(MetricsPart):
    """Methods are named after what happened."""

    def __init__(self, make: Families) -> None:
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
        super().__init__(make)

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
