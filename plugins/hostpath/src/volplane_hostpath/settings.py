"""The driver's options, as the operator writes them, and the parameters of classes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volplane import InvalidArgument, Parameter, ParameterKind, ParameterSchema
from volplane.path_template import DEFAULT_TEMPLATE

__all__ = ["HOST_PATH", "LOCAL", "OPTIONS", "PARAMETERS", "ClassParameters", "Settings"]

LOCAL = "local"
HOST_PATH = "hostPath"
_SOURCES = (LOCAL, HOST_PATH)
_DEFAULT_MODE = 0o770

OPTIONS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(
            name="root",
            doc="Absolute path of the directory that holds the volumes: one file system, used by nothing else. "
            "The first start marks an empty directory; from then on a root without its marker is refused.",
            pattern="/.+",
            required=True,
        ),
        Parameter(
            name="node_name",
            doc="Value of `affinity_label` on the node that has the root; empty = the host's name in lower case. "
            "An instance that runs with --node-name uses that node instead.",
            default="",
        ),
        Parameter(
            name="affinity_label",
            doc="Node label in the affinity of volumes.",
            pattern=r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
            default="kubernetes.io/hostname",
        ),
        Parameter(
            name="source",
            doc="Source of the volumes of classes without `volumeType`: `local`, or `hostPath` of type Directory. "
            "Default: local, with `shared` hostPath, because local demands an affinity.",
            choices=_SOURCES,
        ),
        Parameter(
            name="shared",
            doc="Every node sees the same root (a shared file system, or a cluster of one node): volumes get no "
            "affinity and all access modes.",
            kind=ParameterKind.BOOLEAN,
            default=False,
        ),
        Parameter(
            name="overcommit_percent",
            doc="How much of the file system may be promised to volumes; above 100 is thin provisioning.",
            kind=ParameterKind.INTEGER,
            default=100,
            minimum=1,
            maximum=100_000,
        ),
        Parameter(
            name="create_root",
            doc="Make the root directory if it is missing.",
            kind=ParameterKind.BOOLEAN,
            default=False,
        ),
        Parameter(
            name="adopt_root",
            doc="Also mark a root that is not empty, or that another cluster or driver marked; what is in it stays "
            "as it is and counts as foreign. Take the option out once it has worked.",
            kind=ParameterKind.BOOLEAN,
            default=False,
        ),
        Parameter(
            name="root_id",
            doc="The `root_id` of the root's marker: no other root is used, and none is marked. Set it after the "
            "first start, so that an unmounted disk is refused even if its mount point is empty.",
            pattern="([0-9a-f]{32})?",
            default="",
        ),
    ),
)

PARAMETERS = ParameterSchema(
    version=1,
    parameters=(
        Parameter(
            name="mode",
            doc="Permissions of the volume's directory; the owner needs all of them.",
            kind=ParameterKind.OCTAL,
            default=_DEFAULT_MODE,
            minimum=0o700,
            maximum=0o7777,
        ),
        Parameter(
            name="uid",
            doc="Owner of the directory; default: the user volplane runs as.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=2**32 - 2,
        ),
        Parameter(
            name="gid",
            doc="Group of the directory, and supplemental group of the pods that use the volume; default: the group "
            "volplane runs as, and none.",
            kind=ParameterKind.INTEGER,
            minimum=0,
            maximum=2**32 - 2,
        ),
        Parameter(
            name="pathTemplate",
            doc="Path under the root. Placeholders: ${namespace}, ${claim}, ${volume}, ${uid}, "
            "${label:KEY}, ${annotation:KEY} (of the claim). A path that does not "
            "end with ${uid} (or a ${volume} alone) gets -${uid} appended.",
            default=DEFAULT_TEMPLATE,
        ),
        Parameter(
            name="volumeType",
            doc="Source of the volume; default: the driver's option `source`.",
            choices=_SOURCES,
        ),
    ),
)


def _with_defaults(schema: ParameterSchema, given: Mapping[str, Any]) -> dict[str, Any]:
    return {known.name: given.get(known.name, known.default) for known in schema.parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options, checked. node_value: what stands in the affinity unless an instance knows its node."""

    root: str
    node_value: str
    affinity_label: str
    source: str
    shared: bool
    overcommit_percent: int
    create_root: bool
    adopt_root: bool
    root_id: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Read the options; raises `InvalidArgument` naming the key, the value and what would be right."""
        values = _with_defaults(OPTIONS, options)
        root = str(values["root"] or "")
        if not root.startswith("/") or ".." in root.split("/") or os.path.normpath(root).strip("/") == "":
            raise InvalidArgument(f"option root: {root!r} must be an absolute path without '..', below /")
        shared = bool(values["shared"])
        source = str(values["source"] or (HOST_PATH if shared else LOCAL))
        if shared and source == LOCAL:
            raise InvalidArgument("option source: 'local' demands a node affinity; with shared use 'hostPath'")
        return cls(
            root="/" + os.path.normpath(root).lstrip("/"),
            node_value=str(values["node_name"]) or socket.gethostname().lower(),
            affinity_label=str(values["affinity_label"]),
            source=source,
            shared=shared,
            overcommit_percent=int(values["overcommit_percent"]),
            create_root=bool(values["create_root"]),
            adopt_root=bool(values["adopt_root"]),
            root_id=str(values["root_id"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassParameters:
    """What a class asks of its directories."""

    mode: int
    uid: int | None
    gid: int | None
    path_template: str
    volume_type: str

    @classmethod
    def of(cls, parameters: Mapping[str, Any], settings: Settings) -> ClassParameters:
        """Read class parameters that the schema has checked; raises `InvalidArgument` for what goes beyond it."""
        values = _with_defaults(PARAMETERS, parameters)
        volume_type = str(values["volumeType"] or settings.source)
        if settings.shared and volume_type == LOCAL:
            raise InvalidArgument(
                "parameter volumeType: 'local' demands a node affinity, and this driver's root is shared; use "
                "'hostPath'"
            )
        mode = _DEFAULT_MODE if values["mode"] is None else int(values["mode"])
        if mode & 0o700 != 0o700 or mode > 0o7777:
            raise InvalidArgument(f"parameter mode: {mode:04o} must be 07xx: the owner needs all rights, as in 0770")
        return cls(
            mode=mode,
            uid=None if values["uid"] is None else int(values["uid"]),
            gid=None if values["gid"] is None else int(values["gid"]),
            path_template=str(values["pathTemplate"] or DEFAULT_TEMPLATE),
            volume_type=volume_type,
        )
