"""Parameters of a class that only the node plugin honours: how it makes the file system, and when it may be attached.

They are passed on in the volume's attributes, under the keys that the official driver's node plugin reads
(kubernetes-sigs/aws-ebs-csi-driver, pkg/driver/constants.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from volplane import InvalidArgument, Parameter, ParameterKind, VolumeMode

__all__ = ["BLOCK_UNTIL_INITIALIZED", "FILE_SYSTEM_PARAMETERS", "FS_TYPES", "attributes_of", "check_file_system"]

FS_TYPES: Final = ("ext4", "ext3", "xfs", "ntfs")
BLOCK_UNTIL_INITIALIZED: Final = "blockAttachUntilInitialized"
_NUMBER: Final = "[0-9A-Za-z]+"
_EXT4: Final = ("ext4",)
_EXT: Final = ("ext4", "ext3")
_LINUX: Final = ("ext4", "ext3", "xfs")
_SUPPORTED: Final[Mapping[str, tuple[str, ...]]] = {
    "blockSize": _LINUX,
    "inodeSize": _LINUX,
    "bytesPerInode": _EXT,
    "numberOfInodes": _EXT,
    "ext4BigAlloc": _EXT4,
    "ext4ClusterSize": _EXT4,
    "ext4EncryptionSupport": _EXT4,
}
"""Parameter -> file systems that have it."""

FILE_SYSTEM_PARAMETERS: Final = (
    Parameter(name="blockSize", doc="Block size of the file system; not for ntfs.", pattern=_NUMBER),
    Parameter(name="inodeSize", doc="Size of its inodes; not for ntfs.", pattern=_NUMBER),
    Parameter(name="bytesPerInode", doc="One inode for so many bytes; for ext3 and ext4.", pattern=_NUMBER),
    Parameter(name="numberOfInodes", doc="So many inodes; for ext3 and ext4.", pattern=_NUMBER),
    Parameter(
        name="ext4BigAlloc", doc="Allocate blocks in clusters; for ext4.", kind=ParameterKind.BOOLEAN, default=False
    ),
    Parameter(name="ext4ClusterSize", doc="Size of these clusters, with ext4BigAlloc.", pattern=_NUMBER),
    Parameter(
        name="ext4EncryptionSupport",
        doc="Let programs encrypt directories of the file system; for ext4.",
        kind=ParameterKind.BOOLEAN,
        default=False,
    ),
    Parameter(
        name=BLOCK_UNTIL_INITIALIZED,
        doc="Attach a volume that was made from a snapshot only when all of it has been read from there.",
        kind=ParameterKind.BOOLEAN,
        default=False,
    ),
)


def check_file_system(parameters: Mapping[str, Any], fs_type: str) -> None:
    """Raise InvalidArgument for an option that the file system does not have."""
    for name, file_systems in _SUPPORTED.items():
        if parameters.get(name) and fs_type not in file_systems:
            raise InvalidArgument(
                f"parameter {name} is {_text(parameters[name])!r}: the file system {fs_type} has no such option, only "
                f"{', '.join(file_systems)}; remove it, or choose another file system"
            )
    if parameters.get("ext4ClusterSize") and not parameters.get("ext4BigAlloc"):
        raise InvalidArgument(
            f"parameter ext4ClusterSize is {parameters['ext4ClusterSize']!r}: clusters are used only with "
            "ext4BigAlloc, which must be true"
        )


def attributes_of(parameters: Mapping[str, Any], mode: VolumeMode) -> dict[str, str]:
    """The attributes of the volume. Raises InvalidArgument for options of a file system that a volume will not have."""
    given = [name for name in _SUPPORTED if parameters.get(name)]
    if given and mode is VolumeMode.BLOCK:
        raise InvalidArgument(
            f"parameter {given[0]} is {_text(parameters[given[0]])!r}: a volume of mode Block has no file system; use "
            "another class for it"
        )
    if parameters.get(BLOCK_UNTIL_INITIALIZED):
        given.append(BLOCK_UNTIL_INITIALIZED)
    return {name.lower(): _text(parameters[name]) for name in given}


def _text(value: object) -> str:
    return "true" if value is True else str(value)
