"""The objects that install the controllers in a cluster. Pure.

`volplane manifests` prints them, and the templates of the Helm chart (deploy/chart) are written from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volplane.cli.rbac import Rule, cluster_rules, named_secrets, namespace_rules, node_cluster_rules, secret_rule
from volplane.controller.config import Configuration, parse_configuration
from volplane.process.duties import NODE_CONTROLLERS, namespace_labels

__all__ = ["Installation", "documents"]

NAME = "volplane"
NODE_NAME = "volplane-node"
SCRUBBER = "volplane-scrub"
"""The label of scrubber pods (see `volplane.reclaim.scrub_pod`)."""
PORT = 9809
USER = 65532
LABELS = {"app.kubernetes.io/name": NAME}
NODE_LABELS = {"app.kubernetes.io/name": NODE_NAME}
CHECKSUM = "checksum/config"
CENTRAL_PRIORITY = "system-cluster-critical"
NODE_PRIORITY = "system-node-critical"
"""Priority classes that every cluster has. A claim of a pod of any priority may wait for us, so that ours is above all
that users may give; the kubelet also evicts and shuts down these two classes last. See `quota`.
"""
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
"""What root needs to give directories to users, and to remove what pods of any user have written there."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Describes an installation."""

    namespace: str
    option: str
    """The value of --controllers of `volplane run`."""
    controllers: Collection[str]
    """The controllers that `option` selects."""
    image: str
    configuration: str
    """Text of the file."""
    replicas: int = 2
    monitoring: bool = False
    network_policies: bool = True
    storage_classes: bool = True
    mounts: Sequence[str] = ()
    """Directories of the nodes, mounted under their own path: by the processes of nodes where a driver is distributed,
    else by those of the Deployment.
    """
    as_root: bool = False
    """Whether processes with mounts are root, with ROOT_CAPABILITIES."""


def documents(wanted: Installation) -> Iterator[Json]:
    """Yield the objects, in an order in which they can be created."""
    namespace = wanted.namespace
    level = namespace_labels(wanted.controllers, mounts=bool(wanted.mounts))
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": level}}
    parsed = parse_configuration(wanted.configuration, "the configuration")
    distributed = any(driver.distributed for driver in parsed.drivers or ())
    yield from _accounts(wanted, parsed, distributed=distributed)
    data = {"volplane.yaml": wanted.configuration}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(namespace), "data": data}
    if wanted.network_policies:
        yield from network_policies(namespace)
    yield quota(namespace)
    if wanted.replicas > 1:
        yield disruption_budget(namespace)
    # The process reads the file when it starts: pods are replaced when it changes.
    checksum = hashlib.sha256(wanted.configuration.encode()).hexdigest()
    storage = Storage(wanted.mounts, as_root=wanted.as_root)
    arguments = (
        f"--namespace={namespace}",
        "--config=/etc/volplane/volplane.yaml",
        f"--http=0.0.0.0:{PORT}",
        "--log-format=json",
    )
    container = _container(wanted.image, f"--controllers={wanted.option}", *arguments)
    yield deployment(namespace, container, checksum, wanted.replicas, None if distributed else storage)
    if distributed:
        # The process of a node runs the default controllers of such a process.
        agent = _container(wanted.image, *arguments, "--node-name=$(NODE_NAME)")
        agent["env"] = [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
        yield daemon_set(namespace, agent, checksum, storage)
    if wanted.monitoring:
        yield pod_monitor(namespace)
    if wanted.storage_classes:
        names = [driver.name for driver in parsed.drivers or ()]
        yield from (storage_class(class_name(name, names), name) for name in names)


def _accounts(wanted: Installation, parsed: Configuration, *, distributed: bool) -> Iterator[Json]:
    publishing = any(driver.distributed or driver.storage_capacity for driver in parsed.drivers or ())
    everywhere = cluster_rules(wanted.controllers, wanted.namespace, distributed=publishing)
    secrets = named_secrets(parsed)
    ours = secrets.get(wanted.namespace, ())
    here = namespace_rules(wanted.controllers, ours, publishing=publishing)
    yield from account(NAME, wanted.namespace, everywhere, here, secrets)
    if distributed:
        there = namespace_rules(NODE_CONTROLLERS, ours, leases=(), publishing=True)
        yield from account(NODE_NAME, wanted.namespace, node_cluster_rules(wanted.namespace), there, secrets)


def account(
    name: str, namespace: str, everywhere: list[Rule], here: list[Rule], secrets: Mapping[str, Collection[str]]
) -> Iterator[Json]:
    """Yield a service account with its roles. secrets: namespace -> names, of those that it may read."""
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": name}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    yield from role("ClusterRole", name, "", [rule.body() for rule in everywhere], namespace)
    yield from role("Role", name, namespace, [rule.body() for rule in here], namespace)
    for other, names in sorted(secrets.items()):
        if other != namespace:
            yield from role("Role", name, other, [secret_rule(names).body()], namespace)


def role(kind: str, name: str, place: str, rules: Any, namespace: str) -> Iterator[Json]:
    """Return a Role in namespace `place`, or a ClusterRole, and its binding to our account `name` in `namespace`."""
    group = "rbac.authorization.k8s.io"
    labels = {"app.kubernetes.io/name": name}
    metadata = {"name": name, **({"namespace": place} if place else {}), "labels": labels}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    yield {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": rules}
    binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": metadata}
    yield {**binding, "roleRef": {"apiGroup": group, "kind": kind, "name": name}, "subjects": subjects}


def quota(namespace: str) -> Json:
    """Allows the priority classes of our pods.

    A cluster may keep them to namespaces that have a quota for them (ResourceQuota admission, `limitedResources`), as
    GKE does. kube-system always has one, other namespaces bring their own. The number never binds.
    """
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": _metadata(namespace, "volplane-critical"),
        "spec": {
            "hard": {"pods": "1G"},
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In", "values": [CENTRAL_PRIORITY, NODE_PRIORITY]}
                ]
            },
        },
    }


