"""The driver: requests in, answers out; it has no socket, thread or clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from volplane.csi.wire import DecodeError, build, message
from volplane_csi.testing.behaviour import GIB, Behaviour
from volplane_testing.cloud import CloudFailure, FakeCloud, Fault, MemoryContents, SteppedClock, page_of

__all__ = ["FakeDriver", "FakeSnapshot", "FakeVolume"]

_LONGEST: Final = 128
"""Bytes of a text, as the specification has it."""
_NEEDS: Final = {
    "CreateVolume": "CREATE_DELETE_VOLUME",
    "DeleteVolume": "CREATE_DELETE_VOLUME",
    "ControllerPublishVolume": "PUBLISH_UNPUBLISH_VOLUME",
    "ControllerUnpublishVolume": "PUBLISH_UNPUBLISH_VOLUME",
    "ListVolumes": "LIST_VOLUMES",
    "GetCapacity": "GET_CAPACITY",
    "CreateSnapshot": "CREATE_DELETE_SNAPSHOT",
    "DeleteSnapshot": "CREATE_DELETE_SNAPSHOT",
    "ListSnapshots": "LIST_SNAPSHOTS",
    "GetSnapshot": "GET_SNAPSHOT",
    "ControllerExpandVolume": "EXPAND_VOLUME",
    "ControllerGetVolume": "GET_VOLUME",
    "ControllerModifyVolume": "MODIFY_VOLUME",
}
_OF_GROUPS: Final = (
    *("GroupControllerGetCapabilities", "CreateVolumeGroupSnapshot"),
    *("GetVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot"),
)
_ALWAYS: Final = (
    *("GetPluginInfo", "GetPluginCapabilities", "Probe"),
    *("ControllerGetCapabilities", "NodeGetCapabilities"),
)
_MANY: Final = {3, 4, 5}
"""Access modes of several nodes."""


@dataclass(slots=True)
class FakeVolume:
    """A volume."""

    id: str
    name: str
    size: int
    demand: bytes
    """The request, without secrets."""
    zone: str = ""
    ready_at: float = 0.0
    modes: tuple[int, ...] = ()
    published: dict[str, bool] = field(default_factory=dict)
    """Node id -> whether it is read-only there."""
    mutable: dict[str, str] = field(default_factory=dict)
    context: dict[str, str] = field(default_factory=dict)
    source: Any = None


@dataclass(slots=True)
class FakeSnapshot:
    """A snapshot."""

    id: str
    name: str
    source: str
    size: int
    created: float
    ready_at: float = 0.0
    zone: str = ""
    group: str = ""
    """Id of the group whose member it is."""


class FakeDriver(FakeCloud):
    """A driver with its storage. Errors are `CloudFailure` with codes of gRPC."""

    def __init__(self, behaviour: Behaviour | None = None, *, clock: Callable[[], float] | None = None) -> None:
        clock = clock or SteppedClock()
        super().__init__(clock=clock)
        self.clock = clock
        self.behaviour = behaviour or Behaviour()
        self.volumes: dict[str, FakeVolume] = {}
        """By name."""
        self.snapshots: dict[str, FakeSnapshot] = {}
        """By name."""
        self.contents = MemoryContents()
        self.requests: list[tuple[str, Any]] = []
        """Every request that was performed."""
        self._numbers = itertools.count(1)
        self._again = itertools.count(1)

    # --- requests -----------------------------------------------------------------------------------------------

    def behave(self, **changes: Any) -> None:
        """Change the behaviour."""
        self.behaviour = replace(self.behaviour, **changes)

    def by_id(self, id_: str) -> FakeVolume | None:
        """Return the volume with this id."""
        return next((each for each in self.volumes.values() if each.id == id_), None)

    def failure(self, fault: Fault) -> CloudFailure:
        """Return the error of a scripted fault."""
        return CloudFailure(fault.code, fault.message)

    def admit(self, action: str, params: Mapping[str, Any], caller: str) -> None:
        """Refuse what the driver cannot do, and calls without its secrets."""
        if action in _OF_GROUPS and not self.behaviour.groups:
            raise CloudFailure("UNIMPLEMENTED", f"{action} is not implemented")
        needed = _NEEDS.get(action)
        if action not in (*_ALWAYS, *_OF_GROUPS) and (needed is None or needed not in self.behaviour.capabilities):
            raise CloudFailure("UNIMPLEMENTED", f"{action} is not implemented")
        request = params["request"]
        if "secrets" in request.DESCRIPTOR.fields_by_name and dict(request.secrets) != self.behaviour.secrets:
            raise CloudFailure("UNAUTHENTICATED", f"bad secrets: {dict(request.secrets)}")

    def perform(self, action: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do it."""
        request = params["request"]
        self.requests.append((action, request))
        return {"response": getattr(self, f"_{action}")(request)}

    @staticmethod
    def read(action: str, content: bytes) -> dict[str, Any]:
        """Return the parameters of a call. Raises CloudFailure."""
        try:
            return {"request": message(f"{action}Request").FromString(content)}
        except DecodeError:
            raise CloudFailure("INVALID_ARGUMENT", f"no {action}Request") from None

    # --- Identity -----------------------------------------------------------------------------------------------

    def _GetPluginInfo(self, _request: Any) -> Any:  # noqa: N802 - CSI's name
        return build("GetPluginInfoResponse", name=self.behaviour.name, vendor_version=self.behaviour.version)

    def _GetPluginCapabilities(self, _request: Any) -> Any:  # noqa: N802
        service, growth = message("PluginCapability.Service"), message("PluginCapability.VolumeExpansion")
        found: list[Any] = [{"service": service(type="CONTROLLER_SERVICE")}]
        if self.behaviour.zones:
            found.append({"service": service(type="VOLUME_ACCESSIBILITY_CONSTRAINTS")})
        if self.behaviour.groups:
            found.append({"service": service(type="GROUP_CONTROLLER_SERVICE")})
        found.append({"volume_expansion": growth(type="ONLINE")})
        return build("GetPluginCapabilitiesResponse", capabilities=found)

    def _Probe(self, _request: Any) -> Any:  # noqa: N802
        return build("ProbeResponse", ready={"value": self.behaviour.ready})

    def _ControllerGetCapabilities(self, _request: Any) -> Any:  # noqa: N802
        rpc = message("ControllerServiceCapability.RPC")
        found = [{"rpc": rpc(type=each)} for each in sorted(self.behaviour.capabilities)]
        return build("ControllerGetCapabilitiesResponse", capabilities=found)

    def _GroupControllerGetCapabilities(self, _request: Any) -> Any:  # noqa: N802
        rpc = message("GroupControllerServiceCapability.RPC")
        found = [{"rpc": rpc(type="CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT")}]
        return build("GroupControllerGetCapabilitiesResponse", capabilities=found)

    def _NodeGetCapabilities(self, _request: Any) -> Any:  # noqa: N802
        rpc = message("NodeServiceCapability.RPC")
        found = [{"rpc": rpc(type=each)} for each in sorted(self.behaviour.node_capabilities)]
        return build("NodeGetCapabilitiesResponse", capabilities=found)

    # --- volumes ------------------------------------------------------------------------------------------------

    def _CreateVolume(self, request: Any) -> Any:  # noqa: N802
        _require_name(request.name)
        modes = _modes(request.volume_capabilities)
        demand = _plain(request).SerializeToString(deterministic=True)
        found = self.volumes.get(request.name)
        if found is None:
            found = self._made(request, modes, demand)
        elif found.demand != demand:
            raise CloudFailure("ALREADY_EXISTS", f"volume {request.name} exists with another demand")
        elif self.behaviour.refuses_replays:
            raise CloudFailure("ALREADY_EXISTS", f"volume {request.name} exists")
        if found.ready_at > self.clock():
            raise CloudFailure("ABORTED", f"volume {request.name} is being made")
        return build("CreateVolumeResponse", volume=self._shown(found))

    def _made(self, request: Any, modes: tuple[int, ...], demand: bytes) -> FakeVolume:
        behaviour, asked = self.behaviour, request.capacity_range.required_bytes or GIB
        if asked < 0 or asked > behaviour.largest:
            raise CloudFailure("OUT_OF_RANGE", f"{asked} bytes, at most {behaviour.largest} are possible")
        source, size, at = self._source(request)
        if asked < size:
            raise CloudFailure("OUT_OF_RANGE", f"{asked} bytes, the source has {size}")
        zone = self._place(request, asked, at)
        number = next(self._numbers)
        made = FakeVolume(
            id=behaviour.one_id or f"vol-{number:06}",
            name=request.name,
            size=asked,
            demand=demand,
            zone=zone,
            ready_at=self.clock() + behaviour.create_seconds,
            modes=modes,
            mutable=dict(request.mutable_parameters),
            context={**behaviour.context, **(dict(request.secrets) if behaviour.echoes_secrets else {})},
            source=request.volume_content_source if source and not behaviour.forgets_source else None,
        )
        self.contents.begin(made.id, None if behaviour.forgets_source else source or None)
        self.volumes[request.name] = made
        return made

    def _source(self, request: Any) -> tuple[str, int, str]:
        """Return id, size and zone of what is to be copied."""
        kind = request.volume_content_source.WhichOneof("type")
        if kind == "snapshot":
            id_ = request.volume_content_source.snapshot.snapshot_id
            cut = next((each for each in self.snapshots.values() if each.id == id_), None)
            if cut is None:
                raise CloudFailure("NOT_FOUND", f"snapshot {id_} does not exist")
            if cut.ready_at > self.clock():
                raise CloudFailure("UNAVAILABLE", f"snapshot {id_} is not ready")
            return cut.id, cut.size, cut.zone
        if kind == "volume":
            id_ = request.volume_content_source.volume.volume_id
            volume = self.by_id(id_)
            if volume is None:
                raise CloudFailure("NOT_FOUND", f"volume {id_} does not exist")
            return volume.id, volume.size, volume.zone
        return "", 0, ""

    def _place(self, request: Any, size: int, at: str) -> str:
        behaviour = self.behaviour
        if not behaviour.zones:
            self._require_room("", size)
            return ""
        needs = request.accessibility_requirements
        terms = [each.segments.get(behaviour.topology_key, "") for each in (*needs.preferred, *needs.requisite)]
        allowed = [each for each in terms if each in behaviour.zones and at in ("", each)]
        if terms and not allowed:
            raise CloudFailure("INVALID_ARGUMENT", f"no such place, or not where the source is: {terms}")
        allowed = allowed or [each for each in behaviour.zones if at in ("", each)]
        if (free := next((zone for zone in allowed if self._free(zone) >= size), None)) is not None:
            return str(free)
        raise CloudFailure("RESOURCE_EXHAUSTED", f"no room for {size} bytes in {allowed}")

    def _free(self, zone: str) -> int:
        return self.behaviour.room - sum(each.size for each in self.volumes.values() if each.zone == zone)

    def _require_room(self, zone: str, size: int) -> None:
        if self._free(zone) < size:
            raise CloudFailure("RESOURCE_EXHAUSTED", f"no room for {size} bytes")

    def _shown(self, volume: FakeVolume) -> Any:
        behaviour = self.behaviour
        place = [{"segments": {behaviour.topology_key: volume.zone}}] if volume.zone else None
        return build(
            "Volume",
            volume_id=f"{volume.id}-{next(self._again)}" if behaviour.changes_ids else volume.id,
            capacity_bytes=0 if behaviour.unknown_size else volume.size,
            volume_context=volume.context,
            content_source=volume.source,
            accessible_topology=place,
        )

    def _DeleteVolume(self, request: Any) -> Any:  # noqa: N802
        _require(request.volume_id, "volume_id")
        volume = self.by_id(request.volume_id)
        if volume is not None and volume.published:
            raise CloudFailure("FAILED_PRECONDITION", f"{volume.id} is published to {', '.join(volume.published)}")
        if volume is not None:
            del self.volumes[volume.name]
        return build("DeleteVolumeResponse")

    def _volume(self, id_: str) -> FakeVolume:
        _require(id_, "volume_id")
        volume = self.by_id(id_)
        if volume is None:
            raise CloudFailure("NOT_FOUND", f"volume {id_} does not exist")
        return volume

    def _ControllerExpandVolume(self, request: Any) -> Any:  # noqa: N802
        volume, size = self._volume(request.volume_id), request.capacity_range.required_bytes
        if size > self.behaviour.largest:
            raise CloudFailure("OUT_OF_RANGE", f"{size} bytes, at most {self.behaviour.largest} are possible")
        if size > volume.size:
            self._require_room(volume.zone, size - volume.size)
            volume.size = size
        block = request.volume_capability.WhichOneof("access_type") == "block"
        return build("ControllerExpandVolumeResponse", capacity_bytes=volume.size, node_expansion_required=not block)

    def _ControllerModifyVolume(self, request: Any) -> Any:  # noqa: N802
        volume = self._volume(request.volume_id)
        if unknown := sorted(set(request.mutable_parameters) - {"iops"}):
            raise CloudFailure("INVALID_ARGUMENT", f"unknown parameters {unknown}")
        volume.mutable.update(request.mutable_parameters)
        return build("ControllerModifyVolumeResponse")

    def _ListVolumes(self, request: Any) -> Any:  # noqa: N802
        page, token = self._page(self.volumes.values(), request)
        entries = [{"volume": self._shown(each), "status": _status(each, self.behaviour.condition)} for each in page]
        return build("ListVolumesResponse", entries=entries, next_token=token)

    def _ControllerGetVolume(self, request: Any) -> Any:  # noqa: N802
        volume = self._volume(request.volume_id)
        status = _status(volume, self.behaviour.condition)
        return build("ControllerGetVolumeResponse", volume=self._shown(volume), status=status)

    def _page(self, items: Any, request: Any) -> tuple[list[Any], str | None]:
        if request.max_entries < 0:
            raise CloudFailure("INVALID_ARGUMENT", "max_entries is negative")
        size = min(request.max_entries or self.behaviour.page, self.behaviour.page)
        try:
            return page_of(items, lambda each: each.id, size=size, token=request.starting_token or None)
        except ValueError as error:
            raise CloudFailure("ABORTED", str(error)) from None

    def _GetCapacity(self, request: Any) -> Any:  # noqa: N802
        behaviour, asked = self.behaviour, request.accessible_topology.segments.get(self.behaviour.topology_key)
        zones = behaviour.zones or ("",)
        free = sum(self._free(zone) for zone in zones if asked in (None, zone))
        largest = {"value": behaviour.largest}
        return build("GetCapacityResponse", available_capacity=free, maximum_volume_size=largest)

    # --- attachments --------------------------------------------------------------------------------------------

    def _ControllerPublishVolume(self, request: Any) -> Any:  # noqa: N802
        _require(request.node_id, "node_id", 256)
        volume, node = self._volume(request.volume_id), request.node_id
        modes = _modes([request.volume_capability])
        if node not in self.behaviour.nodes:
            raise CloudFailure("NOT_FOUND", f"node {node} does not exist")
        if volume.published.get(node, request.readonly) != request.readonly:
            raise CloudFailure("ALREADY_EXISTS", f"{volume.id} is published to {node} with another readonly")
        if node not in volume.published:
            others = [each for each in volume.published if each != node]
            if others and not _MANY.intersection(modes):
                raise CloudFailure("FAILED_PRECONDITION", f"{volume.id} is published to {others[0]}")
            held = sum(node in each.published for each in self.volumes.values())
            if self.behaviour.attach_limit and held >= self.behaviour.attach_limit:
                raise CloudFailure("RESOURCE_EXHAUSTED", f"node {node} has {held} volumes")
            volume.published[node] = request.readonly
        return build("ControllerPublishVolumeResponse", publish_context={"device": f"/dev/{volume.id}"})

    def _ControllerUnpublishVolume(self, request: Any) -> Any:  # noqa: N802
        _require(request.volume_id, "volume_id")
        volume = self.by_id(request.volume_id)
        if volume is None or (request.node_id and request.node_id not in volume.published):
            if self.behaviour.unpublish_not_found:
                raise CloudFailure("NOT_FOUND", "it is not published there")
        elif request.node_id:
            del volume.published[request.node_id]
        else:
            volume.published.clear()
        return build("ControllerUnpublishVolumeResponse")

    # --- snapshots ----------------------------------------------------------------------------------------------

    def _CreateSnapshot(self, request: Any) -> Any:  # noqa: N802
        _require_name(request.name)
        found = self.snapshots.get(request.name)
        if found is None:
            found = self._cut(request.name, self._volume(request.source_volume_id))
        elif found.source != request.source_volume_id:
            raise CloudFailure("ALREADY_EXISTS", f"snapshot {request.name} is of {found.source}")
        return build("CreateSnapshotResponse", snapshot=self._shown_snapshot(found))

    def _cut(self, name: str, volume: FakeVolume, group: str = "") -> FakeSnapshot:
        made = FakeSnapshot(
            id=f"snap-{next(self._numbers):06}",
            name=name,
            source=volume.id,
            size=volume.size,
            created=self.clock(),
            ready_at=self.clock() + self.behaviour.cut_seconds,
            zone=volume.zone,
            group=group,
        )
        self.contents.begin(made.id, volume.id)
        self.snapshots[name] = made
        return made

    def _shown_snapshot(self, snapshot: FakeSnapshot) -> Any:
        seconds, fraction = divmod(snapshot.created, 1)
        return build(
            "Snapshot",
            snapshot_id=snapshot.id,
            source_volume_id=snapshot.source,
            size_bytes=snapshot.size,
            creation_time={"seconds": int(seconds), "nanos": int(fraction * 1e9)},
            ready_to_use=snapshot.ready_at <= self.clock(),
            group_snapshot_id=snapshot.group,
        )

    def _DeleteSnapshot(self, request: Any) -> Any:  # noqa: N802
        _require(request.snapshot_id, "snapshot_id")
        if of := [each.group for each in self.snapshots.values() if each.id == request.snapshot_id and each.group]:
            raise CloudFailure("INVALID_ARGUMENT", f"snapshot {request.snapshot_id} is a member of {of[0]}")
        self.snapshots = {name: each for name, each in self.snapshots.items() if each.id != request.snapshot_id}
        return build("DeleteSnapshotResponse")

    def _ListSnapshots(self, request: Any) -> Any:  # noqa: N802
        wanted = [
            each
            for each in self.snapshots.values()
            if request.snapshot_id in ("", each.id) and request.source_volume_id in ("", each.source)
        ]
        page, token = self._page(wanted, request)
        entries = [{"snapshot": self._shown_snapshot(each)} for each in page]
        return build("ListSnapshotsResponse", entries=entries, next_token=token)

    def _GetSnapshot(self, request: Any) -> Any:  # noqa: N802
        found = next((each for each in self.snapshots.values() if each.id == request.snapshot_id), None)
        if found is None:
            raise CloudFailure("NOT_FOUND", f"snapshot {request.snapshot_id} does not exist")
        return build("GetSnapshotResponse", snapshot=self._shown_snapshot(found))

    # --- groups of snapshots ------------------------------------------------------------------------------------

    def members(self, group: str) -> list[FakeSnapshot]:
        """Return the snapshots of the group with this id."""
        return [each for each in self.snapshots.values() if each.group == group]

    def _CreateVolumeGroupSnapshot(self, request: Any) -> Any:  # noqa: N802
        _require_name(request.name)
        sources, id_ = list(request.source_volume_ids), f"group-of-{request.name}"
        if not sources or len(set(sources)) < len(sources):
            raise CloudFailure("INVALID_ARGUMENT", "source_volume_ids names none, or one twice")
        found = self.members(id_)
        if found and {each.source for each in found} != set(sources):
            raise CloudFailure("ALREADY_EXISTS", f"group {request.name} is of other volumes")
        if not found:
            volumes = [self._volume(each) for each in sources]
            found = [self._cut(f"{request.name} {each.id}", each, id_) for each in volumes]
        return build("CreateVolumeGroupSnapshotResponse", group_snapshot=self._shown_group(id_, found))

    def _shown_group(self, id_: str, members: list[FakeSnapshot]) -> Any:
        shown = [self._shown_snapshot(each) for each in members]
        return build(
            "VolumeGroupSnapshot",
            group_snapshot_id=id_,
            snapshots=shown,
            creation_time=shown[0].creation_time,
            ready_to_use=all(each.ready_to_use for each in shown),
        )

    def _group(self, request: Any) -> list[FakeSnapshot]:
        """Return the members of the group that a request is about, which names them all."""
        _require(request.group_snapshot_id, "group_snapshot_id")
        found = self.members(request.group_snapshot_id)
        if found and {each.id for each in found} != set(request.snapshot_ids):
            raise CloudFailure("INVALID_ARGUMENT", "snapshot_ids are not those of the group")
        return found

    def _GetVolumeGroupSnapshot(self, request: Any) -> Any:  # noqa: N802
        found = self._group(request)
        if not found:
            raise CloudFailure("NOT_FOUND", f"group {request.group_snapshot_id} does not exist")
        group = self._shown_group(request.group_snapshot_id, found)
        return build("GetVolumeGroupSnapshotResponse", group_snapshot=group)

    def _DeleteVolumeGroupSnapshot(self, request: Any) -> Any:  # noqa: N802
        gone = {each.id for each in self._group(request)}
        self.snapshots = {name: each for name, each in self.snapshots.items() if each.id not in gone}
        return build("DeleteVolumeGroupSnapshotResponse")


