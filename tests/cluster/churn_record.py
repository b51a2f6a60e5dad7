"""What happened in a run of churn: what was done, in which pause between two kills, and what was wrong."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field

MOST_FAULTS = 40
"""Faults that are told; further ones are counted."""


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Record:
    """interval: number of the pause between two kills. done: what -> how often. within: what -> pauses in which."""

    interval: int = 0
    done: Counter[str] = field(default_factory=Counter)
    within: dict[str, set[int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count(self, what: str) -> None:
        self.done[what] += 1
        self.within.setdefault(what, set()).add(self.interval)

    def fault(self, text: str) -> None:
        """Note what must not be, once."""
        if text in self.faults:
            return
        self.faults.append(text)
        if len(self.faults) <= MOST_FAULTS:
            say(f"WRONG: {text}")

    def told(self) -> str:
        return ", ".join(f"{what} {number}" for what, number in sorted(self.done.items()))
