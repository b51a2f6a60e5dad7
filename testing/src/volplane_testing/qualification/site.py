"""What a section does to the cluster and waits for: a thin client with names of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from volplane.errors import ApiNotFound, ApiUnavailable
from volplane.kube.client import Client
from volplane.kube.kinds import ATTACHMENTS, CLAIMS, PODS, STORAGE_CLASSES, VOLUMES, Kind
from volplane.kube.objects import Claim, KubeObject, Pod, Volume
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CONTENTS, VOLUME_SNAPSHOTS, VolumeSnapshot, VolumeSnapshotContent
from volplane_embedded.objects import CSI_NODES
from volplane_testing.qualification.assets import Assets
from volplane_testing.qualification.controllers import Controllers
from volplane_testing.qualification.report import Facts, Failed

__all__ = ["LABEL", "Site"]

LABEL = "volplane.dev/check"
"""On everything that a run makes: which run."""
PAUSE = 0.05
LONGEST_PAUSE = 0.5
TOLD = 3
"""Warnings that a failure repeats."""

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The cluster, as sections see it.

    run: prefix of cluster-wide names, and name of the namespace. driver: name of ours. local: the root of the
    hostpath driver on this machine, None for another backend. whole: our processes are the binder. The other
    fields are those of `Plan`.
    """

    run: str
    client: Client
    controllers: Controllers
    assets: Assets
    facts: Facts
    driver: str
    local: Path | None
    whole: bool
    image: str
    capacity: str
    parameters: dict[str, str]
    kubeconfig: Path | None
    churn_seconds: float
    kills: int
    patience: float
    made: set[str] = field(default_factory=set)
    """Names of the assets that may have been made."""
    cut: set[str] = field(default_factory=set)
    """Handles of the snapshots that were made."""

    @property
    def system(self) -> str:
        """The namespace of the controllers."""
        return f"{self.run}-system"

    # --- making things ------------------------------------------------------------------------------------------

    async def make_class(self, name: str, *, parameters: dict[str, str] | None = None, **fields: Any) -> str:
        """Create a class of our driver. Returns its name in the cluster."""
        full = f"{self.run}-{name}"
        body = STORAGE_CLASSES.body(
            metadata={"name": full, "labels": {LABEL: self.run}},
            provisioner=self.driver,
            parameters={**self.parameters, **(parameters or {})},
            **fields,
        )
        await self.client.create(STORAGE_CLASSES, body)
        return full

    async def make_claim(self, name: str, storage_class: str, **spec: Any) -> Claim:
        resources = {"requests": {"storage": self.capacity}}
        asked = {"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": storage_class, **spec}
        metadata = {"name": name, "namespace": self.run, "labels": {LABEL: self.run}}
        claim = await self.client.create(CLAIMS, CLAIMS.body(metadata=metadata, spec=asked))
        self.made.add(f"pvc-{claim.uid}")
        return claim

    async def make_volume(self, name: str, directory: Path, policy: str, **spec: Any) -> Volume:
        """Create a static volume. Nothing needs to be in the directory unless a pod mounts it."""
        body = VOLUMES.body(
            metadata={"name": f"{self.run}-{name}", "labels": {LABEL: self.run}},
            spec={
                "capacity": {"storage": self.capacity},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": policy,
                "storageClassName": f"{self.run}-static",
                "hostPath": {"path": str(directory)},
                **spec,
            },
        )
        return await self.client.create(VOLUMES, body)

    async def make_pod(self, name: str, script: str, claim: str = "", *, block: bool = False, **spec: Any) -> Pod:
        """Create a pod that runs a shell script, with the claim mounted at /data.

        block: as the device /dev/data instead.
        """
        container: Json = {
            "name": "main",
            "image": self.image,
            "command": ["/bin/sh", "-c", script],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        if claim:
            shown = {"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]}
            container |= shown if block else {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        metadata = {"name": name, "namespace": self.run, "labels": {LABEL: self.run}}
        fields = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        return await self.client.create(PODS, PODS.body(metadata=metadata, spec=fields))

    async def run_pod(self, name: str, script: str, claim: str = "", **spec: Any) -> None:
        """Run a script to its end in a pod, and remove the pod. Raises `Failed` if the script does."""
        await self.make_pod(name, script, claim, **spec)
        pod = await self.until(f"pod {name} ends", lambda: self._ended(name))
        await self.delete(PODS, name, grace_seconds=0)
        if pod.status.phase != "Succeeded":
            raise Failed(f"pod {name} ({script}) failed: {_last_words(pod)}")
        await self.gone(PODS, name)

    async def _ended(self, name: str) -> Pod | None:
        pod = await self.get(PODS, name)
        return pod if pod is not None and pod.status.phase in ("Succeeded", "Failed") else None

    # --- looking ------------------------------------------------------------------------------------------------

    def _key(self, kind: Kind[Any], name: str) -> str:
        return f"{self.run}/{name}" if kind.namespaced else name

    async def get(self, kind: Kind[Any], name: str) -> Any | None:
        """Return the object; None if it is not there."""
        return await self.client.find(kind, self._key(kind, name))

    async def claims(self) -> dict[str, Claim]:
        """Return all claims of the run, by name."""
        return {claim.name: claim for claim in (await self.client.list(CLAIMS, namespace=self.run)).items}

    async def volumes(self) -> list[Volume]:
        """Return all volumes of the run: those of its classes."""
        everything = (await self.client.list(VOLUMES)).items
        return [volume for volume in everything if volume.spec.storage_class_name.startswith(f"{self.run}-")]

    async def snapshots(self) -> list[VolumeSnapshot]:
        """Return all VolumeSnapshots of the run."""
        return await self.served(VOLUME_SNAPSHOTS, namespace=self.run) or []

    async def contents(self) -> list[VolumeSnapshotContent]:
        """Return all VolumeSnapshotContents of the run: those of its driver."""
        everything = await self.served(VOLUME_SNAPSHOT_CONTENTS) or []
        return [content for content in everything if content.spec.driver == self.driver]

    async def served(self, kind: Kind[K], **selectors: str) -> list[K] | None:
        """Return all objects of a kind that the cluster need not serve; None if it does not."""
        try:
            return (await self.client.list(kind, **selectors)).items
        except ApiUnavailable as error:
            if error.status != 404:  # A kind that is not served is answered without a Status.
                raise
            return None

    async def attachments(self) -> list[str]:
        """Return the names of the attachments that sections of the run made."""
        listed = await self.client.list(ATTACHMENTS, label_selector=f"{LABEL}={self.run}")
        return [attachment.name for attachment in listed.items]

    async def volume_of(self, claim: str) -> Volume:
        """Return the volume of a bound claim. Raises `Failed` if there is none."""
        found = await self.get(CLAIMS, claim)
        volume = await self.get(VOLUMES, found.spec.volume_name) if found is not None else None
        if not isinstance(volume, Volume):
            raise Failed(f"claim {claim} has no volume")
        return volume

    async def has_node_plugin(self, volume: Volume, nodes: Iterable[str]) -> bool:
        """Tell whether pods on each of these nodes can mount the volume: a csi source needs its plugin there."""
        driver = str((volume.spec.csi or {}).get("driver", ""))
        for node in nodes if driver else ():
            found = await self.get(CSI_NODES, node)
            if found is None or driver not in {each.name for each in found.spec.drivers or ()}:
                return False
        return True

    # --- changing and waiting -----------------------------------------------------------------------------------

    async def delete(self, kind: Kind[Any], *names: str, grace_seconds: int | None = None) -> None:
        for name in names:
            try:
                await self.client.delete(kind, self._key(kind, name), grace_seconds=grace_seconds)
            except ApiNotFound:
                continue

    async def remove(self, kind: Kind[Any], name: str) -> None:
        """Delete an object of the run and take its finalizers off: where nobody is there who would."""
        try:
            await self.client.delete(kind, self._key(kind, name))
            await self.client.patch(kind, self._key(kind, name), {"metadata": {"finalizers": None}})
        except ApiNotFound:
            return

    async def until(self, what: str, reached: Callable[[], Awaitable[T | None]], seconds: float | None = None) -> T:
        """Wait for a true result of `reached`. Raises `Failed` after `seconds` (default: `patience`)."""
        limit = self.patience if seconds is None else seconds
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + limit, PAUSE
        while True:
            try:
                found = await reached()
            except ApiUnavailable:
                found = None
            if found:
                return found
            self.controllers.check()
            if loop.time() > end:
                raise Failed(f"not after {limit:g} s: {what}{await self._warnings()}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, LONGEST_PAUSE)

    async def until_none(self, what: str, left: Callable[[], Awaitable[int]]) -> tuple[int, float]:
        """Wait until `left` returns 0: how many there were, and the seconds that took.

        It may take as long as they become fewer: a kube-controller-manager makes 20 calls a second by default. Raises
        `Failed` when they have not become fewer for `patience`.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        first = fewest = await self._now(left)

        async def fewer() -> tuple[int] | None:
            now = await left()
            return (now,) if now < fewest else None

        while fewest:
            (fewest,) = await self.until(f"fewer than {fewest} {what} (at first {first})", fewer)
        return first, loop.time() - begun

    async def _now(self, count: Callable[[], Awaitable[int]]) -> int:
        async def counted() -> tuple[int]:
            return (await count(),)

        return (await self.until("the API server answers", counted))[0]

    async def bound(self, *names: str, seconds: float | None = None) -> float:
        """Wait until these claims are bound; the seconds that took, from now."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def all_bound() -> bool:
            claims = await self.claims()
            return all(name in claims and claims[name].status.phase == "Bound" for name in names)

        await self.until(f"{_listed(names)} bound", all_bound, seconds)
        return loop.time() - begun

    async def phase(self, kind: Kind[Any], name: str, phase: str, seconds: float | None = None) -> float:
        """Wait until the object has this phase; the seconds that took, from now."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def has_phase() -> bool:
            found = await self.get(kind, name)
            return found is not None and found.status.phase == phase

        await self.until(f"{kind.kind} {name} is {phase}", has_phase, seconds)
        return loop.time() - begun

    async def gone(self, kind: Kind[Any], *names: str, seconds: float | None = None) -> float:
        """Wait until these objects are gone; the seconds that took, from now."""
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def all_gone() -> bool:
            return not [name for name in names if await self.get(kind, name) is not None]

        await self.until(f"{kind.kind} {_listed(names)} gone", all_gone, seconds)
        return loop.time() - begun

    async def assets_gone(self, *names: str) -> None:
        """Wait until the backend has no assets of these names, if it can list them."""

        async def none() -> bool:
            listed = await self.assets.names()
            return listed is None or not listed.intersection(names)

        await self.until(f"the assets of {_listed(names)} gone", none)

    async def _warnings(self) -> str:
        """Return the newest warnings about claims, pods and volumes of the run."""
        found: list[tuple[str, str]] = []
        for namespace in (self.run, self.system, "default"):
            try:
                body = await self.client.raw(f"/api/v1/namespaces/{namespace}/events")
            except (ApiNotFound, ApiUnavailable):
                continue
            for event in json.loads(body)["items"]:
                about = event.get("involvedObject") or {}
                ours = namespace != "default" or str(about.get("name", "")).startswith((self.run, "pvc-"))
                if event.get("type") == "Warning" and ours:
                    when = str(event.get("lastTimestamp") or event.get("eventTime") or "")
                    found.append((when, f"{about.get('kind')} {about.get('name')}: {event.get('message')}"))
        told = [text for _, text in sorted(found)[-TOLD:]]
        return f"; last warnings: {'; '.join(dict.fromkeys(told))}" if told else ""


def _last_words(pod: Pod) -> str:
    """Return the message of the kubelet, or of the container at its end, about a failure."""
    texts = [pod.status.reason, pod.status.message]
    for status in pod.status.container_statuses or ():
        ended = (status.state.terminated if status.state is not None else None) or {}
        texts += [f"exit code {ended.get('exitCode')}", str(ended.get("message") or "")]
    return ": ".join(text.strip() for text in texts if text) or "nothing is told"


def _listed(names: Iterable[str]) -> str:
    ordered = list(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")
