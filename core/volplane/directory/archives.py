"""Archives: directories that a class keeps, for a while or until a person removes them, when their volumes are deleted.

An archive has a name and a marker, wherever a backend puts them. The marker holds that of the volume. The name begins
with the volume's and ends with the time until which the archive is kept: no marker is read before. Two never collide.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from volplane.assets import ListedArchive
from volplane.directory.markers import VolumeMarker, decode_fields, encode_fields
from volplane.directory.parameters import MAXIMUM_BYTES

__all__ = ["ArchivedDirectory", "archived_volume", "expires_at", "listed_archive", "named_until", "renamed_until"]

_ENDING: Final = re.compile(r"\.(?:kept|until-(?P<until>[0-9]{1,15}))$")

_LONGEST: Final = 1024
_LATEST: Final = 253402300800.0
"""The year 10000."""

M = TypeVar("M", bound=VolumeMarker)


@dataclass(frozen=True, slots=True)
class ArchivedDirectory:
    """What is written when a directory is archived."""

    name: str
    """At most 255 bytes."""
    until: float | None
    """When it may go, Unix time; None = a person removes it."""
    content: bytes
    """Of its marker."""

    @classmethod
    def of(cls, marker: VolumeMarker, content: bytes, *, longest: int) -> Self:
        """Return the archive of a volume that is archived now.

        content: of its marker, which is left out of the archive's where that would have more than `longest` bytes.
        """
        now, retention = time.time(), marker.demand.get("retention")
        until = None if retention is None else round(now + float(retention), 3)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        tail = f".{stamp}-{secrets.token_hex(4)}{_ending(until)}"
        kept = {"path": marker.path, "claim": marker.claim, "archived_at": round(now, 3), "expires_at": until}
        volume = {key: value for key, value in decode_fields(content).items() if key not in {*kept, "format"}}
        whole = encode_fields({**kept, "volume": volume})
        return cls(
            marker.entry[: MAXIMUM_BYTES - len(tail)] + tail,
            until,
            whole if len(whole) <= longest else encode_fields(kept),
        )


def archived_volume(kind: type[M], fields: Mapping[str, Any]) -> M | None:
    """Return the marker of the volume whose directory was archived, by the fields of the archive's.

    None if those do not hold it: earlier versions did not write it, nor is it written where it would be too large.
    Raises `CorruptMarker`.
    """
    volume = fields.get("volume")
    if not isinstance(volume, dict):
        return None
    return kind.decode(encode_fields({**volume, "path": fields.get("path"), "claim": fields.get("claim")}))


def expires_at(fields: Mapping[str, Any]) -> float | None:
    """Return when an archive may go (Unix time), by the fields of its marker; None if a person has to remove it."""
    value = fields.get("expires_at")
    return float(value) if isinstance(value, int | float) else None


def listed_archive(place: str, name: str, fields: Mapping[str, Any] | None) -> ListedArchive:
    """Return what a list shows of an archive of this name. fields: of its marker; None = it cannot be read.

    What the fields do not say of earlier versions, or do not say rightly, the name does, or nobody.
    """
    known = fields or {}
    volume = known.get("volume")
    volume = volume if isinstance(volume, Mapping) else {}
    size, made = volume.get("capacity_bytes"), _seconds(known.get("archived_at"))
    return ListedArchive(
        place=place[-_LONGEST:],
        volume=_text(volume.get("name")) or name.partition("@")[0],
        claim=_text(known.get("claim")),
        capacity_bytes=size if isinstance(size, int) and 0 <= size < 1 << 63 else None,
        archived_at=made,
        until=named_until(name)[1] if fields is None else _seconds(known.get("expires_at")),
    )


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _seconds(value: object) -> float | None:
    """Return a moment that can be written as a date; None for anything else."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _LATEST else None


def named_until(name: str) -> tuple[bool, float | None]:
    """Return whether the name of an archive tells its time, and that time; None if a person has to remove it."""
    match = _ENDING.search(name)
    return match is not None, None if match is None or match["until"] is None else float(match["until"])


def renamed_until(name: str, until: float | None) -> str:
    """Return the name of an archive with this time."""
    return _ENDING.sub("", name) + _ending(until)


def _ending(until: float | None) -> str:
    return ".kept" if until is None else f".until-{int(until)}"
