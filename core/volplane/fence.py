"""The fence of a call: the term of leadership under which it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

__all__ = ["Fence"]


@dataclass(frozen=True, slots=True)
class Fence:
    """Under which term of which Lease a call is made; as text `transitions/holder/lease`.

    transitions: how often the Lease has changed hands. holder: name of the process. lease: uid of the Lease.
    """

    transitions: int
    holder: str
    lease: str

    def __str__(self) -> str:
        return f"{self.transitions}/{self.holder}/{self.lease}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The fence that `str` wrote; None for "" (nobody is elected) and for anything else."""
        parts = text.split("/")
        if len(parts) != 3 or not parts[0].isdecimal():
            return None
        return cls(int(parts[0]), parts[1], parts[2])

    def outdates(self, other: Fence) -> bool:
        """Whether the other is of an earlier term. Terms of two Leases cannot be compared: the later call counts."""
        return self.lease == other.lease and self.transitions > other.transitions