def disruption_budget(namespace: str) -> Json:
    """Let one replica be evicted at a time, and always one that is not ready, which must not block a drain."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(namespace),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }


def pod_monitor(namespace: str) -> Json:
    """Let Prometheus scrape all processes. The kind comes with the Prometheus operator."""
    names = [NAME, NODE_NAME]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata(namespace),
        "spec": {
            "selector": {"matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "In", "values": names}]},
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        },
    }


def network_policies(namespace: str) -> Iterator[Json]:
    """Restrict the controllers to traffic to their one port, and scrubber pods to no traffic at all.

    Where the controllers go to (API server, storage systems) depends on the cluster and the backends.
    """
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    yield {
        **head,
        "metadata": _metadata(namespace),
        "spec": {
            "podSelector": {"matchLabels": LABELS},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }
    yield {
        **head,
        "metadata": _metadata(namespace, SCRUBBER),
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": SCRUBBER}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def storage_class(name: str, driver: str) -> Json:
    """Return a class of a driver. It binds late, which suits every backend: the scheduler considers the pod's node."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "labels": LABELS},
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": True,
    }


def class_name(driver: str, drivers: Collection[str]) -> str:
    """Return the first label of the driver's name (fast of fast.example.com), or the name where several begin so."""
    first = driver.partition(".")[0]
    return first if sum(other.partition(".")[0] == first for other in drivers) == 1 else driver


@dataclass(frozen=True, slots=True)
class Storage:
    """Directories of the node for a pod, as `Installation` describes them."""

    mounts: Sequence[str] = ()
    as_root: bool = False

    def volumes(self) -> list[Json]:
        """Return the pod's volumes. A directory must exist: one made by the kubelet may hide that a disk is missing."""
        named = enumerate(self.mounts)
        return [{"name": f"mount-{n}", "hostPath": {"path": path, "type": "Directory"}} for n, path in named]

    def volume_mounts(self) -> list[Json]:
        """Return the container's mounts. Later mounts on the node are visible too."""
        return [
            {"name": f"mount-{n}", "mountPath": path, "mountPropagation": "HostToContainer"}
            for n, path in enumerate(self.mounts)
        ]


def deployment(namespace: str, container: Json, checksum: str, replicas: int, storage: Storage | None) -> Json:
    """Run the processes of the whole cluster, one of which works. storage: None = no directory of the node."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(namespace),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            # A drain and an upgrade take one away at a time, and another is ready before.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": LABELS, "annotations": {CHECKSUM: checksum}},
                "spec": {
                    "priorityClassName": CENTRAL_PRIORITY,
                    "affinity": _apart(),
                    **_pod(NAME, container, storage or Storage()),
                },
            },
        },
    }


def _apart() -> Json:
    """Prefer different nodes, and then different zones, for the replicas."""
    terms = [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": LABELS}, "topologyKey": key}}
        for key, weight in (("kubernetes.io/hostname", 100), ("topology.kubernetes.io/zone", 50))
    ]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def daemon_set(namespace: str, container: Json, checksum: str, storage: Storage) -> Json:
    """Run a process on every node, also on cordoned ones, whose volumes must still be deleted."""
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NODE_NAME, "namespace": namespace, "labels": NODE_LABELS},
        "spec": {
            "selector": {"matchLabels": NODE_LABELS},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": NODE_LABELS, "annotations": {CHECKSUM: checksum}},
                "spec": {"priorityClassName": NODE_PRIORITY, **_pod(NODE_NAME, container, storage)},
            },
        },
    }


def _pod(service_account: str, container: Json, storage: Storage) -> Json:
    root = storage.as_root and bool(storage.mounts)
    security = container["securityContext"]
    if root:
        security = {**security, "capabilities": {"drop": ["ALL"], "add": list(ROOT_CAPABILITIES)}}
    mounts = [*container["volumeMounts"], *storage.volume_mounts()]
    user = {"runAsUser": 0, "runAsGroup": 0} if root else {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {
        "serviceAccountName": service_account,
        # The process ends at most 10 s after SIGTERM.
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsNonRoot": not root, **user, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{**container, "securityContext": security, "volumeMounts": mounts}],
        "volumes": [
            {"name": "configuration", "configMap": {"name": NAME}},
            {"name": "temporary", "emptyDir": {}},
            *storage.volumes(),
        ],
    }


def _container(image: str, *arguments: str) -> Json:
    return {
        "name": NAME,
        "image": image,
        "command": ["volplane", "run"],
        "args": list(arguments),
        "ports": [{"name": "http", "containerPort": PORT}],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "configuration", "mountPath": "/etc/volplane", "readOnly": True},
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108 - of the container
        ],
    }


def _metadata(namespace: str, name: str = NAME) -> Json:
    return {"name": name, "namespace": namespace, "labels": LABELS}
