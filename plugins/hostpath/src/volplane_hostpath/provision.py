"""Provision."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from volplane import (
    AlreadyExists,
    Asset,
    Context,
    InvalidArgument,
    NodeIdentity,
    ProvisionRequest,
    ResourceExhausted,
    Segment,
    Unavailable,
    VolumeSource,
)
from volplane_hostpath.capacity import human
from volplane_hostpath.dirfd import (
    closing,
    directory_exists,
    entry_exists,
    names_in,
    open_directory,
    open_path,
    remove_entry,
    split,
    sync,
)
from volplane_hostpath.errors import translated
from volplane_hostpath.index import Ledger
from volplane_hostpath.locks import TimeSlice
from volplane_hostpath.markers import Handle, VolumeMarker, marker_file
from volplane_hostpath.parent_directories import make_parents, refuse_foreign_parents
from volplane_hostpath.path_template import PathTemplate
from volplane_hostpath.root import TMP, TRASH, VOLUMES, Root
from volplane_hostpath.settings import HOST_PATH, Settings, Shape

__all__ = ["Node", "asset_of", "begin", "complete", "discard_staged", "new_marker", "refuse_other_demand"]


@dataclass(frozen=True, slots=True)
class Node:
    """The node that has the root. name: empty unless the instance runs for one node; value: of its affinity label."""

    name: str
    label: str
    value: str

    def is_here(self, segment: Segment | None) -> bool:
        """Can the root serve this place? A place that does not name our label cannot be told from ours."""
        return segment is None or segment.get(self.label, self.value) == self.value

    def segment(self, request: ProvisionRequest) -> Mapping[str, str]:
        """The affinity of a new volume, asked before anything is made.

        Raises `ResourceExhausted` with `reschedule` for another node's demand, `InvalidArgument` if no legal place is
        ours.
        """
        node = self._as_selected(request.selected_node)
        wanted = request.segment
        if wanted is None and request.selected_node is not None and node.name != request.selected_node.name:
            wanted = {self.label: request.selected_node.labels.get(self.label, request.selected_node.name)}
        if not node.is_here(wanted):
            place = (wanted or {}).get(self.label, "")
            raise ResourceExhausted(
                f"this root is on the node with {self.label}={node.value}, asked for was {self.label}={place}: let the "
                "pod run there, or give that node a root of its own (option node_name, or --node-name)",
                scope=place,
                reschedule=True,
                nothing_done=True,
            )
        if wanted is None and request.allowed_segments and not any(map(node.is_here, request.allowed_segments)):
            raise InvalidArgument(
                f"no place that the class allows has {self.label}={node.value}, where this root is: "
                "change allowedTopologies"
            )
        return {node.label: node.value}

    def _as_selected(self, selected: NodeIdentity | None) -> Node:
        # The label counts, not the name: on some clouds they differ, and only the node object tells.
        if selected is None or not self.name or selected.name != self.name:
            return self
        return Node(self.name, self.label, selected.labels.get(self.label, self.value))


def _demand_of(request: ProvisionRequest, shape: Shape) -> dict[str, Any]:
    """What was asked, in JSON values: an equal demand has an equal one."""
    return {
        "capacity_bytes": request.capacity_bytes,
        "access_modes": sorted(str(mode) for mode in request.access_modes),
        "mode": f"{shape.mode:04o}",
        "uid": shape.uid,
        "gid": shape.gid,
        "path_template": shape.path_template,
        "volume_type": shape.volume_type,
    }


def refuse_other_demand(marker: VolumeMarker, request: ProvisionRequest, shape: Shape) -> None:
    """Raises `AlreadyExists` unless this volume was made for this owner and this demand."""
    name = request.name
    demand = _demand_of(request, shape)
    if not marker.belongs_to(request.owner):
        raise AlreadyExists(
            f"{name} belongs to claim {marker.owner.claim_uid} of cluster {marker.owner.cluster_id!r}, not to claim "
            f"{request.owner.claim_uid} of cluster {request.owner.cluster_id!r}"
        )
    if marker.owner.generation != request.owner.generation:
        raise AlreadyExists(
            f"{name} exists as generation {marker.owner.generation}, asked for was {request.owner.generation}"
        )
    for key, asked in demand.items():
        # What an older version did not record cannot be compared.
        made = marker.demand.get(key, asked)
        if made != asked:
            raise AlreadyExists(f"{name} exists and was made with {key} {made!r}, not {asked!r}")


def asset_of(root: Root, marker: VolumeMarker) -> Asset:
    """The volume as the core sees it."""
    fields: dict[str, Any] = {"path": f"{root.path}/{marker.path}"}
    if marker.volume_type == HOST_PATH:
        # Never DirectoryOrCreate: on an unmounted disk that makes an empty volume on the system's disk.
        fields["type"] = "Directory"
    return Asset(
        handle=str(Handle(root.id, marker.name, marker.owner.generation)),
        source=VolumeSource(kind=marker.volume_type, fields=fields),
        capacity_bytes=marker.capacity_bytes,
        node_affinity=(dict(marker.segment),) if marker.segment else (),
        gid=marker.gid,
    )


def new_marker(request: ProvisionRequest, shape: Shape, segment: Mapping[str, str]) -> VolumeMarker:
    """The marker of a volume that is to be made."""
    # The volume's name is what is unique; that it is pvc-<uid> is the core's custom.
    uid = request.claim.uid if request.name == f"pvc-{request.claim.uid}" else request.name
    path = PathTemplate.parse(shape.path_template).render(
        namespace=request.claim.namespace, claim=request.claim.name, volume=request.name, uid=uid
    )
    return VolumeMarker(
        name=request.name,
        owner=request.owner,
        path=path,
        capacity_bytes=request.capacity_bytes,
        demand=_demand_of(request, shape),
        volume_type=shape.volume_type,
        segment=dict(segment),
        gid=shape.gid,
        claim=f"{request.claim.namespace}/{request.claim.name}",
        created_at=time.time(),
    )


def begin(root: Root, ledger: Ledger, settings: Settings, marker: VolumeMarker, context: Context) -> None:
    """Make the directory in tmp and put the marker; on failure nothing is left. Needs the volume's lock."""
    patience = TimeSlice(context)
    try:
        discard_staged(root, marker.name)
        # Asked before anything is written, so that a full root costs nothing; asked again when it counts.
        with ledger.open(root, patience.left(), context.log):
            _refuse(root, ledger, settings, marker)
        _make_directory(root, marker)
        ledger.stage(root, marker)
        with ledger.open(root, patience.left(), context.log):
            _refuse(root, ledger, settings, marker)
            ledger.put(root, marker)
    except BaseException as error:
        undone = _undone(root, marker.name)
        if isinstance(error, OSError):
            doing = f"make the directory of {marker.name}"
            raise translated(error, root=root.path, doing=doing, nothing_done=undone) from error
        raise


