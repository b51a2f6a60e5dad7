"""One term of leadership: a control plane from its start to its orderly stop, and what ends it early."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from random import Random
from typing import Final

from volplane.drivers.driver import problem, why_none_works
from volplane.kube.events import EventRecorder
from volplane.process.control_plane import ControlPlane

__all__ = ["STOP_SECONDS", "Term"]

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 9.0
"""Less than the 10 s within which the process promises to end after SIGTERM."""
STEP_SECONDS: Final = 1.5
DRAIN_SECONDS: Final = 3.0
HOOK_SECONDS: Final = 1.5
EVENT_SECONDS: Final = 1.0
HUNG_SECONDS = 60.0
"""Seconds without a driver that could work after which the term ends, because only a restart frees its threads."""
HUNG_INTERVAL = 5.0


class Term:
    """Runs a control plane until it is told to stop or cannot go on. `gave_up` then says why, else it is empty."""

    def __init__(
        self,
        plane: ControlPlane,
        recorder: EventRecorder,
        *,
        resync: float,
        random: Random,
        needs_driver: bool,
        served_on_nodes: bool,
    ) -> None:
        """resync: seconds between passes over all objects, 0 = never. needs_driver: the controllers do nothing
        without one. served_on_nodes: processes of nodes serve a driver, whose claims are assigned here.
        """
        self.plane = plane
        self.stopping = False
        self.gave_up = ""
        self._recorder = recorder
        self._resync_seconds = resync
        self._random = random
        self._needs_driver = needs_driver
        self._served_on_nodes = served_on_nodes

    def no_driver_works(self) -> str:
        """Why no driver can work; "" = one can, or the controllers can do without."""
        if self._served_on_nodes:
            return ""
        return why_none_works(self.plane.drivers.status(), needed=self._needs_driver)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, by the caller or because the term gave up; then stop all in order.

        Cancelled, it stops in the same order.
        """
        plane = self.plane
        async with asyncio.TaskGroup() as group:
            events = group.create_task(self._recorder.run(), name="events")
            controllers = group.create_task(plane.run(), name="controllers")
            finding = [group.create_task(self._check_leaks(), name="leak check")]
            if plane.attachments is not None:
                finding.append(group.create_task(plane.attachments.run(), name="attachments"))
            keeping = [
                group.create_task(plane.drivers.keep(), name="drivers"),
                group.create_task(self._resync(), name="resync"),
                group.create_task(self._end_when_all_hang(stop), name="hanging drivers"),
                group.create_task(self._say_when_no_driver_works(), name="useless drivers"),
                group.create_task(self._end_when_restored(stop), name="restored server"),
            ]
            try:
                await stop.wait()
            finally:
                self.stopping = True
                for task in finding:
                    task.cancel()
                plane.leak_check.forget()
                plane.stop()
                await asyncio.wait({controllers}, timeout=STEP_SECONDS)
                left = await plane.operations.drain(DRAIN_SECONDS)
                if left:
                    log.warning("not waiting any longer for %s; the next start goes on with it", ", ".join(left))
                for task in (*keeping, controllers):
                    task.cancel()
                with suppress(TimeoutError):
                    async with asyncio.timeout(HOOK_SECONDS):
                        await plane.drivers.stop_all()
                plane.executor.close()
                await self._recorder.close(EVENT_SECONDS)
                events.cancel()

    def _give_up(self, why: str, stop: asyncio.Event) -> None:
        self.gave_up = why
        stop.set()

    async def _check_leaks(self) -> None:
        await self.plane.drivers.started.wait()
        await self.plane.leak_check.run()

    async def _end_when_all_hang(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        worked = loop.time()
        while loop.time() < worked + HUNG_SECONDS:
            await asyncio.sleep(HUNG_INTERVAL)
            if not self.plane.drivers.all_hang:
                worked = loop.time()
        names = ", ".join(status.name for status in self.plane.drivers.status())
        why = f"hooks hang in every driver ({names}) for {HUNG_SECONDS:g} s: ending, so that another can work"
        log.critical("%s", why)
        self._give_up(why, stop)

    async def _say_when_no_driver_works(self) -> None:
        """Log once that no driver can work, as long as that lasts, and once that one works again."""
        await self.plane.drivers.started.wait()
        said = ""
        while True:
            why = self.no_driver_works()
            if why and not said:
                problems = "; ".join(map(problem, self.plane.drivers.status()))
                log.error("%s: nothing is provisioned or deleted%s", why, f" ({problems})" if problems else "")
            elif said and not why:
                log.info("a driver works again")
            said = why
            await asyncio.sleep(HUNG_INTERVAL)

    async def _end_when_restored(self, stop: asyncio.Event) -> None:
        await self.plane.restored.wait()
        self._give_up(
            "the API server was restored from a backup, or replaced: ending, to start with empty caches", stop
        )

    async def _resync(self) -> None:
        """Queue all objects from time to time, in case an event was lost. Jitter: 10 %."""
        if not self._resync_seconds:
            return
        while True:
            await asyncio.sleep(self._resync_seconds * self._random.uniform(0.9, 1.1))
            await self.plane.resync()
