"""The service Controller, but for making and deleting: those are in `volumes` and `snapshots`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from volplane._messages import shortened
from volplane.assets import Asset, ListedAsset, VolumeMode
from volplane.csi.bridge import Bridge, identity_of
from volplane.csi.capabilities import Wanted, read_capabilities, why_not
from volplane.csi.codes import CsiError
from volplane.csi.flights import Flight
from volplane.csi.ids import LONGEST_NODE, read_token, required_id, token_of
from volplane.csi.sources import grows_on_node
from volplane.csi.volumes import own_parameters
from volplane.csi.wire import build, message
from volplane.errors import AlreadyExists, InvalidArgument, NotFound, OutOfRange, Unsupported
from volplane.requests import (
    AttachRequest,
    CapacityRequest,
    DetachRequest,
    ExpandRequest,
    ModifyRequest,
    NodeIdentity,
    VolumeIdentity,
)
from volplane.secret import redacted

T = TypeVar("T")

MOST_ENTRIES: Final = 5000
_MOST_BYTES: Final = 3 << 20
"""Of the entries of one answer: clients refuse more than 4 MiB."""
_OF_HOOKS: Final = (
    ("provision", "CREATE_DELETE_VOLUME"),
    ("list_assets", "LIST_VOLUMES"),
    ("get_capacity", "GET_CAPACITY"),
    ("create_snapshot", "CREATE_DELETE_SNAPSHOT"),
    ("list_snapshots", "LIST_SNAPSHOTS"),
    ("find_snapshot", "GET_SNAPSHOT"),
    ("expand", "EXPAND_VOLUME"),
    ("modify", "MODIFY_VOLUME"),
)


def capabilities_of(bridge: Bridge) -> list[str]:
    """Return what the service can do. Not PUBLISH_READONLY: nothing says whether a backend honours `read_only`."""
    found = [capability for hook, capability in _OF_HOOKS if bridge.supports(hook)]
    if bridge.view.info.attach_required:
        found.append("PUBLISH_UNPUBLISH_VOLUME")
    if bridge.view.info.clones:
        found.append("CLONE_VOLUME")
    return [*found, "GET_VOLUME", "VOLUME_CONDITION", "SINGLE_NODE_MULTI_WRITER"]


class Volumes:
    """Changes, shows and lists volumes."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    async def _fly(
        self, method: str, id_: str, digest: bytes, seconds: float, work: Callable[[Flight, ListedAsset], Awaitable[T]]
    ) -> T:
        """Do the work with the volume of this id as it is seen, as the only one that does anything with it."""

        async def with_volume(flight: Flight) -> T:
            seen = await self._bridge.existing(id_)
            if seen.owner is not None:
                self._bridge.flights.also(flight, f"name {seen.owner.volume_name}")
            return await work(flight, seen)

        return await self._bridge.flights.run(method, f"id {id_}", digest, with_volume, seconds)

    # --- attachments ------------------------------------------------------------------------------------------------

    async def publish(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        node = required_id(request.node_id, "node_id", LONGEST_NODE)
        if not request.HasField("volume_capability"):
            raise CsiError("INVALID_ARGUMENT", "volume_capability is missing")
        wanted = read_capabilities([request.volume_capability], "volume_capability")

        async def attach(flight: Flight, seen: ListedAsset) -> Any:
            attach = AttachRequest(
                context=self._bridge.context(),
                volume=_volume(seen, wanted, request.volume_context),
                node=node_of(node),
                read_only=request.readonly,
            )
            attachment = await self._bridge.finish(flight, attach)
            return build("ControllerPublishVolumeResponse", publish_context=dict(attachment.metadata))

        return await self._fly("ControllerPublishVolume", id_, digest, seconds, attach)

    async def unpublish(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")

        async def detach(flight: Flight) -> Any:
            bridge = self._bridge
            seen = await bridge.settled(bridge.look, id_)
            if seen is not None and seen.owner is not None:
                if not bridge.is_ours(seen):
                    raise AlreadyExists(f"volume_id {id_!r} belongs to cluster {seen.owner.cluster_id!r}")
                bridge.flights.also(flight, f"name {seen.owner.volume_name}")
            if seen is not None:
                for node in (request.node_id,) if request.node_id else seen.attached_to:
                    detach = DetachRequest(context=bridge.context(), volume=identity_of(seen), node=node_of(node))
                    await bridge.finish(flight, detach)
            return build("ControllerUnpublishVolumeResponse")

        return await self._bridge.flights.run("ControllerUnpublishVolume", f"id {id_}", digest, detach, seconds)

    # --- changes ----------------------------------------------------------------------------------------------------

    async def expand(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        if not request.HasField("capacity_range"):
            raise CsiError("INVALID_ARGUMENT", "capacity_range is missing")
        size, limit = request.capacity_range.required_bytes, request.capacity_range.limit_bytes
        if size < 0 or limit < 0 or not (size or limit) or (limit and size > limit):
            raise CsiError("INVALID_ARGUMENT", f"capacity_range: {size} bytes required, at most {limit}")
        wanted = None
        if request.HasField("volume_capability"):
            wanted = read_capabilities([request.volume_capability], "volume_capability")

        async def expand(flight: Flight, seen: ListedAsset) -> Any:
            largest = self._bridge.view.info.maximum_bytes
            if largest is not None and size > largest:
                raise OutOfRange(f"{size} bytes, but a volume has at most {largest}")
            if limit and seen.capacity_bytes > limit:
                raise OutOfRange(f"volume_id {id_!r} has {seen.capacity_bytes} bytes, more than the limit of {limit}")
            volume = _volume(seen, wanted)
            expand = ExpandRequest(context=self._bridge.context(), volume=volume, capacity_bytes=max(size, 1))
            grown: Asset = await self._bridge.finish(flight, expand)
            on_node = grown.node_expansion_required
            if on_node is None:
                on_node = self._bridge.view.info.node_expansion_required
            return build(
                "ControllerExpandVolumeResponse",
                capacity_bytes=grown.capacity_bytes,
                node_expansion_required=(on_node and volume.volume_mode is VolumeMode.FILESYSTEM)
                or grows_on_node(seen, volume.volume_mode),
            )

        return await self._fly("ControllerExpandVolume", id_, digest, seconds, expand)

    async def modify(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")

        async def modify(flight: Flight, seen: ListedAsset) -> Any:
            parameters = own_parameters(request.mutable_parameters)
            if parameters:
                modify = ModifyRequest(context=self._bridge.context(), volume=identity_of(seen), parameters=parameters)
                await self._bridge.finish(flight, modify)
            return build("ControllerModifyVolumeResponse")

        return await self._fly("ControllerModifyVolume", id_, digest, seconds, modify)

    # --- what is there ----------------------------------------------------------------------------------------------

    async def validate(self, request: Any) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        wanted = read_capabilities(request.volume_capabilities)
        await self._bridge.existing(id_)
        flaw = why_not(wanted, self._bridge.view.info)
        if not flaw:
            try:
                self._bridge.view.typed_parameters(own_parameters(request.parameters))
            except InvalidArgument as error:
                flaw = error.message
        if flaw:
            return build("ValidateVolumeCapabilitiesResponse", message=flaw)
        confirmed = message("ValidateVolumeCapabilitiesResponse.Confirmed")(
            volume_context=dict(request.volume_context),
            volume_capabilities=list(request.volume_capabilities),
            parameters=dict(request.parameters),
            mutable_parameters=dict(request.mutable_parameters),
        )
        return build("ValidateVolumeCapabilitiesResponse", confirmed=confirmed)

    async def get(self, request: Any) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        seen = await self._bridge.existing(id_)
        return build("ControllerGetVolumeResponse", volume=_shown(seen), status={"volume_condition": _condition(seen)})

    async def list(self, request: Any) -> Any:
        bridge = self._bridge

        def shown(asset: ListedAsset) -> Any:
            status = {"volume_condition": _condition(asset)}
            return build("ListVolumesResponse.Entry", volume=_shown(asset), status=status)

        async def pages(page: str | None) -> AsyncIterator[tuple[str | None, dict[str, ListedAsset]]]:
            async for found in bridge.pages(page, request.max_entries):
                yield page, {each.handle: each for each in found.assets if bridge.is_ours(each)}
                page = found.next_page

        entries, token = await cut(pages, shown, request)
        return build("ListVolumesResponse", entries=entries, next_token=token)

    async def capacity(self, request: Any) -> Any:
        bridge, info = self._bridge, self._bridge.view.info
        if not bridge.supports("get_capacity"):
            raise CsiError("UNIMPLEMENTED", "this driver does not measure its capacity")
        if request.volume_capabilities and why_not(read_capabilities(request.volume_capabilities), info):
            return build("GetCapacityResponse", available_capacity=0)
        given = request.accessible_topology.segments
        segment = {key: given[key] for key in bridge.keys if key in given} or None
        try:
            parameters = bridge.view.typed_parameters(own_parameters(request.parameters))
            found = await bridge.ask(CapacityRequest(context=bridge.context(), parameters=parameters, segment=segment))
        except Unsupported as error:
            raise CsiError("UNIMPLEMENTED", error.message) from None
        largest = found.maximum_volume_bytes if found.maximum_volume_bytes is not None else info.maximum_bytes
        return build(
            "GetCapacityResponse",
            available_capacity=found.available_bytes,
            maximum_volume_size=None if largest is None else {"value": largest},
            minimum_volume_size={"value": info.minimum_bytes},
        )


def node_of(id_: str) -> NodeIdentity:
    """Return a node of which a caller of CSI knows only the id that its node plugin has given."""
    return NodeIdentity(name=id_, instance_id=id_, csi_node_id=id_)


def _volume(seen: ListedAsset, wanted: Wanted | None, context: Any = None) -> VolumeIdentity:
    if wanted is None:
        return identity_of(seen)
    return identity_of(
        seen,
        modes=wanted.modes,
        volume_mode=wanted.volume_mode,
        attributes=dict(context or {}),
        mount_options=wanted.mount_options,
    )


def _shown(seen: ListedAsset) -> Any:
    return build("Volume", volume_id=seen.handle, capacity_bytes=seen.capacity_bytes)


def _condition(seen: ListedAsset) -> dict[str, Any]:
    text = shortened(redacted(seen.condition)) if seen.condition else "nothing is known to be wrong"
    return {"abnormal": bool(seen.condition), "message": text}


# --- pages --------------------------------------------------------------------------------------------------------


async def cut(
    pages: Callable[[str | None], AsyncIterator[tuple[str | None, dict[str, T]]]],
    shown: Callable[[T], Any],
    request: Any,
) -> tuple[list[Any], str]:
    """Return at most `max_entries` of what the pages have, as entries, and the token of the rest ("" = that was all).

    pages: yields each page of the backend, by handles, from a token on, with the token that asks for it. A token of
    ours says which of them comes next and the handle that was the last, so that what comes and goes meanwhile moves
    nothing.
    """
    if request.max_entries < 0:
        raise CsiError("INVALID_ARGUMENT", f"max_entries is {request.max_entries}")
    most = min(request.max_entries or MOST_ENTRIES, MOST_ENTRIES)
    page, after = read_token(request.starting_token)
    taken: list[Any] = []
    left = _MOST_BYTES
    try:
        async for token, found in pages(page):
            handles = sorted(handle for handle in found if token != page or handle > after)
            for number, handle in enumerate(handles):
                entry = shown(found[handle])
                left -= entry.ByteSize()
                if len(taken) == most or left < 0:
                    return taken, token_of(token, handles[number - 1] if number else "")
                taken.append(entry)
    except (InvalidArgument, NotFound) as error:
        raise CsiError("ABORTED", f"the list cannot be continued: {error.message}; begin again") from None
    return taken, ""


__all__ = ["MOST_ENTRIES", "Volumes", "capabilities_of", "cut", "node_of"]
