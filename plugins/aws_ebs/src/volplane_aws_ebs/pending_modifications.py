"""Merges what `expand` and `modify` want of one volume into one ModifyVolume.

EC2 takes one modification at a time and four in 24 hours (Amazon EC2 API reference, ModifyVolume). A change waits two
seconds for others, as in the official driver (its flag `--modify-volume-request-handler-timeout`).
Nothing here calls EC2.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_MERGE_SECONDS = 2.0
_ASKED_SECONDS = 10.0
"""A change that its hook has not asked for within this time may be withdrawn: no other hook makes it."""
_APART_SECONDS = 900.0

Change = Mapping[str, int | str]
"""Parameters of ModifyVolume that differ from those of the volume; empty = nothing to do."""


@dataclass(slots=True)
class _Pending:
    change: Change
    since: float
    asked: float


class PendingModifications:
    """The changes that hooks want of each volume. Safe for threads. clock: seconds, never going back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pending: dict[str, dict[str, _Pending]] = {}
        self._apart_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def merged(self, volume: str, hook: str, change: Change) -> tuple[Change, float]:
        """Return what to modify, and for how many seconds others may still join; `change` is what this hook wants.

        A parameter that two hooks want is what `modify` says.
        """
        now = self._clock()
        with self._lock:
            self._drop_old(now)
            changes = self._pending.setdefault(volume, {})
            known = changes.get(hook)
            since = known.since if known is not None and known.change == change else now
            changes[hook] = _Pending(change, since, now)
            if volume in self._apart_until:
                return change, 0.0
            merged: dict[str, int | str] = {}
            for name in sorted(changes):
                merged |= changes[name].change
            first = min(each.since for each in changes.values())
            return merged, max(first + _MERGE_SECONDS - now, 0.0)

    def satisfied(self, volume: str, hook: str) -> None:
        """Forget the hook's change of this volume: nothing differs any more."""
        with self._lock:
            changes = self._pending.get(volume, {})
            changes.pop(hook, None)
            if not changes:
                self._pending.pop(volume, None)

    def made(self, volume: str) -> None:
        """Forget all changes of this volume: EC2 accepted the modification."""
        with self._lock:
            self._pending.pop(volume, None)

    def keep_apart(self, volume: str) -> None:
        """Give each hook its own change for a while: EC2 refused the merged one, and one error must not stop both."""
        with self._lock:
            self._apart_until[volume] = self._clock() + _APART_SECONDS

    def _drop_old(self, now: float) -> None:
        self._apart_until = {volume: until for volume, until in self._apart_until.items() if until > now}
        for volume, changes in list(self._pending.items()):
            for hook in [hook for hook, each in changes.items() if each.asked + _ASKED_SECONDS < now]:
                del changes[hook]
            if not changes:
                del self._pending[volume]
