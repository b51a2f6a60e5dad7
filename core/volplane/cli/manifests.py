"""`volplane manifests`: everything a cluster needs to run the controllers, as YAML for `kubectl apply -f -`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from volplane.cli.rbac import (
    Rule,
    cluster_rules,
    named_secrets,
    namespace_rules,
    node_cluster_rules,
    secret_rule,
)
from volplane.controller.config import (
    ALL_CONTROLLERS,
    DEFAULT_CONTROLLERS,
    NODE_CONTROLLERS,
    namespace_labels,
    parse_configuration,
    parse_controllers,
)
from volplane.drivers.discovery import InstalledPlugins
from volplane.errors import ConfigurationError
from volplane.messages import nearest, why_unusable

__all__ = ["documents", "register"]

NAME = "volplane"
NODE_NAME = "volplane-node"
SCRUBBER = "volplane-scrub"
"""The label of scrubber pods (see `volplane.reclaim.scrub_pod`)."""
PORT = 9809
USER = 65532
MOST_REPLICAS = 10
LABELS = {"app.kubernetes.io/name": NAME}
CHECKSUM = "checksum/config"
CENTRAL_PRIORITY = "system-cluster-critical"
NODE_PRIORITY = "system-node-critical"
"""Priority classes that every cluster has. A claim of a pod of any priority may wait for us, so that ours is above all
that users may give; the kubelet also evicts and shuts down these two classes last. See `_quota`.
"""
CONFIGURATION = """\
# The drivers: a name that StorageClasses give as their provisioner, a backend, and its options.
# `volplane plugins` shows the backends that the image has.
#
# drivers:
#   - name: fast.example.com
#     backend: hostpath
#     options: {root: /srv/volumes}
drivers: []
"""

Json = dict[str, Any]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("manifests")(manifests)


def manifests(
    *,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Where it runs.")] = "volplane-system",
    controllers: Annotated[
        str, typer.Option(metavar="LIST", help=f"As of `volplane run`: some of {', '.join(ALL_CONTROLLERS)}, or all.")
    ] = DEFAULT_CONTROLLERS,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image with volplane and the backends; default volplane:VERSION.")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Configuration file to put into the ConfigMap.", readable=False),
    ] = None,
    replicas: Annotated[
        int, typer.Option(metavar="N", help="Of the Deployment: one works, the others wait for its lease.")
    ] = 2,
    monitoring: Annotated[
        bool, typer.Option("--monitoring", help="Add a PodMonitor, for clusters with the Prometheus operator.")
    ] = False,
) -> None:
    """Print the namespace, service account, roles, configuration, network policies and Deployment of the controllers.

    The account gets the least rights that the controllers need; of Secrets it may read those that options of the
    configuration file name, also in other namespaces. If a driver is distributed, a DaemonSet with an account of its
    own runs a process on every node. Add yourself what pods must mount, such as a hostpath root.

    Two replicas or more get a PodDisruptionBudget, which lets a drain evict one at a time. A ResourceQuota without
    an effective limit allows the pods their priority class in clusters that keep those of the system to kube-system.
    """
    chosen = parse_controllers(controllers)
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", namespace):
        raise ConfigurationError(
            f'--namespace is "{namespace}"; it must be a DNS label (RFC 1123), such as volplane-system'
        )
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ConfigurationError(
            f"--replicas is {replicas}; it must be 1 to {MOST_REPLICAS}: one works, the others wait to take over"
        )
    text = CONFIGURATION if config is None else _read(config)
    _check_backends(text, config)
    image = image or f"{NAME}:{version('volplane')}"
    shown = documents(namespace, controllers, chosen, image, text, replicas=replicas, monitoring=monitoring)
    typer.echo(
        yaml.dump_all(shown, Dumper=_Dumper, sort_keys=False, explicit_start=True, default_flow_style=None, width=120),
        nl=False,
    )


def _check_backends(text: str, config: Path | None) -> None:
    """Raise ConfigurationError for a driver whose backend is not installed here.

    The image has to have it too; installing it where the manifests are made is what tells a name from a slip.
    """
    known = InstalledPlugins().names("backend")
    for driver in parse_configuration(text, str(config)).drivers or ():
        if driver.backend not in known:
            raise ConfigurationError(
                f"{driver.where}.backend: {driver.backend!r} is not installed here{nearest(driver.backend, known)}; "
                "install what the image has, so that the configuration can be checked"
            )


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--config {path}: cannot be read: {why_unusable(error)}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--config {path}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    parse_configuration(text, str(path))
    return text


def documents(
    namespace: str,
    option: str,
    controllers: Collection[str],
    image: str,
    configuration: str,
    *,
    replicas: int = 2,
    monitoring: bool = False,
) -> Iterator[Json]:
    """The objects, in an order in which they can be created. option: the value of --controllers of `volplane run`."""
    yield {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace, "labels": namespace_labels(controllers)},
    }
    here = {"name": NAME, "namespace": namespace, "labels": LABELS}
    parsed = parse_configuration(configuration, "the configuration")
    distributed = any(driver.distributed for driver in parsed.drivers or ())
    publishing = any(driver.distributed or driver.storage_capacity for driver in parsed.drivers or ())
    everywhere = cluster_rules(controllers, namespace, distributed=publishing)
    secrets = named_secrets(parsed)
    here_too = namespace_rules(controllers, secrets.get(namespace, ()), publishing=publishing)
    yield from _account(NAME, namespace, everywhere, here_too, secrets)
    if distributed:
        there = namespace_rules(NODE_CONTROLLERS, secrets.get(namespace, ()), leases=(), publishing=True)
        yield from _account(NODE_NAME, namespace, node_cluster_rules(namespace), there, secrets)
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": here, "data": {"volplane.yaml": configuration}}
    # The process reads the file when it starts: pods are replaced when it changes.
    checksum = {CHECKSUM: hashlib.sha256(configuration.encode()).hexdigest()}
    yield from _network_policies(namespace)
    yield _quota(namespace)
    if replicas > 1:
        yield _disruption_budget(namespace)
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": here,
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            # A drain and an upgrade take one away at a time, and another is ready before.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {
                "metadata": {"labels": LABELS, "annotations": checksum},
                "spec": {
                    "priorityClassName": CENTRAL_PRIORITY,
                    "affinity": _apart(),
                    **_pod(NAME, _container(namespace, image, option)),
                },
            },
        },
    }
    if distributed:
        yield _daemon_set(namespace, image, checksum)
    if monitoring:
        yield _pod_monitor(namespace)


def _quota(namespace: str) -> Json:
    """Allows the priority classes of our pods.

    A cluster may keep them to namespaces that have a quota for them (ResourceQuota admission, `limitedResources`), as
    GKE does. kube-system always has one, other namespaces bring their own. The number never binds.
    """
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "volplane-critical", "namespace": namespace, "labels": LABELS},
        "spec": {
            "hard": {"pods": "1G"},
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In", "values": [CENTRAL_PRIORITY, NODE_PRIORITY]}
                ]
            },
        },
    }


def _disruption_budget(namespace: str) -> Json:
    """One replica may be evicted at a time; one that is not ready may always be: it holds no node up."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": NAME, "namespace": namespace, "labels": LABELS},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": LABELS},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _apart() -> Json:
    """Replicas on different nodes, and in different zones, where there are some; together rather than not at all."""
    terms = [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": LABELS}, "topologyKey": key}}
        for key, weight in (("kubernetes.io/hostname", 100), ("topology.kubernetes.io/zone", 50))
    ]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def _pod_monitor(namespace: str) -> Json:
    """All processes, scraped by Prometheus. Its definition comes with the Prometheus operator."""
    names = [NAME, NODE_NAME]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": NAME, "namespace": namespace, "labels": LABELS},
        "spec": {
            "selector": {
                "matchExpressions": [{"key": "app.kubernetes.io/name", "operator": "In", "values": names}],
            },
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        },
    }


