"""Snapshots of volumes that are directories: what their classes say, their handles, and their markers.

A snapshot is a copy of a directory beside its marker, wherever a backend puts both. What is not whole yet is none.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Annotated, Final, Self

from volplane.assets import Snapshot, SnapshotOwnership
from volplane.directory.copies import CopyCounts
from volplane.directory.markers import CorruptMarker, decode_fields, encode_fields
from volplane.errors import AlreadyExists, VolumeInUse
from volplane.schemas import Param, ParameterSchema

__all__ = ["SNAPSHOT_PARAMETERS", "CopyParameters", "SnapshotHandle", "SnapshotMarker", "require_unchanged"]

ANY, STRICT = "any", "strict"
ATTRIBUTES, CONTENT = "attributes", "content"
_HANDLE: Final = re.compile(r"(?P<storage>[0-9a-f]{32})/(?P<name>[a-z0-9]([-a-z0-9.]*[a-z0-9])?)")
_OWNER: Final = ("cluster_id", "snapshot_uid", "content_name")


@dataclass(frozen=True, kw_only=True)
class CopyParameters:
    """What a class asks of copies of directories."""

    consistency: Annotated[
        str,
        Param(
            "Of copies of a volume in which something is changed while it is copied: `any`, they are made, and say how "
            "much has changed; `strict`, they are begun again, until nothing changes.",
            choices=(ANY, STRICT),
        ),
    ] = ANY
    verify: Annotated[
        str,
        Param(
            "What is compared at the end of a copy: `attributes`, the names, kinds, sizes and times of everything; "
            "`content`, what is in the files too.",
            choices=(ATTRIBUTES, CONTENT),
        ),
    ] = ATTRIBUTES


SNAPSHOT_PARAMETERS: Final = ParameterSchema.of(CopyParameters)
"""The parameters of VolumeSnapshotClasses."""


def require_unchanged(counts: CopyCounts, parameters: CopyParameters, label: str) -> None:
    """Raise `VolumeInUse` for a copy of a volume that was changed meanwhile, if its class takes no such copies.

    label: of the volume, for the message.
    """
    if counts.changed and parameters.consistency == STRICT:
        raise VolumeInUse(
            f"{counts.changed} of {counts.entries} entries of {label} changed while it was copied, and consistency: "
            "strict takes no such copy: pause what writes to it"
        )


@dataclass(frozen=True, slots=True)
class SnapshotHandle:
    """The handle `<storage id>/<snapshot name>`."""

    storage_id: str
    """As in the handles of volumes."""
    name: str
    """As in the request for it."""

    def __str__(self) -> str:
        return f"{self.storage_id}/{self.name}"

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> SnapshotHandle | None:
        """Return the handle; None if the text is not one."""
        match = _HANDLE.fullmatch(text)
        return SnapshotHandle(match["storage"], match["name"]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarker:
    """The owner and properties of a snapshot."""

    name: str
    """As in the request for it."""
    owner: SnapshotOwnership
    """Its marks."""
    source: str
    """Handle of the volume."""
    size_bytes: int
    """Of the volume, when the snapshot was begun."""
    created_at: float
    """When it was whole, Unix time."""
    counts: CopyCounts = field(default_factory=CopyCounts)
    """What is in it."""

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the marker of this content. Raises `CorruptMarker`."""
        fields = decode_fields(content)
        try:
            owner = fields["owner"]
            return cls(
                name=str(fields["name"]),
                owner=SnapshotOwnership(**{name: str(owner[name]) for name in _OWNER}),
                source=str(fields["source"]),
                size_bytes=int(fields["size_bytes"]),
                created_at=float(fields["created_at"]),
                counts=CopyCounts.of(fields["counts"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMarker(f"{type(error).__name__}: {error}") from error

    def encode(self) -> bytes:
        """Return the content of the marker."""
        return encode_fields(
            {
                "name": self.name,
                "owner": {name: getattr(self.owner, name) for name in _OWNER},
                "source": self.source,
                "size_bytes": self.size_bytes,
                "created_at": self.created_at,
                "counts": asdict(self.counts),
            }
        )

    def refuse_other_demand(self, owner: SnapshotOwnership, source: str) -> None:
        """Raise `AlreadyExists` unless the snapshot was made for this owner, and of this volume."""
        self.refuse_other_owner(owner, owner.cluster_id)
        if self.source != source:
            raise AlreadyExists(f"snapshot {self.name} is of {self.source}, asked for was one of {source}")

    def refuse_other_owner(self, owner: SnapshotOwnership | None, cluster_id: str) -> None:
        """Raise `AlreadyExists` if the snapshot is another's. owner: None = any of the cluster `cluster_id`."""
        if self.owner.cluster_id != cluster_id or (owner is not None and self.owner != owner):
            raise AlreadyExists(
                f"snapshot {self.name} belongs to VolumeSnapshot {self.owner.snapshot_uid} of cluster "
                f"{self.owner.cluster_id!r}: it is not touched"
            )

    def snapshot(self, storage_id: str) -> Snapshot:
        """Return the whole snapshot."""
        changed, left_out = self.counts.changed, self.counts.left_out
        told = [f"{changed} of {self.counts.entries} entries changed while it was made"] if changed else []
        told += [f"{left_out} sockets, pipes or devices are left out"] if left_out else []
        return Snapshot(
            handle=str(SnapshotHandle(storage_id, self.name)),
            size_bytes=self.size_bytes,
            ready=True,
            created_at=self.created_at,
            source=self.source,
            owner=self.owner,
            name=self.name,
            state="; ".join(told),
        )

    @staticmethod
    def of_nobody(storage_id: str, name: str) -> Snapshot:
        """Return what a list has of a snapshot whose marker cannot be read."""
        failed = "its marker cannot be read: restore or repair it"
        return Snapshot(
            handle=str(SnapshotHandle(storage_id, name)), size_bytes=0, ready=False, name=name, failed=failed
        )
