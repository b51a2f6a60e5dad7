"""The periodic comparison of attachments with what the backend says is attached, for drivers that list their assets.

An attachment is lost if the backend twice in a row does not show its asset at its node: that is reported on the volume,
and `attach` is called again. What the backend shows at a node for which there is no attachment is reported only: a
person may have attached it. Source: the reconcile sync of kubernetes-csi/external-attacher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from volplane.attach.identity import plugin_label
from volplane.attach.reconcilers import AttachMetrics
from volplane.attach.record import record_of
from volplane.backoff import LEAK_CHECK_WITHOUT_DRIVER
from volplane.controller import logs
from volplane.controller.actions import warning
from volplane.drivers.view import DriverView
from volplane.errors import VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import VolumeAttachment
from volplane.leaks.listing import assets_of
from volplane.state.records import AttachmentIntent

__all__ = ["INTERVAL", "AttachmentComparison"]

INTERVAL = 60.0
"""Seconds between comparisons, as those of the external-attacher."""

_VERIFY: Final = "verify_volumes_are_attached_per_node"
"""The stock controller's name of this operation, in metrics."""

log = logging.getLogger(__name__)


class AttachmentComparison:
    """Compares, and keeps what the last comparison saw."""

    def __init__(
        self,
        deps: OperationDeps,
        wake: Callable[[str], None],
        drivers: Iterable[str],
        metrics: AttachMetrics | None = None,
    ) -> None:
        """wake: queues an attachment. drivers: names of those that attach."""
        self._deps = deps
        self._cluster = deps.cluster
        self._wake = wake
        self._drivers = tuple(drivers)
        self._metrics = metrics
        self._missing: set[str] = set()
        """Uids of attachments that the last listing did not show."""
        self._unexpected: set[tuple[str, str]] = set()
        """(handle, node) that were reported."""

    async def run(self, interval: float = INTERVAL) -> None:
        """Compare every `interval` seconds, until cancelled."""
        for cache in (self._cluster.attachments, self._cluster.volumes, self._cluster.nodes):
            await cache.wait_synced()
        async with asyncio.TaskGroup() as group:
            for name in self._drivers:
                group.create_task(self._keep_comparing(name, interval), name=f"attachments of {name}")

    async def _keep_comparing(self, name: str, interval: float) -> None:
        with logs.bound(driver=name):
            while True:
                driver = self._cluster.drivers.get(name)
                if driver is None:
                    await asyncio.sleep(LEAK_CHECK_WITHOUT_DRIVER.delay())
                    continue
                if not driver.supports("list_assets") or not driver.info.attach_required:
                    return
                await asyncio.sleep(interval)
                try:
                    await self.compare(driver)
                except VolplaneError as error:
                    log.warning("the attachments could not be compared with the backend: %s", error)

    async def compare(self, driver: DriverView) -> None:
        """One comparison, which is counted. Raises BackendError or PluginError if the assets cannot be listed."""
        begun, failed = self._cluster.monotonic(), True
        try:
            await self._compare(driver)
            failed = False
        finally:
            if self._metrics is not None:
                plugin, seconds = plugin_label(driver.info.csi_driver_name or ""), self._cluster.monotonic() - begun
                self._metrics.attach_detach_ended(plugin, _VERIFY, seconds, failed=failed)

    async def _compare(self, driver: DriverView) -> None:
        before = {each.uid for each in self._attached(driver.name)}
        if not any(self._of(driver.name)):
            return
        listed = {asset.handle: asset.attached_to async for asset in assets_of(driver, self._deps)}
        busy = {state.key for state in self._deps.registry.snapshot()}
        for attachment in list(self._attached(driver.name)):
            record = record_of(attachment)
            if attachment.uid not in before or attachment.name in busy or record is None or record.handle not in listed:
                continue  # It was attached meanwhile, or the backend does not list such assets.
            if any(_is_node(place, attachment) for place in listed[record.handle]):
                self._missing.discard(attachment.uid)
            elif attachment.uid in self._missing:
                self._lost(attachment)
            else:
                self._missing.add(attachment.uid)
        self._missing &= {each.uid for each in self._attached(driver.name)}
        self._find_unexpected(driver.name, listed)

    def _of(self, driver: str) -> Iterator[tuple[VolumeAttachment, AttachmentIntent]]:
        for attachment in self._cluster.attachments.values():
            record = record_of(attachment)
            if record is not None and record.driver == driver:
                yield attachment, record

    def _attached(self, driver: str) -> Iterator[VolumeAttachment]:
        for attachment, _ in self._of(driver):
            if attachment.status.attached and not attachment.terminating:
                yield attachment

    def _lost(self, attachment: VolumeAttachment) -> None:
        self._missing.discard(attachment.uid)
        node = attachment.spec.node_name
        self._warn(attachment, "AttachmentLost", f"the backend does not show it attached to {node}; attaching it again")
        self._cluster.progress.track_attachment(attachment.uid).missed()
        self._wake(attachment.name)

    def _find_unexpected(self, driver: str, listed: dict[str, tuple[str, ...]]) -> None:
        """Assets at a node without an attachment, of volumes that have one to another node."""
        by_handle: dict[str, list[VolumeAttachment]] = {}
        for attachment, record in self._of(driver):
            by_handle.setdefault(record.handle, []).append(attachment)
        found: set[tuple[str, str]] = set()
        for handle, attachments in by_handle.items():
            for place in listed.get(handle, ()):
                if any(_is_node(place, each) for each in attachments):
                    continue
                found.add((handle, place))
                if (handle, place) not in self._unexpected:
                    text = f"the backend shows it attached to {place}, for which there is no VolumeAttachment"
                    self._warn(attachments[0], "UnexpectedAttachment", text)
        self._unexpected = found

    def _warn(self, attachment: VolumeAttachment, reason: str, text: str) -> None:
        log.warning("%s: %s", attachment.name, text)
        volume = self._cluster.volumes.get(attachment.spec.source.persistent_volume_name or "")
        if volume is not None:
            self._deps.recorder.record(warning(VOLUMES, volume, reason, text))


def _is_node(place: str, attachment: VolumeAttachment) -> bool:
    """Whether what the backend names, a node or an instance, is the node of the attachment."""
    node_id = attachment.annotation(names.NODE_ID) or ""
    return place in (attachment.spec.node_name, node_id) or node_id.endswith(f"/{place}")
