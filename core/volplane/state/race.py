"""When the process of a node may try to take a claim that has no node: see `volplane.placement.race`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from volplane.kube import names
from volplane.kube.objects import Claim

__all__ = ["RaceTimes"]


class _Try(NamedTuple):
    attempt: int
    since: float


class RaceTimes:
    """base, longest: seconds. node: ours; what is random about a delay follows from it, the claim and the attempt.

    Attempt 0 waits up to `base`, each further one up to twice as long, never longer than `longest`; of all of these a
    random part of `base` is taken off. external_choice: others select the nodes of claims that bind immediately.
    """

    def __init__(
        self,
        node: str,
        base: float,
        longest: float,
        monotonic: Callable[[], float],
        *,
        external_choice: bool = False,
    ) -> None:
        self.external_choice = external_choice
        self._node = node
        self._base = base
        self._longest = longest
        self._monotonic = monotonic
        self._tries: dict[str, _Try] = {}
        self._room: dict[str, tuple[float, bool]] = {}

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Follow the cache of claims."""
        if new is None or new.spec.volume_name:
            present = new or old
            if present is not None:
                self._tries.pop(present.uid, None)
                self._room.pop(present.uid, None)
        elif new.annotation(names.SELECTED_NODE) is None:
            known = self._tries.get(new.uid)
            given_back = old is not None and old.annotation(names.SELECTED_NODE) is not None
            if known is None or given_back:
                self._tries[new.uid] = _Try(known.attempt + 1 if known is not None else 0, self._monotonic())

    def left(self, claim: Claim) -> float:
        """Seconds until our turn."""
        now = self._monotonic()
        attempt, since = self._tries.get(claim.uid, _Try(0, now))
        drawn = _drawn(f"{self._node} {claim.uid} {attempt}")
        delay = min(self._base * 2 ** min(attempt, 32), self._longest) - drawn * self._base
        left: float = since + max(delay, 0.0) - now
        return left

    def room_seen(self, uid: str, *, enough: bool) -> None:
        """The driver was asked whether the claim fits."""
        self._room[uid] = (self._monotonic(), enough)

    def room(self, uid: str) -> bool | None:
        """Whether there is room for the claim; None: not asked yet, or too long ago."""
        at, enough = self._room.get(uid, (0.0, None))
        return enough if enough is not None and self._monotonic() < at + self._longest else None


def _drawn(text: str) -> float:
    """A number from 0 to 1 that follows from the text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**64
