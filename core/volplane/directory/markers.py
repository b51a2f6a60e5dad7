"""Markers and handles of volumes that are directories.

A backend keeps a marker for each volume in its own directory `CONTROL`, outside the volumes. Only what a marker proves
to be a volume's is changed or removed.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Self

import msgspec

from volplane.assets import Asset, ListedAsset, Ownership
from volplane.directory.parameters import DELETE, RETAIN, USE, DirectoryParameters
from volplane.errors import AlreadyExists, InvalidArgument, Unsupported
from volplane.requests import ProvisionRequest, VolumeIdentity

__all__ = [
    "CONTROL",
    "RETAINED",
    "CorruptMarker",
    "Handle",
    "VolumeMarker",
    "check_name",
    "decode_fields",
    "encode_fields",
    "entry_of",
    "handle_of",
    "name_of",
    "parent_key",
    "path_components",
    "static_key",
]

CONTROL = ".volplane"
"""Name of a backend's own directory. No path of a template can contain it."""
RETAINED = "retained"
"""Name of the directory in `CONTROL` with the markers of deleted volumes whose directories stay, named by `entry`:
they prove to a repeated `delete` that what is there is to stay."""
FORMAT = 1
"""Format of all markers. Markers of a newer format are refused."""

_encode = msgspec.json.Encoder(enc_hook=dict).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HANDLE = re.compile(r"(?P<storage>[0-9a-f]{32})/(?P<name>[^/@]+)@(?P<generation>[1-9][0-9]{0,8})")
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,254})*")
_OWNER = ("cluster_id", "claim_uid", "volume_name", "generation")


class CorruptMarker(Exception):
    """A marker that cannot be decoded: its volume is not used."""


def encode_fields(fields: Mapping[str, Any]) -> bytes:
    """Return the content of a marker: these fields and the format, as JSON without spaces. `decode_fields` reads it.

    Raises TypeError or ValueError for values that JSON does not have.
    """
    return _encode({"format": FORMAT, **fields})


