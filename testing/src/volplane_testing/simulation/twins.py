"""Volumes of one disk in two notations: a person makes a second PersistentVolume for the asset of a claim.

The asset is an iSCSI unit. Both volumes name it, one by the portal's port and the interface of initiators, the other
without these defaults. What is destroyed for one of them is lost for the other.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final

from volplane import DeleteRequest, Done, InProgress, OwnsRequest, VolumeSource, hookimpl
from volplane.kube import names
from volplane_testing.simulation.backends import LookingBackend
from volplane_testing.simulation.cluster_view import Json, annotations_of
from volplane_testing.simulation.run_context import RunContext

__all__ = ["NotatedBackend", "Twins", "write_twins"]

_PREFIX: Final = "iqn.2001-04.com.example:"
_PATIENCE: Final = 100
_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"


class NotatedBackend(LookingBackend):
    """The storage system whose assets are iSCSI units."""

    def source_of(self, handle: str) -> VolumeSource:
        fields = {"targetPortal": "10.0.0.1:3260", "iqn": f"{_PREFIX}{handle}", "lun": 0, "iscsiInterface": "default"}
        return VolumeSource(kind="iscsi", fields=fields)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return str(request.source.fields.get("iqn", "")).startswith(f"{_PREFIX}{self.root}/")

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        handle = str(request.volume.source.fields.get("iqn", "")).removeprefix(_PREFIX)
        return super().delete(replace(request, volume=replace(request.volume, handle=handle)))


class Twins:
    """Its `actions` are the `what` of actions."""

    def __init__(self, run_context: RunContext) -> None:
        self.actions: Mapping[str, Callable[..., Coroutine[Any, Any, None] | None]] = {
            "make_twin": self.make_twin,
            "end_twin": self.end_twin,
        }
        self._view = run_context.view
        self._disks = run_context.disks
        self._chance = run_context.chance
        self._happened = run_context.trace.happened

    async def make_twin(self, of: str, pause: float) -> None:
        """Make another volume for the disk of the claim once that is bound, and a claim for the volume.

        When both are bound, so that a controller knows of the volume, wait `pause` and delete the first claim.
        """
        if (claim := await self._bound(of)) is None:
            return
        if (volume := self._view.volumes.get(claim["spec"]["volumeName"])) is not None:
            self._make(of, volume)
        if await self._bound(f"of-twin-{of}") is not None:
            await asyncio.sleep(pause)
            self._send("DELETE", f"{_CLAIMS}/{of}", {})

    async def _bound(self, name: str) -> Json | None:
        """Return the claim once it is bound; None if it is not before all faults end."""
        for attempt in range(_PATIENCE):
            claim = self._view.claims.get(f"default/{name}")
            if self._chance.calm.is_set():
                break
            if claim is not None and names.BIND_COMPLETED in annotations_of(claim):
                return claim
            await asyncio.sleep(self._chance.between(0.05, 0.5, f"bind of {name} {attempt}"))
        return None

    def _make(self, of: str, volume: Json) -> None:
        source = volume["spec"].get("iscsi")
        disk = self._disks.of(volume["spec"])
        if source is None or disk is None:
            return
        self._happened["user: makes a second volume of a disk"] += 1
        disk.kept = "a person made a volume of it"
        other = {"targetPortal": source["targetPortal"].partition(":")[0], "iqn": source["iqn"], "lun": source["lun"]}
        modes = {"accessModes": ["ReadWriteOnce"]}
        spec = {
            **modes,
            "capacity": volume["spec"]["capacity"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": f"of-twin-{of}"},
            "iscsi": other,
        }
        self._create("PersistentVolume", "/api/v1/persistentvolumes", f"twin-{of}", spec)
        asked = {"storageClassName": "", "volumeName": f"twin-{of}", "resources": {"requests": {"storage": "1Gi"}}}
        self._create("PersistentVolumeClaim", _CLAIMS, f"of-twin-{of}", {**modes, **asked})

    def end_twin(self, of: str) -> None:
        """Delete the second volume, which keeps its disk, and its claim."""
        for path in (f"{_CLAIMS}/of-twin-{of}", f"/api/v1/persistentvolumes/twin-{of}"):
            self._send("DELETE", path, {})

    def _create(self, kind: str, path: str, name: str, spec: Json) -> None:
        self._send("POST", path, {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})

    def _send(self, method: str, path: str, body: Json) -> None:
        headers = {"content-type": "application/json"}
        self._view.send("user", method, path, json.dumps(body).encode(), headers=headers)


def write_twins(do: Callable[..., None], about: str, claims: list[str], share: float, end: float) -> None:
    """Write actions of `Twins` for a share of the claims.

    do: adds an action. about: what the draws depend on. end: virtual second before which they begin.
    """
    random = Random(f"{about} twins")  # noqa: S311 -- schedules, not secrets
    for name in claims:
        if random.random() < share:
            made = random.uniform(0.0, end)
            do(made, "make_twin", of=name, pause=random.uniform(0.0, 20.0))
            # Half of them stay.
            do(made + random.uniform(10.0, 90.0), "end_twin", of=random.choice((name, "nobody")))
