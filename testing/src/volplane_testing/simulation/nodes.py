"""The rest of the cluster: a scheduler and the agents of two nodes, as far as volumes notice them.

Pods are placed once their claims can be used, mount them, leave data on them, end, and are taken down before they are
removed. Scrubber pods really erase what they mount: at once, late, partly, or not at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from volplane.kube import names
from volplane_testing import clock
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of, reference_of
from volplane_testing.simulation.disks import Disk
from volplane_testing.simulation.run_context import RunContext

__all__ = ["NODES", "Nodes", "PodFaults", "RunningPod"]

NODES: Final = ("node-a", "node-b")
_ME: Final = "cluster"
_SCRUB_PREFIX: Final = "volplane-scrub-"
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_JSON: Final = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFaults:
    """Shares of scrubber pods that fail, are slow; and seconds after which a node notices that a pod was removed, at
    most.
    """

    failing: float = 0.0
    slow: float = 0.0
    notice: float = 1.0


@dataclass(slots=True, eq=False)
class RunningPod:
    """A pod on its node; the object may be gone before it is."""

    pod: Json
    disks: list[tuple[Disk, str]]
    """With the uid of the claim."""
    ends: float
    erases: float | None = None
    fails: bool = False
    gone: float | None = None
    """When the node has noticed that the object is no more."""

    @property
    def due(self) -> float:
        times = [self.ends] if self.gone is None else [self.gone]
        return min(times if self.erases is None else [*times, self.erases])


@dataclass(slots=True)
class _PodRecords:
    running: dict[str, RunningPod] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """Name of a scrubber pod -> how many of its runs failed, or were cut off."""


class Nodes:
    """Reacts to the objects of `view` after a short delay, as writer `cluster`."""

    FOLLOWED: ClassVar[frozenset[str]] = frozenset({"volume", "claim", "pod"})
    """Kinds whose changes by others are reacted to."""
    ATTACHES: ClassVar[bool] = False
    """Whether a pod waits until the controllers of attachments have attached its volumes; without them nobody does."""

    def __init__(self, run_context: RunContext, faults: PodFaults, labels: Mapping[str, Mapping[str, str]]) -> None:
        """labels: of the nodes."""
        self._labels = labels
        self._view = run_context.view
        self._disks = run_context.disks
        self._safety = run_context.safety
        self._chance = run_context.chance
        self._trace = run_context.trace
        self._faults = faults
        self._pods = _PodRecords()
        self._changed = asyncio.Event()
        self._turns = 0
        run_context.view.listeners.append(self._committed)

    @property
    def failed_scrubs(self) -> Mapping[str, int]:
        """By the name of the scrubber pod: runs that did not erase."""
        return self._pods.failures

    @property
    def busy(self) -> bool:
        """Whether a pod runs that will end by itself."""
        return any(running.due < float("inf") for running in self._pods.running.values())

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = min((self._due(running) for running in self._pods.running.values()), default=float("inf"))
            left = due - clock()
            try:
                async with asyncio.timeout(left if left < float("inf") else None):
                    await self._changed.wait()
            except TimeoutError:
                pass
            else:
                self._turns += 1
                await asyncio.sleep(self._chance.between(0.001, 0.2, f"cluster {self._turns}") ** 2 * 5)
            self._changed.clear()
            self._report()
            for running in list(self._pods.running.values()):
                self._follow(running)
            for pod in list(self._view.pods.values()):
                if pod["metadata"]["uid"] not in self._pods.running:
                    self._attend(pod)

    def server_restored(self) -> None:
        """Look at all pods again. Those that have ended since the backup was made are reported so once more."""
        for pod in list(self._view.pods.values()):
            if pod.get("status", {}).get("phase") == "Running" and pod["metadata"]["uid"] not in self._pods.running:
                self._pods.failures[pod["metadata"]["name"]] = self._pods.failures.get(pod["metadata"]["name"], 0) + 1
                self._status(pod, {"phase": "Failed"})
        self._changed.set()

    def _due(self, running: RunningPod) -> float:
        """Return the loop time at which the node has something to do about it."""
        return running.due

    def _committed(self, commit: Commit) -> None:
        if commit.kind in self.FOLLOWED and commit.who != _ME:
            self._changed.set()

    def _report(self) -> None:
        """Write to the nodes what changed about them."""

    def recover(self) -> None:
        """End every trouble of nodes."""

    # --- placing and starting -----------------------------------------------------------------------------------

    def _attend(self, pod: Json) -> None:
        status, spec, meta = pod.get("status", {}), pod["spec"], pod["metadata"]
        if "deletionTimestamp" in meta:
            self._send("DELETE", pod, {"gracePeriodSeconds": 0})
        elif status.get("phase") not in ("Pending", None, ""):
            return
        elif not spec.get("nodeName"):
            if not spec.get("schedulingGates"):
                self._place(pod)
        else:
            self._start(pod)

    def _place(self, pod: Json) -> None:
        places: list[Json] = []
        for claim in self._claims(pod):
            if claim is None or "deletionTimestamp" in claim["metadata"]:
                return
            volume = self._volume_of(claim)
            if volume is None:
                self._select_node(claim)
                return
            places += _places_of(volume)
        node = self._choose(places, pod)
        meta = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "uid": meta["uid"]},
            "target": {"kind": "Node", "name": node},
        }
        self._send("POST", pod, body, "binding")
        placed = self._view.pods.get(f"{meta['namespace']}/{meta['name']}")
        if placed is not None and placed["spec"].get("nodeName"):
            self._start(placed)

    def _choose(self, places: list[Json], pod: Json) -> str:
        return next((name for name, labels in self._labels.items() if _all_in(places, labels)), NODES[0])

    def _select_node(self, claim: Json) -> None:
        storage_class = self._view.classes.get(claim["spec"].get("storageClassName") or "")
        if storage_class is None or storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
            return
        if names.SELECTED_NODE in annotations_of(claim) or names.BIND_COMPLETED in annotations_of(claim):
            return
        meta = claim["metadata"]
        node = self._chance.choice(NODES, f"node for {meta['name']} {self._turns}")
        path = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}"
        patch = {"metadata": {"annotations": {names.SELECTED_NODE: node}}}
        self._view.send(_ME, "PATCH", path, json.dumps(patch).encode(), headers=_MERGE)

    def _start(self, pod: Json) -> None:
        """Mount and run; a pod that cannot mount is tried again when an object changes."""
        disks: list[tuple[Disk, str]] = []
        scrubs = pod["metadata"]["name"].startswith(_SCRUB_PREFIX)
        for volume in pod["spec"].get("volumes") or ():
            if "persistentVolumeClaim" not in volume:
                inline = self._disks.of(_part_of(volume, pod))
                disks += [(inline, "")] if inline is not None else []
        for claim in self._claims(pod):
            if claim is None or "deletionTimestamp" in claim["metadata"]:
                return
            bound = self._volume_of(claim)
            disk = self._disks.of(bound["spec"]) if bound is not None else None
            if disk is None:
                return
            # A scrubber pod may have its disk by a claim of its own: it brings no data of anybody.
            disks.append((disk, "" if scrubs else claim["metadata"]["uid"]))
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        running = self._pods.running[uid] = RunningPod(pod, disks, float("inf"))
        if scrubs:
            self._begin_scrub(running)
        else:
            running.ends = asyncio.get_running_loop().time() + float(annotations_of(pod).get("lifetime", "inf"))
        for disk, claim_uid in disks:
            disk.mounts[uid] = claim_uid
            if claim_uid:
                self._safety.seen(disk, claim_uid, name)
        started = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        running_now = {"phase": "Running", "containerStatuses": [_container({"running": {}})]}
        self._status(pod, {**running_now, "startTime": started})

    def _begin_scrub(self, running: RunningPod) -> None:
        now = asyncio.get_running_loop().time()
        uid = running.pod["metadata"]["uid"]
        about = f"{self._view.spell(running.pod['metadata']['name'])} {sum(self._pods.failures.values())} {uid[:4]}"
        running.fails = self._chance.strikes(f"{about} fails", self._faults.failing)
        slow = 30.0 if self._chance.strikes(f"{about} slow", self._faults.slow) else 1.0
        self._trace.happened["pod: scrub fails"] += running.fails
        self._trace.happened["pod: scrub is slow"] += slow > 1.0
        running.erases = now + slow * self._chance.between(0.01, 1.0, f"{about} erases")
        running.ends = running.erases + slow * self._chance.between(0.01, 1.0, f"{about} ends")

    # --- running and ending -------------------------------------------------------------------------------------

    def _follow(self, running: RunningPod) -> None:
        now = asyncio.get_running_loop().time()
        meta = running.pod["metadata"]
        present = self._view.pods.get(f"{meta['namespace']}/{meta['name']}")
        if running.erases is not None and running.erases <= now:
            running.erases = None
            if not running.fails:
                self._erase(running)
        if present is None or present["metadata"]["uid"] != meta["uid"]:
            if running.gone is None:
                running.gone = now + self._chance.between(0.0, self._faults.notice, f"notice {meta['uid']}")
            if running.gone <= now:
                self._take_down(running, cut_off=True)
            return
        if "deletionTimestamp" in present["metadata"]:
            self._take_down(running, cut_off=running.erases is not None)
            self._send("DELETE", present, {"gracePeriodSeconds": 0})
        elif running.ends <= now:
            self._end(running, present)

    def _end(self, running: RunningPod, pod: Json) -> None:
        self._take_down(running, cut_off=running.fails)
        if running.fails:
            ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "rm: input/output error"}}
            self._status(pod, {"phase": "Failed", "containerStatuses": [_container(ended)]})
        else:
            ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            self._status(pod, {"phase": "Succeeded", "containerStatuses": [_container(ended)]})

    def _take_down(self, running: RunningPod, *, cut_off: bool) -> None:
        meta = running.pod["metadata"]
        if cut_off and meta["name"].startswith(_SCRUB_PREFIX):
            self._pods.failures[meta["name"]] = self._pods.failures.get(meta["name"], 0) + 1
        for disk, _ in running.disks:
            disk.mounts.pop(meta["uid"], None)
        del self._pods.running[meta["uid"]]
        self._changed.set()

    def _erase(self, running: RunningPod) -> None:
        for disk, _ in running.disks:
            self._trace.note(_ME, f"{self._view.spell(running.pod['metadata']['name'])} erases {disk.key}")
            self._safety.erased(disk.key)

    # --- reads and writes ---------------------------------------------------------------------------------

    def _claims(self, pod: Json) -> list[Json | None]:
        found: list[Json | None] = []
        for volume in pod["spec"].get("volumes") or ():
            mounted = volume.get("persistentVolumeClaim")
            if mounted is not None:
                found.append(self._view.claims.get(f"{pod['metadata']['namespace']}/{mounted['claimName']}"))
        return found

    def _volume_of(self, claim: Json) -> Json | None:
        """Return the volume if the two are bound as a node expects."""
        volume = self._view.volumes.get(claim["spec"].get("volumeName", ""))
        if volume is None or claim.get("status", {}).get("phase") != "Bound":
            return None
        if names.BIND_COMPLETED not in annotations_of(claim):
            return None
        return volume if reference_of(volume).get("uid") == claim["metadata"]["uid"] else None

    def _status(self, pod: Json, status: Json) -> None:
        self._send("PATCH", pod, {"status": status}, "status")

    def _send(self, method: str, pod: Json, body: Any, subresource: str = "") -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if subresource:
            path += f"/{subresource}"
        headers = _MERGE if method == "PATCH" else _JSON
        self._view.send(_ME, method, path, json.dumps(body).encode(), headers=headers)


def _part_of(volume: Json, pod: Json) -> Json:
    """Return the part of an inline volume that the mounts of the pod's containers show."""
    mounts = [mount for container in pod["spec"]["containers"] for mount in container.get("volumeMounts") or ()]
    part = next((mount.get("subPath", "") for mount in mounts if mount["name"] == volume["name"]), "")
    return {
        key: {**fields, "path": f"{fields['path']}/{part}"} if part and "path" in fields else fields
        for key, fields in volume.items()
        if isinstance(fields, dict)
    }


def _places_of(volume: Json) -> list[Json]:
    """Return the node affinity of a volume, which has at most one term here."""
    terms = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()
    return [need for term in terms for need in term.get("matchExpressions") or ()]


def _all_in(needs: list[Json], labels: Mapping[str, str]) -> bool:
    return all(labels.get(need["key"]) in need["values"] for need in needs)


def _container(state: Json) -> Json:
    return {"name": "main", "state": state, "image": "", "imageID": "", "ready": False, "restartCount": 0}
