"""CreateVolume and DeleteVolume."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from volplane.assets import Absent, Asset, ListedAsset, Segment
from volplane.csi.bridge import METADATA, Bridge, identity_of
from volplane.csi.capabilities import Wanted, read_capabilities, why_not
from volplane.csi.codes import CsiError, code_of
from volplane.csi.flights import Flight
from volplane.csi.ids import asset_name, owner_of, required_id
from volplane.csi.wire import build
from volplane.errors import (
    AlreadyDeleted,
    AlreadyExists,
    BackendError,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    OutOfRange,
    Unsupported,
)
from volplane.requests import ClaimIdentity, DeleteRequest, FindRequest, ModifyRequest, ProvisionRequest

LARGEST_GENERATION: Final = 1000
_OF_CLAIM: Final = re.compile(r"[a-z0-9-]*-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Names that end with a uid, so that nobody asks for them again after a deletion."""
_REMEMBERED: Final = 10_000
_OLD_VIEW: Final = 3600.0
"""Seconds by which a caller's view of the cluster may be old."""
NAMESPACE: Final = "csi"
"""In the place of a claim's namespace where the caller names no claim."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What CreateVolume asks for, read."""

    request: ProvisionRequest
    wanted: Wanted
    requisite: tuple[Segment, ...]


@dataclass(slots=True)
class Attempt:
    """How far one call has come."""

    generation: int = 1
    begun: bool = False
    """`provision` was called."""


