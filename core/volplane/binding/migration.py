"""Annotation `pv.kubernetes.io/migrated-to`: in-tree plugins whose volumes a CSI driver has taken over. Pure.

Source: `k8s.io/csi-translation-lib`.
"""

from __future__ import annotations

from typing import Any

from volplane.controller.actions import Patch
from volplane.kube import names
from volplane.kube.kinds import Kind
from volplane.kube.objects import Claim, Volume

__all__ = ["MIGRATED_PLUGINS", "csi_driver_of", "migration_step"]

MIGRATED_PLUGINS = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}


def csi_driver_of(plugin: str) -> str | None:
    """The CSI driver that has taken over from an in-tree plugin of this name, if one has."""
    return MIGRATED_PLUGINS.get(plugin)


def migration_step(kind: Kind[Any], item: Claim | Volume) -> Patch | None:
    """Set or remove `migrated-to` as the plugin that made the volume, or is asked to, demands."""
    if isinstance(item, Volume):
        plugin = item.annotation(names.PROVISIONED_BY)
    else:
        plugin = item.annotation(names.STORAGE_PROVISIONER) or item.annotation(names.BETA_STORAGE_PROVISIONER)
    if plugin is None:
        return None
    wanted, present = csi_driver_of(plugin), item.annotation(names.MIGRATED_TO)
    if wanted == present or (wanted is None and not present):
        return None
    body = {"metadata": {"annotations": {names.MIGRATED_TO: wanted}}}
    return Patch(kind=kind, target=item, body=body, why=f"plugin {plugin} is served by {wanted or 'nobody else'}")
