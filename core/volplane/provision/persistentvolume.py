"""The PersistentVolume that stands for an asset that was made. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from volplane.assets import Asset
from volplane.drivers.view import DriverView
from volplane.intents.requests import split_parameters
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, StorageClass
from volplane.kube.quantity import format_bytes
from volplane.state.naming import handle_in, is_in_tree, reclaim_finalizer, volume_name_of
from volplane.state.records import ClaimIntent

__all__ = ["volume_body"]


def volume_body(
    claim: Claim, storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, asset: Asset
) -> dict[str, Any]:
    """The PersistentVolume for an asset made for this claim."""
    _, release = split_parameters(storage_class)
    policy = storage_class.reclaim_policy
    annotations = {names.PROVISIONED_BY: driver.name}
    annotations |= _own_annotations(driver, intent, asset)
    if release == "recycle":
        annotations[names.ON_RELEASE] = release
    if asset.attributes and asset.source.kind != "csi":
        annotations[names.ATTRIBUTES] = json.dumps(dict(asset.attributes), ensure_ascii=False, sort_keys=True)
    if asset.gid is not None:
        annotations[names.GID] = str(asset.gid)
    metadata: dict[str, Any] = {"name": volume_name_of(claim), "annotations": annotations}
    if policy == "Delete":
        metadata["finalizers"] = [reclaim_finalizer(driver.name)]
    spec: dict[str, Any] = {
        "capacity": {"storage": format_bytes(asset.capacity_bytes)},
        "accessModes": list(claim.spec.access_modes or ()),
        "claimRef": {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
            "resourceVersion": claim.metadata.resource_version,
        },
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": storage_class.name,
        "volumeMode": claim.spec.volume_mode or "Filesystem",
        asset.source.kind: _source_fields(asset),
    }
    mount_options = [*(storage_class.mount_options or ()), *asset.mount_options]
    if mount_options:
        spec["mountOptions"] = mount_options
    if asset.node_affinity:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_term(segment) for segment in asset.node_affinity]}}
    if claim.spec.volume_attributes_class_name:
        spec["volumeAttributesClassName"] = claim.spec.volume_attributes_class_name
    return VOLUMES.body(metadata=metadata, spec=spec)


def _own_annotations(driver: DriverView, intent: ClaimIntent, asset: Asset) -> dict[str, str]:
    """What we note on the volume. Those of in-tree plugin names look as stock tools know them: only what is needed."""
    noted = {names.HANDLE: asset.handle, names.GENERATION: str(intent.generation)}
    if not is_in_tree(driver.name):
        return {**noted, names.DRIVER: driver.name, names.SCHEMA_VERSION: str(driver.info.parameters.version)}
    if intent.generation == 1:
        del noted[names.GENERATION]
    if handle_in(asset.source) == asset.handle:
        del noted[names.HANDLE]
    return noted


def _source_fields(asset: Asset) -> dict[str, Any]:
    fields = dict(asset.source.fields)
    if asset.source.kind == "csi" and asset.attributes:
        fields["volumeAttributes"] = {**asset.attributes, **fields.get("volumeAttributes", {})}
    return fields


def _term(segment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "matchExpressions": [
            {"key": key, "operator": "In", "values": [value]} for key, value in sorted(segment.items())
        ]
    }
