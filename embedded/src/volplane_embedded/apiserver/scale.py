"""The scale subresource of workloads (`pkg/registry/apps/*/storage`): how many pods they should have."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Final

from volplane_embedded.apiserver import decoding, metadata
from volplane_embedded.apiserver.errors import Cause, conflict, invalid
from volplane_embedded.apiserver.kinds.apps import format_selector
from volplane_embedded.apiserver.metadata import match_name
from volplane_embedded.apiserver.options import WriteOptions
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json
from volplane_embedded.apiserver.verbs import MODIFIED, Verbs, patcher

SCALE: Final = "scale"
_SHOWN: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(obj: Json) -> Json:
    """Return the `Scale` of a workload."""
    spec, meta = obj["spec"], obj["metadata"]
    replicas = spec.get("replicas") or 0
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in _SHOWN if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {
            "replicas": (obj.get("status") or {}).get("replicas") or 0,
            "selector": format_selector(spec.get("selector")),
        },
    }


def write_scale(verbs: Verbs, request: Request, method: str, body: bytes) -> Json:
    """Carry out a PUT or PATCH of the scale. Raises StatusError (400, 404, 409, 415, 422)."""
    resource = replace(request.resource, kind="Scale", group="autoscaling", version="v1")
    patched = method == "PATCH"
    options = WriteOptions.read(request.query, "PatchOptions" if patched else "UpdateOptions")
    content_type = request.headers.get("content-type", "")
    stored = verbs.objects.find(request)
    old = stored.decode()
    if patched:
        patch = decoding.decode(body, "application/json")
        scale: Any = patcher(resource, content_type)(resource, scale_of(old), patch)
        decoding.check_fields(resource, scale, options.field_validation, None)
    else:
        scale, _ = decoding.decode_object(resource, body, content_type, options.field_validation)
    meta = metadata.clean(scale)
    match_name(request, meta)
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if replicas < 0:
        cause = Cause.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("Scale", "autoscaling", request.name, [cause])
    if meta.get("resourceVersion", old["metadata"]["resourceVersion"]) != old["metadata"]["resourceVersion"]:
        raise conflict(request.resource.plural, request.resource.group, request.name, MODIFIED)
    new = deepcopy(old)
    new["spec"]["replicas"] = replicas
    data = verbs.write(replace_subresource(request), stored, old, new, dry_run=options.dry_run)
    return scale_of(decoding.decode(data, "application/json"))


def replace_subresource(request: Request) -> Request:
    """Return the request as one of the main resource."""
    return Request(request.resource, request.namespace, request.name, "", request.query, request.headers)
