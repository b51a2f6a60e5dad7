"""The writes of leader election on one Lease, each conditional on the version it was decided upon.

Source: coordination.k8s.io/v1 Lease, and client-go's tools/leaderelection for the meaning of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from volplane.errors import ApiConflict, ApiError
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import LEASES
from volplane.kube.objects import Lease
from volplane.requests import Fence

__all__ = ["LeaseLock", "drivers_of", "fence_of"]


def fence_of(lease: Lease) -> Fence:
    """Return the term of leadership that the Lease shows."""
    return Fence(lease.spec.lease_transitions or 0, lease.spec.holder_identity or "", lease.uid)


def drivers_of(lease: Lease | None) -> frozenset[str]:
    """Return the names of the drivers that the last holder of the Lease noted on it."""
    noted = lease.annotation(names.DRIVERS) if lease is not None else None
    return frozenset((noted or "").split(",")) - {""}


class LeaseLock:
    """One Lease, as one candidate sees it.

    identity: unique per process; a restarted process needs another one. duration: whole seconds that others
    wait after the last renewal they saw. `now` only fills the times that people read; nothing is decided by them.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        now: Callable[[], datetime],
        duration: int = 15,
        drivers: Collection[str] = (),
    ) -> None:
        """drivers: names that this candidate notes on the Lease when it takes it."""
        self.name = name
        self.identity = identity
        self.duration = duration
        self._client = client
        self._namespace = namespace
        self._key = f"{namespace}/{name}"
        self._now = now
        self._noted = {names.DRIVERS: ",".join(sorted(drivers))}
        self.former: Lease | None = None
        """What `take` found the last time, None if there was no Lease."""
        self.taken: Lease | None = None
        """What it made of that."""

    async def read(self, *, seconds: float) -> Lease | None:
        """Return the Lease as it is; None if nobody ever made it."""
        return await self._client.find(LEASES, self._key, seconds=seconds)

    async def take(self, lease: Lease | None, *, seconds: float) -> Lease:
        """Become the holder of what `read` answered. Raises ApiConflict if somebody else was faster."""
        self.taken = await self._take(lease, seconds=seconds)
        self.former = lease
        return self.taken

    async def _take(self, lease: Lease | None, *, seconds: float) -> Lease:
        when = self._timestamp()
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration,
            "acquireTime": when,
            "renewTime": when,
        }
        if lease is not None:
            spec["leaseTransitions"] = (lease.spec.lease_transitions or 0) + 1
            return await self._patch(lease, spec, seconds=seconds, annotations=self._noted)
        spec["leaseTransitions"] = 0
        metadata = {"name": self.name, "namespace": self._namespace, "annotations": self._noted}
        body = LEASES.body(metadata=metadata, spec=spec)
        try:
            return await self._client.create(LEASES, body, seconds=seconds)
        except ApiError as error:
            if error.already_exists:
                raise ApiConflict(error.message, status=error.status, reason=error.reason) from error
            raise

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        """Stay the holder. Raises ApiConflict if anybody wrote the Lease since, ApiNotFound if it was deleted."""
        when = self._timestamp()
        if when == lease.spec.renew_time:
            # A renewal must change the object, or others do not see it: the clock may stand still or be set back.
            when = self._timestamp(later=timedelta(microseconds=1))
        return await self._patch(lease, {"renewTime": when}, seconds=seconds)

    async def release(self, lease: Lease, *, seconds: float) -> None:
        """Release the Lease, so that another candidate can take it immediately. Raises as `renew`."""
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
        await self._patch(lease, spec, seconds=seconds)

    async def count_on(self, lease: Lease, transitions: int, *, seconds: float) -> Lease:
        """Let the next term be a later one than this. Whose the Lease is does not change. Raises as `renew`."""
        return await self._patch(lease, {"leaseTransitions": transitions}, seconds=seconds)

    async def _patch(
        self, lease: Lease, spec: dict[str, Any], *, seconds: float, annotations: dict[str, str] | None = None
    ) -> Lease:
        metadata: dict[str, Any] = {"resourceVersion": lease.metadata.resource_version}
        if annotations is not None:
            metadata["annotations"] = annotations
        body = {"metadata": metadata, "spec": spec}
        return await self._client.patch(LEASES, self._key, body, seconds=seconds)

    def _timestamp(self, *, later: timedelta = timedelta(0)) -> str:
        return (self._now() + later).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
