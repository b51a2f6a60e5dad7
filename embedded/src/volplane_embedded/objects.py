"""Pods, ConfigMaps, CSINodes and conditions as the scheduler and the kubelet read them, fuller than the structs of the
controllers.

Source: core/v1 of Kubernetes 1.36. Fields that are not listed (probes, ports, resources) are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from volplane.kube import objects
from volplane.kube.kinds import Kind
from volplane.kube.objects import (
    Fields,
    KubeObject,
    Metadata,
    NodeSelector,
    NodeSelectorTerm,
    OwnerReference,
    SchedulingGate,
)
from volplane_embedded.apiserver.selectors import label_selector_matches


class EnvVar(Fields):
    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class VolumeMount(Fields):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    mount_propagation: str | None = None


class VolumeDevice(Fields):
    name: str
    device_path: str


class Capabilities(Fields):
    add: list[str] | None = None
    drop: list[str] | None = None


class SecurityContext(Fields):
    """Of a container. A field that is None has the value of the pod's security context."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool | None = None
    read_only_root_filesystem: bool | None = None
    capabilities: Capabilities | None = None


class PodSecurityContext(Fields):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    supplemental_groups: list[int] | None = None


class Resources(Fields):
    limits: dict[str, str] | None = None


class Container(Fields):
    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str = ""
    env: list[EnvVar] | None = None
    env_from: list[dict[str, Any]] | None = None
    volume_mounts: list[VolumeMount] | None = None
    volume_devices: list[VolumeDevice] | None = None
    security_context: SecurityContext | None = None
    resources: Resources | None = None
    restart_policy: str | None = None
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"


class PodVolume(objects.PodVolume):
    """A volume of a pod. At most one source is set; none is set if the source is of an unknown kind."""

    host_path: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")
    projected: dict[str, Any] | None = None
    nfs: dict[str, Any] | None = None


class PreferredTerm(Fields):
    weight: int = 0
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(Fields):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class Affinity(Fields):
    node_affinity: NodeAffinity | None = None


class Toleration(Fields):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Fields):
    node_name: str = ""
    scheduling_gates: list[SchedulingGate] | None = None
    scheduler_name: str = "default-scheduler"
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    hostname: str = ""
    host_network: bool = False
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    security_context: PodSecurityContext = msgspec.field(default_factory=PodSecurityContext)
    volumes: list[PodVolume] | None = None
    init_containers: list[Container] | None = None
    containers: list[Container] = msgspec.field(default_factory=list)


class ContainerStatus(Fields):
    name: str
    state: dict[str, Any] | None = None
    last_state: dict[str, Any] | None = None
    restart_count: int = 0


