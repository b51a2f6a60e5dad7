"""Making, growing, changing, deleting and listing volumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from volplane import (
    Absent,
    AlreadyExists,
    Asset,
    AssetPage,
    BackendError,
    Capacity,
    CapacityRequest,
    Context,
    DeleteRequest,
    Done,
    ExpandRequest,
    InProgress,
    InspectRequest,
    ListedAsset,
    ListRequest,
    ModifyRequest,
    NotFound,
    OutOfRange,
    ProvisionRequest,
    Unavailable,
    Unsupported,
    VolumeIdentity,
    VolumeSource,
)
from volplane.cloud import BoundedCache
from volplane.csi.client import CallError
from volplane.csi.wire import build, message
from volplane_csi.calls import Calls
from volplane_csi.classes import for_driver
from volplane_csi.demands import capability_of, create_volume, keys_of
from volplane_csi.errors import FINAL, REFUSED, Purpose
from volplane_csi.saved import Attempts, SavedRequest
from volplane_csi.settings import Settings

IDENTITY: Final = "storage.kubernetes.io/csiProvisionerIdentity"
"""Attribute in which external-provisioner keeps who made a volume."""
LONGEST_ID: Final = 1024
"""Characters."""
LARGEST_CONTEXT: Final = 32 << 10
"""Characters of a volume's context. CSI allows 4 KiB, and some drivers more."""
MOST_PLACES: Final = 1000
MOST_PAGES: Final = 10_000
_LARGEST: Final = (1 << 63) - 1


