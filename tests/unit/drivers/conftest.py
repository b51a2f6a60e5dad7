"""A backend, and what is needed to load and call it, for all tests of drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from volplane import (
    Asset,
    BackendSpec,
    Context,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    Ownership,
    OwnsRequest,
    Parameter,
    ParameterKind,
    ParameterSchema,
    ProvisionRequest,
    VolumeIdentity,
    VolumeSource,
    hookimpl,
)
from volplane.drivers.contract import Plugin
from volplane.requests import ClaimIdentity


class Memory(BackendSpec):
    """A right and small backend."""

    default_driver_name = "memory.example.com"
    options_schema = ParameterSchema(
        parameters=(Parameter(name="limit", kind=ParameterKind.SIZE, default=2**30, doc="Room."),)
    )

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.made: dict[str, int] = {}

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        schema = ParameterSchema(parameters=(Parameter(name="tier", choices=("hot", "cold"), default="hot", doc="?"),))
        return DriverInfo(version="1.0", parameters=schema)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        self.made[request.name] = request.capacity_bytes
        source = VolumeSource(kind="hostPath", fields={"path": f"/memory/{request.name}"})
        return Asset(handle=request.name, source=source, capacity_bytes=request.capacity_bytes)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        self.made.pop(request.volume.handle, None)
        return Done()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return request.source.kind == "hostPath" and str(request.source.fields.get("path", "")).startswith("/memory/")


class Kit:
    """Makes plugins and requests."""

    Memory = Memory
    context = Context(driver="d.example.com", cluster_id="c")

    def backend(self, factory: Any, name: str = "memory") -> Plugin:
        return Plugin(kind="backend", name=name, factory=factory, distribution=f"volplane-{name} 1.0")

    def extension(self, factory: Any, name: str = "watcher") -> Plugin:
        return Plugin(kind="extension", name=name, factory=factory, distribution=f"volplane-{name} 1.0")

    def demand(self, name: str = "pvc-1", size: int = 10, namespace: str = "default") -> ProvisionRequest:
        return ProvisionRequest(
            context=self.context,
            name=name,
            capacity_bytes=size,
            owner=Ownership(cluster_id="c", claim_uid="1", volume_name=name),
            claim=ClaimIdentity(namespace=namespace, name="data", uid="1"),
        )

    def volume(self, handle: str = "pvc-1") -> VolumeIdentity:
        source = VolumeSource(kind="hostPath", fields={"path": f"/memory/{handle}"})
        return VolumeIdentity(name=handle, uid="u", handle=handle, source=source, capacity_bytes=10)


@pytest.fixture
def kit() -> Kit:
    return Kit()