class PodStatus(Fields):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    conditions: list[dict[str, Any]] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(KubeObject):
    """core/v1 Pod, with the fields that running it needs."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class ConfigMap(KubeObject):
    """core/v1 ConfigMap; `binaryData` is base64."""

    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None


class ResourceQuota(KubeObject):
    """core/v1 ResourceQuota, read by the evaluator of the API server's admission."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class MeasuredClaim(KubeObject):
    """core/v1 PersistentVolumeClaim, read by the same evaluator."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class CsiNodeDriver(Fields):
    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: list[str] | None = None
    allocatable: dict[str, int] | None = None


class CsiNodeSpec(Fields):
    drivers: list[CsiNodeDriver] | None = None


class CsiNode(KubeObject):
    spec: CsiNodeSpec = msgspec.field(default_factory=CsiNodeSpec)


class WorkloadMetadata(Metadata):
    generation: int = 0


class Workload(KubeObject):
    """A StatefulSet, Deployment or ReplicaSet. The API server has filled in the defaults."""

    metadata: WorkloadMetadata = msgspec.field(default_factory=WorkloadMetadata)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas") or 0)

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    def count(self, name: str) -> int:
        """Return a number of the status."""
        return int(self.status.get(name) or 0)

    def selects(self, obj: KubeObject) -> bool:
        return label_selector_matches(self.spec.get("selector") or {}, obj.metadata.labels or {})


class ControllerRevision(KubeObject):
    data: Any = None
    revision: int = 0


PODS = Kind("v1", "Pod", "pods", True, Pod)
_SCHEDULER = "default-scheduler"
QUOTAS = Kind("v1", "ResourceQuota", "resourcequotas", True, ResourceQuota)
MEASURED_CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", True, MeasuredClaim)
CSI_NODES = Kind("storage.k8s.io/v1", "CSINode", "csinodes", False, CsiNode)
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps", True, ConfigMap)
STATEFUL_SETS = Kind("apps/v1", "StatefulSet", "statefulsets", True, Workload)
DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments", True, Workload)
REPLICA_SETS = Kind("apps/v1", "ReplicaSet", "replicasets", True, Workload)
CONTROLLER_REVISIONS = Kind("apps/v1", "ControllerRevision", "controllerrevisions", True, ControllerRevision)


def is_finished(pod: Pod) -> bool:
    """Tell whether all containers have ended and none is started again."""
    return pod.status.phase in {"Succeeded", "Failed"}


def needs_node(pod: Pod) -> bool:
    """Tell whether the scheduler `default-scheduler` has to find a node for the pod."""
    return (
        not pod.spec.node_name
        and not pod.terminating
        and not is_finished(pod)
        and pod.spec.scheduler_name in {_SCHEDULER, ""}
    )


def claim_names(pod: Pod) -> list[str]:
    """Return the names of the claims of a pod, in the order of its volumes, with those of ephemeral volumes."""
    names: list[str] = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.append(f"{pod.name}-{volume.name}")
    return names


Condition = dict[str, Any]

Now = Callable[[], datetime]
"""Wall time: aware, UTC."""


def timestamp(moment: datetime) -> str:
    """Return the form of times in the API: RFC 3339, UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition_of(conditions: Iterable[Condition] | None, kind: str) -> Condition:
    """Return the condition of this type; empty if there is none."""
    return next((entry for entry in conditions or () if entry.get("type") == kind), {})


def with_condition(
    conditions: Iterable[Condition] | None, kind: str, *, status: bool, now: str, reason: str = "", message: str = ""
) -> list[Condition]:
    """Return the list with this condition set. lastTransitionTime changes only with the status.

    now: RFC 3339.
    """
    listed = list(conditions or ())
    old = condition_of(listed, kind)
    text = "True" if status else "False"
    new: Condition = {"type": kind, "status": text, "lastProbeTime": None}
    new["lastTransitionTime"] = old.get("lastTransitionTime") or now if old.get("status") == text else now
    new |= {key: value for key, value in (("reason", reason), ("message", message)) if value}
    if _meaning(old) == _meaning(new):
        return listed
    return [entry for entry in listed if entry.get("type") != kind] + [new]


def _meaning(condition: Condition) -> list[str]:
    return [str(condition.get(key) or "") for key in ("type", "status", "reason", "message")]


def controller_of(obj: KubeObject) -> OwnerReference | None:
    """Return the owner that manages the object."""
    return next((each for each in obj.metadata.owner_references or () if each.controller), None)


def key_of_controller(obj: KubeObject) -> list[str]:
    """Return what an index of objects by their controllers lists an object under; "namespace/" = by none."""
    owner = controller_of(obj)
    return [owner.uid if owner is not None else f"{obj.namespace}/"]


def is_active(pod: Pod) -> bool:
    return not is_finished(pod) and not pod.terminating


def is_ready(pod: Pod) -> bool:
    return condition_of(pod.status.conditions, "Ready").get("status") == "True"


def available_in(pod: Pod, min_ready_seconds: int, now: datetime) -> float | None:
    """Return in how many seconds a pod that stays ready is available: 0.0 if it is, None if it is not ready."""
    if not is_ready(pod):
        return None
    since = condition_of(pod.status.conditions, "Ready").get("lastTransitionTime")
    if not min_ready_seconds or not since:
        return 0.0 if not min_ready_seconds else float(min_ready_seconds)
    end = datetime.fromisoformat(since) + timedelta(seconds=min_ready_seconds)
    return max(0.0, (end - now).total_seconds())
