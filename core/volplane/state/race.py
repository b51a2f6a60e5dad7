"""When the process of a node may try to take a claim that has no node: see `volplane.placement.race`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from volplane.kube import names
from volplane.kube.objects import Claim

__all__ = ["RaceTimes"]


class RaceTimes:
    """Computes when the process of a node may try to take each claim.

    Attempt 0 waits up to `base` seconds, each further one up to twice as long, never longer than `longest`; of all of
    these a random part of `base` is subtracted, which follows from `node` (ours), the claim and the attempt.
    external_choice: others select the nodes of claims that bind immediately.
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
        self._tries: dict[str, tuple[int, float]] = {}
        """Uid of a claim -> the attempt, and the loop time since which it waits for that."""
        self._room: dict[str, tuple[float, bool]] = {}
        """Uid of a claim -> loop time of the driver's answer, and whether there is room."""

    def claim_changed(self, old: Claim | None, new: Claim | None) -> None:
        """Follow the cache of claims."""
        if new is None or new.spec.volume_name:
            present = new or old
            if present is not None:
                self._tries.pop(present.uid, None)
                self._room.pop(present.uid, None)
        elif new.annotation(names.SELECTED_NODE) is None:
            known = self._tries.get(new.uid)
            returned = old is not None and old.annotation(names.SELECTED_NODE) is not None
            if known is None or returned:
                self._tries[new.uid] = (known[0] + 1 if known is not None else 0, self._monotonic())

    def left(self, claim: Claim) -> float:
        """Return the seconds until this process may try."""
        now = self._monotonic()
        attempt, since = self._tries.get(claim.uid, (0, now))
        digest = hashlib.blake2b(f"{self._node} {claim.uid} {attempt}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest) / 2**64
        delay = min(self._base * 2 ** min(attempt, 32), self._longest) - drawn * self._base
        left: float = since + max(delay, 0.0) - now
        return left

    def room_seen(self, uid: str, *, enough: bool) -> None:
        """Note the driver's answer whether the claim fits."""
        self._room[uid] = (self._monotonic(), enough)

    def room(self, uid: str) -> bool | None:
        """Return whether there is room for the claim; None: the driver was not asked yet, or too long ago."""
        at, enough = self._room.get(uid, (0.0, None))
        return enough if enough is not None and self._monotonic() < at + self._longest else None
