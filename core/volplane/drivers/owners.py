"""The owners of static volumes: calls the hook `owns` in the drivers' threads, and keeps the answers per source.

A static volume belongs to the one driver whose `owns` returns True. Each driver is asked about one source at a time, so
an `owns` that hangs costs its driver one thread. A driver whose call takes longer than `GRACE` is slow until a call of
it returns sooner: where another driver's answer is True, nobody waits for a slow one.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from volplane.assets import VolumeSource
from volplane.drivers.view import DriverView
from volplane.errors import BackendError, PluginError

__all__ = ["SourceOwner", "SourceOwners"]

GRACE: Final = 1.0
"""Seconds after which a driver that has not answered holds up only the sources that no other driver owns."""
MOST_SOURCES: Final = 10_000
"""Sources whose answers are kept; the oldest is forgotten first, and asked about again when it is needed."""

Ask = Callable[[str, VolumeSource], Awaitable[bool]]
"""(driver, source) -> what `owns` returned. Raises BackendError or PluginError."""


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


class SourceOwners:
    """The answers of all drivers. Belongs to one event loop."""

    def __init__(self, ask: Ask) -> None:
        self.context = contextvars.copy_context()
        self._ask = ask
        self._answers: OrderedDict[str, dict[str, bool | str]] = OrderedDict()
        """Source -> driver -> its answer, or the text of the error instead of one."""
        self._searches: dict[str, _Search] = {}
        self._askers: dict[str, _Asker] = {}

    def lookup(self, source: VolumeSource, drivers: Sequence[DriverView], doubts: Sequence[str]) -> SourceOwner:
        """Return the owner as known now. drivers: those that can be asked. doubts: why others cannot."""
        answers = self._answers.get(_key(source), {})
        owners = [driver for driver in drivers if answers.get(driver.name) is True]
        if len(owners) > 1:
            return SourceOwner(reason=f"several drivers say it is theirs: {', '.join(d.name for d in owners)}")
        missing = [driver.name for driver in drivers if driver.name not in answers]
        if owners:
            slow = all((asker := self._askers.get(name)) is not None and asker.slow for name in missing)
            return SourceOwner(driver=owners[0]) if slow else SourceOwner(known=False)
        failures = [
            f"driver {driver.name} cannot tell whether it owns it: {answer}"
            for driver in drivers
            if isinstance(answer := answers.get(driver.name), str)
        ]
        if failures:
            return SourceOwner(reason="; ".join([*doubts, *failures]), known=False)
        return SourceOwner(known=False) if missing else SourceOwner(reason="; ".join(doubts))

    async def identify(self, source: VolumeSource, drivers: Sequence[DriverView]) -> None:
        """Ask the drivers that have not answered; return once `lookup` knows the owner, or a driver was forgotten.

        Raises the error of a driver that could not answer, if the owner is not known without its answer.
        """
        key = _key(source)
        if (other := self._searches.get(key)) is not None:
            await asyncio.shield(other.ended)
            return
        answers = self._answers.get(key, {})
        missing = [driver.name for driver in drivers if not isinstance(answers.get(driver.name), bool)]
        if not missing:
            return
        search = _Search(source, drivers, set(missing), asyncio.get_running_loop().create_future())
        self._searches[key] = search
        for name in missing:
            asker = self._askers.get(name)
            if asker is None:
                asker = self._askers[name] = _Asker(name, self)
            asker.submit(key, source)
        try:
            await search.ended
        finally:
            search.end()
            del self._searches[key]
            for name in search.missing:
                if (asker := self._askers.get(name)) is not None:
                    asker.withdraw(key)

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
        """Drop all answers about a source whose volume is gone."""
        self._answers.pop(_key(source), None)

    async def ask(self, asker: _Asker, key: str, source: VolumeSource) -> bool:
        """Call `owns` once, and end the search if the owner is known now. Returns whether it answered."""
        error: Exception | None = None
        try:
            answer: bool | str = await self._ask(asker.driver, source)
        except (BackendError, PluginError) as failure:
            error, answer = failure, str(failure)
        if self._askers.get(asker.driver) is asker:  # else the driver was forgotten meanwhile
            self._answers.setdefault(key, {})[asker.driver] = answer
            while len(self._answers) > MOST_SOURCES:
                self._answers.popitem(last=False)
            if (search := self._searches.get(key)) is not None:
                search.missing.discard(asker.driver)
                search.error = search.error or error
                self._check(search)
        return error is None

    def recheck(self) -> None:
        """End the searches that need not wait for a driver which has become slow."""
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
    """Asks one driver about one source after the other."""

    driver: str
    owners: SourceOwners
    slow: bool = False
    _waiting: dict[str, VolumeSource] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    def submit(self, key: str, source: VolumeSource) -> None:
        self._waiting[key] = source
        if self._task is None:
            # The registry's context: the calls do not belong to the operation that asks first.
            self._task = asyncio.get_running_loop().create_task(
                self._work(), name=f"owns {self.driver}", context=self.owners.context.copy()
            )

    def withdraw(self, key: str) -> None:
        self._waiting.pop(key, None)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                began, late = loop.time(), loop.call_later(GRACE, self._overdue)
                try:
                    answered = await self.owners.ask(self, key, self._waiting.pop(key))
                finally:
                    late.cancel()
                if answered and loop.time() - began < GRACE:
                    self.slow = False
        finally:
            self._task = None

    def _overdue(self) -> None:
        if not self.slow:
            self.slow = True
            self.owners.recheck()


def _key(source: VolumeSource) -> str:
    return f"{source.kind}:{sorted(source.fields.items())}"
