"""Builds the RBAC rules of the controllers: exactly the calls that they make. Pure.

Each duty declares its own (`permissions`); all controllers read what the caches hold. The reclaimer alone follows pods
of our namespace, and lists those of another before it erases what was used there.
tests/integration/test_permissions.py runs them and compares their requests with these rules, in both directions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from volplane.controller.config import Configuration
from volplane.controller.controller import FOLLOW, READ, Rule
from volplane.intents.bootstrap import SEAL_SECRET
from volplane.process import duties
from volplane.process.duties import NODE_CONTROLLERS
from volplane.process.process import LEASE
from volplane.secret import Secret, SecretPlace

__all__ = ["Rule", "cluster_rules", "named_secrets", "namespace_rules", "node_cluster_rules", "secret_rule"]


_ALL = (
    Rule("", "persistentvolumes", READ),
    Rule("", "persistentvolumeclaims", READ),
    Rule("", "nodes", FOLLOW),
    Rule("storage.k8s.io", "storageclasses", FOLLOW),
    Rule("", "events", ("create", "get", "patch")),
)
"""What every process needs."""


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
