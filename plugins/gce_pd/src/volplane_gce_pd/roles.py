"""The custom role that the driver needs, made from its calls.

`python -m volplane_gce_pd.roles` prints it, as `gcloud iam roles create --file` takes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from volplane_gce_pd.api import Method

_MORE: Mapping[str, tuple[str, ...]] = {
    "disks.insert": (
        "compute.disks.createTagBinding",
        "compute.disks.setLabels",
        "compute.disks.useReadOnly",
        "compute.images.useReadOnly",
        "compute.snapshots.useReadOnly",
        "compute.storagePools.use",
    ),
    "snapshots.insert": (
        "compute.disks.createSnapshot",
        "compute.snapshots.createTagBinding",
        "compute.snapshots.setLabels",
    ),
    "images.insert": ("compute.disks.useReadOnly", "compute.images.createTagBinding", "compute.images.setLabels"),
    "instances.attachDisk": ("compute.disks.use", "compute.disks.useReadOnly"),
}
"""What methods need beside their own permission (Compute Engine documentation, "IAM permissions for methods")."""
_VERBS = {"insert": "create", "aggregatedList": "list"}


def custom_role() -> dict[str, Any]:
    """Return the role. Permissions of disks are those of regional disks too.

    Attaching to a virtual machine that has a service account also needs the role iam.serviceAccountUser, on that
    account alone; binding tags of Resource Manager needs the role resourcemanager.tagUser on their values.
    """
    needed: set[str] = set()
    for method in Method:
        service, _, name = method.partition(".")
        asset = "disks" if service == "regionDisks" else service
        needed |= {f"compute.{asset}.{_VERBS.get(name, name)}", *_MORE.get(f"{asset}.{name}", ())}
    return {
        "title": "volplane gce_pd",
        "description": "Make, attach, change and delete disks for volumes of Kubernetes",
        "stage": "GA",
        "includedPermissions": sorted(needed),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(custom_role(), indent=2) + "\n")
