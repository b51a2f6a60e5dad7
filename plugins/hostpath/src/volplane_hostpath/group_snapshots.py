"""The hooks about snapshots of several volumes at one moment: subvolumes of btrfs that are cut in one transaction.

Each member is a snapshot like others, `.volplane/snapshots/<group>.<number>`. The file `.volplane/snapshots/<group>`
says which they are: it appears by one rename once all of them are whole and on the disk in `.volplane/copies`, and from
then on the group exists. Whoever looks at it next moves what is not in its place yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Self

from volplane import (
    AlreadyExists,
    Context,
    GroupSnapshot,
    GroupSnapshotRequest,
    SnapshotOwnership,
    Unavailable,
    Unsupported,
)
from volplane.directory import CONTROL, CorruptMarker, SnapshotHandle, decode_fields, encode_fields
from volplane.directory.dirfd import create_file, entry_exists, names_in, read_file, remove_entry
from volplane.directory.local_trees import DATA
from volplane_hostpath import subvolumes
from volplane_hostpath.copies import Source, discard, open_copy
from volplane_hostpath.disk_waits import DiskWaits
from volplane_hostpath.errors import NO_FILE
from volplane_hostpath.index import VolumeIndex
from volplane_hostpath.locks import Deadline
from volplane_hostpath.root import COPIES, SNAPSHOTS, Root
from volplane_hostpath.snapshots import MARKER, SnapshotMarker, Snapshots, known_snapshot, open_volume

_RECORD = "group"
"""In the first member's directory, until all are whole."""
_PATIENCE = 5.0
_HEAD_STARTS = (0.0005, 0.001, 0.0002, 0.002, 0.005)
"""Seconds for which a commit of the file system is waited for, one after another: how long it takes is not known."""
_OWNER = ("cluster_id", "snapshot_uid", "content_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What a group is made of."""

    name: str
    owner: SnapshotOwnership
    sources: tuple[str, ...]
    """Handles of the volumes, in the order of the members' numbers."""

    @property
    def members(self) -> tuple[str, ...]:
        """Return the names of the snapshots."""
        return tuple(f"{self.name}.{number}" for number in range(len(self.sources)))

    @classmethod
    def decode(cls, name: str, content: bytes) -> Self:
        """Return the record of this content. Raises `CorruptMarker`."""
        fields = decode_fields(content)
        try:
            owner = SnapshotOwnership(**{field: str(fields["owner"][field]) for field in _OWNER})
            return cls(name=name, owner=owner, sources=tuple(map(str, fields["sources"])))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMarker(f"{type(error).__name__}: {error}") from error

    def encode(self) -> bytes:
        """Return the content of the record."""
        owner = {field: getattr(self.owner, field) for field in _OWNER}
        return encode_fields({"owner": owner, "sources": list(self.sources)})


def known_group(root: Root, name: str) -> GroupRecord | None:
    """Return the record of a group; None if there is none. Raises `Unavailable` for one that cannot be read."""
    try:
        return GroupRecord.decode(name, read_file(name, root.directory(SNAPSHOTS)))
    except FileNotFoundError:
        return None
    except (CorruptMarker, OSError) as error:
        if isinstance(error, OSError) and error.errno not in NO_FILE:
            raise
        raise Unavailable(
            f"{root.path}/{CONTROL}/{SNAPSHOTS}/{name} cannot be used: {error}; restore or repair it"
        ) from error


class GroupSnapshots:
    """The hooks about groups of one driver. Each needs the lock of the group's name."""

    def __init__(self, index: VolumeIndex, waits: DiskWaits, snapshots: Snapshots) -> None:
        self._index = index
        self._waits = waits
        self._snapshots = snapshots

    def create(self, root: Root, request: GroupSnapshotRequest) -> GroupSnapshot:
        """Cut all volumes, or return the group."""
        volumes = sorted(request.volumes, key=lambda volume: volume.handle)
        record = GroupRecord(name=request.name, owner=request.owner, sources=tuple(volume.handle for volume in volumes))
        known = known_group(root, request.name)
        if known is not None:
            if known.owner != record.owner:
                raise AlreadyExists(f"group {record.name} was made for {known.owner.content_name}: it is not taken")
            if known.sources != record.sources:
                wanted = ", ".join(record.sources)
                raise AlreadyExists(f"group {record.name} is of {', '.join(known.sources)}, asked for was {wanted}")
            return self.whole(root, known, request.context)
        deadline = Deadline(request.context)
        with ExitStack() as held:
            sources = [
                held.enter_context(open_volume(root, self._index, volume, request.context)) for volume in volumes
            ]
            _refuse_plain(root, sources)
            try:
                self._cut(root, record, sources, deadline)
                for source in sources:
                    source.require_there()
                self._commit(root, record, sources, request.context)
            except Exception:
                if known_group(root, record.name) is None:
                    for member in record.members:
                        discard(root, member, deadline)
                raise
        return self.whole(root, record, request.context)

    def _cut(self, root: Root, record: GroupRecord, sources: list[Source], deadline: Deadline) -> None:
        """Make the data of all members in one transaction of the file system, which is one moment."""
        end = time.monotonic() + _PATIENCE
        for head_start in cycle(_HEAD_STARTS):
            with ExitStack() as held:
                pairs = []
                for member, source in zip(record.members, sources, strict=True):
                    if not discard(root, member, deadline):
                        raise Unavailable(f"what an earlier attempt left of {member} is being removed")
                    os.mkdir(member, 0o700, dir_fd=root.directory(COPIES))
                    pairs.append((source.fd, held.enter_context(open_copy(root, member))))
                moments = subvolumes.snapshot_together(root.fd, pairs, DATA, head_start=head_start)
            if len(moments) == 1:
                return
            if time.monotonic() > end or deadline.expired():
                break
        raise Unavailable(
            f"root {root.path} commits too often to cut {len(sources)} volumes in one transaction; it is tried again",
            nothing_done=True,
        )

    def _commit(self, root: Root, record: GroupRecord, sources: list[Source], context: Context) -> None:
        """Write what says what each member is, then the record that makes them a group."""
        copies, snapshots = root.directory(COPIES), root.directory(SNAPSHOTS)
        created_at = round(time.time(), 3)
        with ExitStack() as held:
            targets = []
            for number, (member, source) in enumerate(zip(record.members, sources, strict=True)):
                container = held.enter_context(open_copy(root, member))
                marker = SnapshotMarker(
                    name=member,
                    owner=record.owner,
                    source=source.handle,
                    size_bytes=source.size_bytes,
                    created_at=created_at,
                    segment=source.segment,
                )
                create_file(MARKER, container, marker.encode(), durable=True)
                if not number:
                    create_file(_RECORD, container, record.encode(), durable=True)
                targets += [(container, MARKER), (container, DATA), (container, "")]
            self._waits.wait(root, [*targets, (copies, "")])
        with self._index.open(root, Deadline(context).remaining(), context.log):
            os.rename(f"{record.members[0]}/{_RECORD}", record.name, src_dir_fd=copies, dst_dir_fd=snapshots)
        self._waits.wait(root, [(snapshots, "")])

    def whole(self, root: Root, record: GroupRecord, context: Context) -> GroupSnapshot:
        """Move what is not in its place yet, and return the group. It must not be empty."""
        copies, snapshots = root.directory(COPIES), root.directory(SNAPSHOTS)
        waiting = unfinished(root, record)
        if waiting:
            with self._index.open(root, Deadline(context).remaining(), context.log):
                for member in waiting:
                    os.rename(member, member, src_dir_fd=copies, dst_dir_fd=snapshots)
                self._index.look_again()
            self._waits.wait(root, [(snapshots, ""), (copies, "")])
        return shown(root, record)

    def delete(self, root: Root, name: str, known: Iterable[str], context: Context) -> bool:
        """Remove all snapshots of a group, and what an unfinished one left; False = not finished. It may be gone."""
        for member in members_of(root, name, known):
            if not self._snapshots.delete(root, member, context):
                return False
        with suppress(FileNotFoundError):
            remove_entry(name, root.directory(SNAPSHOTS))
            self._waits.wait(root, [(root.directory(SNAPSHOTS), "")])
        return True


def unfinished(root: Root, record: GroupRecord) -> list[str]:
    """Return the members that are whole and not in their place yet."""
    return [member for member in record.members if entry_exists(f"{member}/{DATA}", root.directory(COPIES))]


def shown(root: Root, record: GroupRecord) -> GroupSnapshot:
    """Return the group, with the members that are in their place."""
    found = (known_snapshot(root, member) for member in record.members)
    snapshots = tuple(marker.snapshot(root.id) for marker in found if marker is not None)
    return GroupSnapshot(handle=str(SnapshotHandle(root.id, record.name)), snapshots=snapshots)


def members_of(root: Root, name: str, known: Iterable[str]) -> list[str]:
    """Return the names of all snapshots of a group: by its record, in what was begun, and `known`."""
    record = known_group(root, name)
    begun = [each for each in names_in(root.directory(COPIES)) if each.startswith(f"{name}.")]
    return sorted({*(record.members if record is not None else ()), *begun, *known})


def _refuse_plain(root: Root, sources: Iterable[Source]) -> None:
    for source in sources:
        if not subvolumes.is_subvolume(root, source.fd):
            raise Unsupported(
                f"{source.label} is no subvolume of btrfs, and other directories cannot be copied at one moment: use a "
                "class with the parameter subvolume, or make a VolumeSnapshot of each claim",
                nothing_done=True,
            )
