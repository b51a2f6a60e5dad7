"""The class parameters that every backend of directories has, paths from a template, and checks of a demand.

A path is safe whatever tenants write into names, labels and annotations. Every component consists of `[A-Za-z0-9._-]`,
has 1 to 255 bytes and starts with neither "." nor "-", so it cannot be "..", nor a hidden file, nor a driver's own
directory. The last component ends with the claim's uid or is the volume's name, so no two volumes share a path, but
for exact ones. Render a path once and keep it with the volume: the class and the names may change.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any

from volplane.assets import AccessMode, VolumeMode
from volplane.errors import InvalidArgument, OutOfRange, Unsupported
from volplane.requests import ClaimIdentity, ProvisionRequest
from volplane.schemas import Param, ParameterKind

__all__ = [
    "ARCHIVE",
    "DELETE",
    "RETAIN",
    "USE",
    "DirectoryParameters",
    "KeptDirectoryParameters",
    "PathTemplate",
    "check_backing",
    "check_demand",
]

REFUSE = "refuse"
"""Value of `onExisting`: a claim gets no directory that is there."""
USE = "use"
"""Value of `onExisting`: a directory that is there becomes the volume."""
DELETE = "delete"
"""Value of `onDelete`: the directory is removed with its volume."""
RETAIN = "retain"
"""Value of `onDelete`: the directory stays where it is."""
ARCHIVE = "archive"
"""Value of `onDelete`: the directory is moved into the archive."""

DEFAULT_TEMPLATE = "${namespace}/${claim}-${uid}"
PLACEHOLDERS = ("namespace", "claim", "volume", "uid", "label:KEY", "annotation:KEY")
MAXIMUM_COMPONENTS = 8
MAXIMUM_BYTES = 255
"""Bytes of a name: NAME_MAX of Linux file systems."""

_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY = re.compile(r"(label|annotation):[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class DirectoryParameters:
    """What a class asks of its directories: the base of a backend's own dataclass."""

    mode: Annotated[
        int | None,
        Param(
            "Permissions of the volume's directory; the owner needs all of them.",
            kind=ParameterKind.OCTAL,
            minimum=0o700,
            maximum=0o7777,
        ),
    ] = 0o770
    uid: Annotated[
        int | None, Param("Owner of the directory; default: the driver's user.", minimum=0, maximum=2**32 - 2)
    ] = None
    gid: Annotated[
        int | None,
        Param(
            "Group of the directory, and supplemental group of the pods that use the volume; default: the driver's "
            "group, and none.",
            minimum=0,
            maximum=2**32 - 2,
        ),
    ] = None
    path_template: Annotated[
        str,
        Param(
            "Path of the volume below the driver's directory. Placeholders: ${namespace}, ${claim}, ${volume}, ${uid}, "
            "${label:KEY} and ${annotation:KEY} (of the claim). A path that does not end with ${uid} (or a ${volume} "
            "alone) gets -${uid} appended, unless `exactPath` is true.",
            name="pathTemplate",
        ),
    ] = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        if self.permissions & 0o700 != 0o700 or self.permissions > 0o7777:
            raise InvalidArgument(
                f"parameter mode: {self.permissions:04o} must be 07xx: the owner needs all rights, as in 0770"
            )
        _ = self.template

    @property
    def template(self) -> PathTemplate:
        """Return the template of paths; raises `InvalidArgument`."""
        return PathTemplate.parse(self.path_template)

    @property
    def permissions(self) -> int:
        """Return the permissions of the directory: `mode`, or what a backend that has no fixed default chooses."""
        return 0o770 if self.mode is None else self.mode

    def demand(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return what is asked for, as JSON values: equal demands have equal ones. It is kept in the marker."""
        return {
            "capacity_bytes": request.capacity_bytes,
            "access_modes": sorted(str(mode) for mode in request.access_modes),
            "mode": f"{self.permissions:04o}",
            "uid": self.uid,
            "gid": self.gid,
            "path_template": self.path_template,
            "source": request.source_snapshot or request.source_volume,
        }


@dataclass(frozen=True, kw_only=True)
class KeptDirectoryParameters(DirectoryParameters):
    """The same of a backend that can keep directories whose volumes are deleted."""

    exact_path: Annotated[
        bool,
        Param(
            "The path is what `pathTemplate` says, with nothing appended. One that another volume has, or lies in, is "
            "refused.",
            name="exactPath",
        ),
    ] = False
    on_existing: Annotated[
        str,
        Param(
            "What becomes of a claim at whose exact path a directory is: `refuse`; `use`, the directory with all that "
            "is in it becomes the volume, if it is no other's: its owner, mode and quota stay. Needs `exactPath`, and "
            "${namespace} as a directory of its own in `pathTemplate`.",
            name="onExisting",
            choices=(REFUSE, USE),
        ),
    ] = REFUSE
    on_delete: Annotated[
        str | None,
        Param(
            "What becomes of the directory when the volume is deleted: `delete`; `retain`, it stays where it is; "
            "`archive`, it is moved to `.volplane/archive`. Default: delete, with `onExisting: use` retain.",
            name="onDelete",
            choices=(DELETE, RETAIN, ARCHIVE),
        ),
    ] = None
    archive_retention: Annotated[
        float | None,
        Param(
            "How long an archived directory is kept; default: until a person removes it.",
            name="archiveRetention",
            minimum=0.0,
        ),
    ] = None

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        super().__post_init__()
        if self.archive_retention is not None and self.on_delete != ARCHIVE:
            raise InvalidArgument(
                f"parameter archiveRetention is {self.archive_retention:g}s: it says something only with onDelete "
                "archive"
            )
        if self.on_existing == USE and not (self.exact_path and ("", "namespace", "") in self.template.components):
            # Tenants choose names, labels and annotations: by them alone they could choose another's directory.
            raise InvalidArgument(
                "parameter onExisting is 'use': it needs exactPath: true, and a pathTemplate with ${namespace} as a "
                f"directory of its own, as in ${{namespace}}/${{claim}}; this one is {self.path_template!r}"
            )

    @property
    def template(self) -> PathTemplate:
        """Return the template of paths; raises `InvalidArgument`."""
        return PathTemplate.parse(self.path_template, exact=self.exact_path)

    def demand(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return what is asked for, as JSON values."""
        on_delete = self.on_delete or (RETAIN if self.on_existing == USE else DELETE)
        exact = {"exact_path": True, "on_existing": self.on_existing} if self.exact_path else {}
        return {**super().demand(request), "on_delete": on_delete, "retention": self.archive_retention, **exact}


def check_demand(request: ProvisionRequest, *, copies: bool = False, images: bool = False) -> None:
    """Raise `Unsupported` for what no directory can be, and `OutOfRange` for sizes that contradict each other.

    copies: whether the backend can fill a directory from a snapshot or another volume. images: whether a directory may
    hold the image file of a block device.
    """
    if request.volume_mode is not VolumeMode.FILESYSTEM and not images:
        raise Unsupported(f"volumeMode {request.volume_mode}: directories serve volumeMode Filesystem only")
    if not copies and (request.source_snapshot is not None or request.source_volume is not None):
        raise Unsupported("directories cannot be made from a snapshot or from another volume")
    if request.capacity_bytes < 1:
        raise OutOfRange(f"capacity {request.capacity_bytes} must be at least 1 byte")
    if request.limit_bytes is not None and request.limit_bytes < request.capacity_bytes:
        raise OutOfRange(f"limit {request.limit_bytes} is less than the request {request.capacity_bytes}")


def check_backing(request: ProvisionRequest) -> None:
    """Raise `InvalidArgument` unless the demand can be met by its snapshot itself, read only (`backingSnapshot`)."""
    if request.source_snapshot is None:
        raise InvalidArgument("parameter backingSnapshot: a claim of this class needs a VolumeSnapshot as dataSource")
    if set(request.access_modes) != {AccessMode.READ_ONLY_MANY}:
        raise InvalidArgument(
            "parameter backingSnapshot: the volume is the snapshot itself, so claims of this class ask for "
            f"ReadOnlyMany alone, not for {', '.join(request.access_modes)}"
        )


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A checked template, such as "${namespace}/${claim}-${uid}"."""

    components: tuple[tuple[str, ...], ...]

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(text: str, *, exact: bool = False) -> PathTemplate:
        """Read a template; raises `InvalidArgument` naming what is wrong and what would be right.

        If the last component neither ends with `${uid}` nor is `${volume}`, `-${uid}` is appended, unless the path is
        to be `exact`: then several claims may have it.
        """
        parts = re.split(r"/(?![^{]*\})", text)  # keys of labels may hold a slash
        if not all(parts):
            raise InvalidArgument(f"pathTemplate {text!r}: no empty directory names, no / at the start or end")
        if len(parts) > MAXIMUM_COMPONENTS:
            raise InvalidArgument(f"pathTemplate {text!r}: at most {MAXIMUM_COMPONENTS} levels")
        components = [_tokens(text, part) for part in parts]
        last = components[-1]
        # A path that is not unique could be another volume's.
        if not exact and last[-2:] != ("uid", "") and last != ("", "volume", ""):
            components[-1] = (*last[:-1], f"{last[-1]}-", "uid", "")
        return PathTemplate(tuple(components))

    def render(self, claim: ClaimIdentity, volume: str) -> str:
        """Return the path below the root, without leading or trailing slash.

        volume: its name. `${uid}` is the claim's uid; a digest of the volume's name where that is not
        `pvc-<uid>`, because only the name is unique then. A label or annotation that the claim lacks is "none".
        """
        # Each form of a uid has a fixed length, so that `<anything>-<uid>` is unambiguous.
        uid = claim.uid if _UUID.fullmatch(claim.uid) else _digest(claim.uid, 32)
        known = {
            "namespace": _sanitized(claim.namespace),
            "claim": _sanitized(claim.name),
            "volume": _sanitized(volume),
            "uid": uid if volume == f"pvc-{claim.uid}" else _digest(volume, 32),
        }
        names: list[str] = []
        for tokens in self.components:
            parts = list(tokens)
            for index, placeholder in enumerate(tokens[1::2]):
                kind, _, key = placeholder.partition(":")
                tagged = claim.labels if kind == "label" else claim.annotations
                parts[2 * index + 1] = _sanitized(tagged.get(key) or "none") if key else known[placeholder]
            name = "".join(parts)
            name = f"_{name}" if not name or name[0] in ".-" else name
            if len(name) > MAXIMUM_BYTES:
                tail = _digest(name, 16)
                name = f"{name[: MAXIMUM_BYTES - 1 - len(tail)]}-{tail}"
            names.append(name)
        return "/".join(names)


def _tokens(text: str, component: str) -> tuple[str, ...]:
    """Return the tokens of one component: literals at even indices, names of placeholders at odd ones."""
    tokens = tuple(_PLACEHOLDER.split(component))
    for literal in tokens[::2]:
        if not _LITERAL.fullmatch(literal):
            raise InvalidArgument(
                f"pathTemplate {text!r}: {literal!r} is not allowed; besides placeholders use letters, digits and . _ -"
            )
    for name in tokens[1::2]:
        if name not in PLACEHOLDERS[:4] and not _KEY.fullmatch(name):
            near = get_close_matches(name, PLACEHOLDERS, n=1)
            hint = f"did you mean ${{{near[0]}}}?" if near else f"known are {', '.join(PLACEHOLDERS)}"
            raise InvalidArgument(f"pathTemplate {text!r}: no placeholder ${{{name}}}; {hint}")
    if component.startswith((".", "-")):
        raise InvalidArgument(f"pathTemplate {text!r}: a directory name may not start with {component[0]!r}")
    return tokens


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]


def _sanitized(value: str) -> str:
    if not _UNSAFE.search(value):
        return value
    return f"{_UNSAFE.sub('_', value)}-{_digest(value, 12)}"  # values that differ stay different
