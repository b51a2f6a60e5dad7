"""From the data of a `Run` to the work that it names: one handler for each verb."""

from __future__ import annotations

from collections.abc import Callable

from volplane.controller.actions import Run
from volplane.operations.operation import Requeue, Work
from volplane.operations.single_flight import OperationRegistry

__all__ = ["Dispatcher", "Handler"]

Handler = Callable[[Run], Work]
"""Looks up, synchronously, what the operation needs of the caches, and returns the work. Called in the same turn of the
loop as the decision that returned the `Run`, so it sees the objects that were decided on. Raises OperationError."""


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
