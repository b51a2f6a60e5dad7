"""The fields of Kubernetes objects that volplane reads, as msgspec structs.

Field names are the API's in snake case (`claim_ref` is `claimRef`). Structs are never sent: writes are patches of
dicts, so that fields which are not listed here survive. `gc=False`: no struct takes part in a reference cycle.
Source: Kubernetes API 1.36, core/v1, storage.k8s.io/v1, coordination.k8s.io/v1.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

__all__ = [
    "Affinity",
    "Claim",
    "ClaimSpec",
    "ClaimStatus",
    "CsiDriver",
    "CsiNode",
    "KubeObject",
    "LabelSelector",
    "Lease",
    "LeaseSpec",
    "Metadata",
    "Namespace",
    "Node",
    "ObjectReference",
    "Page",
    "Pod",
    "PodSpec",
    "PodStatus",
    "PodVolume",
    "Requirement",
    "Secret",
    "StorageClass",
    "TopologyTerm",
    "Volume",
    "VolumeAttachment",
    "VolumeSpec",
    "VolumeStatus",
    "WatchEvent",
]


class _Fields(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    pass


class OwnerReference(_Fields):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Fields):
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


class KubeObject(_Fields):
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
        return (self.metadata.annotations or {}).get(name)

    def has_finalizer(self, name: str) -> bool:
        return name in (self.metadata.finalizers or ())


class Requirement(_Fields):
    """One expression of a label selector or of node affinity."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(_Fields):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


class NodeSelectorTerm(_Fields):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(_Fields):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class VolumeNodeAffinity(_Fields):
    required: NodeSelector | None = None


class ObjectReference(_Fields):
    """`claimRef` of a volume. uid empty = a reservation by a person, not yet a binding."""

    kind: str = ""
    api_version: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


Source = dict[str, Any] | None


class VolumeSpec(_Fields):
    """PersistentVolumeSpec; exactly one of the sources is set."""

    capacity: dict[str, str] | None = None
    access_modes: list[str] | None = None
    claim_ref: ObjectReference | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    mount_options: list[str] | None = None
    volume_mode: str = ""
    node_affinity: VolumeNodeAffinity | None = None
    volume_attributes_class_name: str | None = None
    aws_elastic_block_store: Source = None
    azure_disk: Source = None
    azure_file: Source = None
    cephfs: Source = None
    cinder: Source = None
    csi: Source = None
    fc: Source = None
    flex_volume: Source = None
    flocker: Source = None
    gce_persistent_disk: Source = None
    glusterfs: Source = None
    host_path: Source = None
    iscsi: Source = None
    local: Source = None
    nfs: Source = None
    photon_persistent_disk: Source = None
    portworx_volume: Source = None
    quobyte: Source = None
    rbd: Source = None
    scale_io: Source = msgspec.field(default=None, name="scaleIO")
    storageos: Source = None
    vsphere_volume: Source = None


class VolumeStatus(_Fields):
    phase: str = ""
    message: str = ""
    reason: str = ""


class Volume(KubeObject):
    """core/v1 PersistentVolume."""

    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: VolumeStatus = msgspec.field(default_factory=VolumeStatus)


class ResourceRequests(_Fields):
    requests: dict[str, str] | None = None


class TypedReference(_Fields):
    api_group: str | None = None
    kind: str = ""
    name: str = ""
    namespace: str | None = None


class ClaimSpec(_Fields):
    """PersistentVolumeClaimSpec."""

    access_modes: list[str] | None = None
    selector: LabelSelector | None = None
    resources: ResourceRequests | None = None
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    data_source: TypedReference | None = None
    data_source_ref: TypedReference | None = None


class ClaimStatus(_Fields):
    phase: str = ""
    access_modes: list[str] | None = None
    capacity: dict[str, str] | None = None
    current_volume_attributes_class_name: str | None = None


class Claim(KubeObject):
    """core/v1 PersistentVolumeClaim."""

    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class LabelValues(_Fields):
    key: str = ""
    values: list[str] | None = None


