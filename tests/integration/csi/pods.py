"""A kubelet's wishes of a node, and what is mounted for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.csi.caller import WRITER, Caller


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
