"""Validation of ObjectMeta: `k8s.io/apimachinery/pkg/api/validation` and `pkg/apis/core/validation`.

A stock server checks metadata more than once in a request, in the generic registry and again in the rules of a kind; a
fault is a cause each time. The paths and their order are the stock server's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.resources import Json

UNQUALIFIED: Final = "name is neither a standard finalizer name nor is it fully qualified"
STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
_NOT_OF_TEMPLATES: Final = (
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
)
_FIXED: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def validate(meta: Json, rule: names.Rule = names.path_segment) -> Iterator[Cause]:
    """Check what the generic registry checks of every object. rule: of its name."""
    if prefix := meta.get("generateName"):
        masked = f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        yield from _refused("metadata.generateName", prefix, rule(masked))
    if name := meta.get("name"):
        yield from _refused("metadata.name", name, rule(name))
    else:
        yield Cause.required("metadata.name", "name or generateName is required")
    yield from validate_labels(meta.get("labels", {}), "metadata.labels")
    yield from _annotations(meta.get("annotations", {}), "metadata.annotations")
    yield from _owners(meta.get("ownerReferences", ()))
    finalizers = meta.get("finalizers", ())
    for finalizer in finalizers:
        yield from _refused("metadata.finalizers", finalizer, names.qualified_name(finalizer))
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        why = "finalizer orphan and foregroundDeletion cannot be both set"
        yield Cause.invalid("metadata.finalizers", finalizers, why)


def validate_of_kind(meta: Json, rule: names.Rule = names.subdomain) -> Iterator[Cause]:
    """Check what the rules of most kinds check: as `validate`, and that finalizers are standard or qualified."""
    yield from validate(meta, rule)
    yield from _finalizers(meta.get("finalizers", ()))


def validate_update(new: Json, old: Json) -> Iterator[Cause]:
    """Check a change of metadata."""
    if "deletionTimestamp" in old:
        added = sorted(set(new.get("finalizers", ())) - set(old.get("finalizers", ())))
        if added:
            shown = ", ".join(f'"{finalizer}"' for finalizer in added)
            why = "no new finalizers can be added if the object is being deleted, found new finalizers"
            yield Cause.forbidden("metadata.finalizers", f"{why} []string{{{shown}}}")
    for field in _FIXED:
        if new.get(field) != old.get(field):
            yield Cause.invalid(f"metadata.{field}", new.get(field, ""), "field is immutable")
    yield from validate_labels(new.get("labels", {}), "metadata.labels")
    yield from _annotations(new.get("annotations", {}), "metadata.annotations")
    yield from _owners(new.get("ownerReferences", ()))


def validate_update_of_kind(new: Json, old: Json) -> Iterator[Cause]:
    """Check a change as most kinds do: as `validate_update`, and finalizers."""
    yield from validate_update(new, old)
    yield from _finalizers(new.get("finalizers", ()))


def _finalizers(finalizers: Iterable[str]) -> Iterator[Cause]:
    for index, finalizer in enumerate(finalizers):
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            yield Cause.invalid(f"metadata.finalizers[{index}]", finalizer, UNQUALIFIED)


def validate_template(meta: Json, where: str) -> Iterator[Cause]:
    """Check the metadata of a template, which may hold labels and annotations only."""
    yield from _annotations(meta.get("annotations") or {}, f"{where}.annotations")
    yield from validate_labels(meta.get("labels") or {}, f"{where}.labels")
    for field in _NOT_OF_TEMPLATES:
        if meta.get(field):
            yield Cause.forbidden(f"{where}.{field}", "cannot be set")


def validate_labels(labels: dict[str, str], where: str) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _refused(where, key, names.qualified_name(key))
        yield from _refused(where, value, names.label_value(value))


def _refused(where: str, value: str, faults: Sequence[str]) -> Iterator[Cause]:
    return (Cause.invalid(where, value, why) for why in faults)


def _annotations(annotations: dict[str, str], where: str) -> Iterator[Cause]:
    size = 0
    for key, value in annotations.items():
        yield from _refused(where, key, names.qualified_name(key.lower()))
        size += len(key) + len(value)
    if size > names.ANNOTATION_BYTES:
        yield Cause.too_long(where, f"{names.ANNOTATION_BYTES} bytes")


def _owners(owners: Iterable[Json]) -> Iterator[Cause]:
    path, first = "metadata.ownerReferences", ""
    all_of_them = ""
    for owner in owners:
        version = owner.get("apiVersion", "")
        if not version.rpartition("/")[2] or version.count("/") > 1:
            yield Cause.invalid(f"{path}.apiVersion", version, "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not owner.get(field):
                yield Cause.invalid(f"{path}.{field}", owner.get(field, ""), "must not be empty")
        if version == "v1" and owner.get("kind") == "Event":
            yield Cause.invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get("controller") is True:
            this = f"{owner.get('kind', '')}/{owner.get('name', '')}"
            if first:
                why = f'Found "true" in references for {first} and {this}'
                why = f"Only one reference can have Controller set to true. {why}"
                all_of_them = all_of_them or Cause.invalid(path, list(owners), "").message
                yield Cause("FieldValueInvalid", path, f"{all_of_them}{why}")
            first = first or this
