"""The kinds of storage.k8s.io/v1 that say what CSI drivers and nodes can do. See `volplane.kube.objects`."""

from __future__ import annotations

import msgspec

from volplane.kube.metadata import Fields, KubeObject, LabelSelector

__all__ = ["CsiDriver", "CsiDriverSpec", "CsiNode", "CsiNodeDriver", "CsiNodeSpec", "CsiStorageCapacity"]


class CsiNodeDriver(Fields):
    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: list[str] | None = None
    allocatable: dict[str, int] | None = None


class CsiNodeSpec(Fields):
    drivers: list[CsiNodeDriver] | None = None


class CsiNode(KubeObject):
    """storage.k8s.io/v1 CSINode."""

    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)


class CsiDriverSpec(Fields):
    attach_required: bool = True
    node_allocatable_update_period_seconds: int | None = None
    storage_capacity: bool = False


class CsiDriver(KubeObject):
    """storage.k8s.io/v1 CSIDriver."""

    spec: CsiDriverSpec = msgspec.field(default_factory=CsiDriverSpec)


class CsiStorageCapacity(KubeObject):
    """storage.k8s.io/v1 CSIStorageCapacity. Quantities are texts: one that is none counts as no room."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | None = None
    maximum_volume_size: str | None = None