@dataclass(eq=False)
class Doubts:
    """Which names earlier attempts may have left something under, since when."""

    bridge: Bridge
    since: OrderedDict[str, float] = field(default_factory=OrderedDict)
    made: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Name -> loop time of the last answer that it is there."""

    def note(self, name: str, error: BackendError | None) -> None:
        """Note the end of an attempt. error: None = it is done."""
        if error is None or error.nothing_left:
            self.since.pop(name, None)
        if error is not None and (error.nothing_left or error.nothing_done):
            return
        times = self.made if error is None else self.since
        times[name] = asyncio.get_running_loop().time()
        times.move_to_end(name)
        while len(times) > _REMEMBERED:
            times.popitem(last=False)

    def settled(self, name: str) -> bool:
        """Tell whether what an attempt has made would be seen by now, also one of an earlier process."""
        never = self.bridge.started
        last = max(self.since.get(name, never), self.made.get(name, never), never)
        return asyncio.get_running_loop().time() >= last + self.bridge.view.info.settle_seconds


class Volumes:
    """Makes and deletes volumes."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._doubts = Doubts(bridge)
        self._deleted: OrderedDict[str, float] = OrderedDict()
        """Name -> loop time of its deletion."""

    async def create(self, request: Any, digest: bytes, seconds: float) -> Any:
        name = asset_name(request.name)
        return await self._bridge.flights.run(
            "CreateVolume", f"name {name}", digest, lambda flight: self._create(flight, name, request), seconds
        )

    async def _create(self, flight: Flight, name: str, request: Any) -> Any:
        if self._was_deleted(name):
            # A caller whose view is old asks for what it has had deleted; nobody would ever delete it again.
            raise CsiError("FAILED_PRECONDITION", f"volume {name} was deleted: it is not made again")
        wanted = read_capabilities(request.volume_capabilities)
        attempt = Attempt()
        try:
            demand = await self._demand(name, request, wanted)
            existed = await self._existed(demand)
            asset = await self._provision(flight, demand, attempt)
            self._check_size(asset, demand.request)
            if demand.request.mutable_parameters:
                await self._modify(flight, demand, asset, existed=existed)
        except BackendError as error:
            if attempt.begun:
                self._doubts.note(name, error)
            if isinstance(error, AlreadyExists) and name in self._doubts.since:
                # What is there may be what an attempt without an answer has made.
                raise CsiError("ABORTED", str(error)) from None
            gone = await self._nothing_there(name, error, attempt)
            raise CsiError(code_of(error, "CreateVolume", nothing_there=gone), str(error)) from None
        self._doubts.note(name, None)
        return build("CreateVolumeResponse", volume=self._volume(asset, request))

    # --- what is asked for ------------------------------------------------------------------------------------------

    async def _demand(self, name: str, request: Any, wanted: Wanted) -> Demand:
        bridge, info = self._bridge, self._bridge.view.info
        if flaw := why_not(wanted, info):
            raise InvalidArgument(flaw)
        size, limit = _range(request.capacity_range, info.minimum_bytes, info.maximum_bytes)
        requisite, preferred = _terms(request.accessibility_requirements, bridge.keys) if bridge.keys else ((), ())
        given = dict(request.parameters)
        provision = ProvisionRequest(
            context=bridge.context(),
            name=name,
            capacity_bytes=size,
            limit_bytes=limit,
            owner=owner_of(name, bridge.cluster_id, 1),
            claim=_claim(name, given),
            access_modes=wanted.modes,
            volume_mode=wanted.volume_mode,
            parameters=bridge.view.typed_parameters(own_parameters(given)),
            mutable_parameters=dict(own_parameters(request.mutable_parameters)),
            segment=(preferred or requisite or (None,))[0],
            allowed_segments=requisite,
            mount_options=wanted.mount_options,
        )
        if provision.mutable_parameters and not bridge.supports("modify"):
            raise InvalidArgument("mutable_parameters: this driver changes none")
        return Demand(await self._with_source(provision, request.volume_content_source), wanted, requisite)

    async def _with_source(self, provision: ProvisionRequest, content: Any) -> ProvisionRequest:
        """Return the request with the source of its contents. Raises NotFound if there is none."""
        bridge, kind = self._bridge, content.WhichOneof("type")
        missing: NotFound | None = None
        if kind == "snapshot":
            if not bridge.supports("create_snapshot"):
                raise InvalidArgument("volume_content_source: this driver restores no snapshots")
            source = required_id(content.snapshot.snapshot_id, "snapshot_id")
            provision = replace(provision, source_snapshot=source)
            if await bridge.snapshot(source) is None:
                missing = NotFound(f"snapshot_id {source!r}: there is no such snapshot")
        elif kind == "volume":
            if not bridge.view.info.clones:
                raise InvalidArgument("volume_content_source: this driver copies no volumes")
            source = required_id(content.volume.volume_id, "volume_id")
            provision = replace(provision, source_volume=source)
            try:
                seen = await bridge.existing(source, "source volume_id")
                provision = replace(provision, source_asset=identity_of(seen))
            except AlreadyExists as error:
                raise InvalidArgument(error.message) from None
            except NotFound as error:
                missing = error
        if missing is not None:
            # It may be gone since an attempt whose answer was lost; what is there needs it no more.
            found: Asset | Absent = await bridge.ask(_question(provision)) if bridge.supports("find") else Absent()
            if isinstance(found, Absent):
                raise missing
        return provision

    # --- making it --------------------------------------------------------------------------------------------------

    async def _existed(self, demand: Demand) -> bool:
        """Tell whether the volume may be there already, and so be in use. Asked only where it might be undone."""
        if not demand.request.mutable_parameters:
            return True
        if not self._bridge.supports("find"):
            return True
        found: Asset | Absent = await self._bridge.ask(_question(demand.request))
        # What was made a moment ago, and answered, may not be found yet.
        return isinstance(found, Asset) or not self._doubts.settled(demand.request.name)

    async def _provision(self, flight: Flight, demand: Demand, attempt: Attempt) -> Asset:
        """Make the asset, in the first generation of which the storage does not say that it was deleted."""
        attempt.begun = True
        for generation in range(1, LARGEST_GENERATION):
            attempt.generation = generation
            asked = demand.request
            if generation > 1:
                owner = replace(asked.owner, generation=generation)
                asked = replace(asked, owner=owner, context=replace(asked.context, generation=generation))
            try:
                return await self._provision_somewhere(flight, asked, demand.requisite)
            except AlreadyDeleted:
                continue
        raise OutcomeUnknown(f"{demand.request.name} was deleted {LARGEST_GENERATION} times")

    async def _provision_somewhere(
        self, flight: Flight, asked: ProvisionRequest, requisite: Sequence[Segment]
    ) -> Asset:
        """Make the asset, or return that of an earlier call, which may have named another place that is allowed."""
        bridge = self._bridge
        try:
            made: Asset = await bridge.finish(flight, asked)
        except AlreadyExists:
            if asked.segment is None or not bridge.supports("find"):
                raise
            there = await bridge.ask(_question(asked))
            places = there.node_affinity if isinstance(there, Asset) else ()
            where = next((place for place in places if _allowed(place, requisite)), None)
            if where is None or where == asked.segment:
                raise
            made = await bridge.finish(flight, replace(asked, segment=dict(where)))
        return made

    def _check_size(self, asset: Asset, asked: ProvisionRequest) -> None:
        size, limit = asset.capacity_bytes, asked.limit_bytes
        if size < asked.capacity_bytes or (limit is not None and size > limit):
            raise OutcomeUnknown(f"{asset.handle} has {size} bytes, asked for were {asked.capacity_bytes} to {limit}")

    async def _modify(self, flight: Flight, demand: Demand, asset: Asset, *, existed: bool) -> None:
        """Set what can be changed later. What cannot be set leaves no asset: the caller would not know of it."""
        seen = await self._bridge.look(asset.handle)
        if seen is None:
            raise OutcomeUnknown(f"{asset.handle} is not to be seen")
        volume = identity_of(seen, modes=demand.wanted.modes, volume_mode=demand.wanted.volume_mode)
        parameters = dict(demand.request.mutable_parameters)
        try:
            await self._bridge.finish(
                flight, ModifyRequest(context=self._bridge.context(), volume=volume, parameters=parameters)
            )
        except (InvalidArgument, Unsupported) as error:
            if existed:
                raise OutcomeUnknown(f"{asset.handle} was there before, and {error}") from None
            delete = DeleteRequest(context=self._bridge.context(), volume=replace(volume, uid=""))
            await self._bridge.finish(flight, delete)
            error.nothing_done = True
            raise

    async def _nothing_there(self, name: str, error: BackendError, attempt: Attempt) -> bool:
        """Tell whether it is proven that nothing was made under this name, by this attempt or an earlier one."""
        bridge = self._bridge
        if error.nothing_left:
            return True
        if not bridge.supports("find"):
            return (error.nothing_done or not attempt.begun) and name not in self._doubts.since
        if not self._doubts.settled(name):
            return False
        try:
            found = await bridge.ask(
                FindRequest(
                    context=bridge.context(generation=attempt.generation),
                    name=name,
                    owner=owner_of(name, bridge.cluster_id, attempt.generation),
                )
            )
        except BackendError:
            return False
        return isinstance(found, Absent)

    def _volume(self, asset: Asset, request: Any) -> Any:
        places = [{"segments": dict(place)} for place in asset.node_affinity]
        return build(
            "Volume",
            volume_id=asset.handle,
            capacity_bytes=asset.capacity_bytes,
            volume_context=dict(asset.attributes),
            content_source=request.volume_content_source if request.HasField("volume_content_source") else None,
            accessible_topology=places if self._bridge.keys else None,
        )

    # --- deleting it ------------------------------------------------------------------------------------------------

    async def delete(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        return await self._bridge.flights.run(
            "DeleteVolume", f"id {id_}", digest, lambda flight: self._delete(flight, id_), seconds
        )

    async def _delete(self, flight: Flight, id_: str) -> Any:
        bridge = self._bridge
        seen = await bridge.settled(bridge.look, id_)
        if seen is not None:
            self._refuse_others(seen)
            name = seen.owner.volume_name if seen.owner is not None else ""
            bridge.flights.also(flight, f"name {name}")
            await bridge.finish(flight, DeleteRequest(context=bridge.context(), volume=identity_of(seen)))
            if _OF_CLAIM.fullmatch(name):
                self._deleted[name] = asyncio.get_running_loop().time()
                self._deleted.move_to_end(name)
                while len(self._deleted) > _REMEMBERED:
                    self._deleted.popitem(last=False)
        return build("DeleteVolumeResponse")

    def _was_deleted(self, name: str) -> bool:
        deleted = self._deleted.get(name)
        return deleted is not None and asyncio.get_running_loop().time() - deleted < _OLD_VIEW

    def _refuse_others(self, seen: ListedAsset) -> None:
        if not self._bridge.is_ours(seen):
            whose = f"of cluster {seen.owner.cluster_id!r}" if seen.owner is not None else "that a person made"
            raise AlreadyExists(
                f"{seen.handle} is a volume {whose}, not one that CreateVolume of {self._bridge.cluster_id!r} has "
                "made: it is not deleted"
            )


# --- reading requests ---------------------------------------------------------------------------------------------


def own_parameters(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters without those that sidecars add."""
    return {key: value for key, value in given.items() if not key.startswith(METADATA)}


def _claim(name: str, parameters: Mapping[str, str]) -> ClaimIdentity:
    return ClaimIdentity(
        namespace=parameters.get(f"{METADATA}pvc/namespace", NAMESPACE),
        name=parameters.get(f"{METADATA}pvc/name", name),
        uid=name.removeprefix("pvc-"),
    )


def _range(given: Any, minimum: int, maximum: int | None) -> tuple[int, int | None]:
    """Return the size to ask for, and its limit. Sizes of 0 are not given; negative ones are wrong."""
    required, limit = given.required_bytes, given.limit_bytes
    if required < 0 or limit < 0:
        raise InvalidArgument(f"capacity_range: {required} to {limit} bytes; sizes are not negative")
    if limit and required > limit:
        raise InvalidArgument(f"capacity_range: {required} bytes required are more than the limit of {limit}")
    if limit and limit < minimum:
        raise OutOfRange(f"capacity_range: at most {limit} bytes, but a volume has at least {minimum}")
    if maximum is not None and required > maximum:
        raise OutOfRange(f"capacity_range: {required} bytes, but a volume has at most {maximum}")
    return max(required, minimum), limit or None


def _terms(given: Any, keys: Sequence[str]) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return the requisite and the preferred places, with the keys of the driver alone."""

    def places(topologies: Any) -> tuple[Segment, ...]:
        cut = ({key: each.segments[key] for key in keys if key in each.segments} for each in topologies)
        found: list[Segment] = []
        for place in cut:
            if place and place not in found:
                found.append(place)
        return tuple(found)

    return places(given.requisite), places(given.preferred)


def _allowed(place: Segment, requisite: Sequence[Segment]) -> bool:
    return not requisite or any(all(place.get(key) == value for key, value in term.items()) for term in requisite)


def _question(asked: ProvisionRequest) -> FindRequest:
    return FindRequest(
        context=asked.context, name=asked.name, owner=asked.owner, parameters=asked.parameters, only_look=True
    )
