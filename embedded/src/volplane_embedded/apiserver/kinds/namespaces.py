"""NamespaceLifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names, object_meta
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, field_text, path
from volplane_embedded.apiserver.kinds.validation import fill_condition_times, refused
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy

NAME_LABEL: Final = "kubernetes.io/metadata.name"


class NamespaceStrategy(StatusStrategy):
    def default(self, obj: Json) -> None:
        _label(obj["metadata"])
        status = obj.setdefault("status", {})
        status.setdefault("phase", "Active")
        fill_condition_times(status, "lastTransitionTime")

    def prepare_create(self, obj: Json) -> None:
        finalizers = (obj.get("spec") or {}).get("finalizers") or []
        obj["spec"] = {"finalizers": finalizers if "kubernetes" in finalizers else [*finalizers, "kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        # A generated name is set only now.
        _label(obj["metadata"])
        return _validate(obj)

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if subresource == "finalize":
            finalizers = (new.get("spec") or {}).get("finalizers")
            new["spec"] = {"finalizers": finalizers} if finalizers else {}
        elif not subresource:
            new["spec"] = old.get("spec", {})

    def validate_update(self, new: Json, old: Json, subresource: str) -> Sequence[Cause]:
        fixed = list(object_meta.validate_update_of_kind(new["metadata"], old["metadata"]))
        if subresource == "status":
            return [*fixed, *_validate_phase(new)]
        if subresource == "finalize":
            for index, finalizer in enumerate(new["spec"].get("finalizers") or ()):
                validate_finalizer(finalizer, f"spec.finalizers[{index}]", fixed)
            return fixed
        return [*_validate(new), *fixed]


def _validate(namespace: Json) -> list[Cause]:
    causes = list(object_meta.validate_of_kind(namespace["metadata"], names.dns_label))
    for finalizer in namespace["spec"].get("finalizers") or ():
        validate_finalizer(finalizer, "spec.finalizers", causes)
    return causes


def validate_finalizer(finalizer: str, where: str, causes: list[Cause]) -> None:
    """Check a finalizer of a namespace's spec."""
    refused(names.qualified_name(finalizer), finalizer, where, causes)
    if "/" not in finalizer and finalizer not in object_meta.STANDARD_FINALIZERS:
        causes.append(Cause.invalid(where, finalizer, object_meta.UNQUALIFIED))


def _validate_phase(namespace: Json) -> list[Cause]:
    phase = namespace["status"].get("phase", "")
    deleting = bool(namespace["metadata"].get("deletionTimestamp"))
    wanted, when = ("Terminating", "not empty") if deleting else ("Active", "empty")
    if phase == wanted:
        return []
    return [Cause.invalid("status.Phase", phase, f"may only be '{wanted}' if `deletionTimestamp` is {when}")]


def _label(metadata: Json) -> None:
    if metadata.get("name"):
        metadata["labels"] = {**(metadata.get("labels") or {}), NAME_LABEL: metadata["name"]}


RESOURCE: Final = Resource(
    group="",
    version="v1",
    plural="namespaces",
    kind="Namespace",
    singular="namespace",
    namespaced=False,
    strategy=NamespaceStrategy(),
    columns=(NAME, Column("Status", "The status of the namespace", path("status", "phase")), AGE),
    short_names=("ns",),
    subresources=("finalize", "status"),
    fields={"name": field_text("metadata", "name"), "status.phase": field_text("status", "phase")},
)
