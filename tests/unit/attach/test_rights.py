"""The rights of the two controllers, each of which may run without the other: those of what they stand for.

Sources: ClusterRole system:controller:attachdetach-controller; deploy/kubernetes/rbac.yaml of external-attacher.
"""

from __future__ import annotations

import pytest

from volplane.cli.installation import cluster_rules

STORAGE, FOLLOW = "storage.k8s.io", {"list", "watch"}
NEEDED = {
    "attach-detach": {
        (STORAGE, "volumeattachments"): {"get", *FOLLOW, "create", "delete"},
        (STORAGE, "csidrivers"): FOLLOW,
        ("", "nodes"): {"get", *FOLLOW},
        ("", "nodes/status"): {"patch"},
        ("", "pods"): FOLLOW,
        ("", "persistentvolumes"): FOLLOW,
        ("", "persistentvolumeclaims"): FOLLOW,
    },
    "attacher": {
        (STORAGE, "volumeattachments"): {"get", *FOLLOW, "create", "patch", "delete"},
        (STORAGE, "volumeattachments/status"): {"patch"},
        (STORAGE, "csidrivers"): {"get", *FOLLOW, "create"},
        ("", "nodes"): {"get", *FOLLOW},
        ("", "persistentvolumes"): FOLLOW,
    },
}


@pytest.mark.parametrize("controller", NEEDED)
def test_each_of_the_two_has_the_rights_that_it_needs_alone(controller: str) -> None:
    given: dict[tuple[str, str], set[str]] = {}
    for rule in cluster_rules([controller], "volplane-system"):
        given.setdefault((rule.group, rule.resource), set()).update(rule.verbs)
    lacking = {what: verbs - given.get(what, set()) for what, verbs in NEEDED[controller].items()}
    assert not any(lacking.values()), lacking
