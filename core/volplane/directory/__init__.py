"""For authors of backends whose volumes are directories of a file system: what they have in common.

Markers that name the owner of a directory, handles, class parameters, paths from a template, and checks of a demand.
Nothing here touches a file system. hostpath and nfs are built on it.
"""

from volplane.directory.markers import (
    CONTROL,
    CorruptMarker,
    Handle,
    VolumeMarker,
    check_name,
    decode_fields,
    encode_fields,
    name_of,
    parent_key,
    path_components,
    static_key,
)
from volplane.directory.parameters import DirectoryParameters, PathTemplate, check_demand

__all__ = [
    "CONTROL",
    "CorruptMarker",
    "DirectoryParameters",
    "Handle",
    "PathTemplate",
    "VolumeMarker",
    "check_demand",
    "check_name",
    "decode_fields",
    "encode_fields",
    "name_of",
    "parent_key",
    "path_components",
    "static_key",
]
