"""Operations that a person asked for: run once under the registry's exclusion, and what became of each.

Unlike those of objects they are not repeated after a failure: who asked is told, and asks again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from volplane.errors import OperationError
from volplane.operations import Again, OperationRegistry

__all__ = ["Errand", "ErrandState", "Errands", "Outcome"]


class ErrandState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """Not started: another operation holds the asset, or a failure was too short a while ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """key: what it is about, for who asks later. work: does it; returns what was done, as a sentence, raises why not.

    `Again` raised by work goes on with it after a pause. name, driver, asset: as `OperationRegistry.start` has them.
    """

    key: str
    name: str
    driver: str
    asset: str
    work: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Where an errand stands. detail: what was done, or why not; "" while it runs."""

    state: ErrandState
    detail: str = ""


class Errands:
    """Runs errands. Belongs to the event loop of its registry."""

    def __init__(self, registry: OperationRegistry) -> None:
        self._registry = registry
        self._outcomes: dict[str, Outcome] = {}

    def start(self, errands: Iterable[Errand]) -> None:
        """Start them all, but for those that run; earlier ones that are over are forgotten."""
        running = {key: each for key, each in self._outcomes.items() if each.state is ErrandState.RUNNING}
        self._outcomes = running
        for errand in errands:
            if errand.key not in self._outcomes:
                self._outcomes[errand.key] = Outcome(state=ErrandState.RUNNING)
                self._begin(errand)

    def outcome(self, key: str) -> Outcome | None:
        """Of the errand with this key; None if there was none."""
        return self._outcomes.get(key)

    def _begin(self, errand: Errand) -> None:
        def goes_on() -> None:
            now = self._outcomes.get(errand.key)
            if now is not None and now.state is ErrandState.RUNNING:
                self._begin(errand)

        try:
            self._registry.start(
                errand.name,
                driver=errand.driver,
                asset=errand.asset,
                run=lambda: self._run(errand),
                requeue=goes_on,
            )
        except OperationError as error:
            self._outcomes[errand.key] = Outcome(state=ErrandState.REFUSED, detail=str(error))

    async def _run(self, errand: Errand) -> None:
        try:
            done = await errand.work()
        except Again:
            raise
        except Exception as error:
            text = str(error) or type(error).__name__
            self._outcomes[errand.key] = Outcome(state=ErrandState.FAILED, detail=text)
            raise
        self._outcomes[errand.key] = Outcome(state=ErrandState.DONE, detail=done)
