"""A stand-in for the persistent-volume controller of a stock kube-controller-manager (1.36), without plugins.

It does what pkg/controller/volume/persistentvolume of Kubernetes does, in the same order of writes (pv_controller.go,
pv_controller_base.go): one worker for claims and one for volumes, own caches with the version rule, PUT of whole
objects, a resync every 15 s, no wake-ups of its own invention.
Provisioners with external names are asked by annotation; volumes whose maker has an external name are left to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from integration.stock_api import (
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    VOLUMES,
    Informer,
    Json,
    Queue,
    StockApi,
    edited,
    key_of,
    note,
)
from volplane.kube.quantity import parse

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONER_BETA = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
CLASS_BETA = "volume.beta.kubernetes.io/storage-class"
RESYNC = 15.0
MIGRATED = {"kubernetes.io/aws-ebs": "ebs.csi.aws.com", "kubernetes.io/gce-pd": "pd.csi.storage.gke.io"}
MODES = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def class_of(item: Json) -> str | None:
    """None: none is set."""
    annotations = item["metadata"].get("annotations") or {}
    found = annotations.get(CLASS_BETA, item["spec"].get("storageClassName"))
    return found if found is None else str(found)


def names_claim(volume: Json, claim: Json) -> bool:
    """The reference is this claim's: name, namespace, and a uid that is empty or equal."""
    reference, meta = volume["spec"].get("claimRef"), claim["metadata"]
    return (
        reference is not None
        and reference.get("name") == meta["name"]
        and reference.get("namespace") == meta["namespace"]
        and reference.get("uid", "") in ("", meta["uid"])
    )


def _size(quantities: Json | None) -> int:
    return parse((quantities or {}).get("storage", "0")).nanos


class Cached:
    """The controller's own cache: an older version than the known one is refused."""

    def __init__(self) -> None:
        self.items: dict[str, Json] = {}

    def store(self, item: Json) -> bool:
        known = self.items.get(key_of(item))
        if known is not None and int(known["metadata"]["resourceVersion"]) > int(item["metadata"]["resourceVersion"]):
            return False
        self.items[key_of(item)] = item
        return True


