"""Build the PersistentVolume of an asset that was made. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from volplane.assets import Asset
from volplane.controller.actions import Action, Patch
from volplane.drivers.view import DriverView
from volplane.intents.ownership import claim_elsewhere
from volplane.intents.record import run_provision, settled_metadata
from volplane.intents.requests import split_parameters
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Claim, StorageClass, Volume
from volplane.kube.quantity import format_bytes
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim, reference_to, refers_to
from volplane.state.naming import (
    handle_in,
    is_in_tree,
    reclaim_finalizer,
    shows_asset,
    volume_name_of,
    volume_source,
)
from volplane.state.progress import Made
from volplane.state.records import ClaimIntent

__all__ = ["awaits_recognition", "restore_annotations", "volume_body"]


def volume_body(
    claim: Claim, storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, asset: Asset
) -> dict[str, Any]:
    """Return the PersistentVolume for an asset made for this claim."""
    policy = storage_class.reclaim_policy
    annotations = _annotations(storage_class, driver, intent, asset)
    metadata: dict[str, Any] = {"name": volume_name_of(claim), "annotations": annotations}
    if policy == "Delete":
        metadata["finalizers"] = [reclaim_finalizer(driver.name)]
    fields = dict(asset.source.fields)
    if asset.source.kind == "csi" and asset.attributes:
        fields["volumeAttributes"] = {**asset.attributes, **fields.get("volumeAttributes", {})}
    spec: dict[str, Any] = {
        "capacity": {"storage": format_bytes(asset.capacity_bytes)},
        "accessModes": list(claim.spec.access_modes or ()),
        "claimRef": reference_to(claim),
        "persistentVolumeReclaimPolicy": policy,
        "storageClassName": storage_class.name,
        "volumeMode": claim.spec.volume_mode or "Filesystem",
        asset.source.kind: fields,
    }
    mount_options = [*(storage_class.mount_options or ()), *asset.mount_options]
    if mount_options:
        spec["mountOptions"] = mount_options
    if asset.node_affinity:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_term(segment) for segment in asset.node_affinity]}}
    if claim.spec.volume_attributes_class_name:
        spec["volumeAttributesClassName"] = claim.spec.volume_attributes_class_name
    return VOLUMES.body(metadata=metadata, spec=spec)


def restore_annotations(claim: Claim, cluster: ClusterState) -> Action | None:
    """Restore what an admission webhook removed from the claim's new volume: without it the asset is never deleted.

    Only while the claim has its record. A process that does not know the asset asks the driver first. None if nothing
    is missing.
    """
    step, intent = cluster.progress.claims.get(claim.uid).step, cluster.intent_of(claim)
    volume = cluster.volumes.get(volume_name_of(claim))
    if volume is None or intent is None or not settled_metadata(claim) or not refers_to(volume, claim):
        return None
    driver = cluster.drivers.get(intent.driver)
    storage_class = cluster.classes.get(class_of_claim(claim) or "")
    if driver is None or storage_class is None:
        return None
    if step is None and awaits_recognition(claim, volume, cluster):
        return run_provision(claim, storage_class, driver)
    if not isinstance(step, Made) or handle_in(step.asset.source) != handle_in(volume_source(volume)):
        return None
    wanted = _annotations(storage_class, driver, intent, step.asset)
    missing = {name: value for name, value in wanted.items() if volume.annotation(name) is None}
    if not missing:
        return None
    why = "the volume lacks annotations that it was made with"
    return Patch(kind=VOLUMES, target=volume, body={"metadata": {"annotations": missing}}, why=why)


def awaits_recognition(claim: Claim, volume: Volume, cluster: ClusterState) -> bool:
    """Return whether only the driver knows the asset of the claim's own volume, and this process has to ask it."""
    intent = cluster.sealer.open(claim.uid, claim.annotation(names.INTENT))
    worked_on = claim.has_finalizer(names.PROVISIONING_FINALIZER) and intent is not None
    return worked_on and refers_to(volume, claim) and not (shows_asset(volume) or claim_elsewhere(claim, cluster))


def _annotations(storage_class: StorageClass, driver: DriverView, intent: ClaimIntent, asset: Asset) -> dict[str, str]:
    _, release = split_parameters(storage_class)
    annotations = {names.PROVISIONED_BY: driver.name}
    annotations |= _own_annotations(driver, intent, asset)
    if release == "recycle":
        annotations[names.ON_RELEASE] = release
    if asset.attributes and asset.source.kind != "csi":
        annotations[names.ATTRIBUTES] = json.dumps(dict(asset.attributes), ensure_ascii=False, sort_keys=True)
    if asset.gid is not None:
        annotations[names.GID] = str(asset.gid)
    return annotations


def _own_annotations(driver: DriverView, intent: ClaimIntent, asset: Asset) -> dict[str, str]:
    """Return our own annotations. Volumes of in-tree plugin names get only what is needed, as stock tools know them."""
    noted = {names.HANDLE: asset.handle, names.GENERATION: str(intent.generation)}
    if not is_in_tree(driver.name):
        return {**noted, names.DRIVER: driver.name, names.SCHEMA_VERSION: str(driver.info.parameters.version)}
    if intent.generation == 1:
        del noted[names.GENERATION]
    if handle_in(asset.source) == asset.handle:
        del noted[names.HANDLE]
    return noted


def _term(segment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "matchExpressions": [
            {"key": key, "operator": "In", "values": [value]} for key, value in sorted(segment.items())
        ]
    }
