"""CreateSnapshot, DeleteSnapshot, ListSnapshots and GetSnapshot."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from volplane.assets import Absent, GroupSnapshot, Snapshot, SnapshotOwnership
from volplane.csi.bridge import METADATA, Bridge, identity_of
from volplane.csi.codes import CsiError, code_of
from volplane.csi.controller import cut
from volplane.csi.flights import Flight
from volplane.csi.ids import asset_name, required_id, snapshot_owner_of
from volplane.csi.volumes import NAMESPACE, Doubts, own_parameters
from volplane.csi.wire import build
from volplane.errors import AlreadyExists, BackendError, InvalidArgument, NotFound, OutcomeUnknown
from volplane.requests import (
    DeleteSnapshotRequest,
    FindSnapshotRequest,
    HookRequest,
    ListSnapshotsRequest,
    SnapshotIdentity,
    SnapshotRequest,
    VolumeIdentity,
)

S = TypeVar("S", Snapshot, GroupSnapshot)


class Making:
    """Makes snapshots, or groups of them, so that the answer is an end only where that is proven."""

    def __init__(self, bridge: Bridge, method: str) -> None:
        self._bridge = bridge
        self._method = method
        self._doubts = Doubts(bridge)

    async def make(
        self,
        flight: Flight,
        name: str,
        *,
        request: Callable[[], Awaitable[HookRequest[Any]]],
        find: Callable[[], Awaitable[S | Absent]],
        fits: Callable[[S], bool],
    ) -> S:
        """Return what the request asks for. Raises CsiError.

        request: raises NotFound if a source is gone. find: looks for what has this name; fits: whether that is of the
        same sources.
        """
        begun = False
        try:
            try:
                asked = await request()
            except NotFound:
                # A source may be gone since an attempt whose answer was lost.
                found = await find()
                if isinstance(found, Absent) or not fits(found):
                    raise
                made = found
            else:
                begun = True
                made = await self._bridge.finish(flight, asked)
                if not fits(made):
                    raise AlreadyExists(f"{name} is of other sources")
            for each in made.snapshots if isinstance(made, GroupSnapshot) else (made,):
                if each.failed:
                    raise OutcomeUnknown(f"snapshot {each.handle} failed: {each.failed}")
        except BackendError as error:
            if begun:
                self._doubts.note(name, error)
            gone = error.nothing_left or await self._absent(name, find)
            raise CsiError(code_of(error, self._method, nothing_there=gone), str(error)) from None
        self._doubts.note(name, None)
        return made

    async def _absent(self, name: str, find: Callable[[], Awaitable[S | Absent]]) -> bool:
        """Tell whether it is proven that there is nothing of this name."""
        if not self._doubts.settled(name):
            return False
        try:
            return isinstance(await find(), Absent)
        except BackendError:
            return False


class Snapshots:
    """Makes, deletes and lists snapshots."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._making = Making(bridge, "CreateSnapshot")

    async def create(self, request: Any, digest: bytes, seconds: float) -> Any:
        self._require("create_snapshot")
        name = asset_name(request.name)
        source = required_id(request.source_volume_id, "source_volume_id")
        return await self._bridge.flights.run(
            "CreateSnapshot",
            f"snapshot {name}",
            digest,
            lambda flight: self._create(flight, name, source, request.parameters),
            seconds,
        )

    def _require(self, hook: str) -> None:
        if not self._bridge.supports(hook):
            raise CsiError("UNIMPLEMENTED", f"this driver has no {hook.replace('_', ' ')}")

    async def _create(self, flight: Flight, name: str, source: str, given: Any) -> Any:
        made = await self._making.make(
            flight,
            name,
            request=lambda: self._request(flight, name, source, given),
            find=lambda: self._found(name),
            fits=lambda found: found.source in ("", source),
        )
        return build("CreateSnapshotResponse", snapshot=shown(made, source))

    async def _request(self, flight: Flight, name: str, source: str, given: Any) -> SnapshotRequest:
        bridge = self._bridge
        owner = snapshot_owner_of(name, bridge.cluster_id)
        return SnapshotRequest(
            context=bridge.context(),
            name=name,
            volume=await source_volume(bridge, flight, source),
            owner=owner,
            snapshot=kubernetes_names(given, "volumesnapshot", name, owner),
            parameters=bridge.view.typed_parameters(own_parameters(given), of_snapshot=True),
        )

    async def _found(self, name: str) -> Snapshot | Absent:
        bridge = self._bridge
        owner = snapshot_owner_of(name, bridge.cluster_id)
        return await bridge.ask(FindSnapshotRequest(context=bridge.context(), name=name, owner=owner))

    # --- deleting ---------------------------------------------------------------------------------------------------

    async def delete(self, request: Any, digest: bytes, seconds: float) -> Any:
        self._require("delete_snapshot")
        id_ = required_id(request.snapshot_id, "snapshot_id")
        return await self._bridge.flights.run(
            "DeleteSnapshot", f"snapshot id {id_}", digest, lambda flight: self._delete(flight, id_), seconds
        )

    async def _delete(self, flight: Flight, id_: str) -> Any:
        bridge = self._bridge
        found = await bridge.settled(bridge.snapshot, id_)
        if found is not None:
            if not self._is_ours(found):
                whose = f"of cluster {found.owner.cluster_id!r}" if found.owner is not None else "without our marks"
                raise AlreadyExists(f"{id_} is a snapshot {whose}: it is not deleted")
            bridge.flights.also(flight, f"snapshot {found.name}")
            request = DeleteSnapshotRequest(context=bridge.context(), handle=found.handle, owner=found.owner)
            await bridge.finish(flight, request)
        return build("DeleteSnapshotResponse")

    # --- what is there ----------------------------------------------------------------------------------------------

    def _is_ours(self, snapshot: Snapshot) -> bool:
        return snapshot.owner is not None and snapshot.owner.cluster_id == self._bridge.cluster_id

    async def get(self, request: Any) -> Any:
        self._require("find_snapshot")
        found = await self._bridge.snapshot(required_id(request.snapshot_id, "snapshot_id"))
        if found is None:
            raise CsiError("NOT_FOUND", f"snapshot_id {request.snapshot_id!r}: there is no such snapshot")
        return build("GetSnapshotResponse", snapshot=shown(found))

    async def list(self, request: Any) -> Any:
        """List ours; asked for one by its id also that of a person, which a caller wants to know to be ready."""
        self._require("list_snapshots")
        if request.snapshot_id:
            found = await self._bridge.snapshot(request.snapshot_id)
            entries = [] if found is None or request.source_volume_id not in ("", found.source) else [found]
            return build("ListSnapshotsResponse", entries=[{"snapshot": shown(each)} for each in entries])
        bridge, source = self._bridge, request.source_volume_id

        def entry(snapshot: Snapshot) -> Any:
            return build("ListSnapshotsResponse.Entry", snapshot=shown(snapshot))

        async def pages(page: str | None) -> AsyncIterator[tuple[str | None, dict[str, Snapshot]]]:
            while True:
                asked = ListSnapshotsRequest(context=bridge.context(), page=page, max_entries=request.max_entries)
                found = await bridge.ask(asked)
                ours = (each for each in found.snapshots if self._is_ours(each))
                yield page, {each.handle: each for each in ours if source in ("", each.source)}
                page = found.next_page
                if page is None:
                    return

        entries, token = await cut(pages, entry, request)
        return build("ListSnapshotsResponse", entries=entries, next_token=token)


