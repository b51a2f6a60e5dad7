"""The fields of Kubernetes objects that volplane reads, as msgspec structs.

Field names are the API's in snake case (`claim_ref` is `claimRef`); `volplane.kube.kinds` says of which kind a struct
is. Structs are never sent: writes are patches of dicts, so that fields which are not listed here survive. `gc=False`:
no struct takes part in a reference cycle. Source: Kubernetes API 1.36.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from volplane.kube.names import BIND_COMPLETED
from volplane.kube.quantity import parse


class Fields(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    """Base of every struct: camel case outside, unknown fields ignored, no part in garbage collection."""


class OwnerReference(Fields):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Fields):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


class KubeObject(Fields):
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

    def finalizers_with(self, *added: str) -> list[str]:
        """Return its finalizers and those of these that it lacks, for a patch, which replaces the whole list."""
        held = self.metadata.finalizers or []
        return [*held, *(name for name in added if name not in held)]

    def finalizers_without(self, *removed: str) -> list[str] | None:
        """Return its other finalizers for a patch; None, which removes the field, if there are none."""
        return [name for name in self.metadata.finalizers or () if name not in removed] or None


class Requirement(Fields):
    """One expression of a label selector, of node affinity or, without an operator, of allowed topologies."""

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


class ObjectReference(Fields):
    """`claimRef` of a volume. uid empty = a reservation by a person, not yet a binding."""

    kind: str = ""
    api_version: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def complete(self) -> bool:
        return bool(self.namespace and self.name)


Source = dict[str, Any] | None


def timestamp(time: datetime) -> str:
    """Return a time as the API server writes it: RFC 3339 in UTC, whole seconds."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _check_quantities(quantities: dict[str, str] | None) -> None:
    """Refuse an object whose size is none: nothing could be decided about it. Raises ValueError."""
    if quantities is not None and (text := quantities.get("storage")) is not None:
        parse(text)


class VolumeSpec(Fields):
    """Exactly one of the sources is set."""

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

    def __post_init__(self) -> None:
        _check_quantities(self.capacity)


class VolumeStatus(Fields):
    phase: str = ""
    message: str = ""
    last_phase_transition_time: str | None = None


class Volume(KubeObject):
    spec: VolumeSpec = msgspec.field(default_factory=VolumeSpec)
    status: VolumeStatus = msgspec.field(default_factory=VolumeStatus)

    @property
    def node_terms(self) -> list[NodeSelectorTerm]:
        """The terms of its node affinity, of which a node has to meet one; [] if it has none."""
        affinity = self.spec.node_affinity
        return (affinity is not None and affinity.required is not None and affinity.required.node_selector_terms) or []


class ResourceRequests(Fields):
    requests: dict[str, str] | None = None

    def __post_init__(self) -> None:
        _check_quantities(self.requests)


class TypedReference(Fields):
    """api_group: None = core, as the API server writes it. namespace: of `dataSourceRef`; None = the claim's."""

    kind: str = ""
    name: str = ""
    api_group: str | None = None
    namespace: str | None = None

    def key_from(self, namespace: str) -> str:
        """Return the key of the source of a claim of this namespace."""
        return f"{self.namespace or namespace}/{self.name}"


class ClaimSpec(Fields):
    access_modes: list[str] | None = None
    selector: LabelSelector | None = None
    resources: ResourceRequests | None = None
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    data_source: TypedReference | None = None
    data_source_ref: TypedReference | None = None


class ModifyVolumeStatus(Fields):
    """status: Pending, InProgress or Infeasible."""

    target_volume_attributes_class_name: str = ""
    status: str = ""


class ClaimStatus(Fields):
    """conditions are written as a whole, so that they keep what is not read here."""

    phase: str = ""
    access_modes: list[str] | None = None
    capacity: dict[str, str] | None = None
    allocated_resources: dict[str, str] | None = None
    allocated_resource_statuses: dict[str, str] | None = None
    conditions: list[dict[str, Any]] | None = None
    current_volume_attributes_class_name: str | None = None
    modify_volume_status: ModifyVolumeStatus | None = None

    def __post_init__(self) -> None:
        _check_quantities(self.capacity)
        _check_quantities(self.allocated_resources)


