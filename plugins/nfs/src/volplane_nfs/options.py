"""Schemas of the driver's options, as the operator writes them, and of the parameters of classes."""

from __future__ import annotations

from volplane import Parameter, ParameterKind, ParameterSchema
from volplane.path_template import DEFAULT_TEMPLATE

__all__ = [
    "ARCHIVE",
    "DEFAULT_MODE",
    "DELETE",
    "EXPORT",
    "NONE",
    "OPTIONS",
    "PARAMETERS",
    "REQUIRED",
    "RETAIN",
    "SQUASHES",
    "SUBDIRECTORY",
]

SUBDIRECTORY, EXPORT = "subdirectory", "export"
DELETE, RETAIN, ARCHIVE = "delete", "retain", "archive"
NONE, REQUIRED = "none", "required"
SQUASHES = ("root_squash", "no_root_squash", "root_id_squash", "all_squash")
DEFAULT_MODE = 0o770
_ID = 2**32 - 2

OPTIONS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(
            name="shares",
            doc="Directories of NFSv4 servers that hold volumes, comma-separated: nfs://SERVER[:PORT]/PATH, as nodes "
            "reach them too. With several, each volume goes to the one with most free space.",
            kind=ParameterKind.STRINGS,
            pattern="nfs://[^/].*",
            required=True,
        ),
        Parameter(
            name="mode",
            doc="`subdirectory`: a volume is a directory of a share. `export`: on NFS-Ganesha on this machine, it is "
            "also an export of its own.",
            choices=(SUBDIRECTORY, EXPORT),
            default=SUBDIRECTORY,
        ),
        Parameter(
            name="uid",
            doc="User in the driver's calls (AUTH_SYS). Others than 0 can set `uid` and `gid` of classes to their own.",
            kind=ParameterKind.INTEGER,
            default=0,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="gid",
            doc="Group in the driver's calls.",
            kind=ParameterKind.INTEGER,
            default=0,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="timeout",
            doc="How long a server may take for an answer. Then it is let alone for a while, and its volumes wait.",
            kind=ParameterKind.DURATION,
            default=5.0,
            minimum=0.1,
            maximum=120.0,
        ),
        Parameter(
            name="connections",
            doc="TCP connections to a server, at most: so many calls are under way without waiting for each other.",
            kind=ParameterKind.INTEGER,
            default=8,
            minimum=1,
            maximum=16,
        ),
        Parameter(
            name="mark_shares",
            doc="Mark a share at its first use. With false, only shares that are marked are used: a disk that is not "
            "mounted on the server is then never taken for a new share.",
            kind=ParameterKind.BOOLEAN,
            default=True,
        ),
        Parameter(
            name="check_free_space",
            doc="Refuse a volume that is larger than the free space of every share. Nothing is reserved.",
            kind=ParameterKind.BOOLEAN,
            default=True,
        ),
        Parameter(
            name="recycle",
            doc="Who empties recycled volumes: `server`, the driver through its own client; `pod`, a scrubber pod that "
            "mounts the volume.",
            choices=("server", "pod"),
            default="server",
        ),
        Parameter(
            name="client",
            doc="`volplane`: the client that is built in. `pynfs`: nfs4client of an importable checkout of pynfs "
            "(GPL-2.0, not part of volplane).",
            choices=("volplane", "pynfs"),
            default="volplane",
        ),
        Parameter(
            name="server_path",
            doc="Mode export: where the directory of the share is on the server's own file system.",
            pattern="(/.+)?",
            default="",
        ),
        Parameter(
            name="pseudo_path",
            doc="Mode export: exports are PSEUDO_PATH/VOLUME in the server's name space. No export may be above it.",
            pattern="/[A-Za-z0-9._-]+",
            default="/pv",
        ),
        Parameter(
            name="config_directory",
            doc="Mode export: a folder that the configuration of Ganesha includes by %dir; exports are written there.",
            pattern="(/.+)?",
            default="",
        ),
        Parameter(
            name="bus",
            doc="Mode export: address of the D-Bus of Ganesha, such as unix:path=/run/dbus/system_bus_socket; "
            "default: the system's.",
            default="",
        ),
        Parameter(
            name="bus_prefix",
            doc="Mode export: Dbus_Name_Prefix in the configuration of Ganesha, if it has one.",
            pattern="[A-Za-z0-9._-]*",
            default="",
        ),
        Parameter(
            name="first_export_id",
            doc="Mode export: the lowest Export_Id that the driver gives.",
            kind=ParameterKind.INTEGER,
            default=1000,
            minimum=1,
            maximum=65535,
        ),
        Parameter(
            name="last_export_id",
            doc="Mode export: the highest.",
            kind=ParameterKind.INTEGER,
            default=65535,
            minimum=1,
            maximum=65535,
        ),
        Parameter(
            name="export_id_quarantine",
            doc="Mode export: how long an Export_Id is not given again, so that no old handle of a node leads into "
            "another volume; longer than lease and grace period of the server.",
            kind=ParameterKind.DURATION,
            default=300.0,
            minimum=0.0,
            maximum=86400.0,
        ),
    ),
)

PARAMETERS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(name="server", doc="Only shares of this server of the driver's option `shares`."),
        Parameter(name="share", doc="Only the share with this path.", pattern="/.*"),
        Parameter(
            name="mode",
            doc="Permissions of the volume's directory; the owner needs all of them.",
            kind=ParameterKind.OCTAL,
            default=DEFAULT_MODE,
            minimum=0o700,
            maximum=0o7777,
        ),
        Parameter(
            name="uid",
            doc="Owner of the directory; default: the driver's user.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="gid",
            doc="Group of the directory, and supplemental group of the pods that use the volume; default: the driver's "
            "group, and none.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="pathTemplate",
            doc="Path of the volume below the share, with ${namespace}, ${claim}, ${volume}, ${uid}, ${label:KEY} and "
            "${annotation:KEY}.",
            default=DEFAULT_TEMPLATE,
        ),
        Parameter(
            name="onDelete",
            doc="What becomes of the directory when the volume is deleted: `delete`; `retain`, it stays where it is; "
            "`archive`, it is moved to .volplane/archive of the share.",
            choices=(DELETE, RETAIN, ARCHIVE),
            default=DELETE,
        ),
        Parameter(
            name="archiveRetention",
            doc="How long an archived directory is kept; default: until a person removes it.",
            kind=ParameterKind.DURATION,
            minimum=0.0,
        ),
        Parameter(
            name="quota",
            doc="`none`: the size is a promise. `required`: a volume is handed out, and grown, only once its server "
            "shows a limit of at least its size for the directory; the quota is set on the server.",
            choices=(NONE, REQUIRED),
            default=NONE,
        ),
        Parameter(
            name="clients",
            doc="Mode export: addresses, networks (10.0.0.0/8) and names of hosts that may mount the volume, "
            "comma-separated; default: all.",
            kind=ParameterKind.STRINGS,
        ),
        Parameter(
            name="squash",
            doc="Mode export: whose rights clients have. Default: root_squash.",
            choices=SQUASHES,
        ),
        Parameter(
            name="protocols",
            doc="Mode export: versions of NFS, comma-separated. Default: 4.",
            kind=ParameterKind.STRINGS,
        ),
        Parameter(
            name="anonymousUid",
            doc="Mode export: user of clients that are squashed.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
        Parameter(
            name="anonymousGid",
            doc="Mode export: group of clients that are squashed.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=_ID,
        ),
    ),
)