class TopologyTerm(_Fields):
    match_label_expressions: list[LabelValues] | None = None


class StorageClass(KubeObject):
    """storage.k8s.io/v1 StorageClass."""

    provisioner: str = ""
    parameters: dict[str, str] | None = None
    reclaim_policy: str = "Delete"
    mount_options: list[str] | None = None
    volume_binding_mode: str | None = None
    allow_volume_expansion: bool | None = None
    allowed_topologies: list[TopologyTerm] | None = None


class ClaimVolumeSource(_Fields):
    claim_name: str = ""
    read_only: bool = False


class PodVolume(_Fields):
    """A volume of a pod: the sources that lead to claims. Others are None."""

    name: str = ""
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: dict[str, Any] | None = None


class Affinity(_Fields):
    node_affinity: dict[str, Any] | None = None


class SchedulingGate(_Fields):
    name: str = ""


class PodSpec(_Fields):
    node_name: str = ""
    volumes: list[PodVolume] | None = None
    scheduling_gates: list[SchedulingGate] | None = None


class ContainerState(_Fields):
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None
    waiting: dict[str, Any] | None = None


class ContainerStatus(_Fields):
    name: str = ""
    state: ContainerState | None = None


class PodStatus(_Fields):
    phase: str = ""
    reason: str = ""
    message: str = ""
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None


class Pod(KubeObject):
    """core/v1 Pod, as far as the volume controllers read it (the node agent decodes its own, fuller struct)."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(_Fields):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(_Fields):
    provider_id: str = msgspec.field(default="", name="providerID")
    unschedulable: bool = False
    taints: list[Taint] | None = None


class AttachedVolume(_Fields):
    name: str = ""
    device_path: str = ""


class NodeStatus(_Fields):
    allocatable: dict[str, str] | None = None
    volumes_in_use: list[str] | None = None
    volumes_attached: list[AttachedVolume] | None = None
    conditions: list[dict[str, Any]] | None = None


class Node(KubeObject):
    """core/v1 Node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Namespace(KubeObject):
    """core/v1 Namespace."""


class Secret(KubeObject):
    """core/v1 Secret; values are base64."""

    data: dict[str, str] | None = None
    type: str = ""


class AttachmentSource(_Fields):
    persistent_volume_name: str | None = None
    inline_volume_spec: dict[str, Any] | None = None


class AttachmentSpec(_Fields):
    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = msgspec.field(default_factory=AttachmentSource)


class AttachmentError(_Fields):
    time: str | None = None
    message: str = ""


class AttachmentStatus(_Fields):
    attached: bool = False
    attachment_metadata: dict[str, str] | None = None
    attach_error: AttachmentError | None = None
    detach_error: AttachmentError | None = None


class VolumeAttachment(KubeObject):
    """storage.k8s.io/v1 VolumeAttachment."""

    spec: AttachmentSpec = msgspec.field(default_factory=AttachmentSpec)
    status: AttachmentStatus = msgspec.field(default_factory=AttachmentStatus)


class CsiNodeDriver(_Fields):
    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: list[str] | None = None


class CsiNodeSpec(_Fields):
    drivers: list[CsiNodeDriver] | None = None


class CsiNode(KubeObject):
    """storage.k8s.io/v1 CSINode; `drivers` is null before a driver registers."""

    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)


class CsiDriver(KubeObject):
    """storage.k8s.io/v1 CSIDriver."""

    spec: dict[str, Any] | None = None


class LeaseSpec(_Fields):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject):
    """coordination.k8s.io/v1 Lease."""

    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


T = TypeVar("T")


class ListMetadata(_Fields):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(_Fields, Generic[T]):
    """One page of a list. `items` are left encoded, so that one bad object is skipped alone."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] = []


class WatchEvent(_Fields):
    """One line of a watch; `object` is left encoded."""

    type: str
    object: msgspec.Raw
