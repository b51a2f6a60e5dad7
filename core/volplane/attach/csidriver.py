"""The CSIDriver objects of our drivers: they say whether volumes need attaching. Pure.

Only of a driver whose CSI driver name is its own name; that of another belongs to whoever installs the node plugin.
Without the object kube-controller-manager makes attachments, and kubelets wait for them.
"""

from __future__ import annotations

from volplane.controller.actions import Action, Create, Settled, Wait, warning
from volplane.kube.kinds import CSI_DRIVERS
from volplane.state.cluster_state import ClusterState

__all__ = ["decide_csi_driver"]


def decide_csi_driver(name: str, cluster: ClusterState) -> Action:
    """The next action for the CSIDriver of the driver of this name."""
    driver = cluster.drivers.get(name)
    if driver is None or driver.info.csi_driver_name != name:
        return Settled()
    found = cluster.csi_drivers.get(name)
    needed = driver.info.attach_required
    if found is None:
        spec = {"attachRequired": needed, "podInfoOnMount": False, "volumeLifecycleModes": ["Persistent"]}
        body = CSI_DRIVERS.body(metadata={"name": name}, spec=spec)
        return Create(kind=CSI_DRIVERS, body=body, why="say whether its volumes need attaching")
    if found.spec.attach_required == needed:
        return Settled()
    message = (
        f"spec.attachRequired is {str(found.spec.attach_required).lower()}, but driver {name} "
        f"{'attaches its volumes' if needed else 'needs no attaching'}; the field cannot be changed: delete the "
        "object, and it is made anew"
    )
    return Wait(reason=message, events=(warning(CSI_DRIVERS, found, "AttachRequiredDiffers", message),))
