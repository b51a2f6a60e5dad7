"""The class parameters that every backend of directories has, and the checks of what a claim demands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from volplane.assets import VolumeMode
from volplane.directory.path_template import DEFAULT_TEMPLATE, PathTemplate
from volplane.errors import InvalidArgument, Unsupported
from volplane.requests import ProvisionRequest
from volplane.schemas import Param, ParameterKind

__all__ = ["DirectoryParameters", "check_demand"]


@dataclass(frozen=True, kw_only=True)
class DirectoryParameters:
    """What a class asks of its directories: the base of a backend's own dataclass."""

    mode: Annotated[
        int,
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
            "alone) gets -${uid} appended.",
            name="pathTemplate",
        ),
    ] = DEFAULT_TEMPLATE

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        if self.mode & 0o700 != 0o700 or self.mode > 0o7777:
            raise InvalidArgument(
                f"parameter mode: {self.mode:04o} must be 07xx: the owner needs all rights, as in 0770"
            )
        PathTemplate.parse(self.path_template)

    def demand(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return what is asked for, as JSON values: equal demands have equal ones. It is kept in the marker."""
        return {
            "capacity_bytes": request.capacity_bytes,
            "access_modes": sorted(str(mode) for mode in request.access_modes),
            "mode": f"{self.mode:04o}",
            "uid": self.uid,
            "gid": self.gid,
            "path_template": self.path_template,
        }


def check_demand(request: ProvisionRequest) -> None:
    """Raise `Unsupported` for what no directory can be, and `InvalidArgument` for sizes that contradict each other."""
    if request.volume_mode is not VolumeMode.FILESYSTEM:
        raise Unsupported(f"volumeMode {request.volume_mode}: directories serve volumeMode Filesystem only")
    if request.source_snapshot is not None or request.source_volume is not None:
        raise Unsupported("directories cannot be made from a snapshot or from another volume")
    if request.capacity_bytes < 1:
        raise InvalidArgument(f"capacity {request.capacity_bytes} must be at least 1 byte")
    if request.limit_bytes is not None and request.limit_bytes < request.capacity_bytes:
        raise InvalidArgument(f"limit {request.limit_bytes} is less than the request {request.capacity_bytes}")