def decode_fields(content: bytes) -> dict[str, Any]:
    """Return the fields of a marker. Raises `CorruptMarker`."""
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
    """The handle `<storage id>/<volume name>@<generation>`."""

    storage_id: str
    """32 hexadecimal digits of the file system's own marker. They tell volumes of another disk from deleted ones."""
    volume_name: str
    """Name of the volume."""
    generation: int
    """Generation of its owner."""

    def __str__(self) -> str:
        return f"{self.storage_id}/{self.volume_name}@{self.generation}"

    @staticmethod
    @lru_cache(maxsize=1024)
    def parse(text: str) -> Handle | None:
        """Return the handle; None if the text is not one."""
        match = _HANDLE.fullmatch(text)
        return Handle(match["storage"], match["name"], int(match["generation"])) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeMarker:
    """The owner and properties of a volume; the base of a backend's own marker, which adds fields."""

    PATHS: ClassVar[re.Pattern[str]] = _PATH
    """The paths that a marker may have."""

    name: str
    """Of the volume."""
    owner: Ownership
    """Of the volume."""
    path: str
    """Below the directory of the driver, as rendered once."""
    capacity_bytes: int
    """The promised size, which `expand` raises."""
    demand: Mapping[str, Any] = field(default_factory=dict)
    """What the first `provision` asked for, compared with later ones."""
    gid: int | None = None
    """Group of the directory."""
    claim: str = ""
    """Namespace and name, for people only."""
    created_at: float = 0.0
    """Unix time."""
    mount_options: tuple[str, ...] = ()
    """Of the class, for a volume that is restored."""
    class_name: str = ""
    """Of the class, for a volume that is restored; empty = a version made it that did not know."""
    existing: bool = False
    """Whether its directory was there before it, with what is in it."""

    @classmethod
    def new(cls, request: ProvisionRequest, parameters: DirectoryParameters, **own: Any) -> Self:
        """Return the marker of a volume that is to be made. own: the fields that the backend adds."""
        return cls(
            name=request.name,
            owner=request.owner,
            path=parameters.template.render(request.claim, request.name),
            capacity_bytes=request.capacity_bytes,
            demand=parameters.demand(request),
            gid=parameters.gid,
            claim=f"{request.claim.namespace}/{request.claim.name}",
            created_at=round(time.time(), 3),
            mount_options=request.mount_options,
            class_name=request.class_name,
            **own,
        )

    @property
    def entry(self) -> str:
        """Return the name of the volume's directory before it is in its place and while it is removed."""
        return f"{self.name}@{self.owner.generation}"

    @property
    def exact(self) -> bool:
        """Return whether other claims may have its path too: who has it is found out before it is made."""
        return bool(self.demand.get("exact_path"))

    @property
    def uses_existing(self) -> bool:
        """Return whether its class lets it have a directory that is there, and lie below such."""
        return self.demand.get("on_existing") == USE

    def on_delete(self, *, used: bool) -> str:
        """Return what becomes of the directory as the volume is deleted, by its class.

        used: whether its asset became a volume. If not, a directory that was there stays.
        """
        if self.existing and not used:
            return RETAIN
        return str(self.demand.get("on_delete", DELETE))

    def refuse_emptying(self) -> None:
        """Raise `Unsupported` for a directory that was there before the volume, unless its class says `delete`."""
        if self.existing and self.on_delete(used=True) != DELETE:
            raise Unsupported(
                f"{self.path} was there before {self.name}, and its class does not say onDelete: delete: what is in it "
                "is not removed"
            )

    def refuse_other_namespace(self, left: VolumeMarker, label: str) -> None:
        """Raise `AlreadyExists` if a volume of another namespace left the directory. label: of it, for the message."""
        namespace, _, _ = left.claim.partition("/")
        if not self.claim.startswith(f"{namespace}/"):
            raise AlreadyExists(
                f"{label} was left by a volume of namespace {namespace}, and the claim is {self.claim}: it is not used"
            )

    def belongs_to(self, owner: Ownership | None) -> bool:
        """Return whether cluster, claim and volume are the owner's; the generation is not compared."""
        mine = self.owner
        return owner is not None and (mine.cluster_id, mine.claim_uid, mine.volume_name) == (
            owner.cluster_id,
            owner.claim_uid,
            owner.volume_name,
        )

    def listed(self, asset: Asset, condition: str = "") -> ListedAsset:
        """Return the volume, whose asset this is, as it is listed. condition: what is wrong with it."""
        return ListedAsset(
            handle=asset.handle,
            name=self.name,
            capacity_bytes=self.capacity_bytes,
            owner=self.owner,
            created_at=self.created_at or None,
            source=asset.source,
            condition=condition,
            mount_options=asset.mount_options,
        )

    def refuse_other_owner(self, owner: Ownership | None, label: str) -> None:
        """Raise `AlreadyExists` if the marker is of another claim or cluster. label: the volume, for the message."""
        if not self.belongs_to(owner):
            other = f", not to claim {owner.claim_uid} of cluster {owner.cluster_id!r}" if owner is not None else ""
            raise AlreadyExists(
                f"{label} belongs to claim {self.owner.claim_uid} of cluster {self.owner.cluster_id!r}{other}: it is "
                "not touched"
            )

    def refuse_other_demand(self, request: ProvisionRequest, demand: Mapping[str, Any]) -> None:
        """Raise `AlreadyExists` unless the volume was made for the request's owner and this demand."""
        self.refuse_other_owner(request.owner, self.name)
        if self.owner.generation != request.owner.generation:
            raise AlreadyExists(
                f"{self.name} exists in generation {self.owner.generation}, asked for was {request.owner.generation}"
            )
        for key, asked in demand.items():
            if self.demand.get(key) != asked:
                raise AlreadyExists(f"{self.name} was made with {key} {self.demand.get(key)!r}, not {asked!r}")

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the marker of this content. Raises `CorruptMarker`."""
        fields = decode_fields(content)
        try:
            owner = fields["owner"]
            parts = owner if isinstance(owner, list) else [owner[name] for name in _OWNER]
            cluster, claim_uid, volume_name, generation = parts
            demand = dict(fields["demand"])
            int(demand["mode"], 8)
            # The marker may have been edited: a path that no template renders must not reach a system call.
            if not cls.PATHS.fullmatch(path := str(fields["path"])):
                raise CorruptMarker(f"path {path!r}")
            return cls(
                name=str(fields["name"]),
                owner=Ownership(
                    cluster_id=str(cluster),
                    claim_uid=str(claim_uid),
                    volume_name=str(volume_name),
                    generation=int(generation),
                ),
                path=path,
                capacity_bytes=int(fields["capacity_bytes"]),
                demand=demand,
                gid=None if fields["gid"] is None else int(fields["gid"]),
                claim=str(fields["claim"]),
                created_at=float(fields["created_at"]),
                mount_options=tuple(map(str, fields.get("mount_options", ()))),
                class_name=str(fields.get("class_name", "")),
                existing=bool(fields.get("existing")),
                **cls.decode_own(fields),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptMarker(f"{type(error).__name__}: {error}") from error

    @classmethod
    def decode_own(cls, fields: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - of subclasses
        """Return the fields that a subclass adds. KeyError, TypeError and ValueError become `CorruptMarker`."""
        return {}

    def fields(self) -> dict[str, Any]:
        """Return the fields for `encode_fields`, without those of a subclass. `decode` also takes an owner as list."""
        owner = self.owner
        return {
            "name": self.name,
            "owner": {name: getattr(owner, name) for name in _OWNER},
            "path": self.path,
            "capacity_bytes": self.capacity_bytes,
            "demand": self.demand,
            "gid": self.gid,
            "claim": self.claim,
            "created_at": self.created_at,
            **({"mount_options": self.mount_options} if self.mount_options else {}),
            **({"class_name": self.class_name} if self.class_name else {}),
            **({"existing": True} if self.existing else {}),
        }


def check_name(name: str, longest: int = 242) -> str:
    """Return the name if it can be the name of a marker: a DNS subdomain. Else raise `InvalidArgument`."""
    if not _can_be_name(name, longest):
        raise InvalidArgument(f"volume name {name!r} is no DNS subdomain of at most {longest} characters")
    return name


def _can_be_name(name: str, longest: int) -> bool:
    return _NAME.fullmatch(name) is not None and len(name) <= longest


def handle_of(text: str, longest: int = 242) -> Handle | None:
    """Return the handle in a text; None for one that no volume can have."""
    handle = Handle.parse(text)
    return handle if handle is not None and _can_be_name(handle.volume_name, longest) else None


def name_of(volume: VolumeIdentity, longest: int = 242) -> str:
    """Return the name under which a volume was made, checked by `check_name`."""
    handle = Handle.parse(volume.handle)
    if handle is not None:
        return check_name(handle.volume_name, longest)
    return check_name(volume.owner.volume_name if volume.owner else volume.name, longest)


def entry_of(volume: VolumeIdentity, longest: int = 242) -> str:
    """Return the `entry` of the marker under which a volume was made."""
    handle = Handle.parse(volume.handle)
    generation = handle.generation if handle else volume.owner.generation if volume.owner else 1
    return f"{name_of(volume, longest)}@{generation}"


def static_key(volume: VolumeIdentity) -> str:
    """Return the name in the trash, and of the lock, of a static volume: one that a person made for a directory."""
    return "static-" + hashlib.sha256(f"{volume.name}/{volume.uid}".encode()).hexdigest()[:32]


@lru_cache(maxsize=1024)
def parent_key(path: bytes) -> str:
    """Return the name of the marker of a directory that the driver made above volumes. path: below its own."""
    return hashlib.sha256(path).hexdigest()[:32]


def path_components(path: object) -> list[str] | None:
    """Return the names of an absolute path, as a volume's source has it; None if it is none or has a ".."."""
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        return None
    names = [name for name in path.split("/") if name not in {"", "."}]
    return None if ".." in names else names
