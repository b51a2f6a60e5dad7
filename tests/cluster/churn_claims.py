"""The claims of a run: what each goes through until it is deleted, what is checked meanwhile, and what must be left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cluster.churn_api import CORE, STORAGE, Api, Json
from cluster.churn_nodes import ATTACHER, Nodes, WatchedEC2, World, claim_of, handle_of, is_going
from cluster.churn_record import Record

DIRECTORIES = "volplane-churn-directories"
DISKS = "volplane-churn-disks"
MARKER = "kept"
LOOK = 0.2
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


class Over(Exception):
    """The churn is over: a claim stays as it is."""


def size_of(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


@dataclass(slots=True, eq=False)
class Life:
    """A claim. asset: its directory or its EBS volume, once it is bound. pods: those that should be there."""

    name: str
    storage_class: str
    size: str
    uid: str = ""
    volume: str = ""
    asset: str = ""
    marked: bool = False
    deleted: bool = False
    attached: bool = False
    grown: bool = False
    pods: set[str] = field(default_factory=set)

    @property
    def is_disk(self) -> bool:
        return self.storage_class == DISKS


@dataclass(slots=True)
class Churn:
    """All claims. image: of pods that a real kubelet runs on the node `real`; without one there are none."""

    api: Api
    namespace: str
    nodes: Nodes
    fake: WatchedEC2
    root: Path
    record: Record
    image: str = ""
    real: str = ""
    linger: float = 4.0
    """The longest pause between two steps of a life."""
    world: World = field(default_factory=World)
    lives: dict[str, Life] = field(default_factory=dict)
    """Those that are not wholly gone, by name."""
    over: bool = False
    passes: int = 0
    chance: Random = field(default_factory=lambda: Random(1))
    _made: int = 0

    @property
    def _base(self) -> str:
        return f"{CORE}/namespaces/{self.namespace}"

    # --- what a claim goes through --------------------------------------------------------------------------------

    async def directories(self, *, pods: bool = False) -> None:
        """Live through one claim of a directory after another, until the churn is over."""
        while not self.over:
            try:
                life = await self._make(DIRECTORIES, "1Mi")
                await self._directory(life, pods=pods)
            except Over:
                return

    async def _directory(self, life: Life, *, pods: bool) -> None:
        if self.chance.random() < 0.1:
            await self._pause()
        else:
            await self._bound(life)
            if pods:
                await self._start(life, self.real)
                await self._until(lambda: self._runs(life))
                self.record.count("run by the kubelet")
            if self.chance.random() < 0.4:
                await self._ask_for(life, "2Mi")
                if self.chance.random() < 0.8:
                    await self._until(lambda: life.grown)
            await self._pause()
            if pods and self.chance.random() < 0.5:
                await self._delete(life)
            await self._stop_pods(life)
        await self._delete(life)
        if pods:
            await self._until(lambda: life.name not in self.lives)

    async def disks(self) -> None:
        """Live through one claim of a disk after another, until the churn is over."""
        while not self.over:
            try:
                life = await self._make(DISKS, "1Gi")
                await self._disk(life)
            except Over:
                return

    async def _disk(self, life: Life) -> None:
        if self.chance.random() < 0.12:
            # Deleted in the midst of whatever is going on.
            if self.chance.random() < 0.7:
                await self._start(life, self._node())
            await self._pause()
        else:
            await self._bound(life)
            for stay in range(self.chance.choice((1, 1, 2))):
                # On another node at once: the kubelet of the former one may still have it.
                await self._start(life, self._node())
                await self._until(lambda: self._mounted(life))
                life.attached = True
                if stay == 0 and self.chance.random() < 0.85:
                    await self._ask_for(life, "2Gi")
                    if self.chance.random() < 0.9:
                        await self._until(lambda: life.grown)
                        self.record.count("attached and grown")
                await self._pause()
                if self.chance.random() < 0.15:
                    await self._delete(life)  # while the pod uses it
                await self._stop_pods(life)
                if life.deleted:
                    break
        await self._stop_pods(life)
        await self._delete(life)

    def _node(self) -> str:
        return self.chance.choice(self.nodes.kubelets).name

    async def _pause(self) -> None:
        end = asyncio.get_running_loop().time() + self.chance.uniform(0.2, self.linger)
        await self._until(lambda: asyncio.get_running_loop().time() >= end)

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            if self.over:
                raise Over
            await asyncio.sleep(LOOK)

    async def _make(self, storage_class: str, size: str) -> Life:
        self._made += 1
        life = Life(f"claim-{self._made}", storage_class, size)
        self.lives[life.name] = life
        body = {
            "metadata": {"name": life.name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": storage_class,
                "resources": {"requests": {"storage": size}},
            },
        }
        made = await self.api.create(f"{self._base}/persistentvolumeclaims", body)
        life.uid = made["metadata"]["uid"]
        self.record.count("made")
        return life

    async def _bound(self, life: Life) -> None:
        await self._until(lambda: life.marked or (life.is_disk and bool(life.asset)))

    async def _ask_for(self, life: Life, size: str) -> None:
        life.size = size
        body = {"spec": {"resources": {"requests": {"storage": size}}}}
        await self.api.patch(f"{self._base}/persistentvolumeclaims/{life.name}", body)

    async def _start(self, life: Life, node: str) -> None:
        self._made += 1
        name = f"{life.name}-pod-{self._made}"
        script = "echo pod > /data/pod; trap 'exit 0' TERM; while :; do sleep 1; done"
        container = {
            "name": "main",
            "image": self.image or "none",
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        spec = {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": life.name}}],
        }
        life.pods.add(name)
        await self.api.create(f"{self._base}/pods", {"metadata": {"name": name}, "spec": spec})

    async def _stop_pods(self, life: Life) -> None:
        for name in sorted(life.pods):
            await self.api.delete(f"{self._base}/pods/{name}")
        life.pods.clear()

    async def _delete(self, life: Life) -> None:
        if not life.deleted:
            self._kept(life)
            life.deleted = True
            self.fake.needed.discard(life.asset)
            await self.api.delete(f"{self._base}/persistentvolumeclaims/{life.name}")
            self.record.count("deleted")

    def _pod(self, life: Life) -> Json | None:
        found = [self.world.pods[name] for name in life.pods if name in self.world.pods]
        return found[0] if found else None

    def _mounted(self, life: Life) -> bool:
        pod = self._pod(life)
        return pod is not None and self.nodes.mounted(pod)

    def _runs(self, life: Life) -> bool:
        pod = self._pod(life)
        running = pod is not None and pod.get("status", {}).get("phase") == "Running"
        return running and (Path(life.asset) / "pod").is_file()

    # --- what is looked at all the time ---------------------------------------------------------------------------

    async def observe(self) -> None:
        """List everything, note what became of each claim, and what must not be; then the kubelets take a pass."""
        claims = {
            each["metadata"]["name"]: each for each in await self.api.list(f"{self._base}/persistentvolumeclaims")
        }
        listed = [each for each in await self.api.list(f"{CORE}/persistentvolumes") if self.ours(each)]
        pods = {each["metadata"]["name"]: each for each in await self.api.list(f"{self._base}/pods")}
        attachments = {
            (str(each["spec"]["source"].get("persistentVolumeName")), str(each["spec"]["nodeName"])): each
            for each in await self.api.list(f"{STORAGE}/volumeattachments")
            if each["spec"]["attacher"] == ATTACHER
        }
        self.world = World(claims, {each["metadata"]["name"]: each for each in listed}, pods, attachments)
        for life in list(self.lives.values()):
            await self._observe(life)
        self._bound_twice()
        await self.nodes.sync(self.world)
        self.passes += 1

    @staticmethod
    def ours(volume: Json) -> bool:
        return volume["spec"].get("storageClassName") in {DIRECTORIES, DISKS}

    async def _observe(self, life: Life) -> None:
        claim = self.world.claims.get(life.name)
        if claim is None:
            await self._gone(life)
            return
        if claim["status"].get("phase") == "Lost":
            self.record.fault(f"claim {life.name} is Lost")
        named = claim["spec"].get("volumeName", "")
        if not life.volume and claim["status"].get("phase") == "Bound":
            self._note_bound(life, claim)
        elif life.volume and named != life.volume:
            self.record.fault(f"claim {life.name} was bound to {life.volume} and is to {named or 'nothing'}")
        if life.volume and not life.deleted:
            await self._keeps_its_volume(life)
        if not life.deleted:
            self._kept(life)
        has = (claim["status"].get("capacity") or {}).get("storage", "")
        if not life.grown and life.volume and life.size[0] == "2" and has == life.size:
            if life.is_disk and self.fake.volumes[life.asset].size != 2:
                self.record.fault(f"claim {life.name} has {has}, but its disk has not grown")
            life.grown = True
            self.record.count("grown")

    def _kept(self, life: Life) -> None:
        """Look whether the claim has what it had."""
        if life.marked and not (Path(life.asset) / MARKER).is_file():
            self.record.fault(f"claim {life.name} has lost what was written to {life.asset}")
        if life.is_disk and life.asset and life.asset not in self.fake.volumes:
            self.record.fault(f"claim {life.name} has lost its disk {life.asset}")

    def _note_bound(self, life: Life, claim: Json) -> None:
        volume = self.world.volumes.get(claim["spec"]["volumeName"])
        if volume is None:
            return  # made after the volumes were listed, or gone: looked at in the next pass
        life.volume = volume["metadata"]["name"]
        if life.is_disk:
            life.asset = handle_of(volume)
            if not life.deleted:
                self.fake.needed.add(life.asset)
        else:
            source = volume["spec"].get("hostPath") or volume["spec"]["local"]
            life.asset = source["path"]
            if not life.deleted:
                try:
                    (Path(life.asset) / MARKER).write_text(life.uid)
                    life.marked = True
                except OSError as error:
                    self.record.fault(f"claim {life.name} is bound to a directory that cannot be used: {error}")
        self.record.count("bound")

    async def _keeps_its_volume(self, life: Life) -> None:
        volume = self.world.volumes.get(life.volume)
        if volume is not None and not is_going(volume):
            return
        # Listed after the claim: what happened in between counts only if the claim is still wanted.
        fresh = await self.api.get(f"{CORE}/persistentvolumes/{life.volume}")
        if not life.deleted and (fresh is None or is_going(fresh)):
            self.record.fault(f"volume {life.volume} of the bound claim {life.name} is deleted")

    async def _gone(self, life: Life) -> None:
        if not life.uid:
            return
        if not life.deleted:
            if await self.api.get(f"{self._base}/persistentvolumeclaims/{life.name}") is None:
                self.record.fault(f"claim {life.name} was deleted by nobody")
            return
        users = [pod for pod in self.world.pods.values() if claim_of(pod) == life.name and self.nodes.mounted(pod)]
        if users:
            self.record.fault(f"claim {life.name} is gone while pod {users[0]['metadata']['name']} uses it")
        if life.volume not in self.world.volumes:
            del self.lives[life.name]
            self.record.count("gone")

    def _bound_twice(self) -> None:
        owners: dict[str, str] = {}
        for name, volume in self.world.volumes.items():
            uid = (volume["spec"].get("claimRef") or {}).get("uid", "")
            if uid and volume.get("status", {}).get("phase") == "Bound" and owners.setdefault(uid, name) != name:
                self.record.fault(f"volumes {owners[uid]} and {name} are bound to one claim")

    # --- what must be so once it is quiet -------------------------------------------------------------------------

    def unsettled(self) -> list[str]:
        """Return what is not as it should be in the end: lost, leaked or stuck. Nothing is asked of volplane."""
        return [*self._claims_unsettled(), *self._objects_unsettled(), *self._assets_unsettled()]

    def _alive(self) -> Iterator[Life]:
        return (life for life in self.lives.values() if not life.deleted)

    def _claims_unsettled(self) -> Iterator[str]:
        expected = {life.name: life for life in self._alive()}
        for name in sorted(self.world.claims.keys() - expected.keys()):
            yield f"claim {name} was deleted and is there"
        for life in expected.values():
            claim = self.world.claims.get(life.name)
            if claim is None or claim["status"].get("phase") != "Bound" or not life.volume:
                yield f"claim {life.name} is not bound"
                continue
            has = claim["status"]["capacity"]["storage"]
            if size_of(has) != size_of(life.size) and (life.pods or not life.is_disk):
                yield f"claim {life.name} has {has}, not {life.size}"
            if life.pods and life.is_disk and not self._mounted(life):
                yield f"pod {min(life.pods)} has no disk"
            if life.pods and not life.is_disk and not self._runs(life):
                yield f"pod {min(life.pods)} does not run"

    def _objects_unsettled(self) -> Iterator[str]:
        bound = {life.volume for life in self._alive()}
        for name, volume in sorted(self.world.volumes.items()):
            if name not in bound or volume["status"].get("phase") != "Bound" or is_going(volume):
                yield f"volume {name} is {volume['status'].get('phase')}" + (" and going" if is_going(volume) else "")
        pods = {name for life in self.lives.values() for name in life.pods}
        for name in sorted(self.world.pods.keys() ^ pods):
            yield f"pod {name} should {'be there' if name in pods else 'be gone'}"
        used = ((self.world.volume_of(pod), pod["spec"]["nodeName"]) for pod in self.world.pods.values())
        wanted = {(each["metadata"]["name"], node) for each, node in used if each is not None and "csi" in each["spec"]}
        for pair in sorted(wanted ^ self.world.attachments.keys()):
            yield f"attachment of {pair[0]} to {pair[1]} should {'be there' if pair in wanted else 'be gone'}"

    def _assets_unsettled(self) -> Iterator[str]:
        disks = {life.asset: life for life in self._alive() if life.is_disk}
        for handle, volume in sorted(self.fake.volumes.items()):
            life = disks.get(handle)
            if life is None:
                yield f"disk {handle} belongs to no claim ({volume.tags})"
            elif life.pods and volume.size != size_of(life.size) >> 30:
                yield f"disk {handle} has {volume.size} GiB, not {life.size}"
            users = {
                self.world.pods[name]["spec"]["nodeName"]
                for name in (life.pods if life else ())
                if name in self.world.pods
            }
            places = {each.name for each in self.nodes.kubelets if each.instance in volume.attachments}
            if places != users:
                yield f"disk {handle} is on {sorted(places)}, its pods on {sorted(users)}"
        for handle in sorted(disks.keys() - self.fake.volumes.keys()):
            yield f"disk {handle or '(none)'} of claim {disks[handle].name} is lost"
        directories = {life.asset: life for life in self._alive() if not life.is_disk}
        for path, life in directories.items():
            marker = Path(path) / MARKER
            if not path or not marker.is_file() or marker.read_text() != life.uid:
                yield f"directory {path or '(none)'} of claim {life.name} is lost"
        yield from self._left_in_root(set(directories))

    def _left_in_root(self, expected: set[str]) -> Iterator[str]:
        above = {str(parent) for path in expected for parent in Path(path).parents}
        for current, names, _ in os.walk(self.root):
            for name in list(names):
                path = os.path.join(current, name)  # noqa: PTH118 - many of them
                if path == str(self.root / ".volplane") or path in expected:
                    names.remove(name)
                elif path not in above:
                    names.remove(name)
                    yield f"directory {path} belongs to no claim"
        own = self.root / ".volplane"
        records = {each.stem for each in (own / "volumes").glob("*.json")}
        volumes = {life.volume for life in self._alive() if not life.is_disk}
        for name in sorted(records ^ volumes):
            yield f"the record of {name} in the root should {'be there' if name in volumes else 'be gone'}"
        for place in ("tmp", "trash"):
            for each in sorted((own / place).glob("*")):
                yield f"{each} was left behind"