async def source_volume(bridge: Bridge, flight: Flight, id_: str) -> VolumeIdentity:
    """Return the volume of which a snapshot is to be made, with which nothing else is done meanwhile."""
    try:
        seen = await bridge.existing(id_, "source_volume_id")
    except AlreadyExists as error:
        raise InvalidArgument(error.message) from None
    if seen.owner is not None:
        bridge.flights.also(flight, f"name {seen.owner.volume_name}")
    return identity_of(seen)


def kubernetes_names(given: Mapping[str, str], kind: str, name: str, owner: SnapshotOwnership) -> SnapshotIdentity:
    """Return the names of the objects for which it is made, as far as the sidecar tells them."""
    return SnapshotIdentity(
        namespace=given.get(f"{METADATA}{kind}/namespace", NAMESPACE),
        name=given.get(f"{METADATA}{kind}/name", name),
        content=given.get(f"{METADATA}{kind}content/name", owner.content_name),
    )


def shown(snapshot: Snapshot, source: str = "", group: str = "") -> Any:
    """Return it for callers. source: of the request; else as the backend knows it. group: in whose message it is."""
    return build(
        "Snapshot",
        snapshot_id=snapshot.handle,
        source_volume_id=source or snapshot.source,
        size_bytes=snapshot.size_bytes,
        creation_time=moment_of(snapshot),
        ready_to_use=snapshot.ready and not snapshot.failed,
        group_snapshot_id=group,
    )


def moment_of(*snapshots: Snapshot) -> dict[str, int]:
    """Return the moment at which they were cut, the first that is known; else now."""
    moments = [each.created_at for each in snapshots if each.created_at is not None]
    seconds, fraction = divmod(min(moments, default=time.time()), 1)
    return {"seconds": int(seconds), "nanos": int(fraction * 1e9)}
