"""The hooks of the driver: each finds the share, looks at the volume's marker and calls other modules."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar, Final

from volplane import (
    Absent,
    AccessMode,
    AdoptRequest,
    AlreadyExists,
    Asset,
    AssetPage,
    BackendError,
    BackendSpec,
    Capacity,
    CapacityRequest,
    Context,
    DeleteRequest,
    DeleteSnapshotRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    Erased,
    ExpandRequest,
    FindRequest,
    FindSnapshotRequest,
    InProgress,
    InspectRequest,
    InvalidArgument,
    ListedAsset,
    ListRequest,
    ListSnapshotsRequest,
    NotFound,
    OwnsRequest,
    ParameterSchema,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    Snapshot,
    SnapshotPage,
    SnapshotRequest,
    StartRequest,
    StopRequest,
    Unavailable,
    Unsupported,
    ValidateRequest,
    VolumeIdentity,
    VolumeMode,
    hookimpl,
    read_parameters,
)
from volplane.directory import (
    SNAPSHOT_PARAMETERS,
    Handle,
    SnapshotHandle,
    UsageReport,
    check_demand,
    check_name,
    name_of,
    static_key,
)
from volplane_nfs.backing import provision_backed
from volplane_nfs.copies import Copies
from volplane_nfs.delete import (
    delete_owned,
    empty_trash,
    scrub,
    take_away,
)
from volplane_nfs.exact_paths import provision_exact
from volplane_nfs.expiry import Expiry
from volplane_nfs.exports import Exports, NoExports
from volplane_nfs.ganesha.bus import DBus, OpenBus
from volplane_nfs.housekeeping import empty_leftovers, repair_exports, tidy_up
from volplane_nfs.inspect import inspect_volume
from volplane_nfs.listing import archives_page, list_page
from volplane_nfs.markers import LONGEST_NAME, VolumeMarker
from volplane_nfs.nfs4 import Dial, NfsError, dial_tcp
from volplane_nfs.nfs4.files import ANONYMOUS, NO_SPACE, Path, create_directory
from volplane_nfs.nfs4.operations import PUTFH, REMOVE, SETATTR
from volplane_nfs.parameters import PARAMETERS, ClassParameters, refuse_mount_options
from volplane_nfs.provision import provision_directory
from volplane_nfs.restore import provision_copy, storage_of
from volplane_nfs.settings import Settings
from volplane_nfs.share import Handles, Share
from volplane_nfs.shares import Shares
from volplane_nfs.snapshots import delete_snapshot, make_snapshot, read_snapshot, snapshots_page
from volplane_nfs.sources import below_pseudo_path, path_below_share, static_path
from volplane_nfs.space import file_system_of, free_bytes, require_limit
from volplane_nfs.static_volumes import refuse_not_static
from volplane_nfs.statistics import measure_volumes
from volplane_nfs.volumes import (
    asset_of,
    directory_attributes,
    read_found,
    read_marker,
    replace_marker,
    text,
    wanted_attributes,
)

_AGAIN: Final = 0.1
_CLEAR_SECONDS: Final = 2.0
"""Of each probe, for what nobody waits for."""


class NfsBackend(BackendSpec):
    """Volumes as directories of shares of NFSv4 servers, or as exports of NFS-Ganesha."""

    default_driver_name: ClassVar[str] = "nfs.volplane.dev"
    options_schema: ClassVar[ParameterSchema] = ParameterSchema.of(Settings)

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        dial: Dial = dial_tcp,
        now: Callable[[], float] = time.monotonic,
        open_bus: OpenBus = DBus,
    ) -> None:
        """Check the options; raises `InvalidArgument`. dial, open_bus: how servers are reached. now: monotonic
        seconds.
        """
        super().__init__(options)
        self._settings = read_parameters(Settings, options)
        self._shares = Shares(self._settings, dial, now)
        self._expiry = {share: Expiry(share) for share in self._shares.all}
        self._usage = UsageReport()
        local = self._settings.server_path if self._settings.export is not None else ""
        self._copies = {share: Copies(share, owners=self._settings.uid == 0, local=local) for share in self._shares.all}
        self._last_class: tuple[Mapping[str, Any], ClassParameters] | None = None
        export = self._settings.export
        self._exports: Exports | NoExports = NoExports() if export is None else Exports(export, open_bus)

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        """Return every access mode, from everywhere."""
        return DriverInfo(
            version=version("volplane-nfs"),
            parameters=PARAMETERS,
            access_modes=frozenset(AccessMode),
            volume_modes=frozenset({VolumeMode.FILESYSTEM}),
            supports_mount_options=True,
            archives=True,
            clones="anywhere",
            snapshot_parameters=SNAPSHOT_PARAMETERS,
            waived_rules={
                "capacity-is-used-and-given-back": "a directory takes space from the share only as it is written: "
                "nothing is reserved"
            },
        )

    @hookimpl
    def start(self, request: StartRequest) -> Done:
        """Open every share and tidy up; at least one has to answer."""
        self._exports.start()
        errors: list[BackendError] = []
        for share in self._shares.all:
            try:
                share.work("use the share", lambda handles, share=share: self._tidy_up(share, handles, request.context))  # type: ignore[misc]
                self._repair(share, request.context)
            except BackendError as error:
                request.context.log.warning("%s cannot be used yet: %s", share, error)
                errors.append(error)
        if len(errors) == len(self._shares.all):
            raise errors[0]
        return Done()

    def _tidy_up(self, share: Share, handles: Handles, context: Context) -> None:
        tidy_up(share, handles, self._copies[share], context)

    @hookimpl
    def stop(self, request: StopRequest) -> Done:
        """End the sessions."""
        self._shares.close()
        self._exports.stop()
        self._usage.close()
        return Done()

    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        """Check that every share is ours and can be written, and that the D-Bus of Ganesha answers in mode export."""
        self._exports.probe()
        end = time.monotonic() + _CLEAR_SECONDS
        # In any order: what is behind a server that does not answer has its turn too.
        for share in random.sample(self._shares.all, len(self._shares.all)):
            share.work("write", partial(_write_something, share))
            self._repair(share, request.context)
            if self._settings.volume_statistics:
                share.work("measure", partial(measure_volumes, share, self._usage, request.context))
            if time.monotonic() < end:
                self._clear(share, request.context, end)
        return Done()

    def _clear(self, share: Share, context: Context, deadline: float) -> None:
        """Remove what nobody waits for until the deadline: the trash of no volume, and archives whose time is over."""

        def step(handles: Handles) -> None:
            empty_leftovers(share, handles, context, deadline)
            self._expiry[share].work(handles, context.log, deadline)

        share.work("remove what nobody waits for", step)

    def _repair(self, share: Share, context: Context) -> None:
        exports = self._exports
        if isinstance(exports, Exports):
            share.work("repair its exports", lambda handles: repair_exports(share, handles, exports, context))

    @hookimpl
    def validate(self, request: ValidateRequest) -> Done:
        """Check server, share, path template and what goes together."""
        ClassParameters.of(request.parameters, self._settings)
        return Done()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        """Choose a share, then make the directory there, or finish and return that of an earlier call."""
        check_name(request.name, LONGEST_NAME)
        check_demand(request, copies=True)
        refuse_mount_options(request.mount_options)
        parameters = self._class_parameters(request.parameters)
        candidates = self._shares.allowed(parameters)
        storage = storage_of(request)
        if storage is not None:
            candidates = [self._of_source(request, storage, candidates)]
        share = self._shares.chosen(request, candidates)
        if share is None:
            return InProgress(retry_after=0.0, state=self._shares.choose(request, candidates))
        return share.work(
            f"make the directory of {request.name}",
            lambda handles: self._provision(share, handles, request, parameters),
        )

    def _of_source(self, request: ProvisionRequest, storage: str, candidates: Sequence[Share]) -> Share:
        """Return the share of the source, where the copy is made. storage: its id."""
        source = request.source_snapshot or request.source_volume
        share = self._shares.with_id(storage, str(source))
        if share not in candidates:
            raise InvalidArgument(
                f"{request.name} is to be made of {source}, which is on {share}, and its class allows only "
                f"{', '.join(map(str, candidates))}: a copy is made on the share of its source"
            )
        return share

    def _class_parameters(self, given: Mapping[str, Any]) -> ClassParameters:
        """Read the parameters, or return what was read last: claims of one class come one after the other."""
        last = self._last_class
        if last is None or last[0] != given:
            last = self._last_class = (dict(given), ClassParameters.of(given, self._settings))
        return last[1]

    def _provision(
        self, share: Share, handles: Handles, request: ProvisionRequest, parameters: ClassParameters
    ) -> Asset | InProgress:
        check_space, exports = self._settings.check_free_space, self._exports
        marker: VolumeMarker | InProgress
        if parameters.backing_snapshot:
            marker = provision_backed(share, handles, request, parameters, exports=exports)
        elif storage_of(request) is None and parameters.exact_path:
            marker = provision_exact(share, handles, request, parameters, check_space=check_space, exports=exports)
        elif storage_of(request) is None:
            marker = provision_directory(share, handles, request, parameters, check_space=check_space, exports=exports)
        else:
            copies = self._copies[share]
            marker = provision_copy(
                share, handles, request, parameters, copies=copies, check_space=check_space, exports=exports
            )
        if isinstance(marker, InProgress):
            return marker
        if not marker.backing:
            require_limit(share, handles, marker, self._exports)
        self._exports.ensure(share, handles, marker)
        return asset_of(share, handles, marker, self._settings.export)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        """Return the asset of a marker: `provision` finishes what it stands for, `delete` removes it. Nothing changes.

        In a mere look the directory has to be there.
        """
        name = check_name(request.name, LONGEST_NAME)
        for share in self._shares.all:
            found = share.work(f"look for {name}", lambda handles, share=share: self._find(share, handles, request))  # type: ignore[misc]
            if found is not None:
                return found
        return Absent()

    def _find(self, share: Share, handles: Handles, request: FindRequest) -> Asset | None:
        found = read_found(share, handles, request.name, request.owner.generation)
        generation = request.owner.generation
        for marker in (found.marker, found.deleting):
            if marker is None or not marker.belongs_to(request.owner) or marker.owner.generation != generation:
                continue
            if request.only_look and marker is found.deleting:
                raise Unavailable(f"{request.name} is still being removed", retry_after=_AGAIN)
            if not request.only_look or directory_attributes(share, handles, marker.components) is not None:
                return asset_of(share, handles, marker, self._settings.export)
        return None

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        """Look at the marker and the directory of a volume."""
        return inspect_volume(self._shares, request.handle, self._settings.export)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        """Remove the directory and its contents, if its marker or its path proves that it is this volume's."""
        volume = request.volume
        share = self._shares.of(volume)
        if share is None:
            return Done()
        try:
            with share.deleting():
                finished = share.work(f"remove {volume.name}", lambda handles: self._delete(share, handles, volume))
        except ResourceExhausted:
            # Of an archive, which takes a little space. What may go gives some back for the next call.
            with suppress(BackendError):
                self._clear(share, request.context, time.monotonic() + _CLEAR_SECONDS)
            raise
        return Done() if finished else InProgress(retry_after=_AGAIN)

    def _delete(self, share: Share, handles: Handles, volume: VolumeIdentity) -> bool:
        if volume.owner is None:
            return self._delete_static(share, handles, volume)
        return delete_owned(share, handles, name_of(volume, LONGEST_NAME), volume, self._exports)

    def _delete_static(self, share: Share, handles: Handles, volume: VolumeIdentity) -> bool:
        path, key = self._static_path(share, handles, volume), static_key(volume).encode()
        return take_away(share, handles, path, key) and empty_trash(share, handles, key, text(share, path))

    def _static_path(self, share: Share, handles: Handles, volume: VolumeIdentity) -> Path:
        """Return the directory of a static volume, if it can be nothing else."""
        if below_pseudo_path(volume.source, self._settings):
            raise AlreadyExists(
                f"nfs {volume.source.fields['path']!r} is an export of this driver, or would be: only the volume it "
                "was made for deletes or empties it"
            )
        path = static_path(volume.source, share.address)
        refuse_not_static(share, handles, path)
        return path

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        """Return a directory strictly below a share, or one of the driver's exports. Only the text is looked at."""
        source = request.source
        return below_pseudo_path(source, self._settings) or any(
            path_below_share(source, share) is not None for share in self._settings.addresses
        )

    @hookimpl
    def recycle(self, request: RecycleRequest) -> Erased | PodScrub | InProgress:
        """Empty the directory, in slices, and verify it; or let a pod do it."""
        volume = request.volume
        share = self._shares.holding(volume)
        return share.work(f"empty {volume.name}", lambda handles: self._recycle(share, handles, volume))

    def _recycle(self, share: Share, handles: Handles, volume: VolumeIdentity) -> Erased | PodScrub | InProgress:
        marker: VolumeMarker | None = None
        if volume.owner is None:
            path, key = self._static_path(share, handles, volume), static_key(volume).encode()
        else:
            marker = self._present(share, handles, volume)
            path, key = marker.components, marker.key
            _refuse_backed(marker, "emptied")
            marker.refuse_emptying()
        directory = directory_attributes(share, handles, path)
        if directory is None:
            raise NotFound(f"{text(share, path)} of volume {volume.name} is gone: there is nothing to empty")
        if self._settings.recycle == "pod":
            fields = volume.source.fields
            return PodScrub(volume={"nfs": {"server": fields.get("server"), "path": fields.get("path")}})
        if not scrub(share, handles, path, key):
            return InProgress(retry_after=_AGAIN)
        if marker is not None and not marker.existing:
            share.client.compound(PUTFH(directory[1]), SETATTR(ANONYMOUS, wanted_attributes(marker)))
        return Erased()

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        """Raise the promised size in the marker, where the server's quotas are taken from; then require the limit."""
        volume = request.volume
        share = self._shares.holding(volume)
        return share.work(
            f"grow {volume.name}", lambda handles: self._expand(share, handles, volume, request.capacity_bytes)
        )

    def _expand(self, share: Share, handles: Handles, volume: VolumeIdentity, capacity_bytes: int) -> Asset:
        marker = self._present(share, handles, volume)
        _refuse_backed(marker, "grown")
        if capacity_bytes > marker.capacity_bytes:
            free = free_bytes(share, handles)
            more = capacity_bytes - marker.capacity_bytes
            if self._settings.check_free_space and free is not None and more > free:
                raise ResourceExhausted(
                    f"{share} has {free} bytes left, {marker.name} asks for {more} more",
                    scope=str(share),
                    nothing_done=True,
                )
            marker = replace(marker, capacity_bytes=capacity_bytes)
            replace_marker(share, handles, marker)
        require_limit(share, handles, marker, self._exports)
        return asset_of(share, handles, marker, self._settings.export)

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        """Return the shares one after the other; asked for archives, those of each.

        A share that does not answer fails the listing: absence would be no proof.
        """
        number, page = self._page(request.page)
        if page and ":" not in page:
            raise InvalidArgument(f"page {request.page!r} is none of this driver")
        share = self._shares.all[number]
        found = share.work("list the volumes", lambda handles: self._list(share, handles, page or None, request))
        return replace(found, next_page=self._next_page(number, found.next_page))

    def _list(self, share: Share, handles: Handles, page: str | None, request: ListRequest) -> AssetPage:
        if request.archives:
            return archives_page(share, handles, page)
        if page is None:
            self._tidy_up(share, handles, request.context)
        return list_page(share, handles, page, request.context, self._settings.export)

    @hookimpl
    def adopt(self, request: AdoptRequest) -> Done:
        """Write the new owner into the volume's marker."""
        volume, owner = request.volume, request.volume.owner
        if owner is None:
            raise Unsupported(f"{volume.name} was not made by this driver: it carries no marks")
        share = self._shares.holding(volume)

        def step(handles: Handles) -> None:
            marker = read_marker(share, handles.volumes, name_of(volume, LONGEST_NAME).encode())
            if marker is None:
                raise NotFound(f"{volume.name} has no marker on {share}")
            if marker.owner == owner:
                return
            if marker.owner != request.former:
                raise AlreadyExists(
                    f"{marker.name} belongs to claim {marker.owner.claim_uid} of cluster {marker.owner.cluster_id!r}, "
                    "neither to the former nor to the new owner"
                )
            replace_marker(share, handles, replace(marker, owner=owner))

        share.work(f"take over {volume.name}", step)
        return Done()

    @hookimpl
    def get_capacity(self, request: CapacityRequest) -> Capacity:
        """Free space of all shares that the class allows and that answer, once for shares of one file system."""
        spaces, errors = self._shares.free_spaces(
            self._shares.allowed(ClassParameters.of(request.parameters, self._settings))
        )
        rooms: dict[Hashable, int] = {}
        for free, share in spaces:
            if free is not None:
                system = share.work("ask for its file system", partial(file_system_of, share))
                rooms[system] = max(free, rooms.get(system, 0))
        if not rooms:
            raise errors[0] if errors else Unsupported("the server does not tell how much space is free")
        return Capacity(available_bytes=sum(rooms.values()), maximum_volume_bytes=max(rooms.values()))

    # --- snapshots ------------------------------------------------------------------------------------------------

    @hookimpl
    def create_snapshot(self, request: SnapshotRequest) -> Snapshot | InProgress:
        """Copy the directory to `.volplane/snapshots`, on its share; the moment is when the copy is whole."""
        check_name(request.name, LONGEST_NAME)
        share = self._shares.holding(request.volume)
        return share.work(
            f"make snapshot {request.name}", lambda handles: self._create_snapshot(share, handles, request)
        )

    def _create_snapshot(self, share: Share, handles: Handles, request: SnapshotRequest) -> Snapshot | InProgress:
        found = read_snapshot(share, handles, request.name)
        if found is not None:
            found.refuse_other_demand(request.owner, request.volume.handle)
            return found.snapshot(handles.share_id)
        try:
            marker = self._present(share, handles, request.volume)
        except NotFound:
            self._copies[share].discard(handles, request.name.encode())
            raise
        directory = directory_attributes(share, handles, marker.components)
        if directory is None:
            where = text(share, marker.components)
            raise NotFound(f"{where} of volume {marker.name} is gone: there is nothing to copy")
        check_space = self._settings.check_free_space
        return make_snapshot(
            share, handles, request, marker, directory[1], copies=self._copies[share], check_space=check_space
        )

    @hookimpl
    def find_snapshot(self, request: FindSnapshotRequest) -> Snapshot | Absent:
        """Look for the marker of a snapshot. One that is still being made is none."""
        handle = SnapshotHandle.parse(request.handle)
        if request.handle and handle is None:
            return Absent()
        name = handle.name if handle is not None else check_name(request.name, LONGEST_NAME)
        shares = self._shares.all if handle is None else [self._shares.with_id(handle.storage_id, request.handle)]
        for share in shares:
            found: Snapshot | None = share.work(
                f"look for snapshot {name}",
                lambda handles, share=share: self._find_snapshot(share, handles, name, request),  # type: ignore[misc]
            )
            if found is not None:
                return found
        return Absent()

    def _find_snapshot(
        self, share: Share, handles: Handles, name: str, request: FindSnapshotRequest
    ) -> Snapshot | None:
        found = read_snapshot(share, handles, name)
        other = found is None or (not request.handle and request.owner not in {None, found.owner})
        return None if found is None or other else found.snapshot(handles.share_id)

    @hookimpl
    def delete_snapshot(self, request: DeleteSnapshotRequest) -> Done | InProgress:
        """Remove a snapshot, in slices, if its marker proves that it is this one."""
        handle = SnapshotHandle.parse(request.handle)
        if handle is None:
            return Done()
        share = self._shares.with_id(handle.storage_id, request.handle)
        with share.deleting():
            finished = share.work(
                f"remove snapshot {handle.name}",
                lambda handles: delete_snapshot(share, handles, handle.name, request),
            )
        return Done() if finished else InProgress(retry_after=_AGAIN)

    @hookimpl
    def list_snapshots(self, request: ListSnapshotsRequest) -> SnapshotPage:
        """Return the snapshots of the shares, one share after the other."""
        number, page = self._page(request.page)
        share = self._shares.all[number]
        found = share.work(
            "list the snapshots", lambda handles: snapshots_page(share, handles, request.context, page or None)
        )
        return replace(found, next_page=self._next_page(number, found.next_page))

    def _page(self, token: str | None) -> tuple[int, str]:
        """Return the number of the share that is to be listed, and from where on. Raises `InvalidArgument`."""
        number, _, page = (token or "0|").partition("|")
        if not number.isdecimal() or int(number) >= len(self._shares.all):
            raise InvalidArgument(f"page {token!r} is none of this driver")
        return int(number), page

    def _next_page(self, number: int, following: str | None) -> str | None:
        if following is not None:
            return f"{number}|{following}"
        return f"{number + 1}|" if number + 1 < len(self._shares.all) else None

    def _present(self, share: Share, handles: Handles, volume: VolumeIdentity) -> VolumeMarker:
        """Return the marker of a volume of ours that exists. Raises `NotFound`, `AlreadyExists`, `Unsupported`."""
        if volume.owner is None:
            raise Unsupported(f"{volume.name} was not made by this driver: nothing was promised to it")
        marker = read_marker(share, handles.volumes, name_of(volume, LONGEST_NAME).encode())
        if marker is None:
            raise NotFound(f"{volume.name} has no marker on {share}: it is deleted")
        marker.refuse_other_owner(volume.owner, marker.name)
        handle = Handle.parse(volume.handle)
        if handle is not None and handle.generation != marker.owner.generation:
            raise NotFound(f"{volume.name} exists in another generation ({marker.owner.generation})")
        return marker


def _refuse_backed(marker: VolumeMarker, what: str) -> None:
    if marker.backing:
        raise Unsupported(f"{marker.name} is snapshot {marker.backing} itself, read only: it cannot be {what}")


def _write_something(share: Share, handles: Handles) -> None:
    name = f"probe-{secrets.token_hex(8)}".encode()
    try:
        share.client.compound(PUTFH(handles.tmp), create_directory(name, 0o700), PUTFH(handles.tmp), REMOVE(name))
    except NfsError as error:
        if error.status not in NO_SPACE:  # A full share can be emptied.
            raise
