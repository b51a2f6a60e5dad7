"""The driver's options, as the operator writes them, and the parameters of classes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from volplane import InvalidArgument, Param, ParameterSchema, ProvisionRequest, VolumeMode, read_parameters
from volplane.directory import USE, CopyParameters, KeptDirectoryParameters
from volplane_hostpath.project_quotas import NONE, REQUIRED

LOCAL = "local"
HOST_PATH = "hostPath"
_SOURCES = (LOCAL, HOST_PATH)
_LABEL_VALUE = re.compile("([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a driver."""

    root: Annotated[
        str,
        Param(
            "Absolute path of the directory that holds the volumes: one file system, used by nothing else. "
            "The first start marks an empty directory; from then on a root without its marker is refused.",
            pattern="/.+",
        ),
    ]
    node_name: Annotated[
        str,
        Param(
            "Value of `affinity_label` on the node that has the root; empty = the host's name in lower case. "
            "An instance that runs with --node-name uses that node instead."
        ),
    ] = ""
    affinity_label: Annotated[
        str,
        Param(
            "Node label in the affinity of volumes.",
            pattern=r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?",
        ),
    ] = "kubernetes.io/hostname"
    source: Annotated[
        str | None,
        Param(
            "Source of the volumes of classes without `volumeType`: `local`, or `hostPath` of type Directory. "
            "Default: local, with `shared` hostPath, because local demands an affinity.",
            choices=_SOURCES,
        ),
    ] = None
    shared: Annotated[
        bool,
        Param(
            "Every node sees the same root (a shared file system, or a cluster of one node): volumes get no "
            "affinity and all access modes."
        ),
    ] = False
    overcommit_percent: Annotated[
        int,
        Param(
            "How much of the file system may be promised to volumes; above 100 is thin provisioning.",
            minimum=1,
            maximum=100_000,
        ),
    ] = 100
    create_root: Annotated[bool, Param("Make the root directory if it is missing.")] = False
    adopt_root: Annotated[
        bool,
        Param(
            "Also mark a root that is not empty, or that another cluster or driver marked; what is in it stays "
            "as it is and counts as foreign. Take the option out once it has worked."
        ),
    ] = False
    images: Annotated[
        bool,
        Param(
            "Serve volumeMode Block as well: directories for an image file, which the node service of `volplane csi` "
            "attaches as a loop device. Nothing else can use such a volume, so only for `volplane csi`."
        ),
    ] = False
    root_id: Annotated[
        str,
        Param(
            "The `root_id` of the root's marker: no other root is used, and none is marked. Set it after the "
            "first start, so that an unmounted disk is refused even if its mount point is empty.",
            pattern="([0-9a-f]{32})?",
        ),
    ] = ""

    volume_statistics: Annotated[
        bool,
        Param(
            "Show the bytes and inodes used in each volume of a class with `quota: required` as metrics, counted anew "
            "every minute by the file system's quotas."
        ),
    ] = False

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` naming the key, the value and what would be right."""
        root = self.root
        if not root.startswith("/") or ".." in root.split("/") or os.path.normpath(root).strip("/") == "":
            raise InvalidArgument(f"option root: {root!r} must be an absolute path without '..', below /")
        if self.shared and self.source == LOCAL:
            raise InvalidArgument("option source: 'local' demands a node affinity; with shared use 'hostPath'")
        if not _LABEL_VALUE.fullmatch(self.node_name):
            raise InvalidArgument(
                f"option node_name: {self.node_name!r} is no value of a label: at most 63 letters, digits and . _ -"
            )
        object.__setattr__(self, "root", "/" + os.path.normpath(root).lstrip("/"))

    @property
    def node_value(self) -> str:
        """Return what stands in the affinity unless an instance knows its node."""
        return self.node_name or socket.gethostname().lower()


@dataclass(frozen=True, kw_only=True)
class ClassParameters(CopyParameters, KeptDirectoryParameters):
    """What a class asks of its directories."""

    volume_type: Annotated[
        str | None,
        Param("Source of the volume; default: the driver's option `source`.", name="volumeType", choices=_SOURCES),
    ] = None
    quota: Annotated[
        str,
        Param(
            "`required`: the directory gets a project quota of the volume's size, which xfs and ext4 have; no volume "
            "is made without. Whoever owns a file can give it to another project: this bounds mistakes, not hostile "
            "pods.",
            choices=(NONE, REQUIRED),
        ),
    ] = NONE

    subvolume: Annotated[
        bool,
        Param(
            "The directory is a subvolume of btrfs: its snapshots and clones are of one moment, take no time and "
            "share blocks. On another file system no volume is made."
        ),
    ] = False

    backing_snapshot: Annotated[
        bool,
        Param(
            "A claim that is made of a VolumeSnapshot of a subvolume, with the access mode ReadOnlyMany alone, gets a "
            "read-only subvolume, which takes no space and no time. On another file system no such volume is made.",
            name="backingSnapshot",
        ),
    ] = False

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for what a schema cannot express."""
        super().__post_init__()
        if self.subvolume and self.quota != NONE:
            raise InvalidArgument(
                f"parameter quota is {self.quota!r}: xfs and ext4 have project quotas, and btrfs has subvolumes; leave "
                "out quota or subvolume"
            )
        if self.on_existing == USE and (self.subvolume or self.quota != NONE):
            raise InvalidArgument(
                "parameter onExisting is 'use': a directory that is there gets no quota and becomes no subvolume; "
                "leave out quota and subvolume"
            )

    @classmethod
    def of(cls, parameters: Mapping[str, Any], settings: Settings) -> ClassParameters:
        """Return the class's parameters with the driver's defaults; raises `InvalidArgument`."""
        volume_type = parameters.get("volumeType") or settings.source or (HOST_PATH if settings.shared else LOCAL)
        if settings.shared and volume_type == LOCAL:
            raise InvalidArgument(
                "parameter volumeType: 'local' demands a node affinity, and this driver's root is shared; use "
                "'hostPath'"
            )
        template = parameters.get("pathTemplate") or None  # An empty one is the default too.
        return read_parameters(cls, {**parameters, "volumeType": volume_type, "pathTemplate": template})

    def demand(self, request: ProvisionRequest) -> dict[str, Any]:
        """Return what is asked for, as JSON values."""
        own = {
            "volume_type": self.volume_type,
            "quota": self.quota,
            "subvolume": self.subvolume,
            "block": request.volume_mode is VolumeMode.BLOCK,
        }
        backing = {"backing_snapshot": True} if self.backing_snapshot else {}
        return {**super().demand(request), **own, **backing}


PARAMETERS = ParameterSchema.of(ClassParameters)
