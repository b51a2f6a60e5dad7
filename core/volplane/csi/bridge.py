"""Calls the hooks of one driver for callers of CSI: long calls to their end, at most so many at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from volplane.assets import Absent, AccessMode, AssetPage, InProgress, ListedAsset, Snapshot, VolumeMode, VolumeSource
from volplane.csi.codes import CsiError
from volplane.csi.flights import Flight, Flights
from volplane.drivers.driver import DriverView
from volplane.drivers.executor import HookCalls
from volplane.drivers.registry import DriverRegistry
from volplane.errors import AlreadyExists, InvalidArgument, NotFound, OutcomeUnknown
from volplane.requests import Context, FindSnapshotRequest, HookRequest, InspectRequest, ListRequest, VolumeIdentity

R = TypeVar("R")
T = TypeVar("T")

METADATA: Final = "csi.storage.k8s.io/"
"""Begins the parameters that sidecars add about Kubernetes' objects."""
_REMEMBERED: Final = 10_000
_ASKED_AGAIN: Final = 600.0
"""Seconds within which a caller asks again whether something is gone."""


@dataclass(eq=False)
class Bridge:
    """A driver behind CSI. Belongs to one event loop."""

    view: DriverView
    drivers: DriverRegistry
    calls: HookCalls
    cluster_id: str
    """In the marks of all that it makes."""
    topology: bool = True
    """Whether places are announced. Not where no node plugin tells the nodes' places."""
    began: float | None = None
    """Loop time before which another process may have worked; None: now."""
    flights: Flights = field(init=False)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.flights = Flights(self.view.name)
        self.started = loop.time() if self.began is None else self.began
        self._missing: OrderedDict[str, float] = OrderedDict()
        """Id -> loop time since which nothing is seen of it."""
        self._slots = asyncio.Semaphore(self.calls.limits(self.view.name).concurrency)

    @property
    def keys(self) -> tuple[str, ...]:
        """The topology keys that are announced."""
        return self.view.info.topology_keys if self.topology else ()

    def supports(self, *hooks: str) -> bool:
        return all(self.view.supports(hook) for hook in hooks)

    def context(self, **fields: Any) -> Context:
        return Context(driver=self.view.name, cluster_id=self.cluster_id, **fields)

    def require_ready(self) -> None:
        """Raise CsiError while the driver has not started."""
        if self.drivers.get(self.view.name) is None:
            raise CsiError("UNAVAILABLE", self.drivers.broken(self.view.name) or f"driver {self.view.name} is starting")

    # --- hooks ------------------------------------------------------------------------------------------------------

    async def ask(self, request: HookRequest[R]) -> R:
        """Call a hook that changes nothing, in a spare thread. Raises as `HookCalls.call`."""
        return await self.calls.call(self.view, request)

    async def change(self, flight: Flight, request: HookRequest[R]) -> R:
        """Call a hook as part of this work; it counts until it has returned."""
        await self._slots.acquire()
        held = flight.operation.held
        before = len(held)
        try:
            if flight.abandoned:
                raise OutcomeUnknown(f"{request.hook} waited for others, and nobody asks for it any more")
            return await self.calls.call(self.view, request)
        finally:
            if len(held) > before and not held[-1].done():
                held[-1].add_done_callback(lambda _returned: self._slots.release())
            else:
                self._slots.release()

    async def finish(self, flight: Flight, request: HookRequest[Any]) -> Any:
        """Call a hook until it is done, with the state of the last answer.

        Raises OutcomeUnknown if that takes long and nobody waits any more.
        """
        while isinstance(result := await self.change(flight, request), InProgress):
            if flight.abandoned:
                raise OutcomeUnknown(f"{request.hook} goes on, and nobody asks for it any more")
            await asyncio.sleep(max(result.retry_after, 0.01))
            request = replace(request, context=replace(request.context, state=result.state))
        return result

    # --- assets -----------------------------------------------------------------------------------------------------

    async def look(self, handle: str) -> ListedAsset | None:
        """Return the asset with this id, whoever made it; None: there is none. Changes nothing."""
        if self.supports("inspect"):
            seen = await self.ask(InspectRequest(context=self.context(), handle=handle))
            found = None if isinstance(seen, Absent) else seen
        else:
            found = None
            async for page in self.pages():
                found = next((each for each in page.assets if each.handle == handle), None)
                if found is not None:
                    break
        # An id that only resembles that of an asset is not the one that was given out.
        return found if found is not None and found.handle == handle else None

    async def settled(self, look: Callable[[str], Awaitable[T | None]], handle: str) -> T | None:
        """Return what `look` finds; None: it is gone, and not only to be seen later, such as what was made just now.

        It takes that time, also if the callers change; another process may have made it.
        """
        loop, seconds = asyncio.get_running_loop(), self.view.info.settle_seconds
        found = await look(handle)
        if found is None and seconds:
            since = self._missing.get(handle, loop.time())
            if loop.time() > since + seconds + _ASKED_AGAIN:
                since = loop.time()
            self._missing[handle] = since
            while len(self._missing) > _REMEMBERED:
                self._missing.popitem(last=False)
            if (left := since + seconds - loop.time()) > 0:
                await asyncio.sleep(left)
                found = await look(handle)
        if found is not None:
            self._missing.pop(handle, None)
        return found

    async def snapshot(self, handle: str) -> Snapshot | None:
        """Return the snapshot with this id, whoever made it; None: there is none."""
        try:
            found = await self.ask(FindSnapshotRequest(context=self.context(), handle=handle))
        except (InvalidArgument, NotFound):
            return None  # It can be none of this driver.
        return None if isinstance(found, Absent) or found.handle != handle else found

    async def pages(self, page: str | None = None, most: int = 0) -> AsyncIterator[AssetPage]:
        """Yield the pages of all assets from this one on. most: how many assets of each are of use; 0: all."""
        while True:
            answer = await self.ask(ListRequest(context=self.context(), page=page, max_entries=most))
            yield answer
            page = answer.next_page
            if page is None:
                return

    def is_ours(self, asset: ListedAsset) -> bool:
        return asset.owner is not None and asset.owner.cluster_id == self.cluster_id

    async def existing(self, handle: str, field: str = "volume_id") -> ListedAsset:
        """Return the asset that a call is about: ours, or one that a person made.

        Raises NotFound if there is none, AlreadyExists for that of another cluster.
        """
        found = await self.look(handle)
        if found is None:
            raise NotFound(f"{field} {handle!r}: there is no such volume")
        if found.owner is not None and not self.is_ours(found):
            raise AlreadyExists(
                f"{field} {handle!r} belongs to cluster {found.owner.cluster_id!r}, this is {self.cluster_id!r}"
            )
        return found


def identity_of(
    asset: ListedAsset,
    *,
    modes: tuple[AccessMode, ...] = (AccessMode.READ_WRITE_ONCE,),
    volume_mode: VolumeMode = VolumeMode.FILESYSTEM,
    attributes: Mapping[str, str] | None = None,
    mount_options: tuple[str, ...] = (),
) -> VolumeIdentity:
    """Return the volume of an asset as hooks want it. The rest: what the caller says of it."""
    owner = asset.owner
    return VolumeIdentity(
        name=owner.volume_name if owner is not None else asset.name,
        # Not empty: it was given out, so there may be data in it.
        uid=f"csi-{owner.claim_uid}" if owner is not None else "csi",
        handle=asset.handle,
        source=asset.source or VolumeSource(kind="", fields={}),
        capacity_bytes=asset.capacity_bytes,
        owner=owner,
        attributes=dict(attributes or {}),
        volume_mode=volume_mode,
        access_modes=modes,
        mount_options=mount_options,
    )


Handler = Callable[[Any, float], Any]
"""A method: takes the request and the seconds that the caller waits, returns a coroutine of the response."""