class Claim(KubeObject):
    spec: ClaimSpec = msgspec.field(default_factory=ClaimSpec)
    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)

    @property
    def bound(self) -> bool:
        """Whether a binder has completed the bind: the annotation says so, also when the volume is lost."""
        return BIND_COMPLETED in (self.metadata.annotations or ())


class TopologyTerm(Fields):
    match_label_expressions: list[Requirement] | None = None


class StorageClass(KubeObject):
    provisioner: str = ""
    parameters: dict[str, str] | None = None
    reclaim_policy: str = "Delete"
    mount_options: list[str] | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None


class VolumeAttributesClass(KubeObject):
    driver_name: str = ""
    parameters: dict[str, str] | None = None


class ClaimVolumeSource(Fields):
    claim_name: str = ""
    read_only: bool = False


class PodVolume(Fields):
    """A volume of a pod: the sources that lead to claims. Others are None."""

    name: str = ""
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: dict[str, Any] | None = None


class SchedulingGate(Fields):
    name: str = ""


class PodSpec(Fields):
    node_name: str = ""
    volumes: list[PodVolume] | None = None
    scheduling_gates: list[SchedulingGate] | None = None


class ContainerState(Fields):
    running: dict[str, Any] | None = None
    terminated: dict[str, Any] | None = None


class ContainerStatus(Fields):
    state: ContainerState | None = None


class PodCondition(Fields):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class PodStatus(Fields):
    phase: str = ""
    conditions: list[PodCondition] | None = None
    """PodScheduled alone."""
    reason: str = ""
    message: str = ""
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None

    def __post_init__(self) -> None:
        # The others would be a large part of the pod.
        self.conditions = [each for each in self.conditions or () if each.type == "PodScheduled"] or None


class Pod(KubeObject):
    """core/v1 Pod, as far as the volume controllers read it (the node agent decodes its own, fuller struct)."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class WholePod(KubeObject):
    """core/v1 Pod with its whole spec, for a live read of one; too large to cache."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(Fields):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Fields):
    provider_id: str = msgspec.field(default="", name="providerID")
    unschedulable: bool = False
    taints: list[Taint] | None = None


class AttachedVolume(Fields):
    name: str = ""
    device_path: str = ""


class NodeSystemInfo(Fields):
    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(Fields):
    """volumesAttached is written by the attach-detach controller, volumesInUse by the kubelet."""

    allocatable: dict[str, str] | None = None
    conditions: list[dict[str, Any]] | None = None
    node_info: NodeSystemInfo = msgspec.field(default_factory=NodeSystemInfo)
    volumes_attached: list[AttachedVolume] | None = None
    volumes_in_use: list[str] | None = None


class Node(KubeObject):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class Secret(KubeObject):
    """core/v1 Secret; values are base64."""

    data: dict[str, str] | None = None


class AttachmentSource(Fields):
    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Fields):
    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = msgspec.field(default_factory=AttachmentSource)


class VolumeError(Fields):
    time: str | None = None
    message: str = ""
    error_code: int | None = None


class VolumeAttachmentStatus(Fields):
    attached: bool = False
    attachment_metadata: dict[str, str] | None = None
    attach_error: VolumeError | None = None
    detach_error: VolumeError | None = None


class VolumeAttachment(KubeObject):
    spec: VolumeAttachmentSpec = msgspec.field(default_factory=VolumeAttachmentSpec)
    status: VolumeAttachmentStatus = msgspec.field(default_factory=VolumeAttachmentStatus)


class LeaseSpec(Fields):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject):
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class CsiDriverSpec(Fields):
    attach_required: bool = True
    node_allocatable_update_period_seconds: int | None = None
    storage_capacity: bool = False


class CsiDriver(KubeObject):
    spec: CsiDriverSpec = msgspec.field(default_factory=CsiDriverSpec)


class CsiStorageCapacity(KubeObject):
    """storage.k8s.io/v1 CSIStorageCapacity. Quantities are texts: one that is none counts as no room."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | None = None
    maximum_volume_size: str | None = None
