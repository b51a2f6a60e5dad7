"""What an operation may say, and what can be seen of it from outside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from volplane.controller.actions import Run
from volplane.errors import OperationError

__all__ = ["Again", "Ended", "OperationState", "Phase"]


class Again(OperationError):
    """Raised by a run that is not finished: not a failure; the asset is released, the object queued again after `after` seconds.

    Until then the registry refuses the same name, so that events about the object do not make the hook run early.
    """

    def __init__(self, *, after: float) -> None:
        super().__init__(f"goes on in {after:g} s")
        self.after = after


class Phase(StrEnum):
    QUEUED = "queued"
    """Holds the asset, waits for the driver's concurrency or rate."""
    RUNNING = "running"
    OVERRUN = "overrun"
    """The run ended, but a hook it called has not returned: the asset stays taken."""
    WAITING = "waiting"
    """Holds nothing; runs again at `next_try`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationState:
    """One operation now. Times are loop times in seconds; failures counts those in a row; error is the last one's text."""

    name: str
    verb: str
    key: str
    uid: str
    driver: str
    asset: str
    node: str
    phase: Phase
    since: float
    next_try: float | None = None
    failures: int = 0
    error: str | None = None

    @classmethod
    def of(
        cls,
        run: Run,
        *,
        phase: Phase,
        since: float,
        failures: int,
        error: str | None,
        next_try: float | None = None,
    ) -> OperationState:
        """Of this operation."""
        return cls(
            name=run.name,
            verb=run.verb,
            key=run.key,
            uid=run.uid,
            driver=run.driver,
            asset=run.asset,
            node=run.node,
            phase=phase,
            since=since,
            next_try=next_try,
            failures=failures,
            error=error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One run that is over. seconds: from leaving the queue to the release of the asset. error: None for success and `Again`."""

    run: Run
    seconds: float
    error: BaseException | None
    next_try: float | None
