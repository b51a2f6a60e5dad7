"""The owners of static volumes: calls the hook `owns` in the drivers' threads, and keeps the answers per source.

A static volume belongs to the one driver whose `owns` returns True. Each driver is asked about one source at a time, so
an `owns` that hangs costs its driver one thread. A driver whose call takes longer than `GRACE` is slow until a call of
it returns sooner: where another driver's answer is True, nobody waits for a slow one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from volplane.assets import VolumeSource
from volplane.drivers.driver import DriverView
from volplane.drivers.executor import HookCalls
from volplane.errors import BackendError, PluginError
from volplane.requests import Context, OwnsRequest

GRACE: Final = 1.0
"""Seconds after which a driver that has not answered holds up only the sources that no other driver owns."""
OWNS_TIMEOUT: Final = 30.0
MOST_SOURCES: Final = 10_000
"""Sources whose answers are kept; the oldest is forgotten first, and asked about again when it is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOwner:
    """The driver that owns the asset of a static volume, as far as it is known."""

    driver: DriverView | None = None
    reason: str = ""
    """Why there is no owner; "" if every driver answered no."""
    known: bool = True
    """False while drivers are to be asked (`DriverRegistry.identify`). `reason` has the failures of those asked."""
    starting: str = ""
    """The name of a driver that is starting and can be asked soon, or ""."""


@dataclass(eq=False, repr=False)
class SourceOwners:
    """The answers of all drivers. Belongs to one event loop."""

    _calls: HookCalls
    _cluster_id: str
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _answers: OrderedDict[str, dict[str, bool | str]] = field(default_factory=OrderedDict)
    """Source -> driver -> its answer, or the text of the error instead of one."""
    _searches: dict[str, _Search] = field(default_factory=dict)
    _askers: dict[str, _Asker] = field(default_factory=dict)

    def lookup(self, source: VolumeSource, drivers: Sequence[DriverView], doubts: Sequence[str]) -> SourceOwner:
        """Return the owner as known now. drivers: those that can be asked. doubts: why others cannot."""
        answers = self._answers.get(_key(source), {})
        owners = [driver for driver in drivers if answers.get(driver.name) is True]
        if len(owners) > 1:
            # Neither may delete it: one of the answers is wrong.
            return SourceOwner(reason=f"several drivers say it is theirs: {', '.join(d.name for d in owners)}")
        missing = [driver.name for driver in drivers if driver.name not in answers]
        if owners:
            # Another driver may still say that it is its own; only those that are slow are not waited for.
            slow = all((asker := self._askers.get(name)) is not None and asker.slow for name in missing)
            return SourceOwner(driver=owners[0]) if slow else SourceOwner(known=False)
        asked = [(driver.name, answers.get(driver.name)) for driver in drivers]
        failures = [f"driver {name} cannot tell whether it owns it: {e}" for name, e in asked if isinstance(e, str)]
        if failures:
            # A driver that cannot tell may be the owner, so that the others' no proves nothing.
            return SourceOwner(reason="; ".join([*doubts, *failures]), known=False)
        return SourceOwner(known=False) if missing else SourceOwner(reason="; ".join(doubts))

    async def identify(self, source: VolumeSource, drivers: Sequence[DriverView]) -> None:
        """Ask the drivers that have not answered; return once `lookup` knows the owner, or a driver was forgotten.

        Raises the BackendError or PluginError of one that failed, if the owner is not known without its answer.
        """
        key = _key(source)
        if (other := self._searches.get(key)) is not None:
            await asyncio.shield(other.ended)
            return
        answers = self._answers.get(key, {})
        missing = [driver for driver in drivers if not isinstance(answers.get(driver.name), bool)]
        if not missing:
            return
        loop = asyncio.get_running_loop()
        search = _Search(source, drivers, {driver.name for driver in missing}, loop.create_future())
        self._searches[key] = search
        for driver in missing:
            asker = self._askers.setdefault(driver.name, _Asker(driver))
            asker.waiting[key] = source
            if asker.task is None:
                # The registry's context: the calls do not belong to the operation that asks first.
                context, name = self._context.copy(), f"owns {driver.name}"
                asker.task = loop.create_task(self._work(asker), name=name, context=context)
        try:
            await search.ended
        finally:
            search.end()
            del self._searches[key]
            for name in search.missing:
                if (waiting := self._askers.get(name)) is not None:
                    waiting.waiting.pop(key, None)

    def forget_driver(self, name: str) -> None:
        """Drop all answers of a driver that was started again, or cannot be called any more."""
        self._askers.pop(name, None)
        for answers in self._answers.values():
            answers.pop(name, None)
        for search in list(self._searches.values()):
            if name in search.missing:
                search.missing.discard(name)
                search.end()

    def forget_source(self, source: VolumeSource) -> None:
        self._answers.pop(_key(source), None)

    async def _work(self, asker: _Asker) -> None:
        """Ask one driver about one source after the other, and end the searches whose owner is known then."""
        loop, name = asyncio.get_running_loop(), asker.driver.name
        context = Context(driver=name, cluster_id=self._cluster_id)
        try:
            while asker.waiting:
                key, source = next(iter(asker.waiting.items()))
                del asker.waiting[key]
                began, late = loop.time(), loop.call_later(GRACE, self._overdue, asker)
                error: Exception | None = None
                try:
                    request = OwnsRequest(context=context, source=source)
                    answer: bool | str = await self._calls.call(asker.driver, request, timeout=OWNS_TIMEOUT)
                except (BackendError, PluginError) as failure:
                    error, answer = failure, str(failure)
                finally:
                    late.cancel()
                if self._askers.get(name) is asker:  # else the driver was forgotten meanwhile
                    self._answers.setdefault(key, {})[name] = answer
                    while len(self._answers) > MOST_SOURCES:
                        self._answers.popitem(last=False)
                    if (search := self._searches.get(key)) is not None:
                        search.missing.discard(name)
                        search.error = search.error or error
                        self._check(search)
                if error is None and loop.time() - began < GRACE:
                    asker.slow = False
        finally:
            asker.task = None

    def _overdue(self, asker: _Asker) -> None:
        """End the searches that need not wait for a driver which has become slow."""
        if not asker.slow:
            asker.slow = True
            for search in list(self._searches.values()):
                self._check(search)

    def _check(self, search: _Search) -> None:
        if self.lookup(search.source, search.drivers, ()).known:
            search.end()
        elif not search.missing:
            search.end(search.error)


@dataclass(slots=True, eq=False)
class _Search:
    """An `identify` that waits."""

    source: VolumeSource
    drivers: Sequence[DriverView]
    missing: set[str]
    """Drivers that have not answered this search."""
    ended: asyncio.Future[None]
    error: Exception | None = None

    def end(self, error: Exception | None = None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


@dataclass(slots=True, eq=False)
class _Asker:
    driver: DriverView
    slow: bool = False
    waiting: dict[str, VolumeSource] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


def _key(source: VolumeSource) -> str:
    return f"{source.kind}:{sorted(source.fields.items())}"
