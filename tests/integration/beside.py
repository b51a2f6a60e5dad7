"""A harness in which volplane only provisions and reclaims, and stock controllers do the rest."""

from __future__ import annotations

from typing import Any

from integration.stock_neighbours import StockCluster
from scenarios.backends import ScriptedBackend
from scenarios.faults import Call
from scenarios.harness import Harness, Json
from scenarios.stories import DRIVER, claim, storage_class

PROVISIONER = "volume.kubernetes.io/storage-provisioner"
PROVISIONER_BETA = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
WRITES = frozenset({"create", "update", "delete"})


class Beside(Harness):
    """controllers: ours. `stock` is not started by itself."""

    def __init__(
        self, *backends: ScriptedBackend, beta_only: bool = False, latency: float = 0.002, **more: Any
    ) -> None:
        chosen = backends or (ScriptedBackend(DRIVER),)
        controllers = frozenset({"provisioner", "reclaimer"})
        super().__init__(*chosen, controllers=controllers, settings={"binder": False}, disabled_admission=(), **more)
        self.stock = StockCluster(self.server, latency=latency, beta_only=beta_only)

    @property
    def backend(self) -> ScriptedBackend:
        return self.backends[DRIVER]

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self.stock.stop()

    async def start_both(self) -> None:
        await self.stock.start()
        await self.start()

    def our_writes(self) -> list[Call]:
        """What volplane wrote, refused or not."""
        return [call for call in self.rules.calls if call.verb in WRITES]

    async def bound_volume(self, name: str) -> Json:
        """The volume of a claim that is bound, and complete."""
        found = await self.see("claims", name)
        assert found["status"]["phase"] == "Bound", (found, self.reasons())
        volume = await self.see("volumes", found["spec"]["volumeName"])
        assert volume["status"]["phase"] == "Bound"
        assert volume["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
        return volume

    async def nothing_left(self) -> None:
        """No claim, no volume, no asset."""
        assert await self.everything("claims") == []
        assert await self.everything("volumes") == []
        assert not any(backend.assets for backend in self.backends.values())


def ours(name: str = "c", size: str = "1Gi", **spec: Any) -> Json:
    """A claim of the class `fast`."""
    return claim(name, size, **{"storageClassName": "fast", **spec})


def asked(body: Json, provisioner: str = DRIVER, *, key: str = PROVISIONER, **annotations: str) -> Json:
    """The claim as a binder leaves it that wants `provisioner` to act."""
    body["metadata"]["annotations"] = {key: provisioner, **annotations}
    return body


def pod(name: str, *claims: str) -> Json:
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": claim}} for n, claim in enumerate(claims)]
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def fast(**more: Any) -> Json:
    return storage_class("fast", **more)
