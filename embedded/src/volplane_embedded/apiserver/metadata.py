"""ObjectMeta: what the server sets and what it refuses (`k8s.io/apimachinery/pkg/api/validation`)."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause, bad_request
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.scalars import format_time

__all__ = [
    "begin",
    "carry_over",
    "clean",
    "generate_name",
    "mark_deleting",
    "match_name",
    "match_namespace",
    "validate",
    "validate_update",
]

_NAME_LENGTH: Final = 63
_SUFFIX_LENGTH: Final = 5
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


class _Owner(msgspec.Struct, rename="camel", gc=False):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class _Meta(msgspec.Struct, rename="camel", gc=False):
    """Types of the fields. Other fields are removed."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    owner_references: list[_Owner] | None = None
    finalizers: list[str] | None = None


_KNOWN: Final = frozenset(_Meta.__struct_encode_fields__)


def clean(obj: Json) -> Json:
    """Bring `obj["metadata"]` into the stored form and return it: known fields only, no empty values.

    Raises StatusError (400) for a field of the wrong type. managedFields and selfLink are removed.
    """
    meta = obj.get("metadata")
    if meta is None:
        meta = {}
    if not isinstance(meta, dict):
        raise bad_request("json: cannot unmarshal metadata into Go value of type v1.ObjectMeta")
    try:
        msgspec.convert(meta, _Meta)
    except msgspec.ValidationError as why:
        raise bad_request(f"json: cannot unmarshal metadata: {why}") from None
    kept = {key: value for key, value in meta.items() if key in _KNOWN and (value or _is_zero_grace(key, value))}
    for texts in ("labels", "annotations"):
        if texts in kept:
            kept[texts] = {key: value or "" for key, value in kept[texts].items()}
    obj["metadata"] = kept
    return kept


def _is_zero_grace(key: str, value: object) -> bool:
    return key == "deletionGracePeriodSeconds" and value == 0 and value is not None


def generate_name(prefix: str, source: random.Random) -> str:
    """`prefix` and five random characters, at most 63 together."""
    suffix = "".join(source.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH))
    return prefix[: _NAME_LENGTH - _SUFFIX_LENGTH] + suffix


def begin(meta: Json, resource: Resource, now: datetime, source: random.Random) -> None:
    """Set uid, creationTimestamp and generation of a new object."""
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        meta.pop(field, None)
    meta["uid"] = str(uuid.UUID(int=source.getrandbits(128), version=4))
    meta["creationTimestamp"] = format_time(now)
    if resource.generation:
        meta["generation"] = 1


def carry_over(new: Json, old: Json) -> None:
    """Copy from the old metadata what an update may omit: identity, and a deletion that has begun."""
    for field in ("uid", "creationTimestamp"):
        if field not in new and field in old:
            new[field] = old[field]
    if "deletionTimestamp" in old:
        new["deletionTimestamp"] = old["deletionTimestamp"]
        if "deletionGracePeriodSeconds" not in new and "deletionGracePeriodSeconds" in old:
            new["deletionGracePeriodSeconds"] = old["deletionGracePeriodSeconds"]
    else:
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            new.pop(field, None)
    if "generation" in old:
        new["generation"] = old["generation"]
    else:
        new.pop("generation", None)


def mark_deleting(meta: Json, now: datetime) -> None:
    """Mark an object as being deleted that waits for its finalizers."""
    if "deletionTimestamp" not in meta and meta.get("generation"):
        meta["generation"] += 1
    moment = format_time(now)
    if meta.get("deletionTimestamp", "~") > moment:  # "~" sorts after every digit
        meta["deletionTimestamp"] = moment
    meta["deletionGracePeriodSeconds"] = 0


def validate(resource: Resource, meta: Json) -> list[Cause]:
    """The causes for which the metadata of an object is refused."""
    causes: list[Cause] = []
    if prefix := meta.get("generateName"):
        causes += _text("metadata.generateName", prefix, resource.name_rule(prefix.rstrip("-") or prefix))
    if name := meta.get("name"):
        causes += _text("metadata.name", name, resource.name_rule(name))
    else:
        causes.append(Cause.required("metadata.name", "name or generateName is required"))
    causes += _labels(meta.get("labels", {}))
    causes += _annotations(meta.get("annotations", {}))
    causes += _owners(meta.get("ownerReferences", ()))
    for finalizer in meta.get("finalizers", ()):
        causes += _finalizer(finalizer)
    return causes


def _text(path: str, value: str, why: str) -> list[Cause]:
    return [Cause.invalid(path, value, why)] if why else []


def _labels(labels: dict[str, str]) -> Iterable[Cause]:
    for key, value in labels.items():
        yield from (Cause.invalid("metadata.labels", key, why) for why in names.qualified_name_faults(key))
        yield from _text("metadata.labels", value, names.label_value(value))


def _annotations(annotations: dict[str, str]) -> Iterable[Cause]:
    size = 0
    for key, value in annotations.items():
        for why in names.qualified_name_faults(key.lower()):
            yield Cause.invalid("metadata.annotations", key, why)
        size += len(key) + len(value)
    if size > names.ANNOTATION_BYTES:
        why = f"may not be more than {names.ANNOTATION_BYTES} bytes"
        yield Cause("FieldValueTooLong", "metadata.annotations", f"Too long: {why}")


def _owners(owners: Iterable[Json]) -> Iterable[Cause]:
    controllers = 0
    for position, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{position}]"
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield Cause.invalid(f"{path}.{field}", owner.get(field, ""), "must not be empty")
        controllers += owner.get("controller") is True
    if controllers > 1:
        why = "Only one reference can have Controller set to true"
        yield Cause.invalid("metadata.ownerReferences", controllers, why)


def _finalizer(name: str) -> list[Cause]:
    why = names.qualified_name(name)
    if not why and "/" not in name and name not in _STANDARD_FINALIZERS:
        why = "name is neither a standard finalizer name nor is it fully qualified"
    return _text("metadata.finalizers", name, why)


def validate_update(new: Json, old: Json) -> list[Cause]:
    """The causes for which a change of metadata is refused, besides those of `validate`."""
    causes = [
        Cause.invalid(f"metadata.{field}", new.get(field, ""), "field is immutable")
        for field in ("name", "namespace", "uid", "creationTimestamp", "deletionGracePeriodSeconds")
        if new.get(field) != old.get(field)
    ]
    if "deletionTimestamp" in old:
        before = set(old.get("finalizers", ()))
        added = [finalizer for finalizer in new.get("finalizers", ()) if finalizer not in before]
        if added:
            shown = ", ".join(f'"{finalizer}"' for finalizer in added)
            why = "no new finalizers can be added if the object is being deleted, found new finalizers"
            causes.append(Cause.forbidden("metadata.finalizers", f"{why} []string{{{shown}}}"))
    return causes


def match_namespace(resource: Resource, meta: Json, namespace: str) -> None:
    """Raise StatusError (400) if the namespace of a body differs from that of the path; fill it in."""
    if not resource.namespaced:
        if meta.get("namespace"):
            raise bad_request("namespace may not be set on an object that has none")
        return
    if meta.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    meta["namespace"] = namespace


def match_name(request: Request, meta: Json) -> None:
    """Raise StatusError (400) if name or namespace of a body differ from those of the path; fill them in."""
    name = meta.get("name", request.name)
    if name != request.name:
        message = f"the name of the object ({name}) does not match the name on the URL ({request.name})"
        raise bad_request(message)
    meta["name"] = request.name
    match_namespace(request.resource, meta, request.namespace)
