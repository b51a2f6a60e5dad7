"""What the controller that leads tells the page: reasons, operations, drivers, leaks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from volplane.errors import VolplaneError

_LOG = logging.getLogger(__name__)

Ask = Callable[[str, Mapping[str, str]], Awaitable[Any]]
"""(path, query) -> the answer of the controller; None if none answers. Raises VolplaneError with its refusal."""

_SECONDS: Final = 2.0
_SHARE: Final = 0.1
"""Part of the time in which the controller may be busy with answers to us."""
_LEAKS_EVERY: Final = 5
"""Answers after which it is asked for leaks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The last answers. Without a controller all but `silence` is empty."""

    silence: str = "no controller was asked yet"
    """Why it tells nothing; "" = it answers and leads."""
    reasons: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Queue -> key -> why the key waits."""
    operations: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Uid of the object -> its operations. Their times are of the controller's clock: see `wall`."""
    drivers: Sequence[Mapping[str, Any]] = ()
    leaks: Mapping[str, Any] = field(default_factory=dict)
    shift: float = field(default=0.0, compare=False)
    """From the controller's clock to seconds since 1970; it differs a little in each answer."""

    @classmethod
    def of(cls, status: Mapping[str, Any], leaks: Mapping[str, Any], *, now: float) -> Told:
        """Return what these answers to /status and /leaks say. now: seconds since 1970 at which they came."""
        if not status.get("leads"):
            return cls(silence="the controller that was asked does not lead", drivers=status.get("drivers", ()))
        operations: dict[str, list[Mapping[str, Any]]] = {}
        for each in status["operations"]:
            operations.setdefault(each["uid"], []).append(each)
        return cls(
            silence="",
            reasons=status["reasons"],
            operations=operations,
            drivers=status["drivers"],
            leaks=leaks,
            shift=now - status["now"],
        )

    def wall(self, time: float | None) -> float | None:
        """Return a time of the controller's clock as seconds since 1970."""
        return None if time is None else time + self.shift

    def next_try(self, uid: str) -> float | None:
        """Return when the first of the object's operations that wait is tried again, in seconds since 1970."""
        due = [each["next_try"] for each in self.operations.get(uid, ()) if each["next_try"] is not None]
        return self.wall(min(due, default=None))


async def keep_asking(ask: Ask, tell: Callable[[Told], None]) -> None:
    """Ask again and again, and pass each answer on, until cancelled."""
    leaks: Mapping[str, Any] = {}
    loop, turn = asyncio.get_running_loop(), 0
    while True:
        began = loop.time()
        try:
            status = await ask("/status", {})
            if status is not None and status.get("leads") and turn % _LEAKS_EVERY == 0:
                leaks = await ask("/leaks", {}) or {}
            told = Told(silence="no controller answers") if status is None else Told.of(status, leaks, now=time.time())
            turn = 0 if told.silence else turn + 1
        except VolplaneError as error:
            told, turn = Told(silence=str(error)), 0
        except (KeyError, TypeError, ValueError) as error:
            _LOG.debug("an answer of the controller could not be read", exc_info=error)
            told, turn = Told(silence="the controller is of another version than this command"), 0
        tell(told)
        await asyncio.sleep(max(_SECONDS, (loop.time() - began) / _SHARE))
