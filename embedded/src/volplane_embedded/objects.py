"""Pods as the scheduler and the node agent read them: fuller than the struct of the volume controllers.

Source: core/v1 of Kubernetes 1.36. What is not listed (probes, ports, resources) is not acted upon.
"""

from __future__ import annotations

from typing import Any

import msgspec

from volplane.kube.kinds import Kind
from volplane.kube.objects import ClaimVolumeSource, KubeObject, NodeSelector, NodeSelectorTerm

__all__ = [
    "CONFIG_MAPS",
    "PODS",
    "ConfigMap",
    "Container",
    "ContainerStatus",
    "EnvVar",
    "Pod",
    "PodSpec",
    "PodStatus",
    "PodVolume",
    "SecurityContext",
    "Toleration",
    "VolumeMount",
    "claim_names",
    "is_finished",
]


class _Fields(msgspec.Struct, rename="camel", gc=False, omit_defaults=True, kw_only=True):
    pass


class EnvVar(_Fields):
    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class VolumeMount(_Fields):
    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
    mount_propagation: str | None = None


class VolumeDevice(_Fields):
    name: str
    device_path: str


class Capabilities(_Fields):
    add: list[str] | None = None
    drop: list[str] | None = None


class SecurityContext(_Fields):
    """Of a container; what is None is taken from the pod's."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    privileged: bool | None = None
    read_only_root_filesystem: bool | None = None
    capabilities: Capabilities | None = None


class PodSecurityContext(_Fields):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    fs_group_change_policy: str | None = None
    supplemental_groups: list[int] | None = None


class Container(_Fields):
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
    restart_policy: str | None = None
    termination_message_path: str = "/dev/termination-log"
    termination_message_policy: str = "File"


class PodVolume(_Fields):
    """A volume of a pod; at most one of the sources is set. `None` everywhere: a source that nothing here knows."""

    name: str
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: dict[str, Any] | None = None
    host_path: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    config_map: dict[str, Any] | None = None
    secret: dict[str, Any] | None = None
    downward_api: dict[str, Any] | None = msgspec.field(default=None, name="downwardAPI")
    projected: dict[str, Any] | None = None
    nfs: dict[str, Any] | None = None


class PreferredTerm(_Fields):
    weight: int = 0
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(_Fields):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: list[PreferredTerm] | None = None


class Affinity(_Fields):
    node_affinity: NodeAffinity | None = None


class Toleration(_Fields):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Gate(_Fields):
    name: str = ""


class PodSpec(_Fields):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    scheduling_gates: list[Gate] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    hostname: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    security_context: PodSecurityContext = msgspec.field(default_factory=PodSecurityContext)
    volumes: list[PodVolume] | None = None
    init_containers: list[Container] | None = None
    containers: list[Container] = []


class ContainerStatus(_Fields):
    name: str
    state: dict[str, Any] | None = None
    last_state: dict[str, Any] | None = None
    restart_count: int = 0


class PodStatus(_Fields):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    conditions: list[dict[str, Any]] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(KubeObject):
    """core/v1 Pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class ConfigMap(KubeObject):
    """core/v1 ConfigMap; `binaryData` is base64."""

    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None


PODS = Kind("v1", "Pod", "pods", True, Pod)
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps", True, ConfigMap)


def is_finished(pod: Pod) -> bool:
    """Whether all containers have ended for good."""
    return pod.status.phase in {"Succeeded", "Failed"}


def claim_names(pod: Pod) -> list[str]:
    """Names of the claims a pod uses, in the order of its volumes; of ephemeral volumes the claim made for them."""
    names: list[str] = []
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.append(f"{pod.name}-{volume.name}")
    return names
