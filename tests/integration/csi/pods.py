"""A kubelet's wishes of a node, and what is mounted for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.csi.caller import WRITER, Caller, bridged
from volplane.csi.node import NodeOptions

MANY = {"mount": {}, "access_mode": {"mode": "MULTI_NODE_MULTI_WRITER"}}


def points(below: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{below}/")]


@dataclass(eq=False)
class Pods:
    """What a kubelet wants of a node."""

    csi: Caller
    kubelet: Path
    id: str = ""

    def target(self, name: str = "mount") -> str:
        return str(self.kubelet / "pods" / "a" / name)

    def demand(self, name: str = "mount", **fields: Any) -> dict[str, Any]:
        return {"volume_id": self.id, "target_path": self.target(name), "volume_capability": WRITER} | fields

    async def publish(self, name: str = "mount", **fields: Any) -> Path:
        await self.csi.call("NodePublishVolume", **self.demand(name, **fields))
        return Path(self.target(name))

    async def unpublish(self, name: str = "mount") -> None:
        await self.csi.call("NodeUnpublishVolume", volume_id=self.id, target_path=self.target(name))

    def mounted(self) -> list[str]:
        return sorted(Path(point).name for point in points(self.kubelet))


@asynccontextmanager
async def running(
    directory: Path, *, disk: str = "disk", made: str = "", capability: Any = None, **options: Any
) -> AsyncIterator[Pods]:
    """Serve a root in the directory, with a volume. made: its id, if an earlier process made it."""
    hostpath = pytest.importorskip("volplane_hostpath.testing")
    below = directory / disk
    if made:
        (below / "root").rename(below / "kept")
        (below / "elsewhere").rmdir()
    subject = hostpath.subject_below(below, **{"shared": True, **options})
    if made:
        (below / "root").rmdir()
        (below / "kept").rename(below / "root")
    node = NodeOptions(node_id="node-a", kubelet_dir=directory / "kubelet")
    async with bridged(subject, node=node) as csi:
        pods = Pods(csi, directory / "kubelet", made)
        if not made:
            pods.id = (
                await csi.create(
                    "pvc-1", volume_capabilities=[capability or (MANY if options.get("shared", 1) else WRITER)]
                )
            ).volume_id
        yield pods
