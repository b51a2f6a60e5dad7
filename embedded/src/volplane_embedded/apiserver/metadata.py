"""ObjectMeta: what the server sets, and how it belongs to a request (`k8s.io/apiserver/pkg/registry/rest`)."""

from __future__ import annotations

import random
import uuid
from datetime import datetime
from typing import Final

import msgspec

from volplane_embedded.apiserver.errors import bad_request
from volplane_embedded.apiserver.requests import Request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.scalars import format_time

_NAME_LENGTH: Final = 63
_SUFFIX_LENGTH: Final = 5
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


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
    if "ownerReferences" in kept:
        # In linear time: by a dict of their texts.
        once = {msgspec.json.encode(entry, order="sorted"): entry for entry in reversed(kept["ownerReferences"])}
        kept["ownerReferences"] = list(reversed(once.values()))
    obj["metadata"] = kept
    return kept


def _is_zero_grace(key: str, value: object) -> bool:
    return key == "deletionGracePeriodSeconds" and value == 0 and value is not None


def generate_name(prefix: str, source: random.Random) -> str:
    """Return `prefix` and five random characters, at most 63 together."""
    suffix = "".join(source.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH))
    return prefix[: _NAME_LENGTH - _SUFFIX_LENGTH] + suffix


def begin(meta: Json, resource: Resource, now: datetime, source: random.Random) -> None:
    """Set uid, creationTimestamp and generation of a new object."""
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(field, None)
    meta["uid"] = str(uuid.UUID(int=source.getrandbits(128), version=4))
    meta["creationTimestamp"] = format_time(now)
    if resource.generation:
        meta["generation"] = 1


def carry_over(new: Json, old: Json) -> None:
    """Copy from the old metadata what an update cannot change or may omit: identity, and a deletion that has begun."""
    new.setdefault("uid", old["uid"])
    new["creationTimestamp"] = old["creationTimestamp"]
    if "deletionTimestamp" in old:
        new["deletionTimestamp"] = old["deletionTimestamp"]
        if "deletionGracePeriodSeconds" not in new and "deletionGracePeriodSeconds" in old:
            new["deletionGracePeriodSeconds"] = old["deletionGracePeriodSeconds"]
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
