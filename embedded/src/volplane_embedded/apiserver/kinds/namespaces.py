"""NamespaceLifecycle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import Cause
from volplane_embedded.apiserver.kinds.printer_columns import AGE, NAME, field_text, path
from volplane_embedded.apiserver.kinds.validation import fill_condition_times
from volplane_embedded.apiserver.resources import Column, Json, Resource, StatusStrategy

__all__ = ["NAME_LABEL", "RESOURCE", "NamespaceStrategy"]

NAME_LABEL: Final = "kubernetes.io/metadata.name"


class NamespaceStrategy(StatusStrategy):
    def default(self, obj: Json) -> None:
        _label(obj["metadata"])
        status = obj.setdefault("status", {})
        status.setdefault("phase", "Active")
        fill_condition_times(status, "lastTransitionTime")

    def prepare_create(self, obj: Json) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def validate_create(self, obj: Json) -> Sequence[Cause]:
        # A generated name is set only now.
        _label(obj["metadata"])
        return ()

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if not subresource:
            new["spec"] = old.get("spec", {})


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
    subresources=("status",),
    fields={"name": field_text("metadata", "name"), "status.phase": field_text("status", "phase")},
    name_rule=names.dns_label,
)
