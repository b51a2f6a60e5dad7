"""What the source of a volume says by itself. Pure."""

from __future__ import annotations

from volplane.assets import VolumeSource

__all__ = ["handle_in"]

_HANDLES = {
    "csi": "volumeHandle",
    "hostPath": "path",
    "local": "path",
    "nfs": "path",
    "awsElasticBlockStore": "volumeID",
    "gcePersistentDisk": "pdName",
}


def handle_in(source: VolumeSource) -> str:
    """The backend's id of the asset as the source has it, or ""."""
    return str(source.fields.get(_HANDLES.get(source.kind, ""), ""))