def complete(root: Root, ledger: Ledger, marker: VolumeMarker, context: Context, *, make: bool) -> bool:
    """Bring the directory of a marker into place, as far as it is not. Needs the volume's lock.

    make: make a directory that is nowhere; otherwise False says that it is nowhere.
    """
    # Before the directory gets its name: a name without marker would be a foreign directory after a power cut.
    sync(root.directory(VOLUMES))
    if entry_exists(marker.key, root.directory(TRASH)):
        raise Unavailable(f"{marker.name} is being deleted; wait until it is gone")
    if not directory_exists(marker.path, root.fd, root.place, label=root.path):
        if not entry_exists(marker.key, root.directory(TMP)):
            if not make:
                return False
            os.mkdir(marker.key, 0o700, dir_fd=root.directory(TMP))
        _prepare(root, marker)
        _rename_into_place(root, ledger, marker, context)
    parent, _ = split(marker.path)
    with closing(open_path(parent, root.fd, root.place, label=root.path)) as fd:
        sync(fd)
    return True


def discard_staged(root: Root, name: str) -> None:
    """Throw away what an attempt without marker left in tmp. Needs the volume's lock."""
    tmp = root.directory(TMP)
    for entry in names_in(tmp):
        if entry.startswith(f"{name}@"):
            # Nobody has ever seen this directory, so it is empty.
            with suppress(FileNotFoundError):
                os.rmdir(entry, dir_fd=tmp)
    remove_entry(marker_file(name), tmp)


def _undone(root: Root, name: str) -> bool:
    """Clean up after a failure; False if something may be left."""
    try:
        if entry_exists(marker_file(name), root.directory(VOLUMES)):
            return False
        discard_staged(root, name)
    except OSError:
        return False
    return True


def _refuse(root: Root, ledger: Ledger, settings: Settings, marker: VolumeMarker) -> None:
    """Raise if there is no room, or if the path is taken. Inside the ledger."""
    other = ledger.volume_above(marker.path)
    if other is not None:
        raise AlreadyExists(f"{root.path}/{marker.path} is in the directory of volume {other}")
    refuse_foreign_parents(root, marker.path)
    if directory_exists(marker.path, root.fd, root.place, label=root.path):
        raise AlreadyExists(
            f"{root.path}/{marker.path} exists and is not marked as a volume of ours; move it away (it is not touched)"
        )
    room = ledger.room(root)
    if marker.capacity_bytes > room:
        raise ResourceExhausted(
            f"root {root.path} has room for {human(room)}, asked for were {human(marker.capacity_bytes)}; "
            f"{human(ledger.promised)} are promised to {ledger.volumes} volumes: delete volumes, grow the file system "
            f"or raise overcommit_percent (now {settings.overcommit_percent})",
            scope=root.path,
            reschedule=not settings.shared,
            nothing_done=True,
        )


def _make_directory(root: Root, marker: VolumeMarker) -> None:
    os.mkdir(marker.key, 0o700, dir_fd=root.directory(TMP))
    _prepare(root, marker)


def _prepare(root: Root, marker: VolumeMarker) -> None:
    """Give the directory in tmp the owner and mode that were asked."""
    uid, gid = marker.demand.get("uid"), marker.demand.get("gid")
    with closing(open_directory(marker.key, root.directory(TMP), root.place, label=f"{root.path} (tmp)")) as fd:
        if uid is not None or gid is not None:
            os.fchown(fd, -1 if uid is None else uid, -1 if gid is None else gid)
        # After the owner: a change of owner clears the set-id bits.
        os.fchmod(fd, int(marker.demand["mode"], 8))
        sync(fd)


def _rename_into_place(root: Root, ledger: Ledger, marker: VolumeMarker, context: Context) -> None:
    _, name = split(marker.path)
    # The ledger's lock keeps a deletion from removing the parent between making and using it.
    with ledger.open(root, TimeSlice(context).left(), context.log):
        try:
            parent = make_parents(root, marker.path)
        except AlreadyExists as error:
            raise Unavailable(error.message) from error
        with closing(parent):
            if entry_exists(name, parent):
                raise Unavailable(f"{root.path}/{marker.path} appeared while the volume was made; it is not touched")
            os.rename(marker.key, name, src_dir_fd=root.directory(TMP), dst_dir_fd=parent)
