"""The names of volumes and attachments, as Kubernetes makes them: kubelets and other attachers look for these. Pure.

Source: pkg/volume/csi/csi_attacher.go (getAttachmentName), pkg/volume/util (GetUniqueVolumeName),
pkg/volume/csi/csi_plugin.go of Kubernetes; pkg/controller/util.go of the external-attacher.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import NamedTuple

from volplane.kube.objects import Volume, VolumeAttachment
from volplane.state.naming import csi_source

__all__ = [
    "CSI_PREFIX",
    "Pair",
    "attacher_finalizer",
    "attachment_name",
    "csi_parts",
    "named_by_controller",
    "pair_of_key",
    "plugin_label",
    "shares_nodes",
    "unique_name",
]

CSI_PREFIX = "kubernetes.io/csi/"
_MANY = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_NAME = re.compile("csi-[0-9a-f]{64}")


class Pair(NamedTuple):
    """A volume on a node, the unit of attach-detach.

    volume: its unique name, as `unique_name` makes it; the name of the attachment where the volume is not known any
    more.
    """

    node: str
    volume: str

    @property
    def key(self) -> str:
        """In a work queue. Names of nodes have no slash."""
        return f"{self.node}/{self.volume}"

    @property
    def attachment(self) -> str:
        """Name of the attachment that stands for it."""
        driver, handle = csi_parts(self.volume)
        return attachment_name(driver, handle, self.node) if driver else self.volume


def pair_of_key(key: str) -> Pair:
    node, _, volume = key.partition("/")
    return Pair(node, volume)


def unique_name(volume: Volume) -> str:
    """Driver and handle as one name, by which nodes report the volume; "" for one that is not attached.

    Two PersistentVolumes with the same driver and handle are one volume.
    """
    driver, handle = csi_source(volume)
    return f"{CSI_PREFIX}{driver}^{handle}" if driver else ""


def csi_parts(unique: str) -> tuple[str, str]:
    """Driver and handle of a unique name; two empty texts for the volume of another kind of plugin."""
    if not unique.startswith(CSI_PREFIX):
        return "", ""
    driver, _, handle = unique.removeprefix(CSI_PREFIX).partition("^")
    return driver, handle


@functools.lru_cache(16_384)
def attachment_name(driver: str, handle: str, node: str) -> str:
    """The stock name of the VolumeAttachment."""
    return "csi-" + hashlib.sha256(f"{handle}{driver}{node}".encode()).hexdigest()


def named_by_controller(attachment: VolumeAttachment) -> bool:
    """Whether the name has the form of `attachment_name`. Others are somebody's own, and are never deleted by us."""
    return _NAME.fullmatch(attachment.name) is not None


def shares_nodes(volume: Volume) -> bool:
    """Whether it may be attached to several nodes at once: an access mode allows that, or none is given."""
    modes = volume.spec.access_modes
    return not modes or not _MANY.isdisjoint(modes)


@functools.lru_cache(256)
def attacher_finalizer(driver: str) -> str:
    """The finalizer on attachments of this CSI driver name: the external-attacher's, so that either takes over from
    the other.
    """
    return "external-attacher/" + re.sub("[^A-Za-z0-9-]", "-", driver)


def plugin_label(driver: str) -> str:
    """The stock controllers' label for a CSI driver in metrics."""
    return f"kubernetes.io/csi:{driver}"
