"""For authors of backends whose volumes are directories of a file system: what they have in common.

Markers that name the owner of a directory, handles, class parameters, paths from a template, checks of a demand,
archives of what is deleted, copies of trees, what is used of volumes, and what is told of all that.
Nothing here touches a file system. hostpath and nfs are built on it.
"""

from volplane.directory.archives import (
    ArchivedDirectory,
    archived_volume,
    expires_at,
    listed_archive,
    named_until,
    renamed_until,
)
from volplane.directory.copies import (
    DEEPEST,
    Copied,
    CopyCounts,
    Entry,
    EntryKind,
    Item,
    Outcome,
    Page,
    Side,
    TreeCopy,
    Trees,
)
from volplane.directory.markers import (
    CONTROL,
    RETAINED,
    CorruptMarker,
    Handle,
    VolumeMarker,
    check_name,
    decode_fields,
    encode_fields,
    entry_of,
    handle_of,
    name_of,
    parent_key,
    path_components,
    static_key,
)
from volplane.directory.parameters import (
    ARCHIVE,
    DELETE,
    RETAIN,
    DirectoryParameters,
    KeptDirectoryParameters,
    PathTemplate,
    check_demand,
)
from volplane.directory.progress import copy_progress, human
from volplane.directory.reports import Reports
from volplane.directory.snapshots import (
    SNAPSHOT_PARAMETERS,
    CopyParameters,
    SnapshotHandle,
    SnapshotMarker,
    require_unchanged,
)
from volplane.directory.usage import Usage, UsageReport

__all__ = [
    "ARCHIVE",
    "CONTROL",
    "DEEPEST",
    "DELETE",
    "RETAIN",
    "RETAINED",
    "SNAPSHOT_PARAMETERS",
    "ArchivedDirectory",
    "Copied",
    "CopyCounts",
    "CopyParameters",
    "CorruptMarker",
    "DirectoryParameters",
    "Entry",
    "EntryKind",
    "Handle",
    "Item",
    "KeptDirectoryParameters",
    "Outcome",
    "Page",
    "PathTemplate",
    "Reports",
    "Side",
    "SnapshotHandle",
    "SnapshotMarker",
    "TreeCopy",
    "Trees",
    "Usage",
    "UsageReport",
    "VolumeMarker",
    "archived_volume",
    "check_demand",
    "check_name",
    "copy_progress",
    "decode_fields",
    "encode_fields",
    "entry_of",
    "expires_at",
    "handle_of",
    "human",
    "listed_archive",
    "name_of",
    "named_until",
    "parent_key",
    "path_components",
    "renamed_until",
    "require_unchanged",
    "static_key",
]
