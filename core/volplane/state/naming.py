"""How volumes and assets are named, and what the source of a volume contains. Pure."""

from __future__ import annotations

import hashlib

from volplane.assets import VolumeSource
from volplane.kube import names
from volplane.kube.objects import Claim, Volume

__all__ = [
    "IN_TREE_PREFIX",
    "asset_key",
    "csi_source",
    "generation_of",
    "handle_in",
    "is_in_tree",
    "node_hash",
    "on_release",
    "reclaim_finalizer",
    "shows_asset",
    "source_of",
    "volume_name_of",
    "volume_source",
]

IN_TREE_PREFIX = "kubernetes.io/"
_HANDLES = {
    "csi": "volumeHandle",
    "hostPath": "path",
    "local": "path",
    "nfs": "path",
    "awsElasticBlockStore": "volumeID",
    "gcePersistentDisk": "pdName",
}
_MIGRATED = names.MIGRATED_PLUGINS
_ZONE = "topology.kubernetes.io/zone"
_OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
_MANY_ZONES = "__"
_UNKNOWN = "UNSPECIFIED"


def volume_name_of(claim: Claim) -> str:
    """Return the name of the volume, and of the asset, that is made for the claim."""
    return f"pvc-{claim.uid}"


def node_hash(name: str) -> str:
    """Return the label value for the node of this name, which may be longer than a label value."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def handle_in(source: VolumeSource) -> str:
    """Return the backend's id of the asset as the source has it, or ""."""
    return str(source.fields.get(_HANDLES.get(source.kind, ""), ""))


def csi_source(volume: Volume) -> tuple[str, str]:
    """Return CSI driver name and handle; for an in-tree source of a cloud those that the CSI driver has for it.

    Other sources have two empty texts.
    Source: k8s.io/csi-translation-lib/plugins, aws_ebs.go and gce_pd.go.
    """
    spec, labels = volume.spec, volume.metadata.labels or {}
    if spec.csi is not None:
        return str(spec.csi.get("driver", "")), str(spec.csi.get("volumeHandle", ""))
    if spec.aws_elastic_block_store is not None:
        return _MIGRATED["kubernetes.io/aws-ebs"], str(spec.aws_elastic_block_store.get("volumeID", "")).split("/")[-1]
    if spec.gce_persistent_disk is not None:
        zones = labels.get(_ZONE) or labels.get(_OLD_ZONE) or _UNKNOWN
        regional = _MANY_ZONES in zones
        place = f"regions/{zones.split(_MANY_ZONES)[0].rpartition('-')[0]}" if regional else f"zones/{zones}"
        disk = spec.gce_persistent_disk.get("pdName", "")
        return _MIGRATED["kubernetes.io/gce-pd"], f"projects/{_UNKNOWN}/{place}/disks/{disk}"
    return "", ""


def is_in_tree(driver: str) -> bool:
    """Return whether this names a plugin of Kubernetes: its absence is an error, its marks are the stock ones."""
    return driver.startswith(IN_TREE_PREFIX)


def reclaim_finalizer(driver: str) -> str:
    """Return the finalizer on the volumes that this driver makes."""
    return names.IN_TREE_FINALIZER if is_in_tree(driver) else names.RECLAIM_FINALIZER


def on_release(volume: Volume) -> str:
    """Return what happens with a dynamic volume when its claim is deleted: "recycle" offers it again, else ""."""
    return volume.annotation(names.ON_RELEASE) or ""


def shows_asset(volume: Volume) -> bool:
    """Return whether its annotations say what made it and which asset it holds: a webhook may have removed them."""
    maker = volume.annotation(names.PROVISIONED_BY)
    return maker is not None and (is_in_tree(maker) or volume.annotation(names.HANDLE) is not None)


def generation_of(volume: Volume) -> int:
    """Return which asset of its claim the volume holds; 1, if the annotation is absent or damaged."""
    text = volume.annotation(names.GENERATION) or ""
    return int(text) if text.isdecimal() and len(text) < 10 else 1


def asset_key(volume: Volume) -> str:
    """Return the name by which operations of one driver exclude each other: ours, else handle or source.

    How a disk is mounted does not count: two volumes of one disk may differ in it.
    """
    if volume.annotation(names.PROVISIONED_BY) is not None:
        return volume.name
    source = volume_source(volume)
    if source.kind == "csi":
        return f"csi:{handle_in(source)}"
    return f"{source.kind}:{sorted(source.fields.items())}"


def volume_source(volume: Volume) -> VolumeSource:
    """Return the volume's source; without any, which a real server refuses, one of an unknown kind."""
    return source_of(volume) or VolumeSource(kind="", fields={})


def source_of(volume: Volume) -> VolumeSource | None:
    """Return the volume's source under the API's key, or None if it has none that we know."""
    spec = volume.spec
    for attribute, key in _SOURCES:
        fields = getattr(spec, attribute)
        if fields is not None:
            return VolumeSource(kind=key, fields=fields)
    return None


_SOURCES = (
    ("csi", "csi"),
    ("local", "local"),
    ("host_path", "hostPath"),
    ("nfs", "nfs"),
    ("aws_elastic_block_store", "awsElasticBlockStore"),
    ("gce_persistent_disk", "gcePersistentDisk"),
    ("azure_disk", "azureDisk"),
    ("azure_file", "azureFile"),
    ("cephfs", "cephfs"),
    ("cinder", "cinder"),
    ("fc", "fc"),
    ("flex_volume", "flexVolume"),
    ("flocker", "flocker"),
    ("glusterfs", "glusterfs"),
    ("iscsi", "iscsi"),
    ("photon_persistent_disk", "photonPersistentDisk"),
    ("portworx_volume", "portworxVolume"),
    ("quobyte", "quobyte"),
    ("rbd", "rbd"),
    ("scale_io", "scaleIO"),
    ("storageos", "storageos"),
    ("vsphere_volume", "vsphereVolume"),
)
