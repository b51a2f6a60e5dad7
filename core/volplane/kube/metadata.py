"""What objects of all kinds have in common: metadata, selectors. See `volplane.kube.objects`."""

from __future__ import annotations

import msgspec

__all__ = [
    "Fields",
    "KubeObject",
    "LabelSelector",
    "Metadata",
    "NodeSelector",
    "NodeSelectorTerm",
    "OwnerReference",
    "Requirement",
    "VolumeNodeAffinity",
]


class Fields(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    """Base of every struct: camel case outside, unknown fields ignored, no part in garbage collection."""


class OwnerReference(Fields):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Fields):
    """ObjectMeta."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


class KubeObject(Fields):
    """What all kinds share."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for cluster-scoped kinds."""
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def version(self) -> int:
        """The resourceVersion as a number (a server that answers anything else is not a Kubernetes API server)."""
        return int(self.metadata.resource_version or 0)

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    def annotation(self, name: str) -> str | None:
        annotations = self.metadata.annotations
        return None if annotations is None else annotations.get(name)

    def has_finalizer(self, name: str) -> bool:
        return name in (self.metadata.finalizers or ())


class Requirement(Fields):
    """One expression of a label selector or of node affinity."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Fields):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


class NodeSelectorTerm(Fields):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Fields):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class VolumeNodeAffinity(Fields):
    required: NodeSelector | None = None
