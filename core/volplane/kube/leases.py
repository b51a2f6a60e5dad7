"""The writes of leader election on one Lease, each conditional on the version it was decided upon.

Source: coordination.k8s.io/v1 Lease, and client-go's tools/leaderelection for the meaning of its fields.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from volplane.errors import ApiConflict, ApiError, ApiUnavailable
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import LEASES
from volplane.kube.objects import Lease
from volplane.requests import TERMS, Fence

_POLL_SECONDS = 2.0
_LOG = logging.getLogger(__name__)

LEASE: Final = "volplane"
"""Name of the Lease of a whole control plane, in our namespace."""
LONGEST_LEASE: Final = 600
"""Seconds after which a Lease that is not renewed is over, whatever it says: the number may be damaged."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the holder of a Lease can be asked, as it says itself."""

    holder: str
    """Its identity. The annotation outlives its holder."""
    port: int
    host: str = ""
    """The name of its machine, for people."""
    namespace: str = ""
    pod: str = ""
    """The pod that it runs in; "" = in none."""


def fence_of(lease: Lease) -> Fence:
    return Fence(lease.spec.lease_transitions or 0, lease.spec.holder_identity or "", lease.uid)


def next_term(count: int) -> int:
    return (count + 1) % TERMS


def drivers_of(lease: Lease | None) -> frozenset[str]:
    """Return the names of the drivers that the last holder of the Lease noted on it."""
    noted = lease.annotation(names.DRIVERS) if lease is not None else None
    return frozenset((noted or "").split(",")) - {""}


async def wait_unheld(client: Client, key: str, duration: float) -> None:
    """Wait until nobody holds this Lease: it was released or deleted, or was not renewed for as long as it lasts.

    duration: seconds that it lasts where it does not say so. A server that does not answer, or refuses, is asked again.
    """
    loop, seen, since = asyncio.get_running_loop(), "", 0.0
    while True:
        try:
            lease = await client.find(LEASES, key)
            if lease is None or not lease.spec.holder_identity:
                return
            if lease.metadata.resource_version != seen:
                if not seen:
                    holder = lease.spec.holder_identity
                    _LOG.warning("waits for lease %s, which %s holds: stop that process", key, holder)
                seen, since = lease.metadata.resource_version or "", loop.time()
            elif loop.time() >= since + min(lease.spec.lease_duration_seconds or duration, LONGEST_LEASE):
                return
        except ApiUnavailable:
            pass
        except ApiError as error:
            _LOG.warning("cannot read lease %s, which a former process may hold: %s", key, error)
        await asyncio.sleep(_POLL_SECONDS)


@dataclass(slots=True)
class LeaseLock:
    """One Lease, as one candidate sees it."""

    client: Client
    _: KW_ONLY
    namespace: str
    name: str
    identity: str
    """Unique per process; a restarted process needs another one."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Fills the times that people read; nothing is decided by them."""
    duration: int = 15
    """Whole seconds that others wait after the last renewal they saw."""
    drivers: Collection[str] = ()
    """Names that this candidate notes on the Lease when it takes it."""
    endpoint: Endpoint | None = None
    """Where it can be asked, noted as well."""
    notes: dict[str, str] = field(default_factory=dict, init=False)
    """Annotations that the holder changes while it holds the Lease; written with its next renewal."""
    former: Lease | None = field(default=None, init=False)
    """What `take` found the last time, None if there was no Lease."""
    taken: Lease | None = field(default=None, init=False)
    """What it made of that."""

    async def read(self, *, seconds: float) -> Lease | None:
        """Return the Lease as it is; None if nobody ever made it."""
        return await self.client.find(LEASES, f"{self.namespace}/{self.name}", seconds=seconds)

    async def take(self, lease: Lease | None, *, seconds: float) -> Lease:
        """Become the holder of what `read` answered. Raises ApiConflict if somebody else was faster."""
        when = self._timestamp()
        spec: dict[str, Any] = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self.duration,
            "acquireTime": when,
            "renewTime": when,
            "leaseTransitions": 0 if lease is None else next_term(fence_of(lease).transitions),
        }
        told = {names.DRIVERS: ",".join(sorted(self.drivers))}
        if self.endpoint is not None:
            told[names.ENDPOINT] = msgspec.json.encode(self.endpoint).decode()
        if lease is not None:
            taken = await self._patch(lease, spec, {"annotations": {names.ENDPOINT: None, **told}}, seconds=seconds)
        else:
            metadata = {"name": self.name, "namespace": self.namespace, "annotations": told}
            body = LEASES.body(metadata=metadata, spec=spec)
            try:
                taken = await self.client.create(LEASES, body, seconds=seconds)
            except ApiError as error:
                if error.already_exists:  # Another candidate was faster.
                    raise ApiConflict(error.message, status=error.status, reason=error.reason) from error
                raise
        self.former, self.taken = lease, taken
        return taken

    async def renew(self, lease: Lease, *, seconds: float) -> Lease:
        """Stay the holder. Raises ApiConflict if anybody wrote the Lease since, ApiNotFound if it was deleted."""
        when = self._timestamp()
        if when == lease.spec.renew_time:
            # A renewal must change the object, or others do not see it: the clock may stand still or be set back.
            when = self._timestamp(later=timedelta(microseconds=1))
        return await self._patch(lease, {"renewTime": when}, self._noted(lease), seconds=seconds)

    async def release(self, lease: Lease, *, seconds: float) -> None:
        """Release the Lease, so that another candidate can take it immediately. Raises as `renew`."""
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._timestamp()}
        await self._patch(lease, spec, self._noted(lease), seconds=seconds)

    async def count_on(self, lease: Lease, transitions: int, *, seconds: float) -> Lease:
        """Let the next term be a later one than this. Whose the Lease is does not change. Raises as `renew`."""
        return await self._patch(lease, {"leaseTransitions": transitions}, seconds=seconds)

    async def _patch(
        self, lease: Lease, spec: dict[str, Any], metadata: Mapping[str, Any] | None = None, *, seconds: float
    ) -> Lease:
        # The version makes it conditional: two candidates cannot both take or renew what they read.
        held = {"resourceVersion": lease.metadata.resource_version, **(metadata or {})}
        key = f"{self.namespace}/{self.name}"
        return await self.client.patch(LEASES, key, {"metadata": held, "spec": spec}, seconds=seconds)

    def _noted(self, lease: Lease) -> dict[str, Any]:
        changed = {key: text for key, text in self.notes.items() if text != (lease.annotation(key) or "")}
        return {"annotations": changed} if changed else {}

    def _timestamp(self, *, later: timedelta = timedelta(0)) -> str:
        return (self.now() + later).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
