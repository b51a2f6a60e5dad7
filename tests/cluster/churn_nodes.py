"""Nodes that are instances of a mocked EC2, and their kubelets, played as far as the control plane can see them.

A kubelet reports a volume in `volumesInUse`, then waits until `volumesAttached` has it and its VolumeAttachment is
attached, then mounts it; it grows a mounted file system; it unmounts before it lets a pod go, and reports that later.
Source: pkg/kubelet/volumemanager (reconciler, WaitForAttach) and pkg/volume/csi (csi_attacher.go).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from cluster.churn_api import CORE, LEASES, STORAGE, Api, Json, Refused
from cluster.churn_record import Record
from volplane_aws_ebs.testing import Behaviour, FakeEC2

ATTACHER = "ebs.csi.aws.com"
ZONE = "eu-test-1a"
PREFIX = "churn-node"
HEARTBEAT_SECONDS = 8.0
PASS_SECONDS = 0.4
RESIZING = {"Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"}


class WatchedEC2(FakeEC2):
    """A region that notes every call that takes a disk away from who needs it.

    mounted: (volume, instance) that a kubelet has mounted now. needed: volumes of bound claims that nobody has asked
    to delete. Both are changed by the loop and read by the threads of the server.
    """

    def __init__(self, behaviour: Behaviour, record: Record) -> None:
        super().__init__(behaviour)
        self.mounted: set[tuple[str, str]] = set()
        self.needed: set[str] = set()
        self._record = record

    def perform(self, action: str, params: Mapping[str, Any]) -> dict[str, Any]:
        volume = str(params.get("VolumeId", ""))
        instance = params.get("InstanceId")
        hurt = ""
        if action == "DetachVolume":
            users = {node for disk, node in self.mounted if disk == volume}
            if users and (instance is None or instance in users):
                hurt = f"{volume} was detached from {instance} while a pod had it mounted there"
        elif action == "DeleteVolume" and volume in self.needed:
            hurt = f"{volume} was deleted while its claim was bound"
        answer = super().perform(action, params)
        if hurt:
            self._record.fault(hurt)
        if action == "AttachVolume" and len(places := self.attached().get(volume, ())) > 1:
            self._record.fault(f"{volume} is attached to {len(places)} instances")
        return answer


@dataclass(slots=True)
class World:
    """The objects of the run as they were listed last, by name."""

    claims: dict[str, Json] = field(default_factory=dict)
    volumes: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    attachments: dict[tuple[str, str], Json] = field(default_factory=dict)
    """By (volume, node); only those of our attacher."""

    def volume_of(self, pod: Json) -> Json | None:
        """Return the bound volume of the pod's only claim."""
        claim = self.claims.get(claim_of(pod))
        if claim is None or claim["status"].get("phase") != "Bound":
            return None
        return self.volumes.get(claim["spec"].get("volumeName", ""))


