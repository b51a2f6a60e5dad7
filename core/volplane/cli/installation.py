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
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import yaml
from typer import Option

from volplane._templates import data_of, filled, text_of
from volplane.asking.callers import REVIEWS
from volplane.cli.framework.options import DEFAULT_NAMESPACE, path_option
from volplane.controller.config import Configuration, parse_configuration
from volplane.controller.controller import FOLLOW, READ, Rule
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.kube.leases import LEASE
from volplane.process import duties
from volplane.process.duties import (
    ALL_CONTROLLERS,
    DEFAULT_CONTROLLERS,
    NODE_CONTROLLERS,
    namespace_labels,
    parse_controllers,
)
from volplane.secret import Secret, SecretPlace
from volplane.state.naming import nodes_namespace

Json = dict[str, Any]

NAME = "volplane"
NODE_NAME = "volplane-node"
PORT = 9809
USER = 65532

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
    """The options of `volplane manifests`."""

    namespace: Annotated[str, Option(metavar="NAME", help="Where it runs.")] = DEFAULT_NAMESPACE
    controllers: Annotated[
        str, Option(metavar="LIST", help=f"As of `volplane run`: some of {', '.join(ALL_CONTROLLERS)}, or all.")
    ] = DEFAULT_CONTROLLERS
    image: Annotated[
        str, Option(metavar="IMAGE", help="Image with volplane and the backends; default volplane:VERSION.")
    ] = ""
    config: Annotated[Path | None, path_option("--config", "FILE", "Configuration file to put into the ConfigMap.")] = (
        None
    )
    replicas: Annotated[
        int, Option(metavar="N", help="Of the Deployment: one works, the others wait for its lease.")
    ] = 2
    monitoring: Annotated[
        bool, Option("--monitoring", help="Add a PodMonitor, for clusters with the Prometheus operator.")
    ] = False
    network_policies: Annotated[bool, Option(help="Who reaches the pods, and that scrubber pods reach nothing.")] = True
    admission_policy: Annotated[
        bool, Option(help="That a process of a node writes what concerns that node alone, for distributed drivers.")
    ] = True
    storage_classes: Annotated[
        bool, Option(help="A class of each driver of the file: late binding, reclaim policy Delete.")
    ] = True
    mounts: Annotated[
        list[str] | None,
        Option(
            "--mount",
            metavar="PATH",
            help="A directory of the nodes that a backend works in, mounted under its path: in the DaemonSet if there"
            " is one, else in the Deployment; repeatable.",
        ),
    ] = None
    as_root: Annotated[
        bool,
        Option(
            "--as-root",
            help="What mounts directories runs as root, and may give files to users and remove those of any user;"
            " else as user 65532, who must own the directories.",
        ),
    ] = False


