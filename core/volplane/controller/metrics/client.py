"""Calls of the API server, and what reflectors and recorders of events do."""

from __future__ import annotations

from volplane.controller.metrics.families import LATENCY, Families, MetricsPart

__all__ = ["ClientMetrics"]


class ClientMetrics(MetricsPart):
    """Methods are named after what happened."""

    def __init__(self, make: Families) -> None:
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
        self._events_dropped = make.counter("volplane_events_dropped_total", "Events not written, and why", "why")
        super().__init__(make)

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
