"""The RBAC rules of the controllers: exactly the calls that they make. Pure.

All controllers read what the caches hold; the reclaimer alone follows pods of our namespace, and lists those of another
before it erases what was used there. tests/integration/test_permissions.py runs them and compares their requests with
these rules, in both directions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from volplane.controller.config import NODE_CONTROLLERS, Configuration, scrubs
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.process.process import LEASE
from volplane.secret import Secret, SecretPlace

__all__ = ["Rule", "cluster_rules", "named_secrets", "namespace_rules", "node_cluster_rules", "secret_rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on a resource of an API group ("" = core). names: only objects of these names; empty = all."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """A PolicyRule of rbac.authorization.k8s.io/v1."""
        rule: dict[str, Any] = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


READ = ("get", "list", "watch")
FOLLOW = ("list", "watch")

_ALL = (
    Rule("", "persistentvolumes", READ),
    Rule("", "persistentvolumeclaims", READ),
    Rule("", "nodes", FOLLOW),
    Rule("storage.k8s.io", "storageclasses", FOLLOW),
    Rule("", "events", ("create", "get", "patch")),
)
_OF_CONTROLLER = {
    "binder": (
        Rule("", "pods", FOLLOW),
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumes/status", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
    ),
    "provisioner": (
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumes", ("create",)),
        Rule("", "nodes", ("get",)),
        Rule("storage.k8s.io", "volumeattributesclasses", ("get",)),
        Rule("storage.k8s.io", "storageclasses", ("get",)),
    ),
    "reclaimer": (
        Rule("", "persistentvolumes", ("patch", "delete")),
        Rule("", "pods", ("list",)),
    ),
    "expander": (
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
        Rule("storage.k8s.io", "volumeattributesclasses", ("get",)),
    ),
    "protection": (
        Rule("", "pods", FOLLOW),
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
    ),
    "attacher": (
        Rule("storage.k8s.io", "volumeattachments", ("get", "list", "watch", "create", "patch", "delete")),
        Rule("storage.k8s.io", "volumeattachments/status", ("patch",)),
        Rule("", "nodes", ("get",)),
        Rule("storage.k8s.io", "csidrivers", ("get", "list", "watch", "create")),
    ),
    "attach-detach": (
        Rule("storage.k8s.io", "volumeattachments", ("get", "list", "watch", "create", "delete")),
        Rule("storage.k8s.io", "csidrivers", FOLLOW),
        Rule("", "nodes", ("get",)),
        Rule("", "nodes/status", ("patch",)),
    ),
}
_OF_DISTRIBUTED = {
    "assigner": (
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "nodes", ("get",)),
    ),
    "capacity": (
        Rule("storage.k8s.io", "csidrivers", ("get", "list", "watch", "create", "patch")),
        Rule("", "nodes", ("get",)),
    ),
}
"""What there is for these controllers to do where a driver is distributed, and only there."""
_SCRUBBING = (
    Rule("", "pods", (*READ, "create", "patch", "delete")),
    Rule("", "events", FOLLOW),
)
"""In our namespace: scrubber pods and their events."""
_SCRUBBING_BY_CLAIM = Rule("", "persistentvolumeclaims", ("create", "delete"))
"""In our namespace, for scrubber pods that mount a csi volume. Processes of nodes have no such volumes."""


def cluster_rules(controllers: Collection[str], namespace: str, *, distributed: bool = False) -> list[Rule]:
    """For a ClusterRole. namespace: ours; it is read, as is kube-system, whose uid is the default cluster id.

    distributed: some drivers are served by processes of nodes, or publish their room.
    """
    rules = [*_ALL, Rule("", "namespaces", ("get",), tuple(sorted({"kube-system", namespace})))]
    for controller in sorted(controllers):
        rules += _OF_CONTROLLER.get(controller, ())
        rules += _OF_DISTRIBUTED.get(controller, ()) if distributed else ()
    return _merged(rules)


def node_cluster_rules(namespace: str) -> list[Rule]:
    """For the ClusterRole of the processes of nodes: they share an account, and RBAC knows no labels, so that it cannot
    say that each may touch what belongs to its own node alone.
    """
    return cluster_rules(NODE_CONTROLLERS, namespace)  # They publish room, and need no CSIDriver for that.


def namespace_rules(
    controllers: Collection[str],
    secrets: Iterable[str] = (),
    *,
    leases: Iterable[str] = (LEASE,),
    publishing: bool = False,
) -> list[Rule]:
    """For a Role in our namespace. secrets: names from the options. leases: names; empty = any, for processes of nodes.
    publishing: the room of some driver is published.

    RBAC cannot restrict a create to a name.
    """
    rules = [
        Rule("coordination.k8s.io", "leases", ("create",)),
        Rule("coordination.k8s.io", "leases", ("get", "patch"), tuple(leases)),
        Rule("", "secrets", ("create",)),
        secret_rule({SEAL_SECRET, *secrets}),
    ]
    if scrubs(controllers):
        rules += (*_SCRUBBING, _SCRUBBING_BY_CLAIM) if leases else _SCRUBBING
    if publishing and "capacity" in controllers:
        rules.append(Rule("storage.k8s.io", "csistoragecapacities", (*READ, "create", "patch", "delete")))
    elif publishing and "assigner" in controllers:
        rules.append(Rule("storage.k8s.io", "csistoragecapacities", FOLLOW))
    return _merged(rules)


def secret_rule(names: Iterable[str]) -> Rule:
    """To get these Secrets and no others. Neither list nor watch is allowed: RBAC cannot restrict them to names."""
    return Rule("", "secrets", ("get",), tuple(sorted(names)))


def named_secrets(configuration: Configuration) -> dict[str, set[str]]:
    """Namespace -> names of the Secrets that options refer to, as secret:NAMESPACE/NAME/KEY."""
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
    """One rule per resource and names, with all verbs, in the order in which resources first appear."""
    verbs: dict[tuple[str, str, tuple[str, ...]], dict[str, None]] = {}
    for rule in rules:
        verbs.setdefault((rule.group, rule.resource, rule.names), {}).update(dict.fromkeys(rule.verbs))
    return [Rule(group, resource, tuple(all_verbs), named) for (group, resource, named), all_verbs in verbs.items()]