def documents(wanted: Installation, configuration: str) -> Iterator[Json]:
    """Yield the objects, in an order in which they can be created. configuration: the text of the file."""
    namespace, chosen = wanted.namespace, parse_controllers(wanted.controllers)
    parsed = parse_configuration(configuration, "the configuration")
    distributed = any(driver.distributed for driver in parsed.drivers or ())
    homes = {NAME: namespace, **({NODE_NAME: nodes_namespace(namespace)} if distributed else {})}
    for name, home in homes.items():
        mounting = bool(wanted.mounts) and distributed == (name == NODE_NAME)
        level = namespace_labels(chosen if name == NAME else (), mounts=mounting)
        yield _object("Namespace", home=home, level=level)
    yield from _accounts(namespace, chosen, parsed, homes)
    for name, home in homes.items():
        text = configuration
        if name == NODE_NAME:
            content = yaml.safe_load(text)
            content["drivers"] = [driver for driver in content["drivers"] if driver.get("distributed")]
            text = yaml.safe_dump(content, sort_keys=False)
        yield _object("ConfigMap", account=name, home=home, configuration=text)
    yield from _admission(wanted, parsed, homes)
    # The process reads the file when it starts: pods are replaced when it changes.
    checksum = hashlib.sha256(configuration.encode()).hexdigest()
    arguments = [
        f"--namespace={namespace}",
        "--config=/etc/volplane/volplane.yaml",
        f"--http=0.0.0.0:{PORT}",
        "--log-format=json",
    ]
    deployment = _object("Deployment", namespace=namespace, replicas=wanted.replicas, checksum=checksum)
    central = [f"--controllers={wanted.controllers}", *arguments]
    mounts = wanted.mounts or ()
    mounted = () if distributed else mounts
    deployment["spec"]["template"]["spec"] |= _pod(wanted, NAME, central, mounted, environment=None)
    yield deployment
    if distributed:
        # The process of a node runs the default controllers of such a process.
        own = [*arguments, "--node-name=$(NODE_NAME)"]
        node_name = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        daemon_set = _object("DaemonSet", home=homes[NODE_NAME], checksum=checksum)
        daemon_set["spec"]["template"]["spec"] |= _pod(wanted, NODE_NAME, own, mounts, environment=[node_name])
        yield daemon_set
    if wanted.monitoring:
        yield _object("PodMonitor", namespace=namespace, homes=list(homes.values()))
    if wanted.storage_classes:
        yield from storage_classes([driver.name for driver in parsed.drivers or ()])


def _accounts(
    namespace: str, controllers: Collection[str], parsed: Configuration, homes: Mapping[str, str]
) -> Iterator[Json]:
    """Yield the service accounts, each with its roles and their bindings. homes: account -> its namespace."""
    nodes = homes.get(NODE_NAME, "")
    publishing = any(driver.distributed or driver.storage_capacity for driver in parsed.drivers or ())
    central = {
        "": cluster_rules(controllers, namespace, distributed=publishing),
        namespace: namespace_rules(controllers, publishing=publishing),
        **({nodes: list(KEY_RULES)} if nodes else {}),
    }
    for name, home in homes.items():
        roles = central if name == NAME else node_rules(namespace)
        secrets = named_secrets(parsed, on_nodes=name == NODE_NAME)
        yield _object("ServiceAccount", account=name, home=home)
        # Options may name Secrets of other namespaces.
        for place, named in sorted(secrets.items()):
            roles.setdefault(place, []).append(secret_rule(named))
        for place, rules in roles.items():
            shown = name if place in homes.values() else name_outside(name, namespace)
            role = "Role" if place else "ClusterRole"
            given = {"account": name, "home": home, "place": place or None, "role": role, "name": shown}
            yield _object("Role", rules=[rule.body() for rule in rules], **given)
            yield _object("RoleBinding", binding=f"{role}Binding", **given)


def name_outside(account: str, namespace: str) -> str:
    """Return the name of what an installation has outside of its namespaces, where others may have objects, too."""
    return account if namespace == DEFAULT_NAMESPACE else f"{account}.{namespace}"


def cluster_rules(controllers: Collection[str], namespace: str, *, distributed: bool = False) -> list[Rule]:
    """Return the rules of a ClusterRole. namespace: ours; it is read, as is kube-system for the default cluster id.

    distributed: some drivers are served by processes of nodes, or publish their room.
    """
    named = sorted({"kube-system", namespace, *((nodes_namespace(namespace),) if distributed else ())})
    where = {"", "cluster", *(("distributed",) if distributed else ())}
    read = Rule("", "namespaces", ("get",), tuple(named))
    return _merged([*_ALL, read, *REVIEWS, *_of(sorted(controllers), where, ours=False)])


