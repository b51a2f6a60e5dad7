"""A session as its client sees it: how much a call may hold, and the slots of which each call takes one.

Source: RFC 8881 section 2.10.6. NFSv4.0 has no sessions: there a slot is no more than the permission to call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

SLOTS: Final = 16
"""Calls that are under way at once, at most."""
LARGEST_CALL: Final = 1 << 18
"""Bytes of a call, and of an answer without its header, that are asked of a server."""
MINIMUM_DATA: Final = 1 << 12
"""Bytes of a file that every COMPOUND can carry, and bytes of one that are kept for everything else."""
MOST_OPERATIONS: Final = 64
"""In one COMPOUND, SEQUENCE included."""

Slot = tuple[int, int]
"""The number of a slot, and the sequence of the next call in it."""


@dataclass(slots=True)
class Session:
    """minor: version. operations: in one COMPOUND. request_bytes, response_bytes: of a call and of its answer, at most.
    highest: number of a slot.

    free: slots without a call; None once the session is lost, for those that wait for one.
    """

    minor: int
    id: bytes = bytes(16)
    clientid: int = 0
    operations: int = MOST_OPERATIONS
    request_bytes: int = LARGEST_CALL
    response_bytes: int = LARGEST_CALL
    highest: int = SLOTS - 1
    free: SimpleQueue[Slot | None] = field(default_factory=SimpleQueue)
    lost: bool = False

    def add_slots(self, numbers: range, sequence: int) -> None:
        """Let these be used. sequence: of the next call in each."""
        for number in numbers:
            self.free.put((number, sequence))

    def take_slot(self, seconds: float) -> Slot | None:
        """Return a free slot, waited for if need be; None if there is none in time, or the session is lost."""
        try:
            slot = self.free.get(seconds > 0, seconds)
        except Empty:
            return None
        if slot is None:
            self.free.put(None)  # for the next one who waits
        return slot

    def lose(self) -> None:
        """Use it no longer."""
        self.lost = True
        self.free.put(None)
