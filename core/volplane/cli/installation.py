"""The objects that install the controllers in a cluster, with the RBAC rules of exactly the calls that they make. Pure.

`volplane manifests` prints the objects, and the templates of the Helm chart (deploy/chart) are written from them.

Each duty declares its own rules (`permissions`); all controllers read what the caches hold. The reclaimer alone follows
pods of our namespace, and lists those of another before it erases what was used there; processes of nodes see none.
tests/integration/test_permissions.py runs them and compares their requests with these rules, in both directions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from volplane.controller.config import Configuration, parse_configuration
from volplane.controller.controller import FOLLOW, READ, Rule
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.process import duties
from volplane.process.duties import NODE_CONTROLLERS, namespace_labels
from volplane.process.process import LEASE
from volplane.secret import Secret, SecretPlace
from volplane.state.naming import nodes_namespace

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
    admission_policy: bool = True
    """Whether the writes of the processes of nodes are tied to their node."""


def documents(wanted: Installation) -> Iterator[Json]:
    """Yield the objects, in an order in which they can be created."""
    namespace = wanted.namespace
    parsed = parse_configuration(wanted.configuration, "the configuration")
    distributed = any(driver.distributed for driver in parsed.drivers or ())
    homes = {NAME: namespace, **({NODE_NAME: nodes_namespace(namespace)} if distributed else {})}
    for name, home in homes.items():
        mounts = bool(wanted.mounts) and distributed == (name == NODE_NAME)
        level = namespace_labels(wanted.controllers if name == NAME else (), mounts=mounts)
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": home, "labels": level}}
    yield from _accounts(wanted, parsed, homes)
    for name, home in homes.items():
        text = wanted.configuration if name == NAME else _configuration_of_nodes(wanted.configuration)
        data = {"volplane.yaml": text}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(home, name), "data": data}
    yield from _admission(wanted, parsed, homes)
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
        yield _object("apps/v1", "DaemonSet", homes[NODE_NAME], spec, NODE_NAME)
    if wanted.monitoring:
        # Prometheus scrapes all processes. The kind comes with the Prometheus operator.
        ours = {"key": "app.kubernetes.io/name", "operator": "In", "values": [NAME, NODE_NAME]}
        endpoints = [{"port": "http", "path": "/metrics"}]
        places = {"matchNames": list(homes.values())}
        spec = {"namespaceSelector": places, "selector": {"matchExpressions": [ours]}, "podMetricsEndpoints": endpoints}
        yield _object("monitoring.coreos.com/v1", "PodMonitor", namespace, spec)
    if wanted.storage_classes:
        yield from storage_classes([driver.name for driver in parsed.drivers or ()])


def _accounts(wanted: Installation, parsed: Configuration, homes: Mapping[str, str]) -> Iterator[Json]:
    """Yield the service accounts, each with its roles and their bindings. homes: account -> its namespace."""
    namespace, nodes = wanted.namespace, homes.get(NODE_NAME, "")
    publishing = any(driver.distributed or driver.storage_capacity for driver in parsed.drivers or ())
    central = {
        "": cluster_rules(wanted.controllers, namespace, distributed=publishing),
        namespace: namespace_rules(wanted.controllers, publishing=publishing),
        **({nodes: list(KEY_RULES)} if nodes else {}),
    }
    for name, home in homes.items():
        roles = central if name == NAME else node_rules(namespace)
        secrets = named_secrets(parsed, on_nodes=name == NODE_NAME)
        yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(home, name)}
        # Options may name Secrets of other namespaces.
        for place, named in sorted(secrets.items()):
            roles.setdefault(place, []).append(secret_rule(named))
        for place, rules in roles.items():
            kind, group = "Role" if place else "ClusterRole", "rbac.authorization.k8s.io"
            metadata = {key: value for key, value in _metadata(place, name).items() if value}
            head = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": metadata}
            yield {**head, "rules": [rule.body() for rule in rules]}
            subjects = [{"kind": "ServiceAccount", "name": name, "namespace": home}]
            reference = {"apiGroup": group, "kind": kind, "name": name}
            yield {**head, "kind": f"{kind}Binding", "roleRef": reference, "subjects": subjects}


def cluster_rules(controllers: Collection[str], namespace: str, *, distributed: bool = False) -> list[Rule]:
    """Return the rules of a ClusterRole. namespace: ours; it is read, as is kube-system for the default cluster id.

    distributed: some drivers are served by processes of nodes, or publish their room.
    """
    named = sorted({"kube-system", namespace, *((nodes_namespace(namespace),) if distributed else ())})
    where = {"", "cluster", *(("distributed",) if distributed else ())}
    read = Rule("", "namespaces", ("get",), tuple(named))
    return _merged([*_ALL, read, *_of(sorted(controllers), where, ours=False)])


def node_rules(namespace: str) -> dict[str, list[Rule]]:
    """Return the rules of the processes of nodes by the namespace where they hold; those of the ClusterRole under "".

    In `namespace`, ours, they publish room, and look for the Lease that an earlier version held.
    """
    nodes, room = nodes_namespace(namespace), _of(NODE_CONTROLLERS, {"", "publishing"}, ours=True)
    read = Rule("", "namespaces", ("get",), ("kube-system", nodes))
    return {
        "": _merged([*_ALL, read, *_of(NODE_CONTROLLERS, {""}, ours=False)]),
        namespace: [Rule("coordination.k8s.io", "leases", ("get",)), *room],
        nodes: [Rule("coordination.k8s.io", "leases", ("create", "get", "patch")), *KEY_RULES],
    }


def namespace_rules(controllers: Collection[str], *, publishing: bool = False) -> list[Rule]:
    """Return the rules of a Role in our namespace. publishing: the room of some driver is published.

    RBAC cannot restrict a create to a name.
    """
    base = [
        Rule("coordination.k8s.io", "leases", ("create",)),
        Rule("coordination.k8s.io", "leases", ("get", "patch"), (LEASE,)),
        *KEY_RULES,
    ]
    where = {"", "cluster", *(("publishing",) if publishing else ())}
    # What a reclaimer does comes first, and a publisher of room before those that only read it.
    return _merged([*base, *_of(sorted(controllers, reverse=True), where, ours=True)])


def _of(controllers: Iterable[str], where: Collection[str], *, ours: bool) -> Iterator[Rule]:
    """Yield the rules of these controllers. ours: those of our namespace, else those of the cluster."""
    permissions = {duty.option: duty.permissions for duty in duties.DUTIES}
    for name in controllers:
        yield from (rule for rule in permissions.get(name, ()) if rule.ours == ours and rule.where in where)


def secret_rule(names: Iterable[str]) -> Rule:
    """Allow to get these Secrets and no others; no list and no watch, which RBAC cannot restrict to names."""
    return Rule("", "secrets", ("get",), tuple(sorted(names)))


KEY_RULES = (Rule("", "secrets", ("create",)), secret_rule({SEAL_SECRET}))
"""For the key of a namespace."""


def named_secrets(configuration: Configuration, *, on_nodes: bool = False) -> dict[str, set[str]]:
    """Map namespaces to names of Secrets that options, or those of nodes, refer to as secret:NAMESPACE/NAME/KEY."""
    named: dict[str, set[str]] = {}
    options = [each.options for each in configuration.drivers or () if each.distributed or not on_nodes]
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


def _configuration_of_nodes(text: str) -> str:
    content = yaml.safe_load(text)
    content["drivers"] = [driver for driver in content["drivers"] if driver.get("distributed")]
    return yaml.safe_dump(content, sort_keys=False)


def _admission(wanted: Installation, parsed: Configuration, homes: Mapping[str, str]) -> Iterator[Json]:
    """Yield what restricts and protects our pods: network policies, a quota of their priority, a disruption budget, and
    the admission policy for the account of the nodes. homes: account -> its namespace.
    """
    namespace = wanted.namespace
    if wanted.network_policies:
        # The controllers take traffic to their one port. Where they go to (API server, storage systems) depends on the
        # cluster and the backends. Scrubber pods have no traffic at all.
        ingress = [{"ports": [{"protocol": "TCP", "port": PORT}]}]
        for name, home in homes.items():
            selector = {"matchLabels": _metadata(home, name)["labels"]}
            ours = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
            yield _object("networking.k8s.io/v1", "NetworkPolicy", home, ours, name)
        scrubbers = {"matchLabels": {"app.kubernetes.io/name": SCRUBBER}}
        nothing = {"podSelector": scrubbers, "policyTypes": ["Ingress", "Egress"]}
        yield _object("networking.k8s.io/v1", "NetworkPolicy", namespace, nothing, SCRUBBER)
    # A cluster may keep the priority classes of our pods to namespaces that have a quota for them (ResourceQuota
    # admission, `limitedResources`), as GKE does. kube-system always has one, other namespaces bring their own. The
    # number never binds.
    classes = {"scopeName": "PriorityClass", "operator": "In", "values": [CENTRAL_PRIORITY, NODE_PRIORITY]}
    quota = {"hard": {"pods": "1G"}, "scopeSelector": {"matchExpressions": [classes]}}
    for home in homes.values():
        yield _object("v1", "ResourceQuota", home, quota, "volplane-critical")
    if NODE_NAME in homes and wanted.admission_policy:
        drivers = [driver.name for driver in parsed.drivers or () if driver.distributed]
        yield from node_policy(homes[NODE_NAME], json.dumps(drivers))
    if wanted.replicas > 1:
        # One replica is evicted at a time, and always one that is not ready, which must not block a drain.
        budget = {"maxUnavailable": 1, "selector": {"matchLabels": LABELS}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
        yield _object("policy/v1", "PodDisruptionBudget", namespace, budget)


def node_policy(nodes: str, drivers: str) -> Iterator[Json]:
    """Tie what the account of the processes of nodes writes to the node of its token.

    nodes: their namespace. drivers: the names of the drivers on nodes, as a list in JSON.
    """
    text = files("volplane.cli").joinpath("node_policy.yaml").read_text(encoding="utf-8")
    yield from yaml.safe_load_all(text.replace("NAMESPACE", nodes).replace("in DRIVERS", f"in {drivers}"))


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
    configuration = {"name": "configuration", "configMap": {"name": service_account}}
    volumes: list[Json] = [configuration, {"name": "temporary", "emptyDir": {}}]
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
