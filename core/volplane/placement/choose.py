"""Which of the nodes that have room a claim goes to. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple
from zlib import crc32

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Offer", "choose"]

STRATEGIES: Final = ("spread", "most-room", "round-robin")
"""Values of the class parameter `volplane.dev/placement`."""
DEFAULT_STRATEGY: Final = "spread"


class Offer(NamedTuple):
    """A node that could take the claim.

    free: bytes that are left there, without what is promised; None where nobody publishes them. volumes: how many
    of the driver are there, or assigned to it.
    """

    node: str
    volumes: int
    free: int | None


def choose(strategy: str, offers: Sequence[Offer], uid: str, last: str) -> str:
    """The node for the claim with this uid. offers: by node, at least one. last: the node chosen before, or "".

    spread: a node with twice the free space gets twice the claims. most-room: the one with the most free space.
    round-robin: the next one by name. Where a node's free space is not known, the first two take the node with the
    fewest volumes.
    """
    if strategy == "round-robin":
        names = [offer.node for offer in offers]
        return names[bisect_right(names, last) % len(names)]
    point = crc32(uid.encode())
    free = [offer.free for offer in offers]
    known = [each for each in free if each is not None]
    if len(known) < len(free):
        return min(offers, key=lambda offer: (offer.volumes, crc32(offer.node.encode(), point))).node
    if strategy == "most-room":
        return max(offers, key=lambda offer: (offer.free or 0, -offer.volumes)).node
    # Every node keeps a chance: claims of no size go anywhere.
    sums = list(accumulate(each + 1 for each in known))
    return offers[bisect_right(sums, point * sums[-1] >> 32)].node