def node_rules(namespace: str) -> dict[str, list[Rule]]:
    """Return the rules of the processes of nodes by the namespace where they hold; those of the ClusterRole under "".

    In `namespace`, ours, they publish room, and look for the Lease that an earlier version held.
    """
    nodes, room = nodes_namespace(namespace), _of(NODE_CONTROLLERS, {"", "publishing"}, ours=True)
    read = Rule("", "namespaces", ("get",), ("kube-system", nodes))
    return {
        "": _merged([*_ALL, read, *_of(NODE_CONTROLLERS, {""}, ours=False)]),
        namespace: [Rule("coordination.k8s.io", "leases", ("get",)), *room],
        nodes: [Rule("coordination.k8s.io", "leases", ("create", "get", "patch")), secret_rule({SEAL_SECRET})],
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
"""For the key of a namespace, which the central process makes."""


def named_secrets(configuration: Configuration, *, on_nodes: bool = False) -> dict[str, set[str]]:
    """Map namespaces to names of Secrets that options, or those of nodes, refer to as secret:NAMESPACE/NAME/KEY."""
    named: dict[str, set[str]] = {}
    options = [each.options for each in configuration.drivers or () if each.distributed or not on_nodes]
    options += [settings.options for settings in configuration.extensions]
    for given in options:
        lists = (value if isinstance(value, list) else str(value).split(",") for value in given.values())
        for each in chain.from_iterable(lists):
            try:
                secret = Secret(str(each).strip())
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


def _admission(wanted: Installation, parsed: Configuration, homes: Mapping[str, str]) -> Iterator[Json]:
    """Yield what restricts and protects our pods: network policies, a quota of their priority, a disruption budget, and
    the admission policy for the account of the nodes. homes: account -> its namespace.
    """
    if wanted.network_policies:
        for name, home in homes.items():
            yield _object("NetworkPolicy", account=name, home=home, port=PORT)
        yield _object("NetworkPolicyOfScrubbers", namespace=wanted.namespace)
    for home in homes.values():
        yield _object("ResourceQuota", home=home)
    if NODE_NAME in homes and wanted.admission_policy:
        drivers = [driver.name for driver in parsed.drivers or () if driver.distributed]
        policy = name_outside(NODE_NAME, wanted.namespace)
        yield from node_policy(homes[NODE_NAME], json.dumps(drivers), policy)
    if wanted.replicas > 1:
        yield _object("PodDisruptionBudget", namespace=wanted.namespace)


def node_policy(nodes: str, drivers: str, name: str) -> Iterator[Json]:
    """Tie the writes of the processes of nodes to their node. nodes: their namespace. drivers: a list in JSON."""
    text = text_of("volplane.cli", "node_policy.yaml").replace("NAMESPACE", nodes).replace("POLICY", name)
    yield from yaml.safe_load_all(text.replace("in DRIVERS", f"in {drivers}"))


def storage_classes(drivers: Sequence[str]) -> Iterator[Json]:
    """Yield a class of each driver, named by the first label of the driver's name, if no other begins so."""
    firsts = [driver.partition(".")[0] for driver in drivers]
    for driver, first in zip(drivers, firsts, strict=True):
        yield _object("StorageClass", driver=driver, name=first if firsts.count(first) == 1 else driver)


def _pod(wanted: Installation, account: str, arguments: list[str], mounts: Sequence[str], **more: Any) -> Json:
    root = wanted.as_root and bool(mounts)
    pod = _object(
        "pod",
        account=account,
        image=wanted.image,
        arguments=arguments,
        port=PORT,
        unprivileged=not root,
        user=0 if root else USER,
        group=None if root else USER,
        # What root needs to give directories to users, and to remove what pods of any user have written there.
        capabilities=["CHOWN", "DAC_OVERRIDE", "FOWNER"] if root else None,
        **more,
    )
    for n, path in enumerate(mounts):
        pod["volumes"].append(_object("volume", name=f"mount-{n}", path=path))
        pod["containers"][0]["volumeMounts"].append(_object("volumeMount", name=f"mount-{n}", path=path))
    return pod


def _object(template: str, **values: Any) -> Json:
    made: Json = filled(data_of("volplane.cli", "installation.yaml")[template], values)
    return made
