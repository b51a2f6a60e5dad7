"""The leak check of a running controller: asks every driver that can list its assets, every 10 minutes.

What the caches explain needs no call of the API. Only if something is left unexplained are the claims and then the
volumes read live, page by page, after the listing: absence from a cache proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from volplane.backoff import LEAK_CHECK_FAILED, LEAK_CHECK_WITHOUT_DRIVER
from volplane.controller import logs
from volplane.controller.metrics import Metrics
from volplane.drivers.view import DriverView
from volplane.errors import VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import segments_of
from volplane.kube import names
from volplane.kube.objects import Volume
from volplane.leaks.comparison import Comparison, Finding, Observations, Verdict
from volplane.leaks.listing import assets_of, feed_cached, feed_live, findings_of, paced
from volplane.state.cluster_state import ClusterState

__all__ = ["INTERVAL", "CheckStatus", "LeakCheck"]

INTERVAL = 600.0
JITTER = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStatus:
    """How far the check of a driver is. ended: loop time of the last complete check; error: why the last one failed.

    can_list: None = not known yet.
    """

    driver: str
    can_list: bool | None = None
    ended: float | None = None
    error: str = ""


class LeakCheck:
    """Checks the drivers called `drivers`, and keeps what it saw."""

    def __init__(
        self,
        deps: OperationDeps,
        drivers: Sequence[str],
        *,
        random: Random,
        node_name: str | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """node_name: where this process runs, if its drivers reach the storage of this node only."""
        self.observations = Observations()
        self._cluster = deps.cluster
        self._deps = deps
        self._random = random
        self._node_name = node_name
        self._metrics = metrics
        self._status = {name: CheckStatus(driver=name) for name in sorted(drivers)}
        self._warned: set[tuple[str, str, str, str]] = set()

    @property
    def cluster(self) -> ClusterState:
        return self._cluster

    def status(self) -> tuple[CheckStatus, ...]:
        """Every driver's check, by name."""
        return tuple(self._status.values())

    async def run(self) -> None:
        """Check every driver now and then, until cancelled. Starts once the caches are synced."""
        for cache in (self._cluster.claims, self._cluster.volumes, self._cluster.nodes):
            await cache.wait_synced()
        async with asyncio.TaskGroup() as group:
            for name in self._status:
                group.create_task(self._keep_checking(name), name=f"leak check {name}")

    async def _keep_checking(self, name: str) -> None:
        with logs.bound(driver=name):
            while True:
                driver = self._cluster.drivers.get(name)
                if driver is None:
                    await asyncio.sleep(LEAK_CHECK_WITHOUT_DRIVER.delay())
                    continue
                if not driver.supports("list_assets"):
                    self._status[name] = CheckStatus(driver=name, can_list=False)
                    return
                if await self.check(driver):
                    await asyncio.sleep(INTERVAL * self._random.uniform(1.0, 1.0 + JITTER))
                else:
                    await asyncio.sleep(LEAK_CHECK_FAILED.delay(random=self._random))

    async def check(self, driver: DriverView) -> bool:
        """One check; whether it was complete. What an incomplete one saw counts for nothing."""
        try:
            await self._check(driver)
        except VolplaneError as error:
            self._failed(driver.name, str(error))
            log.warning("the leak check failed: %s", error)
        except Exception as error:
            self._failed(driver.name, f"an internal error: {type(error).__name__}: {error}")
            log.exception("the leak check failed")
        else:
            return True
        return False

    def _failed(self, name: str, why: str) -> None:
        before = self._status[name]
        self._status[name] = CheckStatus(driver=name, can_list=True, ended=before.ended, error=why)
        if self._metrics is not None:
            self._metrics.leak_checked(name, None)

    async def _check(self, driver: DriverView) -> None:
        clock = asyncio.get_running_loop().time
        known = await self._known(driver.name)
        began = clock()
        comparison = Comparison(driver.name, self._cluster.settings.cluster_id, known=known, in_reach=self._in_reach)
        async for asset in assets_of(driver, self._deps):
            comparison.add_asset(asset)
        ended = clock()
        await feed_cached(comparison, self._cluster)
        findings = await findings_of(comparison)
        if any(finding.verdict is not Verdict.FOREIGN for finding in findings):
            comparison.forget_objects()
            await feed_live(comparison, self._deps.client)
            findings = await findings_of(comparison)
        self._learn(driver.name, findings, began, ended)
        log.debug("checked, %d findings", len(findings))

    async def _known(self, name: str) -> set[str]:
        """Volumes of the driver before its listing begins."""
        volumes = paced(list(self._cluster.volumes.values()))
        return {volume.uid async for volume in volumes if volume.annotation(names.PROVISIONED_BY) == name}

    def _in_reach(self, volume: Volume) -> bool:
        """Whether the volume lies where this process can look: anywhere, or on its node."""
        places = segments_of(volume)
        if self._node_name is None or not places:
            return True
        node = self._cluster.nodes.get(self._node_name)
        labels = (node.metadata.labels or {}) if node is not None else {}
        return any(place.items() <= labels.items() for place in places)

    # --- what was seen ------------------------------------------------------------------------------------------

    def _learn(self, name: str, findings: list[Finding], began: float, ended: float) -> None:
        fresh = self.observations.add(name, findings, began=began, ended=ended)
        self._status[name] = CheckStatus(driver=name, can_list=True, ended=asyncio.get_running_loop().time())
        for finding in fresh:
            if finding.verdict is not Verdict.FOREIGN:
                log.info("%s: %s (it counts if the next check finds it too)", _told(finding), finding.detail)
        self._warn(name, findings)
        if self._metrics is not None:
            self._metrics.leak_checked(name, self._cluster.now().timestamp())
        self._count(name)

    def _warn(self, name: str, findings: Iterable[Finding]) -> None:
        """Each finding that is confirmed once, as long as it lasts."""
        confirmed = {
            finding.key: finding
            for finding in findings
            if finding.verdict is not Verdict.FOREIGN and self.observations.confirmed(finding)
        }
        for key in confirmed.keys() - self._warned:
            log.warning("%s: %s", _told(confirmed[key]), confirmed[key].detail)
        self._warned = {key for key in self._warned if key[1] != name} | confirmed.keys()

    def settled(self, finding: Finding) -> None:
        """A finding has been repaired."""
        self.observations.settled(finding)
        self._warned.discard(finding.key)
        self._count(finding.driver)

    def _count(self, name: str) -> None:
        if self._metrics is not None:
            for verdict in Verdict:
                self._metrics.leak_findings(name, verdict, self.observations.count(name, verdict))

    def forget(self) -> None:
        """Take the counts back: another process checks from now on."""
        self.observations = Observations()
        for name in self._status:
            self._count(name)


def _told(finding: Finding) -> str:
    what = finding.handle or finding.volume
    return f"{finding.verdict} {what}" + (f" of volume {finding.volume}" if finding.volume not in ("", what) else "")