def _account(
    name: str, namespace: str, everywhere: list[Rule], here: list[Rule], secrets: Mapping[str, Collection[str]]
) -> Iterator[Json]:
    """A service account with its roles. secrets: namespace -> names, of those that it may read."""
    labels = {"app.kubernetes.io/name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    yield from _role("ClusterRole", {"name": name, "labels": labels}, everywhere, subjects)
    yield from _role("Role", metadata, here, subjects)
    for other, names in sorted(secrets.items()):
        if other != namespace:
            yield from _role("Role", {**metadata, "namespace": other}, [secret_rule(names)], subjects)


def _daemon_set(namespace: str, image: str, annotations: Json) -> Json:
    """A process on every node, cordoned ones too: their volumes are still to be deleted."""
    labels = {"app.kubernetes.io/name": NODE_NAME}
    container = _container(namespace, image, None)
    container["env"] = [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    container["args"].append("--node-name=$(NODE_NAME)")
    pod = _pod(NODE_NAME, container)
    pod["priorityClassName"] = NODE_PRIORITY
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NODE_NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }


def _network_policies(namespace: str) -> Iterator[Json]:
    """The controllers are reached on their one port alone; scrubber pods reach nothing, and nothing reaches them.

    Where the controllers go to (API server, storage systems) depends on the cluster and the backends.
    """
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    yield {
        **head,
        "metadata": {"name": NAME, "namespace": namespace, "labels": LABELS},
        "spec": {
            "podSelector": {"matchLabels": LABELS},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }
    yield {
        **head,
        "metadata": {"name": SCRUBBER, "namespace": namespace, "labels": LABELS},
        "spec": {
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": SCRUBBER}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def _role(kind: str, metadata: Json, rules: list[Rule], subjects: list[Json]) -> Iterator[Json]:
    """A Role or ClusterRole of our account, and its binding."""
    group = "rbac.authorization.k8s.io"
    yield {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata, "rules": [rule.body() for rule in rules]}
    binding = {"apiVersion": f"{group}/v1", "kind": f"{kind}Binding", "metadata": metadata}
    yield {**binding, "roleRef": {"apiGroup": group, "kind": kind, "name": metadata["name"]}, "subjects": subjects}


def _pod(account: str, container: Json) -> Json:
    return {
        "serviceAccountName": account,
        # The process ends at most 10 s after SIGTERM.
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "configuration", "configMap": {"name": NAME}},
            {"name": "temporary", "emptyDir": {}},
        ],
    }


def _container(namespace: str, image: str, controllers: str | None) -> Json:
    """controllers: the value of its option; None = the default."""
    return {
        "name": NAME,
        "image": image,
        "command": ["volplane", "run"],
        "args": [
            *([f"--controllers={controllers}"] if controllers is not None else []),
            f"--namespace={namespace}",
            "--config=/etc/volplane/volplane.yaml",
            f"--http=0.0.0.0:{PORT}",
            "--log-format=json",
        ],
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


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as block scalars, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
