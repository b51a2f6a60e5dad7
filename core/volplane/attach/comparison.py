"""The periodic comparison of attachments with what the backend says is attached, for drivers that list their assets.

An attachment is lost if two listings in a row do not show its asset at its node: an Event on the volume reports that,
and `attach` is called again. Another Event reports an asset that the backend shows at a machine for which there is no
attachment. If the asset carries the marks of the volume, and the machine is a node of ours, the asset is detached after
a second listing (`attacher.unrecorded_attachment`). Any other asset stays attached, because a person may want that.
Source: the reconcile sync of kubernetes-csi/external-attacher, which does the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from volplane._delays import LEAK_CHECK_WITHOUT_DRIVER
from volplane.assets import ListedAsset
from volplane.attach.attacher import unrecorded_attachment
from volplane.attach.desired import plugin_label
from volplane.controller import logs
from volplane.controller.actions import warning
from volplane.drivers.driver import DriverView
from volplane.errors import Unsupported, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import volume_identity
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Node, Volume, VolumeAttachment
from volplane.leaks.comparison import assets_of
from volplane.state.progress import UnrecordedAttachment
from volplane.state.records import AttachmentIntent, attachment_intent_of

INTERVAL = 60.0
"""Seconds between comparisons, as those of the external-attacher."""

_VERIFY: Final = "verify_volumes_are_attached_per_node"
"""The stock controller's name of this operation, in metrics."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AttachmentComparison:
    """Compares periodically, and keeps what the last comparison saw."""

    deps: OperationDeps
    wake: Callable[[str], None]
    """Queues an attachment."""
    _missing: set[str] = field(default_factory=set, init=False)
    """Uids of attachments that the last listing did not show."""
    _unexpected: dict[str, set[tuple[str, str]]] = field(default_factory=dict, init=False)
    """Driver -> (handle, place) that its last listing showed without an attachment, and that were reported."""

    async def run(self, interval: float = INTERVAL) -> None:
        for cache in (self.deps.cluster.attachments, self.deps.cluster.volumes, self.deps.cluster.nodes):
            await cache.listed.wait()
        async with asyncio.TaskGroup() as group:
            for name in self.deps.drivers.names():
                group.create_task(self._keep_comparing(name, interval), name=f"attachments of {name}")

    async def _keep_comparing(self, name: str, interval: float) -> None:
        with logs.bound(driver=name):
            while True:
                driver = self.deps.cluster.drivers.get(name)
                if driver is None:
                    await asyncio.sleep(LEAK_CHECK_WITHOUT_DRIVER.delay())
                    continue
                if not driver.supports("list_assets") or not driver.info.attach_required:
                    return
                await asyncio.sleep(interval)
                try:
                    await self.compare(driver)
                except Unsupported:
                    return
                except VolplaneError as error:
                    log.warning("the attachments could not be compared with the backend: %s", error)
                except Exception:
                    log.exception("the attachments could not be compared with the backend")

    async def compare(self, driver: DriverView) -> None:
        """Compare once, and count it. Raises BackendError or PluginError if the assets cannot be listed."""
        cluster = self.deps.cluster
        started, failed = cluster.monotonic(), True
        before = {each.uid for each, _ in self._attached(driver.name)}
        stood: dict[str, list[VolumeAttachment]] = {}
        for attachment, record in self._of(driver.name):
            stood.setdefault(record.handle, []).append(attachment)
        volumes = cluster.volumes.values()
        try:
            if stood or any(each.annotation(names.PROVISIONED_BY) == driver.name for each in volumes):
                listed = {asset.handle: asset async for asset in assets_of(driver, self.deps)}
                self._find_lost(driver.name, listed, before)
                self._find_unexpected(driver.name, listed, stood)
            failed = False
        finally:
            if (metrics := self.deps.metrics) is not None:
                plugin, seconds = plugin_label(driver.info.csi_driver_name or ""), cluster.monotonic() - started
                metrics.attach_detach_ended(plugin, _VERIFY, seconds, failed=failed)

    def _of(self, driver: str) -> Iterator[tuple[VolumeAttachment, AttachmentIntent]]:
        for attachment in self.deps.cluster.attachments.values():
            record = attachment_intent_of(attachment)
            if record is not None and record.driver == driver:
                yield attachment, record

    def _attached(self, driver: str) -> Iterator[tuple[VolumeAttachment, AttachmentIntent]]:
        return ((each, record) for each, record in self._of(driver) if each.status.attached and not each.terminating)

    def _find_lost(self, driver: str, listed: Mapping[str, ListedAsset], before: Container[str]) -> None:
        busy = {state.key for state in self.deps.registry.snapshot()}
        for attachment, record in list(self._attached(driver)):
            if attachment.uid not in before or attachment.name in busy or record.handle not in listed:
                continue  # It was attached meanwhile, or the backend does not list such assets.
            if any(_is_node(place, attachment) for place in listed[record.handle].attached_to):
                self._missing.discard(attachment.uid)
            elif attachment.uid in self._missing:
                self._missing.discard(attachment.uid)
                text = f"the backend does not show it attached to {attachment.spec.node_name}; attaching it again"
                self._warn(attachment.spec.source.persistent_volume_name or "", "AttachmentLost", text)
                known = self.deps.cluster.progress.attachments.track(attachment.uid)
                known.step, known.lost = None, True
                self.wake(attachment.name)
            else:
                self._missing.add(attachment.uid)
        self._missing &= {each.uid for name in self.deps.drivers.names() for each, _ in self._attached(name)}

    def _find_unexpected(
        self, driver: str, listed: Mapping[str, ListedAsset], stood: Mapping[str, list[VolumeAttachment]]
    ) -> None:
        """Find what is attached without an attachment, of volumes that have attachments or that the driver made.

        stood: by handle, the attachments from before the listing, which may be gone since.
        """
        cluster, nodes = self.deps.cluster, _nodes_by_place(self.deps.cluster.nodes.values())
        seen, found = self._unexpected.get(driver, set()), set()
        for name in [name for name, each in cluster.progress.unrecorded.items() if each.driver == driver]:
            del cluster.progress.unrecorded[name]
        by_handle = {record.handle: record.volume for _, record in self._of(driver)}
        for asset in listed.values():
            marked = self._marked_by(asset, driver) if asset.attached_to else None
            volume = marked or cluster.volumes.get(by_handle.get(asset.handle, ""))
            if volume is None:
                continue  # It is attached to nothing, or the leak check reports it.
            attachments = [*cluster.attachments_of(volume), *stood.get(asset.handle, ())]
            for place in asset.attached_to:
                node = nodes.get(place)
                if any(_is_node(place, each, node) for each in attachments):
                    continue  # That is as it should be.
                found.add((asset.handle, place))
                # What lacks our marks, or is at a machine that is no node of ours, may be attached on purpose.
                leaves = node is not None and marked is not None
                if (asset.handle, place) not in seen:
                    follows = "it is detached if that stays so" if leaves else "a person may want that, and it stays"
                    where = f"to {node.name if node is not None else place}, for which there is no VolumeAttachment"
                    text = f"the backend shows it attached {where}; {follows}"
                    self._warn(volume.name, "UnexpectedAttachment", text)
                elif node is not None and leaves:
                    self._left_over(volume, node, driver)
        self._unexpected[driver] = found

    def _marked_by(self, asset: ListedAsset, driver: str) -> Volume | None:
        """Return the volume whose marks the asset carries, if the driver made that and it points at the asset."""
        cluster = self.deps.cluster
        volume = cluster.volumes.get(asset.owner.volume_name) if asset.owner is not None else None
        if volume is None or volume.annotation(names.PROVISIONED_BY) != driver:
            return None  # A person or another driver made the volume: the marks may have been copied.
        identity = volume_identity(volume, cluster.cluster_id)
        return volume if (identity.handle, identity.owner) == (asset.handle, asset.owner) else None

    def _left_over(self, volume: Volume, node: Node, driver: str) -> None:
        cluster = self.deps.cluster
        if name := unrecorded_attachment(volume, node.name, driver, cluster):
            log.info("%s is attached to %s without a VolumeAttachment: creating that", volume.name, node.name)
            now = cluster.monotonic()
            cluster.progress.unrecorded[name] = UnrecordedAttachment(
                volume=volume.name, uid=volume.uid, driver=driver, node=node.name, node_uid=node.uid, seen=now
            )
            self.wake(name)

    def _warn(self, volume: str, reason: str, text: str) -> None:
        log.warning("volume %s: %s", volume, text)
        if (about := self.deps.cluster.volumes.get(volume)) is not None:
            self.deps.recorder.record(warning(VOLUMES, about, reason, text))


def _nodes_by_place(nodes: Iterable[Node]) -> dict[str, Node | None]:
    """Return the node for what a backend calls a node or an instance; None if more than one may be meant.

    A backend may name the end of a machine's id: "aws:///z/i-1" is also "z/i-1" and "i-1".
    """
    found: dict[str, Node | None] = {}
    for node in nodes:
        parts = node.spec.provider_id.split("/")
        for name in {node.name, *("/".join(parts[start:]) for start in range(len(parts)))} - {""}:
            found[name] = None if name in found else node
    return found


def _is_node(place: str, attachment: VolumeAttachment, node: Node | None = None) -> bool:
    """Return whether what the backend names is the node of the attachment. node: the one of that place, if known."""
    node_id, name = attachment.annotation(names.NODE_ID) or "", attachment.spec.node_name
    return place in (name, node_id) or node_id.endswith(f"/{place}") or (node is not None and node.name == name)
