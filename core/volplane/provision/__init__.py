"""Provisioning: from an unbound claim to the volume that is made for it.

`decide` returns the next action, `operation` makes the live checks and calls the hook. `volplane.roles` calls them. It
never binds, and never deletes an asset: what must go is handed to `DiscardOperation`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from volplane.controller.controller import Duty, Handler, Rule
from volplane.intents.operation import DiscardOperation, OperationDeps
from volplane.provision.operation import ProvisionOperation
from volplane.snapshots.source import find_source

__all__ = ["PROVISIONER", "operations"]


def operations(deps: OperationDeps) -> Mapping[str, Handler]:
    """Return what the queue of claims runs for this duty."""
    return {
        "provision": ProvisionOperation(deps),
        "discard": DiscardOperation(deps),
        "find-source": partial(find_source, deps=deps),
    }


PROVISIONER: Final[Duty[OperationDeps]] = Duty(
    option="provisioner",
    default=True,
    on_nodes=True,
    permissions=(
        Rule("", "persistentvolumeclaims", ("patch",)),
        Rule("", "persistentvolumes", ("create",)),
        Rule("", "nodes", ("get",)),
        Rule("storage.k8s.io", "volumeattributesclasses", ("get",)),
        Rule("storage.k8s.io", "storageclasses", ("get",)),
        Rule("snapshot.storage.k8s.io", "volumesnapshots", ("get", "patch"), where="cluster"),
        Rule("snapshot.storage.k8s.io", "volumesnapshotcontents", ("get",), where="cluster"),
        Rule("gateway.networking.k8s.io", "referencegrants", ("list",), where="cluster"),
    ),
)
