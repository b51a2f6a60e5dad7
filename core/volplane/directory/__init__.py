"""For authors of backends whose volumes are directories of a file system: what they have in common.

Markers that name the owner of a directory, handles, class parameters, paths from a template, checks of a demand, and
warnings that are told once.
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
from volplane.directory.reports import Reports

__all__ = [
    "CONTROL",
    "CorruptMarker",
    "DirectoryParameters",
    "Handle",
    "PathTemplate",
    "Reports",
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
