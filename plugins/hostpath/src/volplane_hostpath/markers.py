"""Marker files: one of the root, one of each volume. They name the owner and lie outside the volumes.

<root>/.volplane/root.json                    RootMarker
<root>/.volplane/volumes/<volume name>.json   VolumeMarker: owner, path, promised size
<root>/.volplane/retained/<entry>             VolumeMarker of a deleted volume whose directory stays
<root>/.volplane/copies/<entry>/              a volume or snapshot that is being filled by copying (copies.py)
<root>/.volplane/snapshots/<name>/            data and marker of a snapshot (snapshots.py)
<root>/.volplane/parents/<digest>             path of a directory that the driver made above volumes
<root>/.volplane/tmp/                         directories and markers before they are moved into place
<root>/.volplane/trash/<entry>/               directories that are being removed
<root>/.volplane/locks/, ledger               flock files; ledger also counts changes (see index.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from volplane import directory
from volplane.directory import CorruptMarker, decode_fields, encode_fields


def marker_file(volume_name: str) -> str:
    """Return the file name of a volume's marker."""
    return f"{volume_name}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootMarker:
    """The owner of a root."""

    root_id: str
    """Random, made with the marker, never changed."""
    driver: str
    cluster_id: str
    created_at: float

    def encode(self) -> bytes:
        """Return the content of the file."""
        return encode_fields(asdict(self)) + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> RootMarker:
        """Return the marker of this content. Raises `CorruptMarker`."""
        fields = decode_fields(content)
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
class VolumeMarker(directory.VolumeMarker):
    """The owner and properties of a volume."""

    volume_type: str
    """Kind of the volume's source: `local` or `hostPath`."""
    segment: Mapping[str, str] = field(default_factory=dict)
    """Node affinity; empty = none."""
    project: int | None = None
    """Number of its project; None = it has no limit."""

    @property
    def mode(self) -> int:
        """Return the permissions of the directory."""
        return int(self.demand["mode"], 8)

    @classmethod
    def decode_own(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that this class adds."""
        segment = {str(key): str(value) for key, value in fields["segment"].items()}
        project = None if fields.get("project") is None else int(fields["project"])
        return {"volume_type": str(fields["volume_type"]), "segment": segment, "project": project}

    def encode(self) -> bytes:
        """Return the content of the file."""
        own: dict[str, Any] = {"volume_type": self.volume_type, "segment": self.segment}
        if self.project is not None:
            own["project"] = self.project
        return encode_fields({**self.fields(), **own}) + b"\n"
