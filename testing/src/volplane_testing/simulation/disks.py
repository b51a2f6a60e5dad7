"""The contents of assets and the pods that mount them, recorded outside of the backends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Disk", "Disks", "source_key", "source_of"]

_PATHS: Final = frozenset({"hostPath", "local"})
_NO_SOURCES: Final = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
        "name",
    }
)


def source_key(kind: str, fields: Mapping[str, Any]) -> str:
    """Return one text for one asset, however a volume or a pod spells its source."""
    if kind in _PATHS:
        return f"path:{fields.get('path')}"
    if kind == "csi":
        return f"csi:{fields.get('driver')}:{fields.get('volumeHandle')}"
    if kind == "iscsi":
        return f"iscsi:{fields.get('iqn')}"
    if kind == "nfs":
        return f"nfs:{fields.get('server')}:{fields.get('path')}"
    return f"{kind}:{json.dumps(fields, sort_keys=True, default=str)}"


def source_of(spec: Mapping[str, Any]) -> str:
    """Return the `source_key` of a volume's spec, or of an entry of a pod's volumes."""
    for kind, fields in spec.items():
        if kind not in _NO_SOURCES and isinstance(fields, dict):
            return source_key(kind, fields)
    return ""


@dataclass(slots=True, eq=False)
class Disk:
    """One asset.

    made_for: claim uid, "" for one that a user made. data: uids of claims whose pods wrote and nobody erased since.
    waived: claims whose data a user gave up. mounts: uid of pod -> uid of its claim, "" for scrubber pods. kept: why it
    may stay without an owner. forced: somebody removed a claim by force while a pod had it mounted.
    """

    key: str
    driver: str
    made_for: str
    generation: int
    data: set[str] = field(default_factory=set)
    waived: set[str] = field(default_factory=set)
    mounts: dict[str, str] = field(default_factory=dict)
    kept: str = ""
    forced: bool = False

    def foreign_data(self, claim_uid: str = "") -> set[str]:
        """Data that a holder of this claim has no right to see."""
        return self.data - self.waived - {claim_uid}


class Disks:
    """All assets that exist, by `source_key`."""

    def __init__(self) -> None:
        self.by_key: dict[str, Disk] = {}

    def of(self, spec: Mapping[str, Any]) -> Disk | None:
        """Return the asset that a volume's spec or a pod's volume refers to."""
        return self.by_key.get(source_of(spec))
