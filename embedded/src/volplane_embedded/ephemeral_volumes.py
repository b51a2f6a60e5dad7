"""Claims of generic ephemeral volumes: made for their pod, and deleted when it is gone.

On a real cluster the first is a controller of kube-controller-manager, the second its garbage collector.
Source: pkg/controller/volume/ephemeral/controller.go; KEP-1698.
"""

from __future__ import annotations

from asyncio import TaskGroup
from typing import Any

from volplane.controller.actions import Action, Create, Delete, LiveReads, Read, Recorder, Settled, Wait, warning
from volplane.controller.runner import Runner
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, OwnerReference
from volplane_embedded.informers import Informers, unsubscribing
from volplane_embedded.objects import PODS, Pod, PodVolume, is_finished


class EphemeralVolumes:
    """Both controllers."""

    def __init__(self, client: Client, informers: Informers, *, recorder: Recorder) -> None:
        self._informers = informers
        self._pods = Runner(
            "ephemeral-volumes",
            self._decide_pod,
            kind=PODS,
            caches=informers.caches,
            client=client,
            recorder=recorder,
            workers=5,
        )
        self._claims = Runner(
            "ephemeral-claims",
            self._decide_claim,
            kind=CLAIMS,
            caches=informers.caches,
            client=client,
            recorder=recorder,
            workers=5,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        with unsubscribing(
            self._informers.pods.subscribe(self._pod_changed),
            self._informers.claims.subscribe(self._claim_changed),
        ):
            for pod in self._informers.pods.values():
                self._pods.enqueue(pod.key)
            for claim in self._informers.claims.values():
                self._claims.enqueue(claim.key)
            await self._run_both()

    async def _run_both(self) -> None:
        async with TaskGroup() as tasks:
            tasks.create_task(self._pods.run(), name="node-ephemeral-volumes")
            tasks.create_task(self._claims.run(), name="node-ephemeral-claims")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not any(volume.ephemeral is not None for volume in pod.spec.volumes or ()):
            return
        if new is not None:
            self._pods.enqueue(new.key)
        if old is not None and (new is None or new.uid != old.uid):
            for volume in old.spec.volumes or ():
                self._claims.enqueue(f"{old.namespace}/{_claim_name(old, volume)}")

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Queue the claim and its pods.

        A deleted claim is made again, also in place of another owner's. A claim is deleted if its pod went unseen.
        """
        claim = new or old
        if claim is None:
            return
        if _owner(claim) is not None:
            self._claims.enqueue(claim.key)
        if new is None:
            for pod in self._informers.users(claim.key):
                self._pods.enqueue(pod.key)

    def _decide_pod(self, key: str, _reads: LiveReads) -> Action:
        pod = self._informers.pods.get(key)
        if pod is None or pod.terminating or is_finished(pod):
            return Settled()
        for volume in pod.spec.volumes or ():
            if volume.ephemeral is not None and (action := self._decide_volume(pod, volume)) is not None:
                return action
        return Settled()

    def _decide_volume(self, pod: Pod, volume: PodVolume) -> Action | None:
        name = _claim_name(pod, volume)
        claim = self._informers.claims.get(f"{pod.namespace}/{name}")
        if claim is None:
            # The words of the stock event; a refusal, such as for a quota, is added.
            failure = warning(PODS, pod, "FailedBinding", f"ephemeral volume {volume.name}: create PVC {name}")
            return Create(
                kind=CLAIMS,
                body=_claim_body(pod, volume, name),
                why=f"ephemeral volume of pod {pod.key}",
                failure_event=failure,
            )
        owner = _owner(claim)
        if owner is not None and owner.uid == pod.uid:
            return None
        message = (
            f"ephemeral volume {volume.name}: PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
        )
        return Wait(reason=message, events=(warning(PODS, pod, "FailedBinding", message),))

    def _decide_claim(self, key: str, reads: LiveReads) -> Action:
        claim = self._informers.claims.get(key)
        owner = _owner(claim) if claim is not None else None
        if claim is None or owner is None or claim.terminating:
            return Settled()
        pod_key = f"{claim.namespace}/{owner.name}"
        pod = self._informers.pods.get(pod_key)
        if pod is not None and pod.uid == owner.uid:
            return Settled()
        if not reads.has(PODS, pod_key):
            return Read(PODS, pod_key, why="is the pod of the ephemeral volume gone?")
        live = reads.get(PODS, pod_key)
        if live is not None and live.uid == owner.uid:
            return Settled()
        return Delete(kind=CLAIMS, target=claim, why=f"pod {pod_key} is gone", exact=False)


def _claim_name(pod: Pod, volume: PodVolume) -> str:
    return f"{pod.name}-{volume.name}"


def _claim_body(pod: Pod, volume: PodVolume, name: str) -> dict[str, Any]:
    template = (volume.ephemeral or {}).get("volumeClaimTemplate") or {}
    made: dict[str, Any] = template.get("metadata") or {}
    owner = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": pod.name,
        "uid": pod.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {"name": name, "namespace": pod.namespace, "ownerReferences": [owner]}
    for field in ("labels", "annotations"):
        if made.get(field):
            metadata[field] = made[field]
    return CLAIMS.body(metadata=metadata, spec=template.get("spec") or {})


def _owner(claim: Claim) -> OwnerReference | None:
    """Return the pod that controls the claim."""
    for owner in claim.metadata.owner_references or ():
        if owner.controller and owner.kind == "Pod":
            return owner
    return None
