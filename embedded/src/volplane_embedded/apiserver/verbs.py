"""Create, update and patch, with the order of checks of `k8s.io/apiserver/pkg/registry/{rest,generic}`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from volplane_embedded.apiserver import decoding, metadata, object_meta
from volplane_embedded.apiserver.admission import Admission
from volplane_embedded.apiserver.errors import (
    Cause,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
)
from volplane_embedded.apiserver.metadata import match_name, match_namespace
from volplane_embedded.apiserver.namespace_lifecycle import NamespaceLifecycle
from volplane_embedded.apiserver.options import WriteOptions
from volplane_embedded.apiserver.patches import json_patch, merge_patch
from volplane_embedded.apiserver.quota_admission import QuotaAdmission
from volplane_embedded.apiserver.requests import Request, parse_media_type
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.responses import served
from volplane_embedded.apiserver.schema import duplicate_fields
from volplane_embedded.apiserver.storage import ObjectStorage, storage_of
from volplane_embedded.apiserver.store import Stored, key_of
from volplane_embedded.apiserver.strategic import strategic_merge

MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"
_NAME_ATTEMPTS: Final = 8

_encode = msgspec.json.Encoder().encode


class Written(msgspec.Struct, frozen=True):
    """The result of a write: the new state in stored bytes, and warnings for the client."""

    data: bytes
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Verbs:
    """The verbs create, update and patch."""

    objects: ObjectStorage
    namespaces: NamespaceLifecycle
    admission: Admission
    quotas: QuotaAdmission

    # Create

    def create(self, request: Request, body: bytes) -> Written:
        """POST to a collection. Raises StatusError."""
        resource, query = request.resource, request.query
        options = WriteOptions.read(query, "CreateOptions")
        obj, warnings = _decode_object(request, body, options)
        meta = metadata.clean(obj)
        match_namespace(resource, meta, request.namespace)
        self.namespaces.admit(resource, request.namespace, meta.get("name", ""))
        if resource.to_stored is not None:
            obj = resource.to_stored(obj)
            meta = obj["metadata"]
        strategy = resource.strategy
        strategy.default(obj)
        self.admission.admit(resource, obj, None)
        strategy.prepare_create(obj)
        version = meta.pop("resourceVersion", "0")
        metadata.begin(meta, resource, self.objects.now(), self.objects.random)
        self._name(resource, meta)
        _refuse(resource, meta, list(strategy.validate_create(obj)) or list(object_meta.validate(meta)))
        if version != "0":
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        charged = self.quotas.check(resource, obj, None)
        if self._taken(resource, meta):
            raise already_exists(resource.plural, resource.group, meta["name"])
        warnings = [*warnings, *strategy.warnings(obj)]
        if options.dry_run:
            return Written(_encode(obj), warnings)
        self.quotas.write(charged)
        return Written(self.objects.put(resource, obj).data, warnings)

    def _taken(self, resource: Resource, meta: Json) -> bool:
        key = key_of(meta.get("namespace", ""), meta["name"])
        return self.objects.store.get(storage_of(resource), key) is not None

    def _name(self, resource: Resource, meta: Json) -> None:
        """Generate a free name if only generateName is given. If all attempts collide the client gets 409."""
        if meta.get("name") or not meta.get("generateName"):
            return
        for _ in range(_NAME_ATTEMPTS):
            meta["name"] = metadata.generate_name(meta["generateName"], self.objects.random)
            if not self._taken(resource, meta):
                return

    # Update

    def update(self, request: Request, body: bytes) -> Written:
        """PUT of an object or its status. Raises StatusError."""
        resource = request.resource
        options = WriteOptions.read(request.query, "UpdateOptions")
        new, warnings = _decode_object(request, body, options)
        meta = metadata.clean(new)
        _refuse_nameless(request, meta)
        match_name(request, meta)
        stored = self.objects.find(request)
        if not meta.get("resourceVersion") and not resource.unconditional_update:
            cause = Cause.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid(resource.plural, resource.group, request.name, [cause])
        old = stored.decode()
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            why = (
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['metadata']['uid']}"
            )
            raise conflict(resource.plural, resource.group, request.name, why)
        new = new if resource.to_stored is None else resource.to_stored(new)
        data = self.write(request, stored, old, new, dry_run=options.dry_run)
        told = () if request.subresource else resource.strategy.warnings(new)
        return Written(data, [*warnings, *told])

    def patch(self, request: Request, body: bytes) -> Written:
        """PATCH of an object or its status. Raises StatusError."""
        resource = request.resource
        options = WriteOptions.read(request.query, "PatchOptions")
        apply = patcher(resource, request.headers.get("content-type", ""))
        patch = decoding.decode(body, "application/json")
        stored = self.objects.find(request)
        whole = {"kind": resource.kind, "apiVersion": resource.api_version, **served(resource, stored.decode())}
        new = apply(resource, whole, patch)
        if apply is _strategic:
            # A stock server applies it to the object without its type.
            new.update(kind=resource.kind, apiVersion=resource.api_version)
        versioned = bool(new.get("apiVersion"))
        warnings = _check_patched(request, new, body, options)
        meta = metadata.clean(new)
        _refuse_nameless(request, meta if versioned else {})
        match_name(request, meta)
        new = new if resource.to_stored is None else resource.to_stored(new)
        data = self.write(request, stored, stored.decode(), new, dry_run=options.dry_run)
        told = () if request.subresource else resource.strategy.warnings(new)
        return Written(data, [*warnings, *told])

    def write(self, request: Request, stored: Stored, old: Json, new: Json, *, dry_run: bool) -> bytes:
        """Do the common part of all updates. new: cleaned and in its stored form. Returns it in stored bytes."""
        resource, strategy = request.resource, request.resource.strategy
        meta, before = new["metadata"], old["metadata"]
        version = meta.get("resourceVersion", "0")
        if not (version.isascii() and version.isdigit()):
            raise StatusError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
        if version not in ("0", before["resourceVersion"]):
            raise conflict(resource.plural, resource.group, request.name, MODIFIED)
        meta["resourceVersion"] = before["resourceVersion"]
        metadata.carry_over(meta, before)
        strategy.default(new)
        self.admission.admit(resource, new, old, request.subresource)
        strategy.prepare_update(new, old, request.subresource)
        if new == old:
            return stored.data
        if resource.generation and not request.subresource and new.get("spec") != old.get("spec"):
            meta["generation"] = before.get("generation", 0) + 1
        causes = [*object_meta.validate(meta), *object_meta.validate_update(meta, before)]
        _refuse(resource, meta, [*causes, *strategy.validate_update(new, old, request.subresource)])
        why = strategy.forbid_update(new, old, request.subresource)
        if why := why or self.admission.forbid_update(resource, new, old, request.subresource):
            raise forbidden(resource.plural, resource.group, request.name, why)
        charged = self.quotas.check(resource, new, old, request.subresource)
        if dry_run:
            return _encode(new)
        self.quotas.write(charged)
        return self._store(resource, stored, new, before)

    def _store(self, resource: Resource, stored: Stored, new: Json, before: Json) -> bytes:
        """Write the object, or remove it if its deletion waited only for finalizers that are removed now."""
        ends = "deletionTimestamp" in before and not before.get("deletionGracePeriodSeconds")
        if not ends or new["metadata"].get("finalizers") or self.namespaces.is_held(resource, new):
            return self.objects.put(resource, new).data
        self.objects.remove(resource, stored.key)
        if namespace := before.get("namespace"):
            self.namespaces.finish(namespace)
        return _encode(new)


def _decode_object(request: Request, body: bytes, options: WriteOptions) -> tuple[Json, Sequence[str]]:
    kind = request.headers.get("content-type", "")
    return decoding.decode_object(request.resource, body, kind, options.field_validation)


def _refuse_nameless(request: Request, meta: Json) -> None:
    if not meta.get("name"):
        why = "was undeterminable: name must be provided"
        raise bad_request(f"the name of the object ({request.name} based on URL) {why}")


def patcher(resource: Resource, content_type: str) -> Callable[[Resource, Json, Any], Json]:
    """Return the function that applies a patch of this type. Raises StatusError (415)."""
    match parse_media_type(content_type)[0]:
        case "application/merge-patch+json":
            return _merge
        case "application/json-patch+json":
            return lambda _resource, original, patch: json_patch(original, patch)
        case "application/strategic-merge-patch+json" if not resource.custom:
            return _strategic
        case "application/apply-patch+yaml" | "application/apply-patch+cbor":
            why = "server-side apply is not served here: use `kubectl apply` without --server-side"
            raise StatusError(415, "UnsupportedMediaType", why)
    raise decoding.unsupported_media_type()


def _strategic(resource: Resource, original: Json, patch: object) -> Json:
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: it is no object")
    return strategic_merge(resource, original, patch)


def _merge(_resource: Resource, original: Json, patch: object) -> Json:
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: it is no object")
    merged: Json = merge_patch(original, patch)
    return merged


def _check_patched(request: Request, new: Json, body: bytes, options: WriteOptions) -> Sequence[str]:
    """Check as for a whole object, but refuse with 422. Duplicate fields are found in the patch."""
    level = options.field_validation
    try:
        decoding.check_kind(request.resource, new, patched=True)
        warnings = decoding.check_fields(request.resource, new, level, None)
        twice = [] if level == "Ignore" else [f'duplicate field "{path}"' for path in duplicate_fields(body)]
        if twice and level == "Strict":
            raise bad_request(f"strict decoding error: {', '.join(twice)}")
    except StatusError as why:
        if why.code == 422:
            raise
        raise invalid("", "", "", [Cause("FieldValueInvalid", "patch", why.message)]) from None
    return [*warnings, *twice]


def _refuse(resource: Resource, meta: Json, causes: list[Cause]) -> None:
    if causes:
        group = resource.group if resource.faulty_group is None else resource.faulty_group
        raise invalid(resource.kind, group, meta.get("name", ""), causes)
