"""An event loop whose schedule is a function of the seed, and which knows the simulated process of each task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from random import Random
from typing import Any, Final, TypeVar

from volplane_testing.clock import VirtualTimeLoop

__all__ = ["WHO", "ScheduleLoop"]

T = TypeVar("T")

WHO: Final[ContextVar[str]] = ContextVar("volplane_simulation_who", default="")
"""Name of the simulated process that the running task belongs to; "" = the simulation's own."""


class ScheduleLoop(VirtualTimeLoop):
    """Virtual time with shuffled tasks.

    What is ready together is brought into the order in which the tasks were made before it is shuffled: sets of tasks
    (a TaskGroup that aborts) are ordered by address, which differs from run to run.
    """

    def __init__(self, *, seed: int, limit: float) -> None:
        super().__init__(seed=seed, limit=limit)
        self._made = 0
        self._numbers: dict[asyncio.Task[Any], int] = {}
        self._owned: dict[str, list[asyncio.Task[Any]]] = {}
        self.set_task_factory(self._make)

    def tasks_of(self, who: str) -> list[asyncio.Task[Any]]:
        """Unfinished tasks that this process made, oldest first."""
        return [task for task in self._owned.get(who, ()) if not task.done()]

    def _make(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
    ) -> asyncio.Task[T]:
        context: Context | None = options.get("context")
        task = asyncio.Task(coro, loop=loop, context=context)
        self._made += 1
        self._numbers[task] = self._made
        who = WHO.get() if context is None else context.get(WHO, "")
        self._owned.setdefault(who, []).append(task)
        return task

    def _shuffle(self, random: Random) -> None:
        numbers, ready = self._numbers, self._ready  # type: ignore[attr-defined]
        places: list[int] = []
        steps: list[tuple[int, asyncio.Handle]] = []
        for place, handle in enumerate(ready):
            owner = getattr(getattr(handle, "_callback", None), "__self__", None)
            if isinstance(owner, asyncio.Task):
                places.append(place)
                steps.append((numbers.get(owner, 0), handle))
        if len(places) < 2:
            return
        steps.sort(key=_number)
        random.shuffle(steps)
        for place, (_, handle) in zip(places, steps, strict=True):
            ready[place] = handle


def _number(step: tuple[int, asyncio.Handle]) -> int:
    return step[0]
