"""Namespaces."""

from __future__ import annotations

from typing import Final

from volplane.apiserver import names
from volplane.apiserver.kinds.cells import AGE, NAME, field_text, path
from volplane.apiserver.kinds.rules import fill_condition_times
from volplane.apiserver.kinds.strategies import StatusStrategy
from volplane.apiserver.resources import Column, Json, Resource

__all__ = ["NAME_LABEL", "RESOURCE", "NamespaceStrategy"]

NAME_LABEL: Final = "kubernetes.io/metadata.name"


class NamespaceStrategy(StatusStrategy):
    def default(self, obj: Json) -> None:
        metadata = obj["metadata"]
        if metadata.get("name"):
            labels = metadata.get("labels") or {}
            metadata["labels"] = {**labels, NAME_LABEL: metadata["name"]}
        status = obj.setdefault("status", {})
        status.setdefault("phase", "Active")
        fill_condition_times(status, "lastTransitionTime")

    def prepare_create(self, obj: Json) -> None:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}

    def prepare_update(self, new: Json, old: Json, subresource: str) -> None:
        super().prepare_update(new, old, subresource)
        if not subresource:
            new["spec"] = old.get("spec", {})


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
