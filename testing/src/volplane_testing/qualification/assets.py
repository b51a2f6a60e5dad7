"""What the backend itself holds, asked through a driver of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from volplane.assets import ListedAsset, Snapshot, VolumeMode
from volplane.controller.config import read_configuration
from volplane.drivers.discovery import InstalledPlugins
from volplane.drivers.driver import Driver
from volplane.drivers.loading import load_drivers
from volplane.errors import ConfigurationError
from volplane.requests import Context, FindSnapshotRequest, HookRequest, ListRequest, StartRequest

__all__ = ["Assets"]

R = TypeVar("R")


class Assets:
    """The assets of one driver. cluster_id: as of its controllers."""

    def __init__(self, driver: Driver, cluster_id: str) -> None:
        self._driver = driver
        self._context = Context(driver=driver.name, cluster_id=cluster_id)
        self._started = False

    @classmethod
    def of(cls, configuration: Path, cluster_id: str) -> Assets:
        """Return the storage of the only driver in a configuration file. Blocks. Raises ConfigurationError."""
        loaded = load_drivers(read_configuration(configuration), InstalledPlugins())
        if loaded.broken:
            raise ConfigurationError(loaded.broken[0].error)
        return cls(loaded.drivers[0], cluster_id)

    @property
    def can_recycle(self) -> bool:
        """Whether the backend can erase volumes."""
        return self._driver.supports("recycle")

    @property
    def has_block_volumes(self) -> bool:
        """Whether the driver makes volumes of mode Block."""
        return VolumeMode.BLOCK in self._driver.view.info.volume_modes

    @property
    def can_expand(self) -> bool:
        """Whether the backend can grow volumes."""
        return self._driver.supports("expand")

    @property
    def makes_snapshots(self) -> bool:
        """Whether the backend makes snapshots."""
        return self._driver.supports("create_snapshot") and self._driver.supports("find_snapshot")

    @property
    def clones(self) -> bool:
        """Whether the driver makes copies of volumes."""
        return bool(self._driver.view.info.clones)

    @property
    def attaches(self) -> bool:
        """Whether the driver attaches its volumes to nodes."""
        return self._driver.supports("attach") and self._driver.view.info.attach_required

    async def names(self) -> frozenset[str] | None:
        """Return the names of all assets that it lists; None if the backend cannot list. Raises BackendError."""
        listed = await self.listed()
        return frozenset(listed) if listed is not None else None

    async def listed(self) -> Mapping[str, ListedAsset] | None:
        """Return all assets that it lists, by name; None if the backend cannot list. Raises BackendError."""
        if not self._driver.supports("list_assets"):
            return None
        return await asyncio.to_thread(self._listed)

    async def snapshot(self, handle: str) -> int | None:
        """Return the least size of what is made of a snapshot; None if the storage has none. Raises BackendError."""
        request = FindSnapshotRequest(context=self._context, handle=handle)
        found = await asyncio.to_thread(self._call, request)
        return found.size_bytes if isinstance(found, Snapshot) else None

    def _call(self, request: HookRequest[R]) -> R:
        """Call a hook of the driver, which is started first."""
        if not self._started:
            self._driver.call(StartRequest(context=self._context))
            self._started = True
        return self._driver.call(request)

    def _listed(self) -> Mapping[str, ListedAsset]:
        found: dict[str, ListedAsset] = {}
        token: str | None = None
        while True:
            page = self._call(ListRequest(context=self._context, page=token))
            found.update((asset.name, asset) for asset in page.assets)
            token = page.next_page
            if token is None:
                return found
