"""Finds the work that a `Run` names: one handler for each verb.

Also the operations that a person asked for: each runs once, and its result is kept. Unlike those of objects they are
not repeated after a failure: the user sees it and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from volplane.controller.actions import Run
from volplane.controller.controller import Handler, Work
from volplane.errors import OperationError
from volplane.operations.operation import Again, Requeue
from volplane.operations.registry import OperationRegistry

__all__ = ["Dispatcher", "OneShotState", "OneShotStatus", "OneShots"]


class Dispatcher:
    """Starts operations in a registry. The assembly registers a handler for each verb that decisions return."""

    def __init__(self, registry: OperationRegistry) -> None:
        self._registry = registry
        self._handlers: dict[str, Handler] = {}

    def register(self, verb: str, handler: Handler) -> None:
        """Use `handler` for this verb. ValueError if it has one."""
        if verb in self._handlers:
            raise ValueError(f"verb {verb} has a handler already")
        self._handlers[verb] = handler

    def start(self, run: Run, requeue: Requeue) -> None:
        """Start the operation; see `OperationRegistry.start`. KeyError for a verb without a handler."""
        self._registry.start(run, self._handlers[run.verb](run), requeue)


class OneShotState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"
    """Not started: another operation holds the asset, or the delay after a failure is not over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneShotStatus:
    """The state of one operation."""

    state: OneShotState
    detail: str = ""
    """What was done, or why not; "" while it runs."""


class OneShots:
    """Runs the one-shot operations of one verb. Belongs to the event loop of the dispatcher's registry."""

    def __init__(self, dispatcher: Dispatcher, verb: str, handler: Handler) -> None:
        """handler: its work returns what was done, as a sentence; `Again` goes on with it after a pause."""
        self._dispatcher = dispatcher
        self._handler = handler
        self._statuses: dict[str, OneShotStatus] = {}
        dispatcher.register(verb, self._handle)

    def start(self, runs: Iterable[Run]) -> None:
        """Start them all, except those that run already. Earlier ones that have ended are forgotten."""
        self._statuses = {name: each for name, each in self._statuses.items() if each.state is OneShotState.RUNNING}
        for run in runs:
            if run.name not in self._statuses:
                self._statuses[run.name] = OneShotStatus(state=OneShotState.RUNNING)
                self._begin(run)

    def status(self, run: Run) -> OneShotStatus | None:
        """Return the status of this operation; None if it was not started, or is forgotten."""
        return self._statuses.get(run.name)

    def _begin(self, run: Run) -> None:
        def again() -> None:
            now = self._statuses.get(run.name)
            if now is not None and now.state is OneShotState.RUNNING:
                self._begin(run)

        try:
            self._dispatcher.start(run, again)
        except OperationError as error:
            self._statuses[run.name] = OneShotStatus(state=OneShotState.REFUSED, detail=str(error))

    def _handle(self, run: Run) -> Work:
        work = self._handler(run)

        async def recorded() -> None:
            try:
                done = await work()
            except Again:
                raise
            except Exception as error:
                text = str(error) or type(error).__name__
                self._statuses[run.name] = OneShotStatus(state=OneShotState.FAILED, detail=text)
                raise
            self._statuses[run.name] = OneShotStatus(state=OneShotState.DONE, detail=done or "")

        return recorded
