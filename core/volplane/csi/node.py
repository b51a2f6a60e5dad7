"""The service Node, for directories of this machine and of NFS servers. It asks nobody but the backend and the kernel.

Where a volume lies says `inspect`, never what a caller sends: people write that into PersistentVolumes. Calls of the
kernel may never return, so that each has a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from volplane.assets import ListedAsset, VolumeMode
from volplane.csi.bridge import Bridge
from volplane.csi.capabilities import read_capabilities, why_not
from volplane.csi.codes import CsiError, code_of, is_final
from volplane.csi.flights import Flight
from volplane.csi.ids import LONGEST_NODE, required_id
from volplane.csi.mounts import Targets
from volplane.csi.sources import Source, is_read_only, source_of
from volplane.csi.usage import Figures, Usages
from volplane.csi.wire import build, message
from volplane.errors import BackendError, ConfigurationError

T = TypeVar("T")

HOSTNAME: Final = "kubernetes.io/hostname"
CAPABILITIES: Final = ("GET_VOLUME_STATS", "VOLUME_CONDITION", "SINGLE_NODE_MULTI_WRITER")
"""Nothing is staged. Block devices grow on the node (EXPAND_VOLUME)."""
LONGEST_PATH: Final = 4096
MOST_THREADS: Final = 256
"""That hang, for unmounting; half as many for anything else."""
_READERS: Final = ("SINGLE_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the service is to know of its machine. Raises ConfigurationError."""

    node_id: str
    kubelet_dir: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of the node in the cluster, as far as they are topology keys of the driver."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.node_id) <= LONGEST_NODE:
            raise ConfigurationError(f"--node-id is {self.node_id!r}, expected 1 to {LONGEST_NODE} characters")
        if not self.kubelet_dir.is_absolute() or not self.kubelet_dir.is_dir():
            raise ConfigurationError(f"--kubelet-dir is {self.kubelet_dir}, expected an absolute path of a directory")

    def place(self, keys: Sequence[str]) -> dict[str, str]:
        """Return where the node is. Raises ConfigurationError for a topology key without a value."""
        known = {HOSTNAME: self.node_id, **self.labels}
        missing = [key for key in keys if key not in known]
        if missing:
            raise ConfigurationError(f"the driver has topology key {missing[0]}; give --node-label {missing[0]}=VALUE")
        return {key: known[key] for key in keys}


