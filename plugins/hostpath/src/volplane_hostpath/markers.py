"""Marker files: one of the root, one of each volume. They name the owner and lie outside the volumes.

<root>/.volplane/root.json                    RootMarker
<root>/.volplane/volumes/<volume name>.json   VolumeMarker: owner, path, promised size
<root>/.volplane/parents/<digest>             path of a directory that the driver made above volumes
<root>/.volplane/tmp/                         directories and markers before they are moved into place
<root>/.volplane/trash/<key>/                 directories that are being removed
<root>/.volplane/locks/, ledger               flock files; ledger also counts changes (see index.py)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from volplane import InvalidArgument, Ownership

__all__ = ["FORMAT", "CorruptMarker", "Handle", "RootMarker", "VolumeMarker", "check_name", "marker_file"]

FORMAT = 1
"""Format of both files. Files of a newer format are refused."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,240}[a-z0-9])?")
_HANDLE = re.compile(r"(?P<root>[0-9a-f]{32})/(?P<name>[^/@]+)@(?P<generation>[1-9][0-9]*)")


class CorruptMarker(Exception):
    """A marker that cannot be decoded: its volume or root is not used."""


def check_name(name: str) -> str:
    """The name, if it can be a file name: a DNS subdomain of at most 242 characters. Else `InvalidArgument`."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"volume name {name!r} is no DNS subdomain of at most 242 characters")
    return name


def marker_file(volume_name: str) -> str:
    """The file name of a volume's marker."""
    return f"{volume_name}.json"


@dataclass(frozen=True, slots=True)
class Handle:
    """The handle `<root id>/<volume name>@<generation>`.

    The root id tells volumes of another disk from deleted ones.
    """

    root_id: str
    volume_name: str
    generation: int

    def __str__(self) -> str:
        return f"{self.root_id}/{self.volume_name}@{self.generation}"

    @classmethod
    def parse(cls, text: str) -> Handle | None:
        """The handle, None if the text is no handle of this driver."""
        match = _HANDLE.fullmatch(text)
        return cls(match["root"], match["name"], int(match["generation"])) if match else None


def _loaded(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except ValueError as error:
        raise CorruptMarker(f"no JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise CorruptMarker("no object with a format")
    if fields["format"] > FORMAT:
        raise CorruptMarker(f"written by a newer version (format {fields['format']})")
    return fields


def _dumped(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, default=dict).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootMarker:
    """The owner of a root. root_id: random, made with the marker, never changed."""

    root_id: str
    driver: str
    cluster_id: str
    created_at: float

    def encode(self) -> bytes:
        return _dumped(asdict(self))

    @classmethod
    def decode(cls, content: bytes) -> RootMarker:
        """Raises `CorruptMarker`."""
        fields = _loaded(content)
        try:
            return cls(
                root_id=str(fields["root_id"]),
                driver=str(fields["driver"]),
                cluster_id=str(fields["cluster_id"]),
                created_at=float(fields["created_at"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptMarker(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMarker:
    """The owner and properties of a volume.

    name: of the volume. path: below the root, as rendered. capacity_bytes: the promised size, which expand raises.
    demand: what the first `provision` asked for, compared with later ones. segment: node affinity, empty = none.
    claim: namespace and name, for people only.
    """

    name: str
    owner: Ownership
    path: str
    capacity_bytes: int
    demand: Mapping[str, Any]
    volume_type: str
    segment: Mapping[str, str] = field(default_factory=dict)
    gid: int | None = None
    claim: str = ""
    created_at: float = 0.0

    @property
    def key(self) -> str:
        """Name of this volume's directory in tmp and in trash."""
        return f"{self.name}@{self.owner.generation}"

    def belongs_to(self, owner: Ownership) -> bool:
        """The same cluster, claim and volume; the generation is not compared."""
        mine = self.owner
        return (mine.cluster_id, mine.claim_uid, mine.volume_name) == (
            owner.cluster_id,
            owner.claim_uid,
            owner.volume_name,
        )

    def encode(self) -> bytes:
        # Not asdict, which copies deeply: this runs for every volume.
        plain = {each: getattr(self, each) for each in _VOLUME_FIELDS}
        return _dumped({**plain, "owner": {each: getattr(self.owner, each) for each in _OWNER_FIELDS}})

    @classmethod
    def decode(cls, content: bytes) -> VolumeMarker:
        """Raises `CorruptMarker`."""
        fields = _loaded(content)
        try:
            owner = fields["owner"]
            return cls(
                name=str(fields["name"]),
                owner=Ownership(
                    cluster_id=str(owner["cluster_id"]),
                    claim_uid=str(owner["claim_uid"]),
                    volume_name=str(owner["volume_name"]),
                    generation=int(owner["generation"]),
                ),
                path=_checked_path(str(fields["path"])),
                capacity_bytes=int(fields["capacity_bytes"]),
                demand=_checked_demand(fields["demand"]),
                volume_type=str(fields["volume_type"]),
                segment={str(key): str(value) for key, value in fields["segment"].items()},
                gid=None if fields["gid"] is None else int(fields["gid"]),
                claim=str(fields["claim"]),
                created_at=float(fields["created_at"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptMarker(f"{type(error).__name__}: {error}") from error


_VOLUME_FIELDS = tuple(each.name for each in fields(VolumeMarker) if each.name != "owner")
_OWNER_FIELDS = tuple(each.name for each in fields(Ownership))


def _checked_demand(demand: Mapping[str, Any]) -> dict[str, Any]:
    int(demand["mode"], 8)
    return dict(demand)


def _checked_path(path: str) -> str:
    # The file may have been edited: a path that leaves the root must not reach a system call.
    if not path or any(part in {"", ".", "..", ".volplane"} for part in path.split("/")):
        raise CorruptMarker(f"path {path!r}")
    return path
