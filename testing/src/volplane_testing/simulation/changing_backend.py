"""A storage system whose assets grow, up to a size, and have attributes that can be changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from volplane import (
    Asset,
    DeleteRequest,
    DescribeRequest,
    Done,
    DriverInfo,
    ExpandRequest,
    InProgress,
    InvalidArgument,
    ModifyRequest,
    NotFound,
    hookimpl,
)
from volplane_testing.simulation.backends import AttachingBackend, BackendTraits
from volplane_testing.simulation.chance import Chance

__all__ = ["BROKEN_CLASS", "CHANGED_CLASSES", "LARGEST_GIB", "SPEED", "ChangingBackend"]

LARGEST_GIB: Final = 8
"""What an asset can have at most."""
SPEED: Final = "speed"
"""The one parameter of VolumeAttributesClasses."""
CHANGED_CLASSES: Final = {"silver": "50", "gold": "100"}
"""Name of a VolumeAttributesClass -> its speed."""
BROKEN_CLASS: Final = "broken"
"""One that the storage refuses."""


class ChangingBackend(AttachingBackend):
    """Its assets are attached to nodes, too. In some runs a node has to grow the file system."""

    def __init__(self, name: str, traits: BackendTraits, chance: Chance) -> None:
        super().__init__(name, traits, chance)
        self.speeds: dict[str, str] = {}
        """Handle -> what `modify` set last."""
        self.asked_while_attached: Callable[[str, str], None] = lambda _handle, _node: None
        """Called with handle and node when something is to be deleted that is attached."""
        self._node_grows = chance.number(f"{name} node grows") < 0.3

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), node_expansion_required=self._node_grows)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        stored = self._memory.assets.get(request.volume.handle)
        if stored is not None and stored.nodes:
            self.asked_while_attached(stored.handle, next(iter(stored.nodes)))
        return super().delete(request)

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        if request.capacity_bytes > LARGEST_GIB << 30:
            raise InvalidArgument(f"an asset has at most {LARGEST_GIB} GiB")
        return super().expand(request)

    @hookimpl
    def modify(self, request: ModifyRequest) -> Done | InProgress:
        volume = request.volume
        self._check_fence(volume.name, request.context)
        if volume.handle not in self._memory.assets:
            raise NotFound(f"{volume.handle} does not exist")
        speed = request.parameters.get(SPEED, "")
        if speed not in CHANGED_CLASSES.values():
            raise InvalidArgument(f"{SPEED} cannot be {speed!r}")
        if self._is_long(f"{volume.handle} becomes {speed}", request.context):
            return InProgress(retry_after=1.0, state={"becoming": speed})
        self.speeds[volume.handle] = speed
        return Done()