class Volumes:
    """The volumes of a driver."""

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self._calls = calls
        self._settings = settings
        self._attempts = Attempts()
        self._made: BoundedCache[str, Asset] = BoundedCache()
        """Mark of a request -> what was made for it, until that is deleted."""
        self._marks: BoundedCache[str, str] = BoundedCache()
        """Id of a volume -> mark of its request."""

    # --- making -------------------------------------------------------------------------------------------------

    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Save the request; once it is saved, send it."""
        if not request.context.state:
            saved = self._demand(request)
            self._attempts.saved(saved)
            return InProgress(retry_after=0.0, state=saved.state())
        return self._send(request, SavedRequest.read(request.context.state))

    def _demand(self, request: ProvisionRequest) -> SavedRequest:
        try:
            known = self._calls.require("CREATE_DELETE_VOLUME", request.context, "makes no volumes")
            return create_volume(request, known, self._settings, self._calls.secrets.where)
        except BackendError as error:
            # Nothing is ever sent for this asset before its request is saved.
            error.nothing_done = True
            raise

    def _send(self, request: ProvisionRequest, saved: SavedRequest) -> Asset:
        doing = f"make a volume for {request.name}"
        content = message("CreateVolumeRequest").FromString(saved.content)
        asked = content.capacity_range.required_bytes
        copied = content.HasField("volume_content_source")
        # Before it counts as sent: secrets that cannot be read change nothing.
        content = self._calls.secrets.add_to(content)
        nothing = self._attempts.begin(saved)
        try:
            volume = self._calls.send("CreateVolume", content, request.context).volume
        except CallError as error:
            if error.code == "ALREADY_EXISTS" and (made := self._made.get(saved.mark)) is not None:
                return made  # Some drivers refuse an equal request for a copy.
            raise self._refusal(error, doing, saved, nothing=nothing) from None
        if copied and not volume.HasField("content_source"):
            self._remove_empty(request, volume.volume_id, saved)
        return self._asset(volume, asked, saved, request.context.driver)

    def _refusal(self, error: CallError, doing: str, saved: SavedRequest, *, nothing: bool) -> BackendError:
        """Return the error. nothing: nothing had come of the request before."""
        reschedule = bool(self._settings.topology_keys)
        found: BackendError = self._calls.failed(error, doing, Purpose.PROVISION, reschedule=reschedule)
        if nothing and (error.code in FINAL or not error.sent):
            self._attempts.left_nothing(saved)
            found.nothing_done = True
            return found
        if error.code in REFUSED and saved.driver_version == self._version():
            # The same driver would have refused it then.
            found.nothing_done = True
            return found
        if isinstance(found, AlreadyExists):
            # It may be what an earlier attempt has made: some drivers refuse an equal request.
            return BackendError(
                f"{found.message}; it may be what an attempt before has made, whose answer was lost: look on the "
                "storage whether it is this claim's",
                code=error.code,
                retry_after=300.0,
            )
        return found

    def _version(self) -> str:
        known = self._calls.latest
        return known.version if known is not None else ""

    def _remove_empty(self, request: ProvisionRequest, id_: str, saved: SavedRequest) -> None:
        """Delete what is no copy although one was asked for; raises Unsupported.

        Raises BackendError for what a broken driver shows in its place: the volume of another claim, or the source.
        """
        if id_ == request.source_volume or self._marks.get(id_) not in (None, saved.mark):
            raise BackendError(
                f"the CSI driver answered the request for a copy for {request.name} with volume {id_[:60]!r}, which is "
                "another's: it is not deleted"
            )
        doing = f"delete the empty volume {id_[:60]!r} that was made for {request.name} in the place of a copy"
        self._delete(id_, request, doing)
        self._attempts.left_nothing(saved)
        raise Unsupported(
            f"the CSI driver made an empty volume for {request.name} where a copy was asked for; it is deleted again",
            nothing_done=True,
        )

    def _asset(self, volume: Any, asked: int, saved: SavedRequest, driver: str) -> Asset:
        id_, size = volume.volume_id, volume.capacity_bytes
        if not 0 < len(id_) <= LONGEST_ID:
            raise BackendError(f"the CSI driver gave a volume an id of {len(id_)} characters, expected 1 to 1024")
        before = self._made.get(saved.mark)
        if before is not None and before.handle != id_:
            raise BackendError(
                f"the CSI driver answered an equal request with volume {id_[:60]!r}, before with "
                f"{before.handle[:60]!r}: one of them is left over"
            )
        attributes = dict(volume.volume_context)
        _require_small(attributes, f"volume {id_[:60]!r}")
        if self._calls.secrets.is_in(attributes):
            raise BackendError(f"the CSI driver puts a secret into the context of volume {id_[:60]!r}, which many read")
        source = dict(saved.about.get("source") or {})
        made = Asset(
            handle=id_,
            source=VolumeSource(
                kind="csi", fields={"driver": self._settings.csi_driver(driver), "volumeHandle": id_, **source}
            ),
            # 0 = the driver does not know it.
            capacity_bytes=max(size, 0) or asked,
            node_affinity=self._affinity(volume),
            attributes={**attributes, IDENTITY: f"volplane-{driver}"},
            annotations=dict(saved.about.get("annotations") or {}),
        )
        self._marks.put(id_, saved.mark)
        return self._made.put(saved.mark, made)

    def _affinity(self, volume: Any) -> tuple[dict[str, str], ...]:
        if not self._settings.topology_keys:
            return ()
        places = [dict(each.segments) for each in volume.accessible_topology[:MOST_PLACES]]
        return tuple(place for place in places if place)

    # --- what exists --------------------------------------------------------------------------------------------

    def delete(self, request: DeleteRequest) -> Done:
        """Delete the volume of this id."""
        volume = request.volume
        self._delete(volume.handle, request, f"delete {volume.handle[:60]} of {volume.name}")
        return Done()

    def _delete(self, id_: str, request: DeleteRequest | ProvisionRequest, doing: str) -> None:
        content = self._calls.secrets.add_to(build("DeleteVolumeRequest", volume_id=id_))
        self._calls.make("DeleteVolume", content, request.context, Purpose.DELETE, doing)
        if (mark := self._marks.drop(id_)) is not None:
            self._made.drop(mark)

    def expand(self, request: ExpandRequest) -> Asset:
        """Grow the volume; where only its node can do that, leave it to the node."""
        volume, known = request.volume, self._calls.known(request.context)
        if volume.capacity_bytes >= request.capacity_bytes:
            return _grown(volume, volume.capacity_bytes, on_node=None)
        if request.capacity_bytes > _LARGEST:
            raise OutOfRange(f"{request.capacity_bytes} bytes were asked for, CSI can tell at most {_LARGEST}")
        if not known.can("EXPAND_VOLUME"):
            if "EXPAND_VOLUME" in known.node:
                return _grown(volume, request.capacity_bytes, on_node=True)
            raise Unsupported(f"CSI driver {known.name} grows no volumes (EXPAND_VOLUME)", nothing_done=True)
        content = self._calls.secrets.add_to(
            build(
                "ControllerExpandVolumeRequest",
                volume_id=volume.handle,
                capacity_range={"required_bytes": request.capacity_bytes},
                volume_capability=capability_of(volume, known),
            )
        )
        doing = f"grow {volume.handle[:60]} of {volume.name}"
        answer = self._calls.make("ControllerExpandVolume", content, request.context, Purpose.EXPAND, doing)
        size = answer.capacity_bytes or request.capacity_bytes
        if size < request.capacity_bytes:
            raise BackendError(f"{volume.handle[:60]} has {size} bytes, {request.capacity_bytes} were asked for")
        return _grown(volume, size, on_node=answer.node_expansion_required)

    def modify(self, request: ModifyRequest) -> Done:
        """Change what can be changed."""
        self._calls.require("MODIFY_VOLUME", request.context, "knows no VolumeAttributesClass")
        content = self._calls.secrets.add_to(
            build(
                "ControllerModifyVolumeRequest",
                volume_id=request.volume.handle,
                mutable_parameters=for_driver(request.parameters),
            )
        )
        doing = f"change {request.volume.handle[:60]} of {request.volume.name}"
        self._calls.make("ControllerModifyVolume", content, request.context, Purpose.MODIFY, doing)
        return Done()

    # --- looking ------------------------------------------------------------------------------------------------

    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """Look at the volume of this id: by its id, or else in the list of all."""
        handle, known = request.handle, self._calls.known(request.context)
        if not 0 < len(handle) <= LONGEST_ID:
            return Absent()
        if not known.can("GET_VOLUME"):
            return self._listed_as(handle, request.context)
        self._require_attachments(request.context)
        content = build("ControllerGetVolumeRequest", volume_id=handle)
        try:
            answer = self._calls.make(
                "ControllerGetVolume", content, request.context, Purpose.READ, f"look at {handle[:60]}"
            )
        except NotFound:
            return Absent()
        return self._seen(_listed(answer), handle, request.context)

    def _listed_as(self, handle: str, context: Context) -> ListedAsset | Absent:
        page: str | None = None
        for _ in range(MOST_PAGES):
            answer = self.list_page(ListRequest(context=context, page=page))
            if (found := next((each for each in answer.assets if each.handle == handle), None)) is not None:
                return self._seen(found, handle, context)
            page = answer.next_page
            if page is None:
                return Absent()
        raise Unavailable(f"the CSI driver lists its volumes in more than {MOST_PAGES} pages")

    def _seen(self, found: ListedAsset, handle: str, context: Context) -> ListedAsset:
        if found.handle != handle:
            raise BackendError(f"the CSI driver shows {found.handle[:60]!r}, {handle[:60]!r} was asked for")
        driver = self._settings.csi_driver(context.driver)
        return replace(found, source=VolumeSource(kind="csi", fields={"driver": driver, "volumeHandle": handle}))

    def _require_attachments(self, context: Context) -> None:
        if self._settings.attach:
            what = "does not tell where volumes are attached"
            self._calls.require("LIST_VOLUMES_PUBLISHED_NODES", context, what)

    def list_page(self, request: ListRequest) -> AssetPage:
        """Return a page of all volumes; CSI does not tell whose they are."""
        self._calls.require("LIST_VOLUMES", request.context, "lists no volumes")
        self._require_attachments(request.context)
        content = build("ListVolumesRequest", starting_token=request.page or "")
        answer = self._calls.make("ListVolumes", content, request.context, Purpose.READ, "list the volumes")
        if answer.next_token and answer.next_token == request.page:
            raise Unavailable("the CSI driver names one page of its list as the next of itself")
        return AssetPage(assets=tuple(map(_listed, answer.entries)), next_page=answer.next_token or None)

    def capacity(self, request: CapacityRequest) -> Capacity:
        """Return the free capacity of a place."""
        self._calls.require("GET_CAPACITY", request.context, "does not tell its capacity")
        content = build(
            "GetCapacityRequest",
            parameters=for_driver(keys_of(request.parameters)),
            accessible_topology={"segments": dict(request.segment)} if request.segment else None,
        )
        answer = self._calls.make("GetCapacity", content, request.context, Purpose.READ, "ask for the free capacity")
        largest = answer.maximum_volume_size.value if answer.HasField("maximum_volume_size") else None
        return Capacity(
            available_bytes=max(answer.available_capacity, 0),
            maximum_volume_bytes=largest if largest is not None and largest > 0 else None,
        )


def _listed(entry: Any) -> ListedAsset:
    id_ = entry.volume.volume_id
    if not 0 < len(id_) <= LONGEST_ID:
        raise Unavailable(f"the CSI driver lists a volume with an id of {len(id_)} characters")
    status = entry.status
    return ListedAsset(
        handle=id_,
        name=id_,
        capacity_bytes=max(entry.volume.capacity_bytes, 0),
        owner=None,
        # Some drivers list an empty id for a volume that is attached nowhere.
        attached_to=tuple(each for each in status.published_node_ids if each),
        condition=status.volume_condition.message[:LONGEST_ID] if status.volume_condition.abnormal else "",
    )


def _grown(volume: VolumeIdentity, size: int, *, on_node: bool | None) -> Asset:
    attributes = dict(volume.attributes)
    return Asset(
        handle=volume.handle,
        source=replace(volume.source, fields=dict(volume.source.fields)),
        capacity_bytes=size,
        node_affinity=volume.node_affinity,
        attributes=attributes,
        node_expansion_required=on_node,
    )


def _require_small(texts: Mapping[str, str], what: str) -> None:
    size = sum(len(key) + len(value) for key, value in texts.items())
    if size > LARGEST_CONTEXT:
        raise BackendError(f"the CSI driver gave {what} a context of {size} characters, at most {LARGEST_CONTEXT}")
