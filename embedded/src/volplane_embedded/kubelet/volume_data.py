"""What stands on disk about the csi volumes of pods, so that a kubelet that was killed finds what was mounted.

`<pod>/volumes/kubernetes.io~csi/<volume>/vol_data.json` is written before a container can get the volume, and goes with
the directory when the volume is unmounted. All functions block: call them in a thread.

Source: pkg/volume/csi/csi_util.go (volDataKey), pkg/kubelet/volumemanager/reconciler/reconstruct.go.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

_LOG = logging.getLogger(__name__)

_PLUGIN: Final = "kubernetes.io~csi"
_FILE: Final = "vol_data.json"


class VolumeData(msgspec.Struct, frozen=True, kw_only=True):
    """One volume of one pod. unique_name: as nodes report it."""

    pod_uid: str = msgspec.field(name="podUID")
    node_name: str = msgspec.field(name="nodeName")
    spec_volume_id: str = msgspec.field(name="specVolID")
    driver_name: str = msgspec.field(name="driverName")
    volume_handle: str = msgspec.field(name="volumeHandle")
    attachment_id: str = msgspec.field(name="attachmentID")
    claim_uid: str = msgspec.field(name="claimUID")
    unique_name: str = msgspec.field(name="uniqueName")
    volume_lifecycle_mode: str = msgspec.field(name="volumeLifecycleMode", default="Persistent")


def write_volume_data(volumes: Path, data: VolumeData) -> None:
    """Write what a pod is about to use. volumes: the directory of the pod's volumes. Raises OSError."""
    directory = volumes / _PLUGIN / data.spec_volume_id
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    # Renamed into place: whoever reads it never finds a part.
    fresh = directory / f"{_FILE}.new"
    fresh.write_bytes(msgspec.json.encode(data))
    fresh.replace(directory / _FILE)


def read_volume_data(root: Path, pod_uid: str = "") -> list[VolumeData]:
    """Return what pods, or one pod, used under this process or a former one. root: the pods' directories.

    What cannot be read is passed over; it goes with the directory of its pod.
    """
    found: list[VolumeData] = []
    for path in sorted(root.glob(f"{pod_uid or '*'}/volumes/{_PLUGIN}/*/{_FILE}")):
        try:
            data = msgspec.json.decode(path.read_bytes(), type=VolumeData)
        except (OSError, msgspec.MsgspecError) as error:
            _LOG.warning("%s cannot be read: %s", path, error)
            continue
        if data.pod_uid == path.parts[-5]:
            found.append(data)
    return found
