"""The objects that install the controllers in a cluster, with the RBAC rules of exactly the calls that they make. Pure.

`volplane manifests` prints the objects, and the templates of the Helm chart (deploy/chart) are written from them.

Each duty declares its own rules (`permissions`); all controllers read what the caches hold. The reclaimer alone follows
pods of our namespace, and lists those of another before it erases what was used there.
tests/integration/test_permissions.py runs them and compares their requests with these rules, in both directions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from volplane.controller.config import Configuration, parse_configuration
from volplane.controller.controller import FOLLOW, READ, Rule
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.process import duties
from volplane.process.duties import NODE_CONTROLLERS, namespace_labels
from volplane.process.process import LEASE
from volplane.secret import Secret, SecretPlace

Json = dict[str, Any]

NAME = "volplane"
NODE_NAME = "volplane-node"
SCRUBBER = "volplane-scrub"
"""The label of scrubber pods (see `volplane.reclaim.scrub_pod`)."""
PORT = 9809
USER = 65532
LABELS: Json = {"app.kubernetes.io/name": NAME}
NODE_LABELS: Json = {"app.kubernetes.io/name": NODE_NAME}
CHECKSUM = "checksum/config"
CENTRAL_PRIORITY = "system-cluster-critical"
NODE_PRIORITY = "system-node-critical"
"""Priority classes that every cluster has. A claim of a pod of any priority may wait for us, so that ours is above all
that users may give; the kubelet also evicts and shuts down these two classes last. See `_admission`.
"""
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
"""What root needs to give directories to users, and to remove what pods of any user have written there."""

_ALL = (
    Rule("", "persistentvolumes", READ),
    Rule("", "persistentvolumeclaims", READ),
    Rule("", "nodes", FOLLOW),
    Rule("storage.k8s.io", "storageclasses", FOLLOW),
    Rule("", "events", ("create", "get", "patch")),
)
"""What every process needs."""


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
    yield from _admission(wanted, distributed=distributed)
    # The process reads the file when it starts: pods are replaced when it changes.
    checksum = hashlib.sha256(wanted.configuration.encode()).hexdigest()
    arguments = (
        f"--namespace={namespace}",
        "--config=/etc/volplane/volplane.yaml",
        f"--http=0.0.0.0:{PORT}",
        "--log-format=json",
    )
    container = _container(wanted.image, f"--controllers={wanted.option}", *arguments)
    yield deployment(wanted, container, checksum, () if distributed else wanted.mounts)
    if distributed:
        # The process of a node runs the default controllers of such a process.
        agent = _container(wanted.image, *arguments, "--node-name=$(NODE_NAME)")
        agent["env"] = [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
        pod = _pod(NODE_NAME, agent, wanted.mounts, as_root=wanted.as_root)
        # It runs on every node, also on cordoned ones, whose volumes must still be deleted.
        spec = {
            "selector": {"matchLabels": NODE_LABELS},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": NODE_LABELS, "annotations": {CHECKSUM: checksum}},
                "spec": {"priorityClassName": NODE_PRIORITY, **pod},
            },
        }
        yield _object("apps/v1", "DaemonSet", namespace, spec, NODE_NAME)
    if wanted.monitoring:
        # Prometheus scrapes all processes. The kind comes with the Prometheus operator.
        ours = {"key": "app.kubernetes.io/name", "operator": "In", "values": [NAME, NODE_NAME]}
        endpoints = [{"port": "http", "path": "/metrics"}]
        spec = {"selector": {"matchExpressions": [ours]}, "podMetricsEndpoints": endpoints}
        yield _object("monitoring.coreos.com/v1", "PodMonitor", namespace, spec)
    if wanted.storage_classes:
        yield from storage_classes([driver.name for driver in parsed.drivers or ()])


def _accounts(wanted: Installation, parsed: Configuration, *, distributed: bool) -> Iterator[Json]:
    """Yield the service accounts, each with its roles and their bindings."""
    namespace, secrets = wanted.namespace, named_secrets(parsed)
    ours = secrets.get(namespace, ())
    publishing = any(driver.distributed or driver.storage_capacity for driver in parsed.drivers or ())
    everywhere = cluster_rules(wanted.controllers, namespace, distributed=publishing)
    accounts = [(NAME, everywhere, namespace_rules(wanted.controllers, ours, publishing=publishing))]
    if distributed:
        there = namespace_rules(NODE_CONTROLLERS, ours, leases=(), publishing=True)
        accounts.append((NODE_NAME, node_cluster_rules(namespace), there))
    for name, everywhere, here in accounts:
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(namespace, name)}
        roles = [("ClusterRole", "", everywhere), ("Role", namespace, here)]
        # Options may name Secrets of other namespaces.
        others = sorted((place, names) for place, names in secrets.items() if place != namespace)
        for kind, place, rules in (*roles, *(("Role", place, [secret_rule(names)]) for place, names in others)):
            group = "rbac.authorization.k8s.io"
            metadata = {key: value for key, value in _metadata(place, name).items() if value}
            head = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata}
            yield {**head, "rules": [rule.body() for rule in rules]}
            subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
            reference = {"apiGroup": group, "kind": kind, "name": name}
            yield {**head, "kind": f"{kind}Binding", "roleRef": reference, "subjects": subjects}


def cluster_rules(controllers: Collection[str], namespace: str, *, distributed: bool = False) -> list[Rule]:
    """Return the rules of a ClusterRole. namespace: ours; it is read, as is kube-system for the default cluster id.

    distributed: some drivers are served by processes of nodes, or publish their room.
    """
    base = [*_ALL, Rule("", "namespaces", ("get",), tuple(sorted({"kube-system", namespace})))]
    where = {"", "distributed"} if distributed else {""}
    return _merged([*base, *(rule for rule in _of(sorted(controllers)) if not rule.ours and rule.where in where)])


def node_cluster_rules(namespace: str) -> list[Rule]:
    """Return the rules of the ClusterRole of the processes of nodes.

    They share an account, and RBAC knows no labels: it cannot restrict each to the objects of its own node.
    """
    return cluster_rules(NODE_CONTROLLERS, namespace)  # They publish room, and need no CSIDriver for that.


def namespace_rules(
    controllers: Collection[str],
    secrets: Iterable[str] = (),
    *,
    leases: Iterable[str] = (LEASE,),
    publishing: bool = False,
) -> list[Rule]:
    """Return the rules of a Role in our namespace. secrets: names from the options. publishing: the room of some driver
    is published. leases: names; empty = any, for processes of nodes.

    RBAC cannot restrict a create to a name.
    """
    base = [
        Rule("coordination.k8s.io", "leases", ("create",)),
        Rule("coordination.k8s.io", "leases", ("get", "patch"), tuple(leases)),
        Rule("", "secrets", ("create",)),
        secret_rule({SEAL_SECRET, *secrets}),
    ]
    where = {"", *(("cluster",) if leases else ()), *(("publishing",) if publishing else ())}
    # What a reclaimer does comes first, and a publisher of room before those that only read it.
    chosen = _of(sorted(controllers, reverse=True))
    return _merged([*base, *(rule for rule in chosen if rule.ours and rule.where in where)])


def _of(controllers: Iterable[str]) -> Iterator[Rule]:
    """Yield the rules of these controllers."""
    permissions = {duty.option: duty.permissions for duty in duties.DUTIES}
    for name in controllers:
        yield from permissions.get(name, ())


def secret_rule(names: Iterable[str]) -> Rule:
    """Allow to get these Secrets and no others; no list and no watch, which RBAC cannot restrict to names."""
    return Rule("", "secrets", ("get",), tuple(sorted(names)))


def named_secrets(configuration: Configuration) -> dict[str, set[str]]:
    """Map namespaces to the names of the Secrets that options refer to, as secret:NAMESPACE/NAME/KEY."""
    named: dict[str, set[str]] = {}
    options = [settings.options for settings in configuration.drivers or ()]
    options += [settings.options for settings in configuration.extensions]
    for given in options:
        for value in given.values():
            try:
                secret = Secret(value.strip() if isinstance(value, str) else "")
            except ValueError:
                continue
            if secret.place is SecretPlace.KUBERNETES:
                namespace, _, name = secret.where.partition("/")
                named.setdefault(namespace, set()).add(name)
    return named


def _merged(rules: Iterable[Rule]) -> list[Rule]:
    """Merge into one rule per resource and names, with all verbs, in the order in which resources first appear."""
    verbs: dict[tuple[str, str, tuple[str, ...]], dict[str, None]] = {}
    for rule in rules:
        verbs.setdefault((rule.group, rule.resource, rule.names), {}).update(dict.fromkeys(rule.verbs))
    return [Rule(group, resource, tuple(all_verbs), named) for (group, resource, named), all_verbs in verbs.items()]


def _admission(wanted: Installation, *, distributed: bool) -> Iterator[Json]:
    """Yield what restricts and protects our pods: network policies, a quota of their priority, a disruption budget."""
    namespace = wanted.namespace
    if wanted.network_policies:
        # The controllers take traffic to their one port. Where they go to (API server, storage systems) depends on the
        # cluster and the backends. Scrubber pods have no traffic at all.
        ingress = [{"ports": [{"protocol": "TCP", "port": PORT}]}]
        for name, labels in {NAME: LABELS, **({NODE_NAME: NODE_LABELS} if distributed else {})}.items():
            ours = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": ingress}
            yield _object("networking.k8s.io/v1", "NetworkPolicy", namespace, ours, name)
        scrubbers = {"matchLabels": {"app.kubernetes.io/name": SCRUBBER}}
        nothing = {"podSelector": scrubbers, "policyTypes": ["Ingress", "Egress"]}
        yield _object("networking.k8s.io/v1", "NetworkPolicy", namespace, nothing, SCRUBBER)
    # A cluster may keep the priority classes of our pods to namespaces that have a quota for them (ResourceQuota
    # admission, `limitedResources`), as GKE does. kube-system always has one, other namespaces bring their own. The
    # number never binds.
    classes = {"scopeName": "PriorityClass", "operator": "In", "values": [CENTRAL_PRIORITY, NODE_PRIORITY]}
    quota = {"hard": {"pods": "1G"}, "scopeSelector": {"matchExpressions": [classes]}}
    yield _object("v1", "ResourceQuota", namespace, quota, "volplane-critical")
    if wanted.replicas > 1:
        # One replica is evicted at a time, and always one that is not ready, which must not block a drain.
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
        yield _object("policy/v1", "PodDisruptionBudget", namespace, budget)


def storage_classes(drivers: Sequence[str]) -> Iterator[Json]:
    """Yield a class of each driver. It binds late, which suits every backend: the scheduler considers the pod's node.

    Its name is the first label of the driver's (fast of fast.example.com), or the whole where several begin so.
    """
    firsts = [driver.partition(".")[0] for driver in drivers]
    for driver, first in zip(drivers, firsts, strict=True):
        yield {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": first if firsts.count(first) == 1 else driver, "labels": LABELS},
            "provisioner": driver,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
        }


def deployment(wanted: Installation, container: Json, checksum: str, mounts: Sequence[str]) -> Json:
    """Run the processes of the whole cluster, one of which works."""
    # Different nodes, and then different zones, are preferred for the replicas.
    apart = [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": LABELS}, "topologyKey": key}}
        for key, weight in (("kubernetes.io/hostname", 100), ("topology.kubernetes.io/zone", 50))
    ]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": apart}}
    pod = _pod(NAME, container, mounts, as_root=wanted.as_root)
    spec = {
        "replicas": wanted.replicas,
        "selector": {"matchLabels": LABELS},
        # A drain and an upgrade take one away at a time, and another is ready before.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {
            "metadata": {"labels": LABELS, "annotations": {CHECKSUM: checksum}},
            "spec": {"priorityClassName": CENTRAL_PRIORITY, "affinity": affinity, **pod},
        },
    }
    return _object("apps/v1", "Deployment", wanted.namespace, spec)


def _pod(service_account: str, container: Json, mounts: Sequence[str], *, as_root: bool) -> Json:
    root = as_root and bool(mounts)
    security = container["securityContext"]
    if root:
        security = {**security, "capabilities": {"drop": ["ALL"], "add": list(ROOT_CAPABILITIES)}}
    user = {"runAsUser": 0, "runAsGroup": 0} if root else {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    volumes = [{"name": "configuration", "configMap": {"name": NAME}}, {"name": "temporary", "emptyDir": {}}]
    inside = list(container["volumeMounts"])
    for n, path in enumerate(mounts):
        # The directory must exist: one made by the kubelet may hide that a disk is missing. Later mounts on the node
        # are visible too.
        volumes.append({"name": f"mount-{n}", "hostPath": {"path": path, "type": "Directory"}})
        inside.append({"name": f"mount-{n}", "mountPath": path, "mountPropagation": "HostToContainer"})
    return {
        "serviceAccountName": service_account,
        # The process ends at most 10 s after SIGTERM.
        "terminationGracePeriodSeconds": 30,
        "securityContext": {"runAsNonRoot": not root, **user, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{**container, "securityContext": security, "volumeMounts": inside}],
        "volumes": volumes,
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
        # 100,000 volumes and as many claims take 0.5 GiB.
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
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


def _object(version: str, kind: str, namespace: str, spec: Json, name: str = NAME) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": _metadata(namespace, name), "spec": spec}


def _metadata(namespace: str, name: str = NAME) -> Json:
    return {"name": name, "namespace": namespace, "labels": NODE_LABELS if name == NODE_NAME else LABELS}