def _plain(request: Any) -> Any:
    """Return a copy without what may be another in an equal request."""
    plain = type(request)()
    plain.CopyFrom(request)
    plain.secrets.clear()
    plain.mutable_parameters.clear()
    return plain


def _require(text: str, field_: str, longest: int = _LONGEST) -> None:
    if not text or len(text.encode()) > longest:
        raise CloudFailure("INVALID_ARGUMENT", f"{field_} has {len(text.encode())} bytes, expected 1 to {longest}")


def _require_name(name: str) -> None:
    _require(name, "name")
    if any(ord(each) < 32 for each in name):
        raise CloudFailure("INVALID_ARGUMENT", "name has control characters")


def _modes(capabilities: Any) -> tuple[int, ...]:
    if not capabilities:
        raise CloudFailure("INVALID_ARGUMENT", "volume_capabilities is empty")
    if any(each.WhichOneof("access_type") is None or not each.access_mode.mode for each in capabilities):
        raise CloudFailure("INVALID_ARGUMENT", "a volume_capability lacks its access type or mode")
    return tuple(each.access_mode.mode for each in capabilities)


def _status(volume: FakeVolume, condition: str) -> dict[str, Any]:
    wrong = {"abnormal": condition != "", "message": condition}
    return {"published_node_ids": sorted(volume.published), "volume_condition": wrong}