async def in_thread(work: Callable[[], T]) -> T:
    """Return what the work returns, in a thread of its own, which may hang for ever."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: Any) -> None:
        if not result.done():
            set_(value)

    def perform() -> None:
        try:
            call = (result.set_result, work())
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            call = (result.set_exception, error)  # type: ignore[assignment]
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, *call)

    threading.Thread(target=perform, name="csi-node", daemon=True).start()
    return await result


class Node:
    """Mounts volumes for pods."""

    def __init__(self, bridge: Bridge, options: NodeOptions) -> None:
        self._bridge = bridge
        self._options = options
        self._place = options.place(bridge.keys)
        self._targets = Targets(options.kubelet_dir, bridge.view.name)
        self._serves_devices = VolumeMode.BLOCK in bridge.view.info.volume_modes
        self._usages = Usages()
        self._threads = 0
        self._alone: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By volumes, while one for a single pod is looked for and mounted."""

    async def info(self) -> Any:
        place = {"segments": self._place} if self._place else None
        return build("NodeGetInfoResponse", node_id=self._options.node_id, accessible_topology=place)

    async def capabilities(self) -> Any:
        rpc = message("NodeServiceCapability.RPC")
        found = [*CAPABILITIES, "EXPAND_VOLUME"] if self._serves_devices else CAPABILITIES
        return build("NodeGetCapabilitiesResponse", capabilities=[{"rpc": rpc(type=each)} for each in found])

    # --- mounting ---------------------------------------------------------------------------------------------------

    async def publish(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        target = self._targets.check(required_id(request.target_path, "target_path", LONGEST_PATH), "target_path")
        if not request.HasField("volume_capability"):
            raise CsiError("INVALID_ARGUMENT", "volume_capability is missing")
        wanted = read_capabilities([request.volume_capability], "volume_capability")
        if flaw := why_not(wanted, self._bridge.view.info):
            raise CsiError("INVALID_ARGUMENT", f"volume_capability: {flaw}")
        asked = request.volume_capability.access_mode
        mode = asked.DESCRIPTOR.enum_types_by_name["Mode"].values_by_number[asked.mode].name
        read_only, alone = request.readonly or mode in _READERS, mode == "SINGLE_NODE_SINGLE_WRITER"

        async def work(_flight: Flight) -> Any:
            asset = await self._bridge.existing(id_)
            loops = self._targets.loops if wanted.volume_mode is VolumeMode.BLOCK else None
            reading = read_only or is_read_only(asset, wanted.mount_options)
            source = source_of(asset, wanted.mount_options, loops=loops, read_only=reading, make=True)
            lock = self._alone.setdefault(id_, asyncio.Lock())
            async with lock if alone else asyncio.Lock():
                await self._run(target, lambda: self._targets.publish(source, target, read_only=reading, alone=alone))
            return build("NodePublishVolumeResponse")

        async def say_no_end_of_what_is_mounted(flight: Flight) -> Any:
            try:
                return await work(flight)
            except (BackendError, CsiError) as error:
                if isinstance(error, CsiError):
                    code = error.code
                else:
                    code = code_of(error, "NodePublishVolume", nothing_there=True)
                final = code != "ALREADY_EXISTS" and is_final(code, "NodePublishVolume")
                if final and await self._run(target, lambda: self._targets.is_mounted(target)):
                    # By an earlier attempt. The kubelet would think that nothing is, and unmount nothing.
                    raise CsiError("ABORTED", f"{target} is mounted, but now: {error}") from None
                raise

        method = "NodePublishVolume"
        return await self._bridge.flights.run(
            method, f"target {target}", digest, say_no_end_of_what_is_mounted, seconds
        )

    async def unpublish(self, request: Any, _digest: bytes, seconds: float) -> Any:
        """Unmount; without a look at the volume, which may be gone as well as its storage."""
        id_ = required_id(request.volume_id, "volume_id")
        target = self._targets.check(required_id(request.target_path, "target_path", LONGEST_PATH), "target_path")

        async def work(_flight: Flight) -> Any:
            await self._run(target, lambda: self._targets.unpublish(target), MOST_THREADS)
            self._usages.forget(id_)
            return build("NodeUnpublishVolumeResponse")

        return await self._bridge.flights.run("NodeUnpublishVolume", f"target {target}", b"unpublish", work, seconds)

    # --- published volumes ------------------------------------------------------------------------------------------

    async def stats(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.volume_id, "volume_id")
        path = required_id(request.volume_path, "volume_path", LONGEST_PATH)

        async def work(_flight: Flight) -> Any:
            asset = await self._bridge.existing(id_)

            def look() -> tuple[Figures, ...]:
                with self._targets.published(self._source_at(path, asset), path) as volume:
                    return self._usages.of(id_, volume, asset.capacity_bytes)

            usage = [
                {"unit": unit, "total": each.total, "used": each.used, "available": each.available}
                for unit, each in zip(("BYTES", "INODES"), await self._run(path, look), strict=False)
            ]
            condition = {"abnormal": bool(asset.condition), "message": asset.condition or "nothing is known against it"}
            return build("NodeGetVolumeStatsResponse", usage=usage, volume_condition=condition)

        return await self._bridge.flights.run("NodeGetVolumeStats", f"usage of {id_}", digest, work, seconds)

    async def expand(self, request: Any, digest: bytes, seconds: float) -> Any:
        """Let a block device grow, and tell the size: a directory has grown once the Controller says so."""
        id_ = required_id(request.volume_id, "volume_id")
        path = required_id(request.volume_path, "volume_path", LONGEST_PATH)

        async def work(_flight: Flight) -> Any:
            asset = await self._bridge.existing(id_)

            def grow() -> None:
                with self._targets.published(self._source_at(path, asset), path) as found:
                    found.volume.grow()

            await self._run(path, grow)
            return build("NodeExpandVolumeResponse", capacity_bytes=asset.capacity_bytes)

        return await self._bridge.flights.run("NodeExpandVolume", f"usage of {id_}", digest, work, seconds)

    def _source_at(self, path: str, asset: ListedAsset) -> Source:
        """Return the volume as what is at a place: calls about a published volume do not say its mode."""
        return source_of(asset, loops=self._targets.loops if self._targets.is_device(path) else None)

    async def _run(self, path: str, work: Callable[[], T], most: int = MOST_THREADS // 2) -> T:
        """Do what may hang, unless so many calls do already. Raises CsiError."""
        if self._threads >= most:
            raise CsiError("UNAVAILABLE", f"{self._threads} calls of the kernel hang on this node")
        self._threads += 1
        try:
            return await in_thread(work)
        except OSError as error:
            # Not final: the caller would think that nothing is mounted.
            raise CsiError("UNAVAILABLE", f"{error.filename or path}: {error.strerror}") from None
        finally:
            self._threads -= 1
