"""Users, tenants and administrators: the effect of their actions on the cluster and on what invariants expect.

A user who offers a volume with its data, or removes what protects it, accepts the consequences: the asset's
`waived` and `kept` record that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from volplane.kube import names
from volplane.kube.quantity import parse
from volplane.reclaim.scrub_pod import SCRUB_GATE
from volplane.state.cluster_state import SCRUB_VOLUME
from volplane.state.records import RecycleIntent, read_intent
from volplane_testing.simulation.backends import SimulatedBackend
from volplane_testing.simulation.cluster_view import Commit, Json, annotations_of, finalizers_of, key_of, reference_of
from volplane_testing.simulation.disks import Disk, source_key
from volplane_testing.simulation.run_context import NAMESPACE, RunContext
from volplane_testing.simulation.safety import recycles
from volplane_testing.simulation.scenarios import ALPHA, BETA, CLASSES, KEEPING
from volplane_testing.simulation.schedule import Action

if TYPE_CHECKING:
    from volplane_testing.simulation.external_backends import ExternalBackend

__all__ = ["Actors"]

_ME: Final = "user"
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_JSON: Final = {"content-type": "application/json"}
_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
_VOLUMES: Final = "/api/v1/persistentvolumes"
_PODS: Final = "/api/v1/namespaces/default/pods"
_CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
_PATIENCE: Final = 60
"""How often the creation of a claim is tried while its name is taken."""
_GIB: Final = 2**30


class Actors:
    """Carries out actions. Each method is the `what` of an action."""

    def __init__(
        self,
        run_context: RunContext,
        backends: Mapping[str, SimulatedBackend],
        externals: Mapping[str, ExternalBackend],
    ) -> None:
        self.stripped: set[str] = set()
        """Uids of claims whose tenant removed or forged what leads to their asset."""
        self.hidden: set[str] = set()
        """Uids of claims whose tenant removed record or finalizer: only the process that began knows of the asset."""
        self.restored: set[str] = set()
        """Names of volumes that came back from a backup; their assets may be gone since it was made."""
        self._view = run_context.view
        self._disks = run_context.disks
        self._safety = run_context.safety
        self._chance = run_context.chance
        self._happened = run_context.trace.happened
        self._backends = backends
        self._externals = externals
        self._unit = max((external.gib for external in externals.values()), default=1)
        self._remembered: dict[str, str] = {}
        self._to_forge: set[str] = set()
        """Uids of volumes whose scrubber pod somebody waits for."""
        run_context.view.listeners.append(self._committed)

    def can(self, action: Action) -> bool:
        return hasattr(self, action.what) and action.what != "can"

    # --- classes and volumes ------------------------------------------------------------------------------------

    def create_class(self, name: str, like: str) -> None:
        about = {**{**CLASSES, **KEEPING}[like], "allowVolumeExpansion": True}
        if (external := self._externals.get(about["provisioner"])) is not None:
            asked = about.get("parameters", {}) if external.scrubs else {}
            about["parameters"] = {**external.subject.parameters, **asked}
        body = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, **about}
        self._send("POST", _CLASSES, body)

    def delete_class(self, name: str) -> None:
        if self._send("DELETE", f"{_CLASSES}/{name}", {}):
            self._happened["user: deletes a class"] += 1

    def create_volume(self, name: str, policy: str, size: int, reserved: str, driver: str) -> None:
        """Create a static volume over a directory of this name. Creating it again gives up the data in it."""
        backend = self._backends.get(driver) or next(iter(self._backends.values()), None)
        if backend is None:
            return  # Only simulated storages have static assets.
        driver, handle = backend.name, backend.add(name, size * self._unit * _GIB)
        source = backend.source_of(handle)
        key = source_key(source.kind, source.fields)
        disk = self._disks.by_key.get(key) or self._safety.made(driver, key, None)
        disk.waived |= disk.data
        disk.kept = "a user made it"
        spec: Json = {
            "capacity": {"storage": f"{size * self._unit}Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": policy,
            source.kind: dict(source.fields),
        }
        if reserved:
            spec["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": reserved}
        body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self._send("POST", _VOLUMES, body)

    def delete_volume(self, of: str) -> None:
        if (volume := self._target(of)) is not None:
            held = self._view.claim_of(volume) is not None
            self._happened["user: deletes a volume that is bound" if held else "user: deletes a volume"] += 1
            self._send("DELETE", f"{_VOLUMES}/{volume['metadata']['name']}", {})

    def set_policy(self, of: str, policy: str) -> None:
        volume = self._target(of)
        if volume is None:
            return
        if self._externals and "deletionTimestamp" in volume["metadata"]:
            return  # Real storages name assets by their claim, which could have no other while this one is kept.
        self._happened["user: changes a policy"] += 1
        self._patch(_VOLUMES, volume, {"spec": {"persistentVolumeReclaimPolicy": policy}})
        disk = self._disks.of(volume["spec"])
        if disk is not None and policy != "Recycle" and not reference_of(volume).get("uid"):
            disk.waived |= disk.data

    def clear_reference(self, of: str, variant: str, claim: str) -> None:
        """Offer a volume to anybody, to whoever has the claim's name, or to another claim."""
        volume = self._target(of)
        if volume is None or not reference_of(volume):
            return
        deleting = "deletionTimestamp" in volume["metadata"]
        self._happened["user: clears a claimRef" + " during a delete" * deleting] += 1
        if names.INTENT not in annotations_of(volume) or not recycles(volume):
            self._waive(volume)
        reference: Json | None = {"uid": None, "resourceVersion": None}
        if variant == "all":
            reference = None
        elif variant == "other":
            reference = {"uid": None, "resourceVersion": None, "namespace": "default", "name": claim}
        if (disk := self._disks.of(volume["spec"])) is not None:
            disk.mounts.clear()  # The pods of the former claim lose the volume.
        self._patch(_VOLUMES, volume, {"spec": {"claimRef": reference}})

    def strip_volume_intent(self, of: str) -> None:
        volume = self._target(of)
        if volume is None or names.INTENT not in annotations_of(volume):
            return
        if not reference_of(volume).get("uid"):
            self._waive(volume)
        self._happened["user: strips a volume's intent"] += 1
        self._patch(_VOLUMES, volume, {"metadata": {"annotations": {names.INTENT: None}}})

    async def delete_scrubber(self, of: str) -> None:
        """Wait a while for the scrubber pod of a volume, and delete it."""
        volume = self._target(of)
        for _ in range(3 * _PATIENCE):
            volume = volume or self._target(of)
            name = volume["metadata"]["name"] if volume is not None else ""
            pods = [pod for pod in self._view.pods.values() if name and annotations_of(pod).get(SCRUB_VOLUME) == name]
            if self._chance.calm.is_set():
                return
            for pod in pods:
                self._happened["user: deletes a scrubber pod"] += 1
                self._send("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}", {})
                return
            await asyncio.sleep(0.1)

    def forge_scrub_pod(self, of: str) -> None:
        """Wait for a scrub of the volume to start, and create a pod in our namespace before the controller does."""
        if (volume := self._target(of)) is not None:
            self._to_forge.add(volume["metadata"]["uid"])

    def _committed(self, commit: Commit) -> None:
        new = commit.new
        if commit.kind != "volume" or new is None or names.INTENT not in annotations_of(new):
            return
        if (uid := new["metadata"]["uid"]) in self._to_forge and read_intent(
            RecycleIntent, annotations_of(new)[names.INTENT]
        ):
            self._to_forge.discard(uid)
            asyncio.get_running_loop().call_soon(self._create_forged_pod, new)

    def _create_forged_pod(self, volume: Json) -> None:
        """Create a pod in the place of the scrubber, which erases nothing."""
        digest = sha256(volume["metadata"]["uid"].encode()).hexdigest()[:16]
        metadata = {
            "name": f"volplane-scrub-{digest}",
            "annotations": {SCRUB_VOLUME: volume["metadata"]["name"]},
        }
        spec = {
            "containers": [{"name": "main", "image": "busybox"}],
            "restartPolicy": "Never",
            "schedulingGates": [{"name": SCRUB_GATE}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        if self._send("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body):
            self._happened["user: forges a scrubber pod"] += 1

    # --- claims -------------------------------------------------------------------------------------------------

    async def create_claim(self, name: str, storage_class: str, size: int, volume: str) -> None:
        spec: Json = {
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{size * self._unit}Gi"}},
        }
        if volume:
            spec["volumeName"] = volume
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        for attempt in range(_PATIENCE):
            if self._send("POST", _CLAIMS, body) or self._chance.calm.is_set():
                return
            await asyncio.sleep(self._chance.between(0.005, 0.5, f"{name} {attempt}"))

    async def grow_claim(self, name: str) -> None:
        """Request more than the claim has, of a simulated storage, which can grow its assets."""
        for attempt in range(_PATIENCE):
            claim = self._view.claims.get(f"default/{name}")
            if claim is None or "deletionTimestamp" in claim["metadata"] or self._chance.calm.is_set():
                return
            volume = self._view.volumes.get(claim["spec"].get("volumeName", ""))
            if volume is not None and annotations_of(volume).get(names.PROVISIONED_BY) in self._backends:
                asked = parse(claim["spec"]["resources"]["requests"]["storage"]).as_bytes() + _GIB
                if self._patch(_CLAIMS, claim, {"spec": {"resources": {"requests": {"storage": f"{asked}"}}}}):
                    self._happened["user: lets a claim grow"] += 1
                    return
            await asyncio.sleep(self._chance.between(0.05, 1.0, f"{name} grows {attempt}"))

    def delete_claim(self, name: str) -> None:
        self._send("DELETE", f"{_CLAIMS}/{name}", {})

    async def force_claim(self, name: str) -> None:
        """Remove a claim by force while a pod uses it; of a volume only that is erased before anybody else has it."""
        if not (mounts := self._mounts_of(name)):
            return
        await asyncio.sleep(1.0)  # a claim of that name that comes in the same second could not be told from this one
        claim, disk = self._view.claims.get(f"default/{name}"), self._disk_of(name)
        if claim is None or disk is None or mounts != self._mounts_of(name):
            return
        self._happened["user: removes a claim in use by force"] += 1
        disk.forced = True
        self.stripped.add(claim["metadata"]["uid"])  # our finalizer goes with the others
        self._send("DELETE", f"{_CLAIMS}/{name}", {})
        self._patch(_CLAIMS, claim, {"metadata": {"finalizers": None}})

    def _disk_of(self, claim: str) -> Disk | None:
        """Return the asset of a bound claim, if it is recycled."""
        found = self._view.claims.get(f"default/{claim}")
        if found is None or names.BIND_COMPLETED not in annotations_of(found):
            return None
        volume = self._view.volumes.get(found["spec"].get("volumeName", ""))
        return self._disks.of(volume["spec"]) if volume is not None and recycles(volume) else None

    def _mounts_of(self, claim: str) -> set[str]:
        """Uids of the pods that have the asset of a bound claim mounted."""
        disk = self._disk_of(claim)
        return set(disk.mounts) if disk is not None else set()

    def select_node(self, claim: str, node: str) -> None:
        """Select another node for a claim that is not bound yet, as the scheduler does."""
        found = self._view.claims.get(f"default/{claim}")
        if found is None or names.BIND_COMPLETED in annotations_of(found):
            return
        begun = names.INTENT in annotations_of(found) or found["metadata"]["uid"] in self._safety.forged
        if begun and annotations_of(found).get(names.SELECTED_NODE) != node:
            self._happened["user: moves a claim to another node"] += 1
            self._safety.moved.add(found["metadata"]["uid"])
        self._patch(_CLAIMS, found, {"metadata": {"annotations": {names.SELECTED_NODE: node}}})

    def forge_intent(self, claim: str, variant: str) -> None:
        """Damage the intent on a claim, as a tenant can."""
        found = self._view.claims.get(f"default/{claim}")
        if found is None:
            return
        present = annotations_of(found).get(names.INTENT)
        forged = self._forged(claim, variant, present)
        if forged != present:
            self._happened["user: strips an intent" if forged is None else f"user: forges an intent ({variant})"] += 1
        self._safety.forged.setdefault(found["metadata"]["uid"], asyncio.get_running_loop().time())
        if variant == "replayed":
            self.stripped.add(found["metadata"]["uid"])
        if present is not None:
            self._remembered.setdefault(found["metadata"]["uid"], present)
        self._patch(_CLAIMS, found, {"metadata": {"annotations": {names.INTENT: forged}}})

    def _forged(self, claim: str, variant: str, present: str | None) -> str | None:
        match variant:
            case "other driver":
                driver = BETA if ALPHA in (present or ALPHA) else ALPHA
                return json.dumps({"intent": {"v": 1, "driver": driver, "generation": 1}, "seal": "0" * 64})
            case "other generation":
                driver = ALPHA if ALPHA in (present or ALPHA) else BETA
                return json.dumps({"intent": {"v": 1, "driver": driver, "generation": 7}, "seal": "0" * 64})
            case "copied":
                others = [o for o in self._view.claims.values() if o["metadata"]["name"] != claim]
                return next((text for o in others if (text := annotations_of(o).get(names.INTENT))), "{}")
            case "replayed":
                found = self._view.claims[f"default/{claim}"]
                return self._remembered.get(found["metadata"]["uid"], present)
            case "stripped":
                return None
        return "not an intent"

    def strip_finalizer(self, claim: str) -> None:
        """Remove our finalizer, as a tenant can: an asset that is being made may be left over."""
        found = self._view.claims.get(f"default/{claim}")
        if found is None or names.PROVISIONING_FINALIZER not in finalizers_of(found):
            return
        self.hidden.add(found["metadata"]["uid"])
        self._happened["user: strips our finalizer"] += 1
        kept = [name for name in finalizers_of(found) if name != names.PROVISIONING_FINALIZER]
        self._patch(_CLAIMS, found, {"metadata": {"finalizers": kept or None}})

    def restore(self, claim: str, variant: str) -> None:
        """Claim and volume vanish by force and come back from a backup, with new uids of their own and old ones
        inside.
        """
        found = self._view.claims.get(f"default/{claim}")
        volume = self._view.volumes.get(found["spec"].get("volumeName", "")) if found is not None else None
        if found is None or volume is None or names.BIND_COMPLETED not in annotations_of(found):
            return
        self._happened[f"user: restores from a backup ({variant})"] += 1
        self._waive(volume)
        if (disk := self._disks.of(volume["spec"])) is not None:
            disk.kept = "its volume was removed by force"
            disk.mounts.clear()
        self.stripped.add(found["metadata"]["uid"])
        self.restored.add(volume["metadata"]["name"])
        objects = [(_CLAIMS, found)] if variant == "claim" else [(_CLAIMS, found), (_VOLUMES, volume)]
        for path, obj in objects:
            self._patch(path, obj, {"metadata": {"finalizers": None}})
            self._send("DELETE", f"{path}/{obj['metadata']['name']}", {})
        for path, obj in reversed(objects):
            self._send("POST", path, _from_backup(obj, fresh=variant == "fresh reference"))

    # --- pods ---------------------------------------------------------------------------------------------------

    def create_pod(self, name: str, claim: str, lifetime: float) -> None:
        metadata: Json = {"name": name}
        if lifetime:
            metadata["annotations"] = {"lifetime": str(lifetime)}
        spec = {
            "containers": [{"name": "main", "image": "busybox"}],
            "restartPolicy": "Never",
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        }
        used = self._view.claims.get(f"default/{claim}")
        if used is not None and "deletionTimestamp" in used["metadata"]:
            self._happened["user: creates a pod for a claim that is being deleted"] += 1
        self._send("POST", _PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def delete_pod(self, name: str) -> None:
        self._send("DELETE", f"{_PODS}/{name}", {})

    # --- requests -----------------------------------------------------------------------------------------------

    def _target(self, of: str) -> Json | None:
        """Return a volume by its name, or by its claim (`of c1`): the one that the claim or the volume names."""
        if not of.startswith("of "):
            return self._view.volumes.get(of)
        name = of.removeprefix("of ")
        claim = self._view.claims.get(f"default/{name}")
        if claim is not None and (pointer := claim["spec"].get("volumeName")):
            return self._view.volumes.get(pointer)
        named = [v for v in self._view.volumes.values() if reference_of(v).get("name") == name]
        return named[0] if named else None

    def _waive(self, volume: Json) -> None:
        disk: Disk | None = self._disks.of(volume["spec"])
        if disk is not None:
            disk.waived |= disk.data | {reference_of(volume).get("uid", "")}

    def _patch(self, path: str, obj: Json, body: Any) -> bool:
        return self._send("PATCH", f"{path}/{obj['metadata']['name']}", body)

    def _send(self, method: str, path: str, body: Any) -> bool:
        headers = _MERGE if method == "PATCH" else _JSON
        answer = self._view.send(_ME, method, path, json.dumps(body).encode(), headers=headers)
        return answer.status < 300

    def act(self, action: Action) -> Any:
        """Do it; a coroutine if it takes time."""
        method: Callable[..., Any] = getattr(self, action.what)
        return method(**action.detail)


def _from_backup(obj: Json, *, fresh: bool) -> Json:
    """Return the object as a backup tool sends it. fresh: the tool clears the uid in a volume's reference."""
    meta = obj["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "labels", "annotations", "finalizers") if key in meta}
    kind = "PersistentVolume" if "/" not in key_of(obj) else "PersistentVolumeClaim"
    spec = json.loads(json.dumps(obj["spec"]))
    if "claimRef" in spec:
        spec["claimRef"].pop("resourceVersion", None)
        if fresh:
            spec["claimRef"].pop("uid", None)
    return {"apiVersion": "v1", "kind": kind, "metadata": kept, "spec": spec}
