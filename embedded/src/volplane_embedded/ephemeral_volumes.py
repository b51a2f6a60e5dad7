"""Claims of generic ephemeral volumes are made for their pod. The garbage collector deletes them when it is gone.

On a real cluster this is a controller of kube-controller-manager.
Source: pkg/controller/volume/ephemeral/controller.go; KEP-1698.
"""

from __future__ import annotations

from typing import Any

from volplane.controller.actions import Action, Create, LiveReads, Recorder, Settled, Wait, warning
from volplane.controller.runner import Runner
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, OwnerReference
from volplane_embedded.informers import Informers, unsubscribing
from volplane_embedded.objects import PODS, Pod, PodVolume, is_finished


class EphemeralVolumes:
    """The controller."""

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

    async def run(self) -> None:
        """Run until cancelled."""
        with unsubscribing(
            self._informers.pods.subscribe(self._pod_changed),
            self._informers.claims.subscribe(self._claim_changed),
        ):
            for pod in self._informers.pods.values():
                self._pods.enqueue(pod.key)
            await self._pods.run()

    def _pod_changed(self, _old: Pod | None, new: Pod | None) -> None:
        if new is not None and any(volume.ephemeral is not None for volume in new.spec.volumes or ()):
            self._pods.enqueue(new.key)

    def _claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Make a deleted claim again, also in place of another owner's."""
        if new is None and old is not None:
            for pod in self._informers.users(old.key):
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
