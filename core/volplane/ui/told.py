"""What the controller that leads tells the page: reasons, operations, drivers, leaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from volplane.errors import VolplaneError

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
    """Uid of the object -> its operations; `since` and `next_try` are seconds since 1970."""
    drivers: Sequence[Mapping[str, Any]] = ()
    leaks: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, status: Mapping[str, Any], leaks: Mapping[str, Any], *, now: float) -> Told:
        """Return what these answers to /status and /leaks say. now: seconds since 1970 at which they came."""
        if not status.get("leads"):
            return cls(silence="the controller that was asked does not lead", drivers=status.get("drivers", ()))
        shift = now - status.get("now", now)
        operations: dict[str, list[Mapping[str, Any]]] = {}
        for each in status.get("operations", ()):
            due = each.get("next_try")
            times = {"since": each["since"] + shift, "next_try": None if due is None else due + shift}
            operations.setdefault(each["uid"], []).append({**each, **times})
        return cls(
            silence="",
            reasons=status.get("reasons", {}),
            operations=operations,
            drivers=status.get("drivers", ()),
            leaks=leaks,
        )


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
        tell(told)
        await asyncio.sleep(max(_SECONDS, (loop.time() - began) / _SHARE))
