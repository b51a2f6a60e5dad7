"""The steps of the demo, and the check of each step on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from volplane.errors import VolplaneError
from volplane.kube import names
from volplane.kube.cache import Cache
from volplane.kube.kinds import CLAIMS, NODES, PODS, STORAGE_CLASSES, VOLUMES
from volplane.kube.objects import Claim, KubeObject, Pod, Volume, VolumeAttachment
from volplane.process.control_plane import ControlPlane
from volplane.snapshots.objects import VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.state.records import trashed
from volplane_embedded.cli.demo_console import DemoConsole
from volplane_embedded.cli.demo_disks import DemoCloud
from volplane_embedded.cli.demo_storage import DemoStorage
from volplane_embedded.cli.development_cluster import DevelopmentCluster

NAMESPACE = "default"
MESSAGE = "written by a pod"
_IDLE = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


class DemoFailed(VolplaneError):
    """A check of the demo failed."""


class Demo:
    """Runs the demo. waiting_for, reason: what it waits for now, and why that does not come, for one who gives up."""

    def __init__(
        self, console: DemoConsole, cluster: DevelopmentCluster, storage: DemoStorage, cloud: DemoCloud | None
    ) -> None:
        """cloud: of attached volumes, None if there are none."""
        self._console = console
        self._cloud = cloud
        self._storage = storage
        self._cluster = cluster
        self._client = cluster.client
        self._changed = asyncio.Event()
        self._shown: dict[tuple[str, str], str] = {}
        self.waiting_for = "the cluster has not started"
        self.reason: Callable[[], str] = lambda: ""

    async def run(self) -> None:
        """Run all steps. Raises DemoFailed."""
        plane = await self._started()
        listed: tuple[tuple[Cache[Any], str], ...] = (
            (plane.state.claims, "claim"),
            (plane.state.volumes, "volume"),
            (plane.state.pods, "pod"),
            (plane.state.attachments, "attach"),
        )
        for cache, word in listed:
            cache.subscribe(self._follow(word))
        await self._provision(plane)
        await self._first_consumer(plane)
        await self._recycle(plane)
        await self._undelete(plane)
        if self._cloud is not None:
            await self._attach(plane, self._cloud)
            await self._snapshot(plane, self._cloud)
        self._quiet(plane)

    async def _started(self) -> ControlPlane:
        plane = await self._cluster.process.wait_working()
        self._console.note(f"a cluster with two nodes runs in this process: {self._cluster.embedded.url}")
        self._console.note(f"driver {self._storage.driver} keeps volumes in {self._storage.text}")
        return plane

    # --- steps --------------------------------------------------------------------------------------------------

    async def _provision(self, plane: ControlPlane) -> None:
        self._console.heading("1. Provision: a claim of a class becomes a directory")
        await self._create_class("fast", "Immediate")
        await self._create_claim("data", "fast")
        claim = await self._claim(plane, "data", lambda claim: claim.status.phase == "Bound", "bound")
        directory = self._directory(plane, claim)
        self._check(directory.is_dir(), f"the directory {directory.name} exists", f"{directory} is no directory")
        await self._write(plane, "writer", "data")
        text = (directory / "greeting").read_text().strip() if (directory / "greeting").exists() else ""
        self._check(text == MESSAGE, f'on disk, greeting says "{text}"', f"{directory}/greeting is not there")

        self._console.heading("2. Delete: the claim goes, then its volume and the directory")
        await self._delete_claim(plane, "data")
        await self._gone(plane.state.volumes, claim.spec.volume_name, "volume")
        self._check(not directory.exists(), "the directory is gone", f"{directory} is still there")

    async def _first_consumer(self, plane: ControlPlane) -> None:
        self._console.heading("3. Wait for the first consumer: the scheduler chooses the node first")
        await self._create_class("late", "WaitForFirstConsumer")
        await self._create_claim("cache", "late")
        await self._create_pod("user", "cache", "test -d /data")
        claim = await self._claim(plane, "cache", lambda claim: claim.status.phase == "Bound", "bound")
        await self._pod_ended(plane, "user")
        node = claim.annotation("volume.kubernetes.io/selected-node")
        self._check(bool(node), f"it was provisioned for {node}", "no node was selected")
        await self._delete_pod(plane, "user")
        await self._delete_claim(plane, "cache")
        await self._gone(plane.state.volumes, claim.spec.volume_name, "volume")

    async def _recycle(self, plane: ControlPlane) -> None:
        self._console.heading(
            f"4. Recycle: a released volume is scrubbed by {self._storage.scrubber} and offered again"
        )
        directory = self._storage.root / "static-1"
        directory.mkdir()
        await self._create_static(directory)
        await self._create_claim("static", "")
        await self._claim(plane, "static", lambda claim: claim.status.phase == "Bound", "bound")
        await self._write(plane, "visitor", "static")
        self._check((directory / "greeting").exists(), "the pod's file is on disk", "the pod's file is not there")
        await self._delete_claim(plane, "static")
        await self._volume(plane, "static-1", lambda volume: volume.status.phase == "Available", "available again")
        left = sorted(path.name for path in directory.iterdir())
        self._check(not left, "the directory is there, and empty", f"{directory} still holds {', '.join(left)}")
        await self._client.delete(VOLUMES, "static-1")
        await self._gone(plane.state.volumes, "static-1", "volume")

    async def _undelete(self, plane: ControlPlane) -> None:
        self._console.heading("5. Undelete: a class with a trash keeps the volume of a deleted claim for a new one")
        await self._create_class("kept", "Immediate", parameters={names.TRASH: "1h"})
        await self._create_claim("notes", "kept")
        former = await self._claim(plane, "notes", lambda claim: claim.status.phase == "Bound", "bound")
        directory = self._directory(plane, former)
        await self._write(plane, "author", "notes")
        await self._delete_claim(plane, "notes")
        name, in_trash = former.spec.volume_name, lambda volume: trashed(volume) is not None
        await self._volume(plane, name, in_trash, "in the trash")
        record = trashed(await self._client.get(VOLUMES, name))
        left = record is not None and directory.is_dir()
        self._check(left, "the volume is in the trash for an hour, with its data", f"{directory} is gone")
        # The uid of the former claim is the proof that the new one is its owner's.
        await self._create_claim("notes-2", "kept", volume=name, annotations={names.UNDELETE: former.uid})
        await self._claim(plane, "notes-2", lambda claim: claim.status.phase == "Bound", "bound")
        text = (directory / "greeting").read_text().strip()
        self._check(text == MESSAGE, f'the new claim has the file, which says "{text}"', "the file is another one")
        await self._delete_claim(plane, "notes-2")
        await self._volume(plane, name, in_trash, "in the trash")
        await self._client.delete(VOLUMES, name)
        await self._gone(plane.state.volumes, name, "volume")
        self._check(not directory.exists(), "deleting the volume purges it", f"{directory} is still there")

    async def _attach(self, plane: ControlPlane, cloud: DemoCloud) -> None:
        self._console.heading("6. Attach: a pod moves to another node, and its EBS volume of a mocked EC2 follows it")
        machines: dict[str, str] = {}
        for node in (await self._client.list(NODES)).items:
            machines[node.name], body = cloud.add_machine()
            await self._client.patch(NODES, node.name, body)
        await self._create_class("disk", "WaitForFirstConsumer", cloud.driver.name)
        await self._create_claim("records", "disk")
        first = await self._run_on(plane, "app", f"echo {MESSAGE} > /data/greeting")
        self._check_attached(cloud, machines, first)
        await self._delete_pod(plane, "app")
        await self._client.patch(NODES, first, {"spec": {"unschedulable": True}})
        second = await self._run_on(plane, "app", f'test "$(cat /data/greeting)" = "{MESSAGE}"')
        self._check(first != second, f"on {second} the pod finds its file", f"the pod ran on {first} again")
        self._check_attached(cloud, machines, second)
        await self._client.patch(NODES, first, {"spec": {"unschedulable": None}})
        await self._delete_pod(plane, "app")

    async def _snapshot(self, plane: ControlPlane, cloud: DemoCloud) -> None:
        self._console.heading("7. Snapshot: what the pod writes afterwards is not in the volume that is made of it")
        fields = {"driver": cloud.driver.name, "deletionPolicy": "Delete"}
        await self._client.create(
            VOLUME_SNAPSHOT_CLASSES, VOLUME_SNAPSHOT_CLASSES.body(metadata={"name": "cut"}, **fields)
        )
        spec = {"volumeSnapshotClassName": "cut", "source": {"persistentVolumeClaimName": "records"}}
        metadata = {"name": "before", "namespace": NAMESPACE}
        await self._client.create(VOLUME_SNAPSHOTS, VOLUME_SNAPSHOTS.body(metadata=metadata, spec=spec))
        await self._snapshot_until("ready", lambda snapshot: snapshot is not None and snapshot.status.ready_to_use)
        self._console.done(f"EC2 has the snapshot {' and '.join(cloud.snapshots())}")
        await self._run_on(plane, "app", "echo overwritten > /data/greeting")
        await self._delete_pod(plane, "app")
        await self._create_claim("restored", "disk", snapshot="before")
        await self._run_on(plane, "reader", f'test "$(cat /data/greeting)" = "{MESSAGE}"', claim="restored")
        self._console.done(f'the restored volume says "{MESSAGE}"')
        await self._delete_pod(plane, "reader")
        await self._client.delete(VOLUME_SNAPSHOTS, f"{NAMESPACE}/before")
        await self._snapshot_until("gone", lambda snapshot: snapshot is None)
        for name in ("records", "restored"):
            claim = await self._client.get(CLAIMS, f"{NAMESPACE}/{name}")
            await self._delete_claim(plane, name)
            await self._gone(plane.state.volumes, claim.spec.volume_name, "volume")
        left = [*plane.state.attachments.keys(), *cloud.attached(), *cloud.snapshots()]
        self._check(not left, "all of it is detached and deleted", f"left over: {', '.join(left)}")

    async def _snapshot_until(self, what: str, reached: Callable[[VolumeSnapshot | None], bool]) -> None:
        self.waiting_for, self.reason = f"waiting for snapshot before to be {what}", lambda: ""
        while not reached(await self._client.find(VOLUME_SNAPSHOTS, f"{NAMESPACE}/before")):  # noqa: ASYNC110 - the demo has no cache of these
            await asyncio.sleep(0.1)
        self._console.phase("snap", "before", what)

    async def _run_on(self, plane: ControlPlane, name: str, script: str, claim: str = "records") -> str:
        """Start a pod that runs the script and then stays; the node that it was given."""
        await self._create_pod(name, claim, script, stays=True)

        def phase() -> str:
            pod = plane.state.pods.get(f"{NAMESPACE}/{name}")
            return pod.status.phase if pod is not None else ""

        await self._until(
            f"pod {name} to run",
            lambda: phase() in ("Running", "Failed"),
            lambda: plane.reasons().get("claims", {}).get(f"{NAMESPACE}/{claim}", ""),
        )
        if phase() == "Failed":
            raise DemoFailed(f"pod {name} failed")
        return (await self._client.get(PODS, f"{NAMESPACE}/{name}")).spec.node_name

    def _check_attached(self, cloud: DemoCloud, machines: dict[str, str], node: str) -> None:
        [(volume, instances)] = cloud.attached().items()
        text = f"EC2 says that {volume} is attached to {' and '.join(instances) or 'nothing'}"
        self._check(instances == (machines[node],), f"{text}, which is {node}", text)

    def _quiet(self, plane: ControlPlane) -> None:
        left = [*plane.state.claims.keys(), *plane.state.volumes.keys()]
        self._check(not left, "no claim and no volume is left", f"left over: {', '.join(left)}")

    # --- objects ------------------------------------------------------------------------------------------------

    async def _create_class(
        self, name: str, mode: str, driver: str = "", parameters: Mapping[str, str] | None = None
    ) -> None:
        provisioner = driver or self._storage.driver
        fields = {"provisioner": provisioner, "volumeBindingMode": mode, "parameters": dict(parameters or {})}
        body = STORAGE_CLASSES.body(metadata={"name": name}, **fields)
        await self._client.create(STORAGE_CLASSES, body)
        self._console.phase("class", name, "created", f"provisioner {provisioner}, {mode}")

    async def _create_claim(
        self,
        name: str,
        storage_class: str,
        volume: str = "",
        annotations: Mapping[str, str] | None = None,
        snapshot: str = "",
    ) -> None:
        """volume: the only one that will do; "" = any. snapshot: of which it is made; "" = empty."""
        spec: dict[str, Any] = {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            # A disk of EC2 has a GiB at least, and what is made of its snapshot has no less.
            "resources": {"requests": {"storage": "1Gi" if snapshot else "64Mi"}},
        }
        if volume:
            spec["volumeName"] = volume
        if snapshot:
            source = {"apiGroup": "snapshot.storage.k8s.io", "kind": VOLUME_SNAPSHOTS.kind, "name": snapshot}
            spec["dataSource"] = source
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": dict(annotations or {})}
        await self._client.create(CLAIMS, CLAIMS.body(metadata=metadata, spec=spec))

    async def _create_static(self, directory: Path) -> None:
        spec = {
            "capacity": {"storage": "64Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Recycle",
            **self._storage.static_source(directory),
        }
        await self._client.create(VOLUMES, VOLUMES.body(metadata={"name": "static-1"}, spec=spec))

    async def _create_pod(self, name: str, claim: str, script: str, *, stays: bool = False) -> None:
        """stays: it runs on after the script."""
        container = {
            "name": "main",
            "image": "host",
            "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
        if stays:
            idle = {**container, "name": "idle", "command": ["/bin/sh", "-c", _IDLE]}
            spec |= {"initContainers": [container], "containers": [idle]}
        await self._client.create(PODS, PODS.body(metadata={"name": name, "namespace": NAMESPACE}, spec=spec))

    async def _write(self, plane: ControlPlane, pod: str, claim: str) -> None:
        await self._create_pod(pod, claim, f"echo {MESSAGE} > /data/greeting")
        await self._pod_ended(plane, pod)
        await self._delete_pod(plane, pod)

    async def _delete_pod(self, plane: ControlPlane, name: str) -> None:
        await self._client.delete(PODS, f"{NAMESPACE}/{name}", grace_seconds=0)
        await self._gone(plane.state.pods, f"{NAMESPACE}/{name}", "pod")

    async def _delete_claim(self, plane: ControlPlane, name: str) -> None:
        await self._client.delete(CLAIMS, f"{NAMESPACE}/{name}")
        await self._gone(plane.state.claims, f"{NAMESPACE}/{name}", "claim")

    def _directory(self, plane: ControlPlane, claim: Claim) -> Path:
        volume = plane.state.volumes.get(claim.spec.volume_name)
        directory = self._storage.directory_of(volume) if volume is not None else None
        if directory is None:
            raise DemoFailed(f"volume {claim.spec.volume_name} points at no directory")
        return directory

    # --- watching -----------------------------------------------------------------------------------------------

    def _follow(self, word: str) -> Callable[[Any, Any], None]:
        """Return a cache listener that prints each object's phase when it changes."""

        def changed(old: KubeObject | None, new: KubeObject | None) -> None:
            self._changed.set()
            present = new or old
            if present is None or not isinstance(present, Claim | Volume | Pod | VolumeAttachment):
                return
            phase = _phase(present) if new is not None else _GONE.get(word, "deleted")
            if self._shown.get((word, present.key)) == phase:
                return
            self._shown[word, present.key] = phase
            name = present.spec.source.persistent_volume_name if isinstance(present, VolumeAttachment) else present.name
            self._console.phase(word, name or "", phase, _detail(present) if new is not None else "")

        return changed

    async def _until(self, what: str, reached: Callable[[], bool], reason: Callable[[], str] = lambda: "") -> None:
        """reason: why it does not come; asked for if it takes too long."""
        self.waiting_for = f"waiting for {what}"
        self.reason = reason
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    async def _claim(self, plane: ControlPlane, name: str, good: Callable[[Claim], bool], what: str) -> Claim:
        key = f"{NAMESPACE}/{name}"
        await self._until(
            f"claim {name} to be {what}",
            lambda: (claim := plane.state.claims.get(key)) is not None and good(claim),
            lambda: plane.reasons().get("claims", {}).get(key, ""),
        )
        claim = plane.state.claims.get(key)
        if claim is None:
            raise DemoFailed(f"claim {name} vanished")
        return claim

    async def _volume(self, plane: ControlPlane, name: str, good: Callable[[Volume], bool], what: str) -> None:
        await self._until(
            f"volume {name} to be {what}",
            lambda: (volume := plane.state.volumes.get(name)) is not None and good(volume),
            lambda: plane.reasons().get("volumes", {}).get(name, ""),
        )

    async def _pod_ended(self, plane: ControlPlane, name: str) -> None:
        key = f"{NAMESPACE}/{name}"

        def ended() -> bool:
            pod = plane.state.pods.get(key)
            return pod is not None and pod.status.phase in ("Succeeded", "Failed")

        await self._until(f"pod {name} to end", ended)
        pod = plane.state.pods.get(key)
        if pod is not None and pod.status.phase == "Failed":
            raise DemoFailed(f"pod {name} failed: {pod.status.reason} {pod.status.message}".strip())

    async def _gone(self, cache: Cache[Any], key: str, word: str) -> None:
        await self._until(f"{word} {key} to be gone", lambda: cache.get(key) is None)
        if await self._client.find(cache.kind, key) is not None:
            raise DemoFailed(f"{word} {key} is still there")

    def _check(self, passed: bool, statement: str, failure: str) -> None:
        if not passed:
            raise DemoFailed(failure)
        self._console.done(statement)


_GONE = {"attach": "detached"}


def _phase(item: Claim | Volume | Pod | VolumeAttachment) -> str:
    if isinstance(item, VolumeAttachment):
        return "detaching" if item.terminating else "attached" if item.status.attached else "attaching"
    return item.status.phase or "Pending"


def _detail(item: Claim | Volume | Pod | VolumeAttachment) -> str:
    match item:
        case VolumeAttachment():
            return f"{'from' if item.terminating else 'to'} {item.spec.node_name}"
        case Claim() if item.spec.volume_name:
            return f"to {item.spec.volume_name}"
        case Volume() if item.spec.claim_ref is not None:
            return f"for {item.spec.claim_ref.namespace}/{item.spec.claim_ref.name}"
        case Pod() if item.spec.node_name:
            return f"on {item.spec.node_name}"
    return ""
