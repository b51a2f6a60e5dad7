"""People who take a volume away in the middle of its scrub, and give it to somebody else at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Final

from volplane.state.cluster_state import SCRUB_VOLUME
from volplane_testing.simulation.cluster_view import Json, annotations_of, reference_of
from volplane_testing.simulation.run_context import RunContext

__all__ = ["Interruptions", "write_interruptions"]

_PATIENCE: Final = 300
_STEP: Final = 0.1
_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"


class Interruptions:
    """Its `actions` are the `what` of actions."""

    def __init__(self, run_context: RunContext) -> None:
        self.actions: Mapping[str, Callable[..., Coroutine[Any, Any, None]]] = {"interrupt_scrub": self.interrupt_scrub}
        self._view = run_context.view
        self._disks = run_context.disks
        self._chance = run_context.chance
        self._happened = run_context.trace.happened

    async def interrupt_scrub(self, of: str, claim: str) -> None:
        """Wait until a pod erases the volume; then keep what is on it, and let a pod of another claim use it."""
        for _ in range(_PATIENCE):
            volume = self._view.volumes.get(of)
            if self._chance.calm.is_set():
                return
            if volume is not None and self._is_erased(of):
                self._give_away(volume, claim)
                return
            await asyncio.sleep(_STEP)

    def _is_erased(self, name: str) -> bool:
        return any(
            annotations_of(pod).get(SCRUB_VOLUME) == name and pod.get("status", {}).get("phase") == "Running"
            for pod in self._view.pods.values()
        )

    def _give_away(self, volume: Json, claim: str) -> None:
        self._happened["user: gives a volume away during its scrub"] += 1
        name = volume["metadata"]["name"]
        if (disk := self._disks.of(volume["spec"])) is not None:
            disk.waived |= disk.data | {reference_of(volume).get("uid", "")}
        taken = {"spec": {"persistentVolumeReclaimPolicy": "Retain", "claimRef": None}}
        self._send("PATCH", f"/api/v1/persistentvolumes/{name}", taken)
        spec = {
            "storageClassName": "",
            "volumeName": name,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        }
        self._create("PersistentVolumeClaim", _CLAIMS, claim, spec)
        mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
        pod = {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never", "volumes": mounted}
        self._create("Pod", "/api/v1/namespaces/default/pods", f"p-{claim}", pod)

    def _create(self, kind: str, path: str, name: str, spec: Json) -> None:
        self._send("POST", path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})

    def _send(self, method: str, path: str, body: Json) -> None:
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        self._view.send("user", method, path, json.dumps(body).encode(), headers={"content-type": media})


def write_interruptions(do: Callable[..., None], about: str, volumes: list[str], share: float, end: float) -> None:
    """Write actions of `Interruptions` for a share of the volumes.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} interruptions")  # noqa: S311 -- schedules, not secrets
    for name in volumes:
        if random.random() < share:
            do(random.uniform(0.0, end), "interrupt_scrub", of=name, claim=f"next-of-{name}")
