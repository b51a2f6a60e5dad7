"""Known bugs about volumes in the trash."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from simulation.planting import by_name, replace
from volplane.binding import decide as binding
from volplane.kube import names
from volplane.kube.objects import Claim, Volume
from volplane.roles import whole
from volplane.state import matching
from volplane.state.cluster_state import ClusterState
from volplane.state.records import TrashRecord, trashed
from volplane.trash import decide


def forget_the_trash(stack: ExitStack) -> None:
    """Destroy a released volume at once."""
    replace(stack, whole, "may_be_kept", lambda _volume: False)


def trust_our_clock(stack: ExitStack) -> None:
    """Take a time for over if it is so by our clock alone."""

    def seconds_left(record: TrashRecord, cluster: ClusterState) -> float:
        return (decide.time_of(record.until, decide.NEVER) - cluster.now()).total_seconds()

    replace(stack, decide, "seconds_left", seconds_left)


def give_to_whoever_asks(stack: ExitStack) -> None:
    """Take any text for the proof of the owner, from any namespace."""

    def proves(claim: Claim, _record: TrashRecord) -> bool:
        return claim.annotation(names.UNDELETE) is not None

    replace(stack, decide, "_proves", proves)


def offer_what_lost_its_reference(stack: ExitStack) -> None:
    """Bind a volume in the trash that no claim is named by."""

    def referred(volume: Volume) -> TrashRecord | None:
        return trashed(volume) if volume.spec.claim_ref is not None else None

    for module in (binding, matching, whole):
        replace(stack, module, "trashed", referred)
    replace(stack, whole, "in_trash", referred)


def forget_the_choice(stack: ExitStack) -> None:
    """Keep a volume for a second, whatever class and claim say."""

    def kept_for(_volume: Any) -> float:
        return 1.0

    replace(stack, decide, "kept_for", kept_for)


TRASH_PLANTS = by_name(
    forget_the_trash, trust_our_clock, give_to_whoever_asks, offer_what_lost_its_reference, forget_the_choice
)