class StockBinder:
    """events: reasons by count. asked: provisioners it asked. beta_only: mark claims as releases before 1.23 did."""

    def __init__(self, api: StockApi, *, beta_only: bool = False) -> None:
        self.events: Counter[str] = Counter()
        self.recycles: set[str] = set()
        self._api = api
        self._beta_only = beta_only
        self._informers = {plural: Informer(api, plural) for plural in (CLAIMS, VOLUMES, CLASSES, PODS, NODES)}
        self._claims, self._volumes = Cached(), Cached()
        self._claim_queue, self._volume_queue = Queue(self._claim_key), Queue(self._volume_key)
        self._informers[CLAIMS].listeners.append(self._claim_queue.add)
        self._informers[VOLUMES].listeners.append(self._volume_queue.add)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for informer in self._informers.values():
                group.create_task(informer.run())
            for informer in self._informers.values():
                await informer.synced.wait()
            for item in self._informers[CLAIMS].items.values():
                self._claims.store(item)
            for item in self._informers[VOLUMES].items.values():
                self._volumes.store(item)
            group.create_task(self._claim_queue.run())
            group.create_task(self._volume_queue.run())
            while True:
                for key in self._informers[CLAIMS].items:
                    self._claim_queue.add(key)
                for key in self._informers[VOLUMES].items:
                    self._volume_queue.add(key)
                await asyncio.sleep(RESYNC)

    def _event(self, reason: str) -> None:
        self.events[reason] += 1

    # --- dispatch (pv_controller_base.go) ---------------------------------------------------------------------------

    async def _claim_key(self, key: str) -> None:
        claim = self._informers[CLAIMS].items.get(key)
        if claim is not None:
            if self._claims.store(claim):
                await self._sync_claim(claim)
            return
        gone = self._claims.items.pop(key, None)
        if gone is not None and gone["spec"].get("volumeName"):
            self._volume_queue.add(gone["spec"]["volumeName"])

    async def _volume_key(self, key: str) -> None:
        volume = self._informers[VOLUMES].items.get(key)
        if volume is not None:
            if self._volumes.store(volume):
                await self._sync_volume(volume)
            return
        gone = self._volumes.items.pop(key, None)
        if gone is not None and (reference := gone["spec"].get("claimRef")) is not None:
            self._claim_queue.add(f"{reference.get('namespace')}/{reference['name']}")

    # --- claims (syncClaim) ---------------------------------------------------------------------------------------

    async def _sync_claim(self, claim: Json) -> None:
        maker = note(claim, PROVISIONER) or note(claim, PROVISIONER_BETA)
        claim = await self._migrate(CLAIMS, claim, maker)
        if note(claim, BIND_COMPLETED):
            await self._sync_bound(claim)
        elif claim["spec"].get("volumeName"):
            await self._sync_named(claim)
        else:
            await self._sync_unbound(claim)

    async def _sync_unbound(self, claim: Json) -> None:
        name = class_of(claim)
        storage_class = self._informers[CLASSES].items.get(name) if name else None
        delayed = storage_class is not None and storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        if (volume := self._search(claim, delayed=delayed)) is not None:
            await self._bind(volume, claim)
        elif name is None and (default := self._default_class()):
            fresh = edited(claim)
            fresh["spec"]["storageClassName"] = default
            await self._api.put(CLAIMS, fresh)
        elif delayed and not note(claim, SELECTED_NODE):
            self._event("WaitForFirstConsumer")
            await self._claim_status(claim, "Pending", None)
        elif name:
            await self._provision(claim, storage_class)
        else:
            self._event("FailedBinding")
            await self._claim_status(claim, "Pending", None)

    def _default_class(self) -> str:
        marked = [c for c in self._informers[CLASSES].items.values() if note(c, DEFAULT_CLASS) == "true"]
        marked.sort(key=lambda c: c["metadata"]["name"])
        marked.sort(key=lambda c: c["metadata"]["creationTimestamp"], reverse=True)
        return str(marked[0]["metadata"]["name"]) if marked else ""

    def _search(self, claim: Json, *, delayed: bool) -> Json | None:
        wanted = set(claim["spec"].get("accessModes") or ())
        buckets: dict[tuple[str, ...], list[Json]] = {}
        for volume in self._volumes.items.values():
            held = volume["spec"].get("accessModes") or ()
            if wanted.issubset(held):
                buckets.setdefault(tuple(mode for mode in MODES if mode in held), []).append(volume)
        for modes in sorted(buckets, key=len):
            found = self._best(claim, buckets[modes], delayed=delayed)
            if found is not None:
                return found
        return None

    def _best(self, claim: Json, volumes: list[Json], *, delayed: bool) -> Json | None:
        best: Json | None = None
        for volume in volumes:
            spec, mine = volume["spec"], names_claim(volume, claim)
            if (spec.get("claimRef") is not None and not mine) or self._unfit(volume, claim):
                continue
            if mine:
                return volume
            labels = (claim["spec"].get("selector") or {}).get("matchLabels") or {}
            carried = volume["metadata"].get("labels") or {}
            free = volume["status"].get("phase") == "Available" and not delayed
            chosen = all(carried.get(name) == value for name, value in labels.items())
            if free and chosen and (class_of(volume) or "") == (class_of(claim) or ""):
                smaller = best is None or _size(spec["capacity"]) < _size(best["spec"]["capacity"])
                best = volume if smaller else best
        return best

    def _unfit(self, volume: Json, claim: Json) -> bool:
        spec, wanted = volume["spec"], claim["spec"]
        return (
            _size(spec.get("capacity")) < _size(wanted["resources"].get("requests"))
            or (spec.get("volumeMode") or "Filesystem") != (wanted.get("volumeMode") or "Filesystem")
            or (spec.get("volumeAttributesClassName") or "") != (wanted.get("volumeAttributesClassName") or "")
            or "deletionTimestamp" in volume["metadata"]
        )

    async def _sync_named(self, claim: Json) -> None:
        volume = self._volumes.items.get(claim["spec"]["volumeName"])
        if volume is None:
            await self._claim_status(claim, "Pending", None)
        elif volume["spec"].get("claimRef") is None:
            modes = set(claim["spec"].get("accessModes") or ())
            fits = modes.issubset(volume["spec"].get("accessModes") or ()) and not self._unfit(volume, claim)
            if fits and (class_of(volume) or "") == (class_of(claim) or ""):
                await self._bind(volume, claim)
            else:
                self._event("VolumeMismatch")
                await self._claim_status(claim, "Pending", None)
        elif names_claim(volume, claim):
            await self._bind(volume, claim)
        else:
            self._event("FailedBinding")
            if not note(claim, BOUND_BY_CONTROLLER):
                await self._claim_status(claim, "Pending", None)

    async def _sync_bound(self, claim: Json) -> None:
        volume = self._volumes.items.get(claim["spec"].get("volumeName", ""))
        reference = volume["spec"].get("claimRef") if volume is not None else None
        if volume is None:
            await self._lost(claim, "ClaimLost")
        elif reference is None or reference.get("uid") == claim["metadata"]["uid"]:
            await self._bind(volume, claim)
        else:
            await self._lost(claim, "ClaimMisbound")

    async def _lost(self, claim: Json, reason: str) -> None:
        if claim["status"].get("phase") != "Lost":
            self._event(reason)
        await self._claim_status(claim, "Lost", None)

    async def _claim_status(self, claim: Json, phase: str, volume: Json | None) -> None:
        status = edited(claim.get("status") or {})
        if volume is None:
            for field in ("accessModes", "capacity", "currentVolumeAttributesClassName"):
                status.pop(field, None)
        else:
            status["accessModes"] = volume["spec"]["accessModes"]
            if status.get("phase") != phase:
                status["capacity"] = {"storage": volume["spec"]["capacity"]["storage"]}
        status["phase"] = phase
        if status != (claim.get("status") or {}):
            self._claims.store(await self._api.put(CLAIMS, {**claim, "status": status}, "status"))

    # --- bind and unbind ------------------------------------------------------------------------------

    async def _bind(self, volume: Json, claim: Json) -> None:
        volume = await self._reserve(volume, claim)
        volume = await self._phase(volume, "Bound")
        claim = await self._point(claim, volume)
        await self._claim_status(claim, "Bound", volume)

    async def _reserve(self, volume: Json, claim: Json) -> Json:
        if names_claim(volume, claim) and volume["spec"]["claimRef"].get("uid"):
            return volume
        fresh, meta = edited(volume), claim["metadata"]
        fresh["spec"]["claimRef"] = {
            "kind": "PersistentVolumeClaim",
            "apiVersion": "v1",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        }
        if not names_claim(volume, claim):
            fresh["metadata"].setdefault("annotations", {})[BOUND_BY_CONTROLLER] = "yes"
        return await self._put_volume(fresh)

    async def _point(self, claim: Json, volume: Json) -> Json:
        name = volume["metadata"]["name"]
        if claim["spec"].get("volumeName") == name and note(claim, BIND_COMPLETED):
            return claim
        fresh = edited(claim)
        annotations = fresh["metadata"].setdefault("annotations", {})
        if claim["spec"].get("volumeName") != name:
            fresh["spec"]["volumeName"] = name
            annotations[BOUND_BY_CONTROLLER] = "yes"
        annotations[BIND_COMPLETED] = "yes"
        stored = await self._api.put(CLAIMS, fresh)
        self._claims.store(stored)
        return stored

    async def _unbind(self, volume: Json) -> None:
        fresh = edited(volume)
        if note(volume, BOUND_BY_CONTROLLER):
            del fresh["spec"]["claimRef"]
            del fresh["metadata"]["annotations"][BOUND_BY_CONTROLLER]
        else:
            fresh["spec"]["claimRef"].pop("uid", None)
            fresh["spec"]["claimRef"].pop("resourceVersion", None)
        await self._phase(await self._put_volume(fresh), "Available")

    async def _put_volume(self, volume: Json) -> Json:
        stored = await self._api.put(VOLUMES, volume)
        self._volumes.store(stored)
        return stored

    async def _phase(self, volume: Json, phase: str) -> Json:
        if (volume.get("status") or {}).get("phase") == phase:
            return volume
        stored = await self._api.put(VOLUMES, {**volume, "status": {"phase": phase}}, "status")
        self._volumes.store(stored)
        return stored

    # --- volumes (sections 7 and 8) -------------------------------------------------------------------------------

    async def _sync_volume(self, volume: Json) -> None:
        volume = await self._migrate(VOLUMES, volume, note(volume, PROVISIONED_BY))
        reference = volume["spec"].get("claimRef")
        if reference is None or not reference.get("uid"):
            await self._phase(volume, "Available")
            return
        claim = await self._claim_of(volume, reference)
        if claim is None:
            await self._released(volume)
        elif not claim["spec"].get("volumeName"):
            self._claim_queue.add(key_of(claim))
        elif claim["spec"]["volumeName"] == volume["metadata"]["name"]:
            await self._phase(volume, "Bound")
        elif note(volume, PROVISIONED_BY) and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            await self._released(volume)
        else:
            await self._unbind(volume)

    async def _claim_of(self, volume: Json, reference: Json) -> Json | None:
        key = f"{reference.get('namespace')}/{reference['name']}"
        claim = self._claims.items.get(key)
        settled = volume["status"].get("phase") in ("Released", "Failed")
        if claim is None and not settled:
            claim = self._informers[CLAIMS].items.get(key) or await self._api.get(CLAIMS, key)
        if claim is not None and claim["metadata"]["uid"] != reference["uid"]:
            claim = await self._api.get(CLAIMS, key)
        return claim if claim is not None and claim["metadata"]["uid"] == reference["uid"] else None

    async def _released(self, volume: Json) -> None:
        if volume["status"].get("phase") not in ("Released", "Failed"):
            volume = await self._phase(volume, "Released")
        if note(volume, MIGRATED_TO):
            return
        policy, maker = volume["spec"]["persistentVolumeReclaimPolicy"], note(volume, PROVISIONED_BY)
        if policy == "Recycle":
            self.recycles.add(volume["metadata"]["name"])
        elif policy == "Delete" and (not maker or maker.startswith("kubernetes.io/")) and not volume["spec"].get("csi"):
            self._event("VolumeFailedDelete")
            await self._phase(volume, "Failed")

    # --- provisioning and migration ------------------------------------------------------

    async def _provision(self, claim: Json, storage_class: Json | None) -> None:
        if storage_class is None:
            self._event("ProvisioningFailed")
            return
        provisioner = MIGRATED.get(storage_class["provisioner"], storage_class["provisioner"])
        if provisioner.startswith("kubernetes.io/"):
            self._event("ProvisioningFailed")
            return
        names = (PROVISIONER_BETA,) if self._beta_only else (PROVISIONER, PROVISIONER_BETA)
        if note(claim, names[0]) != provisioner:
            fresh = edited(claim)
            fresh["metadata"].setdefault("annotations", {}).update(dict.fromkeys(names, provisioner))
            self._claims.store(await self._api.put(CLAIMS, fresh))
        self._event("ExternalProvisioning")

    async def _migrate(self, plural: str, item: Json, maker: str) -> Json:
        wanted: Any = MIGRATED.get(maker, "")
        if not maker or wanted == note(item, MIGRATED_TO):
            return item
        fresh = edited(item)
        annotations = fresh["metadata"].setdefault("annotations", {})
        if wanted:
            annotations[MIGRATED_TO] = wanted
        else:
            annotations.pop(MIGRATED_TO)
        stored = await self._api.put(plural, fresh)
        (self._claims if plural == CLAIMS else self._volumes).store(stored)
        return stored
