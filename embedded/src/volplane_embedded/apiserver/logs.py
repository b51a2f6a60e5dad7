"""GET of pods/log: checks the request and leaves the rest to whoever runs the containers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from volplane_embedded.apiserver.errors import Failure, bad_request
from volplane_embedded.apiserver.requests import Query, Request
from volplane_embedded.apiserver.storage import Registry

__all__ = ["LogSource", "open_log"]

LogSource = Callable[[str, str, str | None, bool, Query], AsyncIterator[bytes]]
"""Output of a container: namespace, pod, container (None: the only one), follow, and the query with `tailLines`,
`sinceSeconds`, `sinceTime`, `timestamps`, `limitBytes`, `previous`. May raise Failure before its first bytes."""


def open_log(registry: Registry, request: Request, source: LogSource | None) -> AsyncIterator[bytes]:
    """Raises Failure: 404 without the pod, 400 for an unknown container, 501 where nothing runs containers."""
    pod = registry.find(request).decode()
    wanted = request.query.text("container") or None
    spec = pod.get("spec", {})
    containers = [c.get("name", "") for part in ("initContainers", "containers") for c in spec.get(part) or ()]
    if wanted is not None and wanted not in containers:
        raise bad_request(f"container {wanted} is not valid for pod {request.name}")
    if wanted is None and len(containers) > 1:
        choice = " ".join(containers)
        raise bad_request(f"a container name must be specified for pod {request.name}, choose one of: [{choice}]")
    if source is None:
        raise Failure(501, "NotImplemented", "no node agent runs beside this API server, so there are no logs")
    follow = request.query.flag("follow")
    return source(request.namespace, request.name, wanted, follow, request.query)
