"""An event loop whose schedule is a function of the seed, and which knows the simulated process of each task."""

# ruff: noqa: SLF001 -- an event loop looks into its handles

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar
from operator import itemgetter
from random import Random
from typing import Any, Final, TypeVar

from volplane_testing.clock import VirtualTimeLoop

__all__ = ["WHO", "ScheduleLoop", "schedule_loop"]

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
        self._stopped: dict[str, list[asyncio.Handle]] = {}

    def stop_process(self, who: str) -> None:
        """Stop this process, as SIGSTOP does. Its timers go off when it runs again."""
        held = self._stopped.setdefault(who, [])
        held += [timer for _, _, timer in sorted(self._scheduled) if _who(timer) == who]
        self._scheduled[:] = [entry for entry in self._scheduled if _who(entry[2]) != who]
        heapq.heapify(self._scheduled)

    def continue_process(self, who: str) -> None:
        """Let it go on; its timers that went off meanwhile go off now."""
        for handle in self._stopped.pop(who, ()):
            if isinstance(handle, asyncio.TimerHandle):
                self._set(handle)
            else:
                self._ready.append(handle)

    def is_stopped(self, who: str) -> bool:
        """Tell whether this process is stopped now."""
        return who in self._stopped

    def close(self) -> None:
        """Also forget the tasks: a process that simulates again and again would ask `asyncio.all_tasks` for them."""
        super().close()
        self._numbers.clear()
        self._owned.clear()
        self._stopped.clear()

    def _run_once(self) -> None:
        if self._stopped:
            self._hold_stopped()
        super()._run_once()

    def _hold_stopped(self) -> None:
        ready = self._ready
        going: list[asyncio.Handle] = []
        for handle in ready:
            held = self._stopped.get(_who(handle))
            (going if held is None else held).append(handle)
        ready.clear()
        ready.extend(going)

    def tasks_of(self, who: str) -> list[asyncio.Task[Any]]:
        """Unfinished tasks that this process made, oldest first."""
        return [task for task in self._owned.get(who, ()) if not task.done()]

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        self._made += 1
        task = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._numbers[task] = self._made
        who = WHO.get() if context is None else context.get(WHO, "")
        self._owned.setdefault(who, []).append(task)
        return task

    def _shuffle(self, random: Random) -> None:
        numbers, ready = self._numbers, self._ready
        places: list[int] = []
        steps: list[tuple[int, asyncio.Handle]] = []
        for place, handle in enumerate(ready):
            if type(owner := getattr(handle._callback, "__self__", None)) is asyncio.Task:
                places.append(place)
                steps.append((numbers[owner], handle))
        if len(places) < 2:
            return
        steps.sort(key=_number)
        steps.sort(key=lambda _step: random.random())  # half the time of `Random.shuffle`
        if len(places) == len(ready):
            ready.clear()
            ready.extend(handle for _, handle in steps)
            return
        for place, (_, handle) in zip(places, steps, strict=True):
            ready[place] = handle


def schedule_loop() -> ScheduleLoop:
    """Return the running loop, which is that of a run."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ScheduleLoop)  # noqa: S101 -- no other loop can stop a process
    return loop


def _who(handle: asyncio.Handle) -> str:
    """Return the process to which a callback belongs."""
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(WHO, "")


_number: Final = itemgetter(0)
