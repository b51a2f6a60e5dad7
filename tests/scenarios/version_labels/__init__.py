"""The controller of CONTRIBUTING.md: it labels each volume with the version of the driver that made it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from volplane.controller.actions import Action, Patch, Settled, Wait
from volplane.controller.controller import Controller, Duty, Role, Rule
from volplane.intents.operation import OperationDeps
from volplane.kube.kinds import VOLUMES
from volplane.kube.names import PROVISIONED_BY
from volplane.kube.objects import Volume
from volplane.state.cluster_state import ClusterState

__all__ = ["LABEL", "VERSION_LABELS"]

LABEL: Final = "example.com/driver-version"
VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What the API server takes as the value of a label."""


def decide_label(name: str, cluster: ClusterState) -> Action:
    """Return the next action for the label of the volume with this name."""
    volume = cluster.volumes.get(name)
    maker = volume.annotation(PROVISIONED_BY) if volume is not None else None
    if volume is None or maker is None:
        return Settled()
    if volume.status.phase in ("", "Pending"):
        # The binder is about to write the phase: a write at the same moment would be a conflict for one of the two.
        return Wait(reason="its phase is not written yet")
    driver = cluster.drivers.get(maker) or cluster.drivers.distributed(maker)
    if driver is None:
        ours = cluster.has_driver(maker) or cluster.drivers.on_nodes(maker)
        return Wait(reason=f"driver {maker} cannot say its version") if ours else Settled()
    version = driver.info.version
    if not VALUE.fullmatch(version):
        return Wait(reason=f"the version {version!r} of driver {maker} cannot be a label")
    if (volume.metadata.labels or {}).get(LABEL) == version:
        return Settled()
    body = {"metadata": {"labels": {LABEL: version}}}
    return Patch(kind=VOLUMES, target=volume, body=body, why=f"it was made by version {version}")


def _controllers(_role: Role, deps: OperationDeps) -> Iterable[Controller]:
    cluster, queue = deps.cluster, deps.queue("labelled-volumes")

    def changed(old: Volume | None, new: Volume | None) -> None:
        # A volume that is gone is queued too: the pass that finds nothing ends the reason for which it waited.
        if (volume := new or old) is not None:
            queue.enqueue(volume.name)

    def subscribe() -> None:
        cluster.volumes.subscribe(changed)

    def of_driver(name: str) -> Iterator[str]:
        return (each.name for each in cluster.volumes.values() if each.annotation(PROVISIONED_BY) == name)

    yield Controller(
        queue="labelled-volumes",
        cache=cluster.volumes,
        decide=lambda key, _reads: decide_label(key, cluster),
        subscribe=subscribe,
        resync=cluster.volumes.keys,
        of_driver=of_driver,
    )


VERSION_LABELS: Final[Duty[OperationDeps]] = Duty(
    option="version-labels",
    permissions=(Rule("", "persistentvolumes", ("patch",)),),
    controllers=_controllers,
)
