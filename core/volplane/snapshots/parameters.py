"""The parameters of a VolumeSnapshotClass. They are checked as those of a StorageClass, by the driver's schema.

Secrets are options of the driver, by reference, so the keys `csi.storage.k8s.io/snapshotter-secret-…` are refused as
any other that the driver does not know. Without them a snapshot can be deleted whatever becomes of its class.
"""

from __future__ import annotations

from volplane.drivers.driver import DriverView
from volplane.errors import InvalidArgument
from volplane.snapshots.objects import VolumeSnapshotClass


def class_flaw(of_class: VolumeSnapshotClass, driver: DriverView) -> str:
    """Explain why the driver cannot make snapshots of this class; "": it can."""
    kind = type(of_class).__name__
    if of_class.driver != driver.name:
        return (
            f'{kind} "{of_class.name}" is of driver "{of_class.driver}", '
            f'the volume is of driver "{driver.name}"; name a class of that driver'
        )
    if of_class.deletion_policy not in ("Delete", "Retain"):
        policy = of_class.deletion_policy
        return f'{kind} "{of_class.name}": deletionPolicy is "{policy}"; use "Delete" or "Retain"'
    try:
        driver.typed_parameters(of_class.parameters or {}, of_snapshot=True)
    except InvalidArgument as error:
        return f'{kind} "{of_class.name}": {error}'
    return ""
