"""Markers: what the driver keeps on a share. Each is a symbolic link whose target is its content.

A link is made with its content in one operation: a marker is never empty or half written. It is replaced by a rename,
read without an open file, and leaves no state on the server. Nothing ever follows it.

<share>/.volplane/share                      ShareMarker: the id of the share
<share>/.volplane/volumes/<volume name>      VolumeMarker: owner, path, promised size, what becomes of it
<share>/.volplane/volumes/<key>              the same, from the moment its deletion begins to its end
<share>/.volplane/trash/<key>/               directories that are being removed
<share>/.volplane/parents/<digest>           path of a directory that the driver made above volumes
<share>/.volplane/archive/<key>.<time>/      `data` and `marker` of a volume that was archived
<share>/.volplane/exports/<id>[.free]        VolumeExport: which volume has or had this Export_Id
<share>/.volplane/tmp/                       markers before they replace others

A key is `<volume name>@<generation>`. Both names of a marker are in one directory, because a rename between two takes
the locks of both: NFS-Ganesha sleeps for a second when another call holds the second one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import msgspec

from volplane import InvalidArgument, Ownership

__all__ = [
    "CONTROL",
    "CorruptMarker",
    "Handle",
    "VolumeMarker",
    "check_name",
    "dumped",
    "is_deleting",
    "loaded",
    "parent_key",
    "parent_marker",
]

CONTROL = ".volplane"
FORMAT = 1
LARGEST = 3500
"""Bytes of a marker. Most servers take links of 4095."""

_encode = msgspec.json.Encoder(enc_hook=dict).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,220}[a-z0-9])?")
_HANDLE = re.compile(r"(?P<share>[0-9a-f]{32})/(?P<name>[^/@]+)@(?P<generation>[1-9][0-9]*)")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,254})*")


class CorruptMarker(Exception):
    """A marker that cannot be decoded: its volume or share is not used."""


def check_name(name: str) -> str:
    """The name, if it can be a file name: a DNS subdomain of at most 222 characters. Else `InvalidArgument`."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"volume name {name!r} is no DNS subdomain of at most 222 characters")
    return name


def is_deleting(file: bytes) -> bool:
    """Whether the marker of this name is one of a volume that is being deleted."""
    return b"@" in file


@lru_cache(maxsize=1024)
def parent_key(path: tuple[bytes, ...]) -> bytes:
    """Name of the marker of a directory above volumes."""
    return hashlib.sha256(b"/".join(path)).hexdigest()[:32].encode()


def parent_marker(path: tuple[bytes, ...]) -> bytes:
    """Content of the marker of a directory above volumes."""
    return dumped({"path": b"/".join(path).decode()})


def dumped(fields: Mapping[str, Any]) -> bytes:
    """A marker's content: these fields and the format version, as JSON without spaces. `loaded` reads it.

    Raises TypeError or ValueError for values that JSON does not have; the size is not checked.
    """
    return _encode({"format": FORMAT, **fields})


def loaded(content: bytes) -> dict[str, Any]:
    """Raises `CorruptMarker`."""
    try:
        fields = _decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptMarker(f"no JSON object: {error}") from error
    if not isinstance(fields.get("format"), int):
        raise CorruptMarker("no object with a format")
    if fields["format"] > FORMAT:
        raise CorruptMarker(f"written by a newer version (format {fields['format']})")
    return fields


@dataclass(frozen=True, slots=True)
class Handle:
    """The handle `<share id>/<volume name>@<generation>`. The id tells volumes of another disk from deleted ones."""

    share_id: str
    volume_name: str
    generation: int

    def __str__(self) -> str:
        return f"{self.share_id}/{self.volume_name}@{self.generation}"

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Handle | None:
        """The handle, None if the text is no handle of this driver."""
        match = _HANDLE.fullmatch(text)
        return Handle(match["share"], match["name"], int(match["generation"])) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMarker:
    """The owner and properties of a volume.

    path: below the share, as rendered. capacity_bytes: the promised size, which expand raises. demand: what the first
    `provision` asked for, compared with later ones. claim: namespace and name, for people. export_id: in mode export.
    """

    name: str
    owner: Ownership
    path: str
    capacity_bytes: int
    demand: Mapping[str, Any] = field(default_factory=dict)
    gid: int | None = None
    export_id: int | None = None
    claim: str = ""
    created_at: float = 0.0

    @property
    def key(self) -> bytes:
        """Name of its marker while it is being deleted, and of its entry in trash."""
        return f"{self.name}@{self.owner.generation}".encode()

    @property
    def file(self) -> bytes:
        """Name of its marker."""
        return self.name.encode()

    @property
    def components(self) -> tuple[bytes, ...]:
        return tuple(self.path.encode().split(b"/"))

    @property
    def mode(self) -> int:
        return int(self.demand["mode"], 8)

    def belongs_to(self, owner: Ownership) -> bool:
        """The same cluster, claim and volume; the generation is not compared."""
        mine = self.owner
        return (mine.cluster_id, mine.claim_uid, mine.volume_name) == (
            owner.cluster_id,
            owner.claim_uid,
            owner.volume_name,
        )

    def encode(self) -> bytes:
        """Raises `InvalidArgument` if it is too large for a link."""
        owner = self.owner
        content = dumped(
            {
                "name": self.name,
                "owner": [owner.cluster_id, owner.claim_uid, owner.volume_name, owner.generation],
                "path": self.path,
                "capacity_bytes": self.capacity_bytes,
                "demand": self.demand,
                "gid": self.gid,
                "export_id": self.export_id,
                "claim": self.claim,
                "created_at": self.created_at,
            }
        )
        if len(content) > LARGEST:
            raise InvalidArgument(
                f"the marker of {self.name} has {len(content)} bytes, more than {LARGEST}: shorten pathTemplate"
            )
        return content

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Raises `CorruptMarker`."""
        fields = loaded(content)
        try:
            cluster, claim_uid, volume_name, generation = fields["owner"]
            demand = dict(fields["demand"])
            int(demand["mode"], 8)
            return cls(
                name=str(fields["name"]),
                owner=Ownership(
                    cluster_id=str(cluster),
                    claim_uid=str(claim_uid),
                    volume_name=str(volume_name),
                    generation=int(generation),
                ),
                path=_checked_path(str(fields["path"])),
                capacity_bytes=int(fields["capacity_bytes"]),
                demand=demand,
                gid=None if fields["gid"] is None else int(fields["gid"]),
                export_id=None if fields["export_id"] is None else int(fields["export_id"]),
                claim=str(fields["claim"]),
                created_at=float(fields["created_at"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptMarker(f"{type(error).__name__}: {error}") from error


def _checked_path(path: str) -> str:
    # Somebody may have changed the marker: a path that the template cannot give is not used.
    if not _PATH.fullmatch(path):
        raise CorruptMarker(f"path {path!r}")
    return path
