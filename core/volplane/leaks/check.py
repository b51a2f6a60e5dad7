"""The leak check of a running controller: asks every driver that can list its assets, every 10 minutes.

Assets that the caches explain need no call of the API. Only if some are left unexplained are the claims and then the
volumes read live, page by page, after the listing: absence from a cache proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from volplane._delays import LEAK_CHECK_FAILED, LEAK_CHECK_WITHOUT_DRIVER
from volplane._messages import nearest
from volplane.controller import logs
from volplane.controller.actions import warning
from volplane.controller.metrics import Metrics
from volplane.drivers.view import DriverView
from volplane.errors import VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import segments_of
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Volume
from volplane.leaks.comparison import (
    Comparison,
    Finding,
    Observations,
    Verdict,
    assets_of,
    feed_cached,
    feed_live,
    findings_of,
    paced,
)

__all__ = ["INTERVAL", "CheckStatus", "LeakCheck"]

INTERVAL = 600.0
JITTER = 0.1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckStatus:
    """The state of the check of a driver."""

    driver: str
    attempts: int = 0
    """How many checks have ended, complete or not."""
    can_list: bool | None = None
    """None = not known yet."""
    ended: float | None = None
    """Loop time of the last complete check."""
    error: str = ""
    """Why the last one failed."""


class LeakCheck:
    """Checks the drivers called `drivers`, and keeps the findings."""

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
        self._wanted = {name: asyncio.Event() for name in self._status}
        """Set: a check of this driver is requested."""
        self._running: set[str] = set()
        self._warned: set[tuple[str, str, str, str]] = set()

    def status(self) -> tuple[CheckStatus, ...]:
        """Return every driver's check, by name."""
        return tuple(self._status.values())

    def request(self, driver: str = "") -> Mapping[str, int]:
        """Check this driver, or all of them, at once instead of at the next turn.

        Returns driver -> the attempts after which a check that began later than now has ended, for all drivers that can
        be checked. Raises VolplaneError for a driver that there is not.
        """
        if driver and driver not in self._status:
            raise VolplaneError(f"there is no driver {driver!r}{nearest(driver, self._status)}")
        targets: dict[str, int] = {}
        for name, status in self._status.items():
            view = self._cluster.drivers.get(name)
            if driver in ("", name) and view is not None and view.supports("list_assets"):
                self._wanted[name].set()
                targets[name] = status.attempts + (2 if name in self._running else 1)
        return targets

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
                    await self._pause(name, LEAK_CHECK_WITHOUT_DRIVER.delay())
                    continue
                if not driver.supports("list_assets"):
                    self._status[name] = CheckStatus(driver=name, can_list=False)
                    return
                if await self.check(driver):
                    await self._pause(name, INTERVAL * self._random.uniform(1.0, 1.0 + JITTER))
                else:
                    await self._pause(name, LEAK_CHECK_FAILED.delay(random=self._random))

    async def _pause(self, name: str, seconds: float) -> None:
        """Wait for the next turn, or for a request to check now."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted[name].wait()

    async def check(self, driver: DriverView) -> bool:
        """Check once; return whether it was complete. An incomplete check changes no finding."""
        self._wanted[driver.name].clear()
        self._running.add(driver.name)
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
        finally:
            self._running.discard(driver.name)
        return False

    def _failed(self, name: str, why: str) -> None:
        before = self._status[name]
        self._status[name] = CheckStatus(
            driver=name, attempts=before.attempts + 1, can_list=True, ended=before.ended, error=why
        )
        if self._metrics is not None:
            self._metrics.leak_checked(name, None)

    async def _check(self, driver: DriverView) -> None:
        clock = asyncio.get_running_loop().time
        # Only volumes that existed before the listing began can be ghosts.
        volumes = paced(list(self._cluster.volumes.values()))
        known = {each.uid async for each in volumes if each.annotation(names.PROVISIONED_BY) == driver.name}
        began = clock()
        comparison = Comparison(driver.name, self._cluster.cluster_id, known=known, in_reach=self._in_reach)
        async for asset in assets_of(driver, self._deps):
            comparison.add_asset(asset)
        ended = clock()
        await feed_cached(comparison, self._cluster)
        findings = await findings_of(comparison)
        # Absence from a cache proves nothing: what the caches leave unexplained is compared with live objects.
        if any(finding.verdict is not Verdict.FOREIGN for finding in findings):
            comparison.forget_objects()
            await feed_live(comparison, self._deps.client)
            findings = await findings_of(comparison)
        self._learn(driver.name, findings, began, ended)
        log.debug("checked, %d findings", len(findings))

    def _in_reach(self, volume: Volume) -> bool:
        """Return whether this process can see the volume's asset: it has no place, or lies on the process's node."""
        places = segments_of(volume)
        if self._node_name is None or not places:
            return True
        node = self._cluster.nodes.get(self._node_name)
        labels = (node.metadata.labels or {}) if node is not None else {}
        return any(place.items() <= labels.items() for place in places)

    # --- what was seen ------------------------------------------------------------------------------------------

    def _learn(self, name: str, findings: list[Finding], began: float, ended: float) -> None:
        fresh = self.observations.add(name, findings, began=began, ended=ended)
        self._status[name] = CheckStatus(
            driver=name,
            attempts=self._status[name].attempts + 1,
            can_list=True,
            ended=asyncio.get_running_loop().time(),
        )
        for finding in fresh:
            if finding.verdict is not Verdict.FOREIGN:
                log.info("%s: %s (it counts if the next check finds it too)", _describe(finding), finding.detail)
        self._warn(name, findings)
        if self._metrics is not None:
            self._metrics.leak_checked(name, self._cluster.now().timestamp())
        self._count(name)

    def _warn(self, name: str, findings: Iterable[Finding]) -> None:
        """Log each confirmed finding once, as long as it lasts; record events about ghosts."""
        confirmed = {
            finding.key: finding
            for finding in findings
            if finding.verdict is not Verdict.FOREIGN and self.observations.confirmed(finding)
        }
        for key in confirmed.keys() - self._warned:
            log.warning("%s: %s", _describe(confirmed[key]), confirmed[key].detail)
        for finding in confirmed.values():
            if finding.verdict is Verdict.GHOST:
                self._record_event(finding)
        self._warned = {key for key in self._warned if key[1] != name} | confirmed.keys()

    def _record_event(self, ghost: Finding) -> None:
        """Record on the volume and its claim that the asset is gone: at every check the same event, which is counted.

        The reason is the one that external-health-monitor of CSI gives.
        """
        volume = self._cluster.volumes.get(ghost.volume)
        if volume is None:
            return
        what = f"asset {ghost.handle}" if ghost.handle else "the asset"
        text = (
            f"{what} of volume {volume.name} is not on the backend of driver {ghost.driver}: its data cannot be "
            "reached; restore the asset, or delete the claim"
        )
        self._deps.recorder.record(warning(VOLUMES, volume, "VolumeConditionAbnormal", text))
        reference = volume.spec.claim_ref
        claim = self._cluster.claims.get(reference.key) if reference is not None else None
        if claim is not None and reference is not None and reference.uid in ("", None, claim.uid):
            self._deps.recorder.record(warning(CLAIMS, claim, "VolumeConditionAbnormal", text))

    def settled(self, finding: Finding) -> None:
        """Drop a finding that has been repaired."""
        self.observations.settled(finding)
        self._warned.discard(finding.key)
        self._count(finding.driver)

    def _count(self, name: str) -> None:
        if self._metrics is not None:
            for verdict in Verdict:
                self._metrics.leak_findings(name, verdict, self.observations.count(name, verdict))

    def forget(self) -> None:
        """Reset findings and their metrics: another process checks from now on."""
        self.observations = Observations()
        for name in self._status:
            self._count(name)


def _describe(finding: Finding) -> str:
    what = finding.handle or finding.volume
    return f"{finding.verdict} {what}" + (f" of volume {finding.volume}" if finding.volume not in ("", what) else "")
