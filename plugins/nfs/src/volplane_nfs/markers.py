"""Markers: what the driver keeps on a share. Each is a symbolic link whose target is its content.

A link is made with its content in one operation: a marker is never empty or half written. It is replaced by a rename,
read without an open file, and leaves no state on the server. Nothing ever follows it.

<share>/.volplane/share                      ShareMarker: the id of the share
<share>/.volplane/turn                       which call alone may give away an exact path just now
<share>/.volplane/volumes/<volume name>      VolumeMarker: owner, path, promised size, what becomes of it
<share>/.volplane/volumes/<key>              the same, from the moment its deletion begins to its end
<share>/.volplane/retained/<key>             the same, of a deleted volume whose directory stays: it goes with that
<share>/.volplane/trash/<key>/               directories that are being removed
<share>/.volplane/parents/<digest>           path of a directory that the driver made above volumes
<share>/.volplane/archive/<key>.<time>.<when it goes>/  `data` and `marker` of a volume that was archived
<share>/.volplane/copies/<key>/              a copy that is being made, see `volplane_nfs.copies`
<share>/.volplane/snapshots/<name>/          `data`, `marker` and `volumes` of a snapshot, see `volplane_nfs.backing`
<share>/.volplane/exports/<id>[.free]        VolumeExport: which volume has or had this Export_Id
<share>/.volplane/tmp/                       markers before they replace others

A key is `<volume name>@<generation>`. Both names of a marker are in one directory, because a rename between two takes
the locks of both: NFS-Ganesha sleeps for a second when another call holds the second one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from volplane import InvalidArgument, directory
from volplane.directory import CONTROL, encode_fields, parent_key

SNAPSHOTS: Final = b"snapshots"
LONGEST_NAME = 222
"""Characters of the name of a volume: those of its marker, with a generation, fit into the name of a file."""
LARGEST = 3500
"""Bytes of a marker. Most servers take links of 4095."""


def is_deleting(file: bytes) -> bool:
    """Return whether the marker of this name is one of a volume that is being deleted."""
    return b"@" in file


def parent_file(path: tuple[bytes, ...]) -> bytes:
    """Return the name of the marker of a directory above volumes."""
    return parent_key(b"/".join(path)).encode()


def parent_marker(path: tuple[bytes, ...]) -> bytes:
    """Return the content of the marker of a directory above volumes."""
    return encode_fields({"path": b"/".join(path).decode()})


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMarker(directory.VolumeMarker):
    """The owner and properties of a volume."""

    PATHS = re.compile(
        rf"{re.escape(CONTROL)}/snapshots/[a-z0-9][-a-z0-9.]{{0,252}}/data|{directory.VolumeMarker.PATHS.pattern}"
    )

    export_id: int | None = None
    """In mode export."""

    @property
    def backing(self) -> str:
        """Return the name of the snapshot that the volume shows without a copy; "" = it has a directory of its own."""
        path = self.components
        return path[2].decode() if path[:2] == (CONTROL.encode(), SNAPSHOTS) else ""

    @property
    def key(self) -> bytes:
        """Return the name of its marker while it is being deleted, and of its entry in trash."""
        return self.entry.encode()

    @property
    def file(self) -> bytes:
        """Return the name of its marker."""
        return self.name.encode()

    @property
    def components(self) -> tuple[bytes, ...]:
        """Return the names of its path."""
        return tuple(self.path.encode().split(b"/"))

    @property
    def mode(self) -> int:
        """Return the permissions of the directory."""
        return int(self.demand["mode"], 8)

    @classmethod
    def decode_own(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field that this class adds."""
        return {"export_id": None if fields["export_id"] is None else int(fields["export_id"])}

    def encode(self) -> bytes:
        """Return the target of the link. Raises `InvalidArgument` if it is too large for one."""
        owner = self.owner
        short = [owner.cluster_id, owner.claim_uid, owner.volume_name, owner.generation]
        content = encode_fields({**self.fields(), "owner": short, "export_id": self.export_id})
        if len(content) > LARGEST and (self.mount_options or self.class_name):
            return replace(self, mount_options=(), class_name="").encode()
        if len(content) > LARGEST:
            raise InvalidArgument(
                f"the marker of {self.name} has {len(content)} bytes, more than {LARGEST}: shorten pathTemplate"
            )
        return content
