"""A stand-in for a stock snapshot-controller (external-snapshotter 8.6), with its Lease.

It does what pkg/common-controller does for dynamic and pre-provisioned snapshots, in the same order of writes, from
informers of its own: finalizers by PUT, annotations by a JSON patch of the whole map without a version.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from integration import stock_api
from integration.stock_api import CLAIMS, VOLUMES, Informer, Json, Queue, StockApi, StockError, edited, key_of

SNAPSHOTS, CONTENTS, CLASSES = "volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_PREFIX = "snapshot.storage.kubernetes.io/"
AS_SOURCE, BOUND = f"{_PREFIX}volumesnapshot-as-source-protection", f"{_PREFIX}volumesnapshot-bound-protection"
CONTENT_BOUND, OF_CLAIM = f"{_PREFIX}volumesnapshotcontent-bound-protection", f"{_PREFIX}pvc-as-source-protection"
BEING_DELETED = f"{_PREFIX}volumesnapshot-being-deleted"
stock_api.GROUPS.update(dict.fromkeys((SNAPSHOTS, CONTENTS, CLASSES), "/apis/snapshot.storage.k8s.io/v1"))


def finalizers(item: Json) -> list[str]:
    return list(item["metadata"].get("finalizers") or [])


def terminating(item: Json) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


class StockSnapshotController:
    """The common half, one worker for each kind."""

    def __init__(self, api: StockApi) -> None:
        self._api = api
        self._informers = {plural: Informer(api, plural) for plural in (SNAPSHOTS, CONTENTS, CLASSES, CLAIMS, VOLUMES)}
        self._queues = {SNAPSHOTS: Queue(self._snapshot), CONTENTS: Queue(self._content)}
        for plural, queue in self._queues.items():
            self._informers[plural].listeners.append(queue.add)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lead())
            for informer in self._informers.values():
                group.create_task(informer.run())
            for informer in self._informers.values():
                await informer.synced.wait()
            for queue in self._queues.values():
                group.create_task(queue.run())
            while True:
                await asyncio.sleep(900.0)
                for plural, queue in self._queues.items():
                    for key in self._informers[plural].items:
                        queue.add(key)

    async def _lead(self) -> None:
        path, renewals = f"{LEASE}/snapshot-controller-leader", 0
        body: Json = {"metadata": {"name": "snapshot-controller-leader", "namespace": "kube-system"}}
        spec: Json = {"holderIdentity": "stock", "leaseDurationSeconds": 15, "leaseTransitions": 0}
        try:
            lease = await self._api.call("POST", LEASE, body | {"spec": spec})
        except StockError:
            lease = await self._api.call("GET", path)
        while True:
            renewals += 1
            lease["spec"] = spec | {"renewTime": f"2026-01-01T00:00:00.{renewals:06}Z"}
            lease = await self._api.call("PUT", path, lease)
            await asyncio.sleep(5.0)

    def _item(self, plural: str, key: str) -> Json | None:
        return self._informers[plural].items.get(key)

    async def _put(self, plural: str, item: Json, names: list[str]) -> Json:
        changed = edited(item)
        changed["metadata"]["finalizers"] = names
        return await self._api.put(plural, changed)

    async def _annotate(self, content: Json, name: str) -> None:
        """Replace the whole map, as it is in the cache: what others have written since is lost."""
        value = {**(content["metadata"].get("annotations") or {}), name: "yes"}
        await asyncio.sleep(0)
        patch = [{"op": "replace", "path": "/metadata/annotations", "value": value}]
        path = self._api.path(CONTENTS, key_of(content))
        headers = {"content-type": "application/json-patch+json"}
        answer = self._api.server.handle("PATCH", path, {}, headers, json.dumps(patch).encode())
        if answer.status >= 300:
            raise StockError(answer.status, answer.body.decode())

    def _claim_of(self, snapshot: Json) -> str:
        return f"{snapshot['metadata']['namespace']}/{snapshot['spec']['source'].get('persistentVolumeClaimName')}"

    def _content_of(self, snapshot: Json) -> Json | None:
        source, status = snapshot["spec"]["source"], snapshot.get("status") or {}
        name = source.get("volumeSnapshotContentName") or f"snapcontent-{snapshot['metadata']['uid']}"
        content = self._item(CONTENTS, status.get("boundVolumeSnapshotContentName") or name)
        reference = (content or {"spec": {"volumeSnapshotRef": {}}})["spec"]["volumeSnapshotRef"]
        mine = reference.get("uid") in (None, "", snapshot["metadata"]["uid"])
        return content if mine and reference.get("name") == snapshot["metadata"]["name"] else None

    async def _snapshot(self, key: str) -> None:
        snapshot = self._item(SNAPSHOTS, key)
        if snapshot is None:
            return
        await self._free_claim(self._claim_of(snapshot))
        if terminating(snapshot):
            await self._delete(snapshot)
            return
        if AS_SOURCE not in finalizers(snapshot):
            await self._put(SNAPSHOTS, snapshot, [*finalizers(snapshot), AS_SOURCE])
            return
        content, status = self._content_of(snapshot), snapshot.get("status") or {}
        if content is None:
            if "persistentVolumeClaimName" in snapshot["spec"]["source"]:
                await self._create(snapshot)
            return
        if content["spec"]["deletionPolicy"] == "Delete" and status and BOUND not in finalizers(snapshot):
            await self._put(SNAPSHOTS, snapshot, [*finalizers(snapshot), BOUND])
            return
        if not content["spec"]["volumeSnapshotRef"].get("uid"):
            changed = edited(content)
            changed["spec"]["volumeSnapshotRef"]["uid"] = snapshot["metadata"]["uid"]
            await self._api.put(CONTENTS, changed)
            return
        await self._show(snapshot, content)

    async def _create(self, snapshot: Json) -> None:
        claim = self._item(CLAIMS, self._claim_of(snapshot))
        if claim is None or claim["status"].get("phase") != "Bound":
            raise StockError(404, "the claim is not there, or not bound")
        if OF_CLAIM not in finalizers(claim):
            await self._put(CLAIMS, claim, [*finalizers(claim), OF_CLAIM])
        volume = await self._api.get(VOLUMES, claim["spec"]["volumeName"])
        named = self._item(CLASSES, snapshot["spec"]["volumeSnapshotClassName"])
        assert volume is not None
        assert named is not None
        meta = snapshot["metadata"]
        reference = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]}
        spec = {
            "volumeSnapshotRef": {"kind": "VolumeSnapshot", **reference},
            "source": {"volumeHandle": volume["spec"]["csi"]["volumeHandle"]},
            "volumeSnapshotClassName": named["metadata"]["name"],
            "deletionPolicy": named["deletionPolicy"],
            "driver": named["driver"],
            "sourceVolumeMode": volume["spec"]["volumeMode"],
        }
        name = f"snapcontent-{meta['uid']}"
        kind = {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent"}
        body = {**kind, "metadata": {"name": name}, "spec": spec}
        try:
            await self._api.call("POST", self._api.path(CONTENTS), body)
        except StockError as error:
            if error.status != 409:
                raise
        await self._status(snapshot, {"boundVolumeSnapshotContentName": name, "readyToUse": False})

    async def _show(self, snapshot: Json, content: Json) -> None:
        theirs, status = content.get("status") or {}, dict(snapshot.get("status") or {})
        status.setdefault("boundVolumeSnapshotContentName", content["metadata"]["name"])
        status["readyToUse"] = theirs.get("readyToUse", False)
        if theirs.get("creationTime") and "creationTime" not in status:
            at = datetime.fromtimestamp(theirs["creationTime"] // 10**9, UTC)
            status["creationTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
        if theirs.get("restoreSize"):
            status.setdefault("restoreSize", str(theirs["restoreSize"]))
        status.pop("error", None)
        if theirs.get("error") and not status["readyToUse"]:
            status["error"] = theirs["error"]
        if status != snapshot.get("status"):
            await self._status(snapshot, status)

    async def _status(self, snapshot: Json, status: Json) -> None:
        live = await self._api.get(SNAPSHOTS, key_of(snapshot))
        if live is not None:
            await self._api.put(SNAPSHOTS, live | {"status": status}, "status")

    async def _free_claim(self, key: str) -> None:
        claim = self._item(CLAIMS, key)
        named = [each for each in self._informers[SNAPSHOTS].items.values() if self._claim_of(each) == key]
        unready = [each for each in named if not (each.get("status") or {}).get("readyToUse") and not terminating(each)]
        if claim is not None and OF_CLAIM in finalizers(claim) and not unready:
            live = await self._api.get(CLAIMS, key)
            if live is not None:
                await self._put(CLAIMS, live, [name for name in finalizers(live) if name != OF_CLAIM])

    async def _delete(self, snapshot: Json) -> None:
        held, content = finalizers(snapshot), self._content_of(snapshot)
        if not {AS_SOURCE, BOUND} & set(held):
            return
        if content is None:
            await self._put(SNAPSHOTS, snapshot, [name for name in held if name not in (AS_SOURCE, BOUND)])
            return
        if BEING_DELETED not in (content["metadata"].get("annotations") or {}):
            await self._annotate(content, BEING_DELETED)
        if content["spec"]["deletionPolicy"] != "Delete":
            await self._put(SNAPSHOTS, snapshot, [name for name in held if name not in (AS_SOURCE, BOUND)])
            return
        if not terminating(content):
            await self._api.call("DELETE", self._api.path(CONTENTS, key_of(content)))
        if AS_SOURCE in held:
            await self._put(SNAPSHOTS, snapshot, [name for name in held if name != AS_SOURCE])

    async def _content(self, key: str) -> None:
        content = self._item(CONTENTS, key)
        if content is None:
            for each in self._informers[SNAPSHOTS].items:
                self._queues[SNAPSHOTS].add(each)
            return
        reference: dict[str, Any] = content["spec"]["volumeSnapshotRef"]
        snapshot = self._item(SNAPSHOTS, f"{reference['namespace']}/{reference['name']}")
        if reference.get("uid") and CONTENT_BOUND not in finalizers(content) and not terminating(content):
            await self._put(CONTENTS, content, [*finalizers(content), CONTENT_BOUND])
        if snapshot is None or snapshot["metadata"]["uid"] != reference.get("uid"):
            return
        marked = BEING_DELETED in (content["metadata"].get("annotations") or {})
        if terminating(snapshot) and {AS_SOURCE, BOUND} & set(finalizers(snapshot)) and not marked:
            await self._annotate(content, BEING_DELETED)
        self._queues[SNAPSHOTS].add(key_of(snapshot))