def claim_of(pod: Json) -> str:
    return str(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"])


def is_going(item: Json) -> bool:
    return "deletionTimestamp" in item["metadata"]


def handle_of(volume: Json) -> str:
    return str(volume["spec"]["csi"]["volumeHandle"])


def unique(volume: Json) -> str:
    return f"kubernetes.io/csi/{ATTACHER}^{handle_of(volume)}"


@dataclass(slots=True)
class _Mount:
    """What a pod has mounted: the node's and EC2's names of it."""

    name: str
    disk: str


@dataclass(slots=True)
class Kubelet:
    name: str
    instance: str
    in_use: list[str] = field(default_factory=list)
    """As it was reported last."""
    mounts: dict[str, _Mount] = field(default_factory=dict)
    """By uid of the pod."""


class Nodes:
    """All nodes of a run, and their kubelets."""

    def __init__(self, api: Api, namespace: str, fake: WatchedEC2, record: Record, count: int) -> None:
        self._api, self._namespace, self._fake, self._record = api, namespace, fake, record
        self._chance = Random(4)
        self.kubelets = [
            Kubelet(f"{PREFIX}-{number}", fake.add_instance(ZONE, instance_type="m7i.48xlarge").id)
            for number in range(1, count + 1)
        ]
        self._by_name = {kubelet.name: kubelet for kubelet in self.kubelets}

    def mounted(self, pod: Json) -> bool:
        kubelet = self._by_name.get(pod["spec"].get("nodeName", ""))
        return kubelet is not None and pod["metadata"]["uid"] in kubelet.mounts

    async def register(self) -> None:
        for kubelet in self.kubelets:
            where = {"kubernetes.io/hostname": kubelet.name, "topology.kubernetes.io/zone": ZONE}
            managed = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
            taint = {"key": "volplane.dev/churn", "value": "scripted", "effect": "NoSchedule"}
            node = await self._api.create(
                f"{CORE}/nodes",
                {
                    "metadata": {"name": kubelet.name, "labels": where, "annotations": managed},
                    "spec": {"providerID": f"aws:///{ZONE}/{kubelet.instance}", "taints": [taint]},
                },
            )
            owner = {"apiVersion": "v1", "kind": "Node", "name": kubelet.name, "uid": node["metadata"]["uid"]}
            driver = {"name": ATTACHER, "nodeID": kubelet.instance, "topologyKeys": None}
            await self._api.create(
                f"{STORAGE}/csinodes",
                {
                    "metadata": {"name": kubelet.name, "ownerReferences": [owner]},
                    "spec": {"drivers": [driver]},
                },
            )
            now = _now()
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now[:19] + "Z"}
            info = {
                "bootID": str(uuid.uuid4()),
                "machineID": kubelet.instance,
                "systemUUID": kubelet.instance,
                "kernelVersion": "6",
                "osImage": "none",
                "containerRuntimeVersion": "none://1",
                "kubeletVersion": "v1.36.2",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            }
            status = {"conditions": [ready], "nodeInfo": info, "capacity": {"pods": "250"}, "volumesInUse": []}
            await self._api.patch(f"{CORE}/nodes/{kubelet.name}/status", {"status": status})
            lease = {"holderIdentity": kubelet.name, "leaseDurationSeconds": 40, "renewTime": now}
            await self._api.create(
                f"{LEASES}/kube-node-lease/leases", {"metadata": {"name": kubelet.name}, "spec": lease}
            )

    async def remove(self) -> None:
        for kubelet in self.kubelets:
            await self._api.delete(f"{CORE}/nodes/{kubelet.name}")
            await self._api.delete(f"{STORAGE}/csinodes/{kubelet.name}")
            await self._api.delete(f"{LEASES}/kube-node-lease/leases/{kubelet.name}")

    async def beat(self) -> None:
        """Tell that the nodes are alive, until cancelled."""
        while True:
            for kubelet in self.kubelets:
                path = f"{LEASES}/kube-node-lease/leases/{kubelet.name}"
                await self._api.patch(path, {"spec": {"renewTime": _now()}})
            await asyncio.sleep(HEARTBEAT_SECONDS)

    # --- the loop of the volume manager -------------------------------------------------------------------------

    async def sync(self, world: World) -> None:
        """Take one pass of each kubelet, by what was listed last."""
        await asyncio.gather(*(self._sync(kubelet, world) for kubelet in self.kubelets))

    async def _sync(self, kubelet: Kubelet, world: World) -> None:
        pods = [pod for pod in world.pods.values() if pod["spec"].get("nodeName") == kubelet.name]
        wanted: dict[str, tuple[Json, Json]] = {}
        for pod in pods:
            if is_going(pod):
                self._unmount(kubelet, pod["metadata"]["uid"])
            elif (volume := world.volume_of(pod)) is not None:
                wanted[pod["metadata"]["uid"]] = pod, volume
        for uid in kubelet.mounts.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self._record.fault(f"a pod on {kubelet.name} was removed by somebody else while it had its disk mounted")
            self._unmount(kubelet, uid)
        going = [pod for pod in pods if is_going(pod)]
        # The order of these two is not fixed in a kubelet.
        first = self._chance.random() < 0.5
        if first:
            await self._let_go(going)
        await self._report(kubelet, [unique(volume) for _, volume in wanted.values()])
        if not first:
            await self._let_go(going)
        waiting = {uid: pair for uid, pair in wanted.items() if uid not in kubelet.mounts}
        if waiting:
            # What was attached before the report may be on its way out: only a look after it counts.
            node = await self._api.get(f"{CORE}/nodes/{kubelet.name}")
            listed = {each["name"] for each in (node or {}).get("status", {}).get("volumesAttached") or ()}
            for pod, volume in waiting.values():
                if unique(volume) in listed:
                    await self._mount(kubelet, pod, volume, world)
        for uid, (pod, _) in wanted.items():
            if uid in kubelet.mounts:
                await self._grow(world.claims[claim_of(pod)])

    async def _report(self, kubelet: Kubelet, desired: list[str]) -> None:
        in_use = sorted({*desired, *(mount.name for mount in kubelet.mounts.values())})
        if in_use != kubelet.in_use:
            await self._api.patch(f"{CORE}/nodes/{kubelet.name}/status", {"status": {"volumesInUse": in_use}})
            kubelet.in_use = in_use

    async def _mount(self, kubelet: Kubelet, pod: Json, volume: Json, world: World) -> None:
        uid, disk = pod["metadata"]["uid"], handle_of(volume)
        attachment = world.attachments.get((volume["metadata"]["name"], kubelet.name))
        if attachment is None or not attachment.get("status", {}).get("attached"):
            return
        with self._fake.locked_state():
            places = self._fake.attached().get(disk, ())
            if kubelet.instance in places:
                self._fake.mounted.add((disk, kubelet.instance))
                kubelet.mounts[uid] = _Mount(unique(volume), disk)
        if uid not in kubelet.mounts:
            # The attachment was listed before the node was read: it may be the former one of the same pair.
            fresh = await self._api.get(f"{STORAGE}/volumeattachments/{attachment['metadata']['name']}")
            same = fresh is not None and fresh["metadata"]["uid"] == attachment["metadata"]["uid"]
            if same and fresh is not None and not is_going(fresh) and fresh["status"].get("attached"):
                self._record.fault(f"{disk} is said to be attached to {kubelet.name}, and is on {places or 'no node'}")
            return
        self._record.count("attached")
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await self._unless_gone(f"{CORE}/namespaces/{self._namespace}/pods/{pod['metadata']['name']}/status", status)

    def _unmount(self, kubelet: Kubelet, uid: str) -> None:
        mount = kubelet.mounts.pop(uid, None)
        if mount is None:
            return
        with self._fake.locked_state():
            if kubelet.instance not in self._fake.attached().get(mount.disk, ()):
                self._record.fault(f"{mount.disk} was no longer attached to {kubelet.name} when it was unmounted")
            if not any(mount.disk == other.disk for other in kubelet.mounts.values()):
                self._fake.mounted.discard((mount.disk, kubelet.instance))

    async def _let_go(self, pods: list[Json]) -> None:
        for pod in pods:
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            try:
                await self._api.delete(f"{CORE}/namespaces/{self._namespace}/pods/{pod['metadata']['name']}", body)
            except Refused as refused:
                if refused.status != 409:
                    raise

    async def _grow(self, claim: Json) -> None:
        """Grow the mounted file system, if the claim asks its node for that."""
        status = claim["status"]
        state = (status.get("allocatedResourceStatuses") or {}).get("storage", "")
        if state not in {"NodeResizePending", "NodeResizeInProgress"}:
            return
        body = {
            "metadata": {"resourceVersion": claim["metadata"]["resourceVersion"]},
            "status": {
                "capacity": {"storage": status["allocatedResources"]["storage"]},
                "allocatedResourceStatuses": None,
                "conditions": [each for each in status.get("conditions") or () if each["type"] not in RESIZING] or None,
            },
        }
        await self._unless_gone(
            f"{CORE}/namespaces/{self._namespace}/persistentvolumeclaims/{claim['metadata']['name']}/status", body
        )

    async def _unless_gone(self, path: str, body: Json) -> None:
        """Patch; what is gone or has changed meanwhile is left to the next pass."""
        try:
            await self._api.patch(path, body)
        except Refused as refused:
            if refused.status not in {404, 409}:
                raise


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
