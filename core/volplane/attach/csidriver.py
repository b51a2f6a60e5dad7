"""The CSIDriver objects of our drivers: whether volumes need attaching, whether their room is published. Pure.

Whether volumes need attaching is written only for a driver whose CSI driver name is its own name; the object of another
name belongs to the node plugin. Without the object kube-controller-manager makes attachments, kubelets wait for them,
and the scheduler ignores every CSIStorageCapacity.
"""

from __future__ import annotations

from volplane.controller.actions import Action, Create, Patch, Settled, Wait, warning
from volplane.kube.kinds import CSI_DRIVERS
from volplane.state.cluster_state import ClusterState

__all__ = ["decide_csi_driver"]


def decide_csi_driver(name: str, cluster: ClusterState, *, attacher: bool, capacity: bool) -> Action:
    """Return the next action for the CSIDriver of the driver of this name.

    attacher, capacity: this process serves attachments, publishes room.
    """
    driver = cluster.drivers.get(name) or cluster.drivers.distributed(name)
    if driver is None:
        return Settled()
    attaches = attacher and driver.info.csi_driver_name == name
    publishes = capacity and cluster.drivers.publishes(name)
    if not attaches and not publishes:
        return Settled()
    found = cluster.csi_drivers.get(name)
    needed = driver.info.attach_required
    if found is None:
        spec = {"attachRequired": needed, "podInfoOnMount": False, "volumeLifecycleModes": ["Persistent"]}
        spec |= {"storageCapacity": True} if publishes else {}
        body = CSI_DRIVERS.body(metadata={"name": name}, spec=spec)
        return Create(kind=CSI_DRIVERS, body=body, why="say what its volumes need")
    if publishes and not found.spec.storage_capacity:
        body = {"spec": {"storageCapacity": True}}
        return Patch(kind=CSI_DRIVERS, target=found, body=body, why="let the scheduler heed its published room")
    if not attaches or found.spec.attach_required == needed:
        return Settled()
    message = (
        f"spec.attachRequired is {str(found.spec.attach_required).lower()}, but driver {name} "
        f"{'attaches its volumes' if needed else 'needs no attaching'}; the field cannot be changed: delete the "
        "object, and it is made anew"
    )
    return Wait(reason=message, events=(warning(CSI_DRIVERS, found, "AttachRequiredDiffers", message),))
