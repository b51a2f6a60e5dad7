"""Names that are used again where volumes are attached: a node whose kubelet registers again, a volume that is restored
under its name with another disk, and second attachments of a volume.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from volplane.attach.desired import attachment_name
from volplane.kube.quantity import parse
from volplane_testing.simulation.attaching_nodes import AttachingNodes
from volplane_testing.simulation.backends import SimulatedBackend
from volplane_testing.simulation.cluster_view import Json, reference_of
from volplane_testing.simulation.disks import source_key
from volplane_testing.simulation.nodes import NODES
from volplane_testing.simulation.run_context import RunContext
from volplane_testing.simulation.scenarios import ALPHA

__all__ = ["NamesUsedAgain", "write_names_used_again"]

_STEP: Final = 0.5
_PATIENCE: Final = 240
_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
_VOLUMES: Final = "/api/v1/persistentvolumes"
_ATTACHMENTS: Final = "/apis/storage.k8s.io/v1/volumeattachments"


class NamesUsedAgain:
    """Its `actions` are the `what` of actions. nodes: of the run."""

    def __init__(
        self, run_context: RunContext, backends: Mapping[str, SimulatedBackend], nodes: AttachingNodes
    ) -> None:
        self.actions: Mapping[str, Callable[..., Any]] = {
            "register_again": nodes.register_again,
            "restore_volume": self.restore_volume,
            "second_attachment": self.second_attachment,
            "end_attachment": self.end_attachment,
        }
        self._view = run_context.view
        self._disks = run_context.disks
        self._safety = run_context.safety
        self._chance = run_context.chance
        self._happened = run_context.trace.happened
        self._backend = backends.get(ALPHA)

    def recover(self) -> None:
        """End every second attachment."""
        for name in [name for name in self._view.attachments if name.startswith("by-hand-")]:
            self._send("DELETE", f"{_ATTACHMENTS}/{name}")

    def second_attachment(self, claim: str, node: str, elsewhere: bool = False) -> None:
        """Attach the volume of the claim by hand, as somebody does who looks into it: where it is, if it is.

        elsewhere: at this node whatever is known, as somebody does who makes a mistake.
        """
        found = self._view.claims.get(f"default/{claim}", {"spec": {}})
        volume = self._view.volumes.get(found["spec"].get("volumeName", ""))
        if volume is None or "csi" not in volume["spec"]:
            return
        driver, handle = volume["spec"]["csi"]["driver"], volume["spec"]["csi"]["volumeHandle"]
        known = [each for each in NODES if attachment_name(driver, handle, each) in self._view.attachments]
        there = [] if elsewhere else known
        source = {"persistentVolumeName": volume["metadata"]["name"]}
        spec = {"attacher": driver, "nodeName": there[0] if there else node, "source": source}
        metadata = {"name": f"by-hand-{claim}"}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata, "spec": spec}
        if self._send("POST", _ATTACHMENTS, body):
            self._happened["user: attaches where it is attached" if there else "user: attaches by hand"] += 1

    def end_attachment(self, claim: str) -> None:
        if f"by-hand-{claim}" in self._view.attachments:
            self._send("DELETE", f"{_ATTACHMENTS}/by-hand-{claim}")

    async def restore_volume(self, claim: str, pod: str) -> None:
        """Delete a claim, its pods and its volume, keep the disk, and make claim and volume again for a copy of it."""
        found = self._view.claims.get(f"default/{claim}")
        volume = self._view.volumes.get(found["spec"].get("volumeName", "")) if found is not None else None
        if found is None or volume is None or self._backend is None or "deletionTimestamp" in found["metadata"]:
            return
        if f"by-hand-{claim}" in self._view.attachments:
            return  # Its name would not tell of which disk it is.
        name, disk = volume["metadata"]["name"], self._disks.of(volume["spec"])
        if disk is None or "csi" not in volume["spec"] or reference_of(volume).get("uid") != found["metadata"]["uid"]:
            return
        disk.kept = "its volume was restored with a copy"
        self._send("PATCH", f"{_VOLUMES}/{name}", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
        for each in list(self._view.pods.values()):
            mounted = (one.get("persistentVolumeClaim", {}) for one in each["spec"].get("volumes") or ())
            if any(one.get("claimName") == claim for one in mounted):
                user = each["metadata"]["name"]
                self._send("DELETE", f"/api/v1/namespaces/default/pods/{user}", {"gracePeriodSeconds": 0})
        self._send("DELETE", f"{_CLAIMS}/{claim}")
        if not await self._gone(self._view.claims, found):
            return
        self._send("DELETE", f"{_VOLUMES}/{name}")
        if await self._gone(self._view.volumes, volume) and f"default/{claim}" not in self._view.claims:
            self._restore(claim, pod, volume)

    def _restore(self, claim: str, pod: str, volume: Json) -> None:
        backend, spec, name = self._backend, volume["spec"], volume["metadata"]["name"]
        assert backend is not None  # noqa: S101 -- its caller looked
        handle = backend.add(f"copy-{claim}", parse(spec["capacity"]["storage"]).as_bytes())
        source = backend.source_of(handle)
        key = source_key(source.kind, source.fields)
        disk = self._disks.by_key.get(key) or self._safety.made(backend.name, key, None)
        disk.kept = "a user made it"
        disk.waived |= disk.data
        kept = {each: spec[each] for each in ("capacity", "accessModes", "storageClassName") if each in spec}
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim}
        restored = {**kept, source.kind: dict(source.fields), "claimRef": reference}
        restored["persistentVolumeReclaimPolicy"] = "Retain"
        self._create("PersistentVolume", _VOLUMES, name, restored)
        asked: Json = {key: kept[key] for key in ("accessModes", "storageClassName") if key in kept}
        asked |= {"volumeName": name, "resources": {"requests": {"storage": spec["capacity"]["storage"]}}}
        self._create("PersistentVolumeClaim", _CLAIMS, claim, asked)
        mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        runs = {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never", "volumes": mounted}
        self._create("Pod", "/api/v1/namespaces/default/pods", pod, runs)
        self._happened["user: restores a volume with another disk"] += 1

    async def _gone(self, objects: Mapping[str, Json], former: Json) -> bool:
        for _ in range(_PATIENCE):
            if self._chance.calm.is_set():
                return False
            if all(each["metadata"]["uid"] != former["metadata"]["uid"] for each in objects.values()):
                return True
            await asyncio.sleep(_STEP)
        return False

    def _create(self, kind: str, path: str, name: str, spec: Json) -> None:
        self._send("POST", path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})

    def _send(self, method: str, path: str, body: Json | None = None) -> bool:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        text = json.dumps(body or {}).encode()
        return self._view.send("user", method, path, text, headers={"content-type": media}).status < 300


def write_names_used_again(do: Callable[..., None], about: str, claims: list[str], share: float, end: float) -> None:
    """Write actions of `NamesUsedAgain` for a share of the claims and as many nodes.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} names used again")  # noqa: S311 -- schedules, not secrets
    mistakes = Random(f"{about} mistakes")  # noqa: S311
    for claim in claims:
        if random.random() < share:
            seconds = random.choice((0.0, 2.0, 30.0)) * random.random()
            silent, known = random.choice((0.2, 3.0, 9.0)) * random.random(), random.random() < 0.5
            at = random.uniform(0.0, end)
            do(at, "register_again", node=random.choice(NODES), seconds=seconds, silent=silent, known=known)
        if random.random() < share:
            at = random.uniform(0.0, end)
            do(at, "second_attachment", claim=claim, node=random.choice(NODES), elsewhere=mistakes.random() < 0.3)
            do(at + random.choice((1.0, 10.0, 60.0)) * random.random(), "end_attachment", claim=claim)
        if random.random() < share * 0.7:
            at, node = random.uniform(0.0, end), random.choice(NODES)
            if random.random() < 0.6:
                do(max(at - random.uniform(0.0, 2.0), 0.0), "lose_node", node=node)
                do(at, "evict_pods", node=node)
                do(at + random.choice((40.0, 600.0)) * random.uniform(0.5, 1.5), "return_node", node=node)
            do(at, "restore_volume", claim=claim, pod=f"p-{claim}-restored")
