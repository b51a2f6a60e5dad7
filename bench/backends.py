"""The backends of the benchmarks: those that take almost no time, so that only the controllers are measured, and
hostpath.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from volplane import (
    Absent,
    Asset,
    Attachment,
    AttachRequest,
    BackendSpec,
    DeleteRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    FindRequest,
    OwnsRequest,
    PodScrub,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    Unsupported,
    VolumeSource,
    hookimpl,
)
from volplane.drivers.contract import Plugin
from volplane_hostpath import HostPathBackend

__all__ = ["CALL_SECONDS", "PLUGINS", "AttachingBackend", "FailingBackend", "HangingBackend", "MemoryBackend"]

CALL_SECONDS = 0.5
"""How long `attach` and `detach` of `attaching-slowly` take."""


class MemoryBackend(BackendSpec):
    """Assets are entries of a dict. It owns all static hostPath volumes and has them scrubbed by pods."""

    default_driver_name = "memory.volplane.dev"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._assets: dict[str, Asset] = {}
        self._lock = threading.Lock()

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="1")

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        source = VolumeSource(kind="hostPath", fields={"path": f"/srv/{request.name}"})
        asset = Asset(handle=request.name, source=source, capacity_bytes=request.capacity_bytes)
        with self._lock:
            return self._assets.setdefault(request.name, asset)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        with self._lock:
            self._assets.pop(request.volume.handle, None)
        return Done()

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return self._assets.get(request.name) or Absent()

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return request.context.driver == self.default_driver_name and request.source.kind == "hostPath"

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub:
        return PodScrub()


class HangingBackend(BackendSpec):
    """Every `provision` blocks for ever: a filer that does not answer."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._never = threading.Event()

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="1")

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        self._never.wait()
        raise AssertionError(request)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        return Done()


class FailingBackend(BackendSpec):
    """Every `provision` is refused: a pool that is full."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        pass

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="1")

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        raise ResourceExhausted("the pool is full")

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        return Done()


class AttachingBackend(BackendSpec):
    """Static csi volumes of its own name that are attached at once, to any node."""

    default_driver_name = "attaching.volplane.dev"

    def __init__(self, options: Mapping[str, Any]) -> None:
        """There are no options."""

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(version="1", csi_driver_name=self.default_driver_name, attach_required=True)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset:
        raise Unsupported("all its volumes are static")

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done:
        return Done()

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        return Attachment()

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        return Done()


class SlowlyAttachingBackend(AttachingBackend):
    """The same, but each call takes `CALL_SECONDS`."""

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment:
        time.sleep(CALL_SECONDS)
        return super().attach(request)

    @hookimpl
    def detach(self, request: DetachRequest) -> Done:
        time.sleep(CALL_SECONDS)
        return super().detach(request)


PLUGINS = tuple(
    Plugin(kind="backend", name=name, factory=factory, distribution="bench")
    for name, factory in (
        ("memory", MemoryBackend),
        ("hanging", HangingBackend),
        ("failing", FailingBackend),
        ("hostpath", HostPathBackend),
        ("attaching", AttachingBackend),
        ("attaching-slowly", SlowlyAttachingBackend),
    )
)
