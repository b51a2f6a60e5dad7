"""The driver's options, as the operator writes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from volplane import InvalidArgument, Param, Secret

LONGEST_SOCKET = 107
"""Bytes of the path of a socket."""
_LEASES = ("", "external-attacher-leader-", "external-resizer-", "external-snapshotter-leader-")
LONGEST_NAME = 128
"""Bytes of a name, as the specification has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of a driver."""

    socket: Annotated[
        str,
        Param(
            "Path of the unix socket of the CSI driver's controller service. Whoever reaches it may delete volumes, so "
            "none is reached over the network.",
            pattern=r"(unix:(//)?)?/.+",
        ),
    ]
    csi_driver_name: Annotated[
        str,
        Param(
            "Name of the CSI driver, as it stands in spec.csi.driver; empty = that of this driver, whose volumes can "
            "be handed over from and to the sidecars then.",
            pattern="([A-Za-z0-9]([-.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?",
        ),
    ] = ""
    attach: Annotated[
        bool,
        Param(
            "Whether volumes are attached to nodes: false where `attachRequired` of the CSIDriver object is false, or "
            "the driver cannot (PUBLISH_UNPUBLISH_VOLUME)."
        ),
    ] = True
    topology_keys: Annotated[
        tuple[str, ...],
        Param(
            "Node labels that place volumes: `topologyKeys` of the driver in the CSINode objects. Required of a driver "
            "with topology (VOLUME_ACCESSIBILITY_CONSTRAINTS), empty for any other."
        ),
    ] = ()
    controller_secret: Annotated[
        Secret | None,
        Param(
            "What the calls of the controller service carry as `secrets`: all keys of a Kubernetes Secret "
            "(secret:NAMESPACE/NAME/*), or a JSON object of texts in a file or a variable. Default: nothing."
        ),
    ] = None
    default_fstype: Annotated[
        str, Param("File system of volumes whose class names none; empty = the node plugin's own choice.")
    ] = ""
    extra_create_metadata: Annotated[
        bool, Param("Tell the driver names and namespace of claim and volume, as `csi.storage.k8s.io/pvc/name` and so.")
    ] = False
    volume_name_prefix: Annotated[
        str,
        Param("Begins the names of volumes on the storage, before the claim's uid.", pattern=r"[^\x00-\x1f\x7f]{1,60}"),
    ] = "pvc"
    snapshot_name_prefix: Annotated[
        str, Param("Begins the names of snapshots there.", pattern=r"[^\x00-\x1f\x7f]{1,60}")
    ] = "snapshot"
    timeout: Annotated[
        float,
        Param(
            "How long one call of the driver may take. After that its outcome counts as unknown, and it is made again.",
            minimum=0.1,
            maximum=3600.0,
        ),
    ] = 60.0
    sidecar_namespace: Annotated[
        str,
        Param(
            "Namespace of the Leases by which the sidecars elect leaders (--leader-election). volplane works only "
            "while it holds them: so no sidecar works beside it. Its account needs the right to write them."
        ),
    ] = ""
    controller_pods: Annotated[
        str,
        Param(
            "Label selector of the pods in which the sidecars run, such as app=my-csi-controller: while one runs, the "
            "driver does not start, and `volplane adopt` takes nothing over and gives nothing back. Without it, these "
            "are the pods with a sidecar whose spec names the CSI driver."
        ),
    ] = ""

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` naming the key, the value and what would be right."""
        if len(str(self.path).encode()) > LONGEST_SOCKET:
            raise InvalidArgument(f"option socket: {self.path} has more than {LONGEST_SOCKET} bytes")

    def csi_driver(self, driver: str) -> str:
        """Return the name of the CSI driver. driver: of this driver."""
        return self.csi_driver_name or driver

    def leases(self, driver: str) -> tuple[str, ...]:
        """Return the Leases of the sidecars, if this driver takes their place."""
        if not self.sidecar_namespace or self.csi_driver(driver) != driver:
            return ()
        # As csi-lib-utils writes them.
        name = re.sub("[^A-Za-z0-9-]", "-", driver)
        return tuple(f"{self.sidecar_namespace}/{begin}{name}" for begin in _LEASES)

    @property
    def sidecars(self) -> tuple[str, ...]:
        """How the names of the programs end that must not run beside this one; () = a label tells their pods."""
        if self.controller_pods:
            return ()
        kinds = ("provisioner", "resizer", "snapshotter", *(("attacher",) if self.attach else ()))
        return tuple(f"{begin}-{kind}" for kind in kinds for begin in ("csi", "external"))

    @property
    def path(self) -> Path:
        """The path of the socket."""
        return Path("/" + self.socket.partition("/")[2].lstrip("/"))
