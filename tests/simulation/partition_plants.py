"""Known bugs that show when a leader is cut off from the API server, or when its Lease is edited by hand."""

from __future__ import annotations

from contextlib import ExitStack

from simulation.planting import by_name, replace
from volplane.controller.leader import Leadership


def lead_while_cut_off(stack: ExitStack) -> None:
    """Believe to lead as long as nobody says otherwise."""
    replace(stack, Leadership, "may_begin", lambda self: not self.lost)


def count_from_the_lease_alone(stack: ExitStack) -> None:
    """Begin the term that the Lease says, though a storage has seen later ones."""
    replace(stack, Leadership, "fenced", lambda *_: None)


PARTITION_PLANTS = by_name(lead_while_cut_off, count_from_the_lease_alone)
