"""What the controllers may do in a cluster: no more than what their code calls. Pure.

Everybody reads what the caches hold. A test runs the controllers and compares what they really asked the API server
with these rules, in both directions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from volplane.controller.config import Configuration
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.process import LEASE
from volplane.secret import Secret, SecretPlace

__all__ = ["Rule", "cluster_rules", "named_secrets", "namespace_rules", "scrubs", "secret_rule"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on a resource of an API group ("" = core). names: only objects called so; empty = all."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """As RBAC has it."""
        told: dict[str, Any] = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return told | ({"resourceNames": list(self.names)} if self.names else {})


READ = ("get", "list", "watch")
FOLLOW = ("list", "watch")

_EVERYBODY = (
    Rule("", "persistentvolumes", READ),
    Rule("", "persistentvolumeclaims", READ),
    Rule("", "pods", FOLLOW),
    Rule("", "nodes", FOLLOW),
    Rule("storage.k8s.io", "storageclasses", FOLLOW),
    Rule("", "events", ("create", "get", "patch")),
)
_OF_CONTROLLER = {
    "binder": (
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumes/status", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumeclaims/status", ("patch",)),
    ),
    "provisioner": (
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumes", ("create",)),
        Rule("", "nodes", ("get",)),
    ),
    "reclaimer": (Rule("", "persistentvolumes", ("patch", "delete")),),
    "protection": (
        Rule("", "persistentvolumes", ("patch",)),
        Rule("", "persistentvolumeclaims", ("patch",)),
    ),
}
_SCRUBBING = (
    Rule("", "pods", ("get", "create", "patch", "delete")),
    Rule("", "events", FOLLOW),
)
"""In our namespace: scrubber pods, and what is said about them."""


def cluster_rules(controllers: Collection[str], namespace: str) -> list[Rule]:
    """For a ClusterRole. namespace: ours, whose existence is looked for, beside the one whose uid names the cluster."""
    rules = [*_EVERYBODY, Rule("", "namespaces", ("get",), tuple(sorted({"kube-system", namespace})))]
    for controller in controllers:
        rules += _OF_CONTROLLER[controller]
    return _merged(rules)


def namespace_rules(controllers: Collection[str], secrets: Iterable[str] = ()) -> list[Rule]:
    """For a Role in our namespace. A create cannot be narrowed to a name. secrets: names of those that options name."""
    rules = [
        Rule("coordination.k8s.io", "leases", ("create",)),
        Rule("coordination.k8s.io", "leases", ("get", "patch"), (LEASE,)),
        Rule("", "secrets", ("create",)),
        secret_rule({SEAL_SECRET, *secrets}),
    ]
    if scrubs(controllers):
        rules += _SCRUBBING
    return _merged(rules)


def secret_rule(names: Iterable[str]) -> Rule:
    """To read these Secrets and no others: a list or a watch could not be narrowed."""
    return Rule("", "secrets", ("get",), tuple(sorted(names)))


def named_secrets(configuration: Configuration) -> dict[str, set[str]]:
    """Namespace -> names of the Secrets that options of drivers and extensions name, in secret:NAMESPACE/NAME/KEY."""
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


def scrubs(controllers: Collection[str]) -> bool:
    """Whether these make scrubber pods: beside a stock binder, recycling stays with it."""
    return {"binder", "reclaimer"} <= set(controllers)


def _merged(rules: Iterable[Rule]) -> list[Rule]:
    """One rule a resource (and names), with all verbs, in the order of the resources' first mention."""
    verbs: dict[tuple[str, str, tuple[str, ...]], dict[str, None]] = {}
    for rule in rules:
        verbs.setdefault((rule.group, rule.resource, rule.names), {}).update(dict.fromkeys(rule.verbs))
    return [Rule(group, resource, tuple(told), named) for (group, resource, named), told in verbs.items()]
