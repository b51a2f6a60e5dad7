"""The subresources of pods that are no part of the object: binding, eviction, log (`pkg/registry/core/pod/rest`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from volplane_embedded.apiserver import metadata
from volplane_embedded.apiserver.decoding import decode_object
from volplane_embedded.apiserver.deletion import Deletion
from volplane_embedded.apiserver.errors import StatusError, bad_request, conflict, invalid
from volplane_embedded.apiserver.metadata import match_name
from volplane_embedded.apiserver.options import DeleteOptions, WriteOptions
from volplane_embedded.apiserver.requests import Query, Request
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.storage import ObjectStorage

LogSource = Callable[[str, str, str | None, bool, Query], AsyncIterator[bytes]]
"""Opens the output of a container: namespace, pod, container (None: the only one), follow, and the query with
`tailLines`, `sinceSeconds`, `sinceTime`, `timestamps`, `limitBytes`, `previous`. May raise StatusError before the first
bytes."""


def bind(objects: ObjectStorage, request: Request, body: bytes) -> None:
    """Carry out a POST of a `Binding` to the binding subresource. Raises StatusError (400, 404, 409, 422)."""
    resource = request.resource
    options = WriteOptions.read(request.query, "CreateOptions")
    content_type = request.headers.get("content-type", "")
    binding, _ = decode_object(replace(resource, kind="Binding"), body, content_type, options.field_validation)
    meta = metadata.clean(binding)
    match_name(request, meta)
    if causes := resource.strategy.validate_binding(binding):
        raise invalid("Binding", resource.group, request.name, list(causes))
    obj = objects.find(request).decode()
    for field in ("uid", "resourceVersion"):
        wanted, found = meta.get(field, obj["metadata"][field]), obj["metadata"][field]
        if wanted != found:
            why = f"Precondition failed: {field} in precondition: {wanted}, in object: {found}"
            raise conflict(resource.plural, resource.group, request.name, why)
    if why := resource.strategy.bind(obj, binding):
        raise conflict(f"{resource.plural}/binding", resource.group, request.name, why)
    if not options.dry_run:
        objects.put(resource, obj)


def evict(objects: ObjectStorage, deletion: Deletion, request: Request, body: bytes) -> None:
    """Carry out a POST of an `Eviction` (policy/v1, or v1beta1) to the eviction subresource.

    There are no disruption budgets, so nothing holds an eviction back. Raises StatusError (400, 404, 409, 422).
    """
    options = WriteOptions.read(request.query, "CreateOptions")
    kind = replace(request.resource, group="policy", version="v1", kind="Eviction")
    content_type = request.headers.get("content-type", "")
    eviction, _ = decode_object(kind, body, content_type, options.field_validation, ("policy/v1beta1",))
    meta = metadata.clean(eviction)
    metadata.match_namespace(request.resource, meta, request.namespace)
    objects.find(request)
    if meta.get("name") != request.name:
        raise bad_request("name in URL does not match name in Eviction object")
    asked = ["All"] if options.dry_run else []
    deletion.evict(request, DeleteOptions.given(eviction.get("deleteOptions") or {}, asked))


def open_log(objects: ObjectStorage, request: Request, source: LogSource | None) -> AsyncIterator[bytes]:
    """Open the output of the container that a GET of pods/log names; source: who runs the containers.

    Raises StatusError: 404 without the pod, 400 for an unknown container, 501 if nothing runs containers.
    """
    wanted = container_named(request, objects.find(request).decode())
    if source is None:
        raise StatusError(501, "NotImplemented", "no node agent runs beside this API server, so there are no logs")
    follow = request.query.flag("follow")
    return source(request.namespace, request.name, wanted, follow, request.query)


def container_named(request: Request, pod: Json) -> str | None:
    """Return the container that a request names, None if the pod has only one. Raises StatusError (400)."""
    wanted = request.query.text("container") or None
    spec = pod.get("spec", {})
    containers = [c.get("name", "") for part in ("initContainers", "containers") for c in spec.get(part) or ()]
    if wanted is not None and wanted not in containers:
        raise bad_request(f"container {wanted} is not valid for pod {request.name}")
    if wanted is None and len(containers) > 1:
        choice = " ".join(containers)
        raise bad_request(f"a container name must be specified for pod {request.name}, choose one of: [{choice}]")
    return wanted
