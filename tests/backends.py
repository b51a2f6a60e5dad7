"""Backends of tests, all of them `MemoryBackend`; what goes wrong with a call is the script of a `FaultyBackend`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from volplane import Asset, Done, InProgress, Ownership, Parameter, ParameterKind, ParameterSchema, Secret, VolumeSource
from volplane.drivers.registry import DriverRegistry
from volplane.hookspecs import hookimpl
from volplane.requests import DeleteRequest, ProvisionRequest
from volplane_testing.faults import FaultyBackend
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryAsset, MemoryStorage


async def start_all(drivers: DriverRegistry) -> None:
    """Start all drivers at once and wait, without probes and further tries."""
    await asyncio.gather(*map(drivers._start, drivers._entries.values()))


def reached(backend: FaultyBackend) -> list[str]:
    """The hooks that were called, in order, without describe."""
    return [call.hook for call in backend.calls if call.hook != "describe"]


class Shelf(MemoryBackend):
    """Assets are paths called as their volumes: handle `shelf/pvc-1`, path `/shelves/pvc-1`. It lists two a page."""

    default_driver_name = "shelf.example.com"

    def __init__(self, options: Any = None) -> None:
        super().__init__(options, storage=MemoryStorage(page=2))

    def handle_of(self, name: str) -> str:
        return f"shelf/{name}"

    def source_of(self, asset: MemoryAsset) -> VolumeSource:
        return VolumeSource(kind="hostPath", fields={"path": f"/shelves/{asset.name}"})

    @property
    def assets(self) -> dict[str, MemoryAsset]:
        """By name."""
        return self.storage.assets

    def put(self, uid: str, *, cluster: str | None, size: int = 2**20) -> MemoryAsset:
        """Add an asset that nobody asks for now, marked for claim `uid` of a cluster, or unmarked (None)."""
        name = f"pvc-{uid}"
        owner = Ownership(cluster_id=cluster, claim_uid=uid, volume_name=name) if cluster is not None else None
        asset = MemoryAsset(handle=self.handle_of(name), name=name, owner=owner, capacity_bytes=size, demand=())
        self.assets[name] = asset
        return asset


class Filer(Shelf):
    """Logs in before it makes or deletes an asset. What `log_in` returns or raises is the answer; None: it may."""

    default_driver_name = "filer.example.com"
    options_schema = ParameterSchema(
        parameters=(
            Parameter(name="server", doc="Where.", default="filer"),
            Parameter(name="password", doc="Of the filer.", kind=ParameterKind.SECRET, required=True),
        )
    )

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.password: Secret = options["password"]
        self.log_in: Callable[[str], Any] = lambda _password: None

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        answer: Asset | InProgress | None = self.log_in(self.password.reveal())
        return super().provision(request) if answer is None else answer

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        self.log_in(self.password.reveal())
        return super().delete(request)
