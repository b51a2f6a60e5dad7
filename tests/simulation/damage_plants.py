"""Known bugs that show where one disk has two volumes, or where numbers of terms are damaged."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec

from simulation.planting import by_name, replace
from volplane.kube import leases
from volplane.kube.objects import Volume
from volplane.requests import Fence
from volplane.state import naming


def compare_sources_by_their_text(stack: ExitStack) -> None:
    """Take one disk in two notations for two."""

    def named(volume: Volume, **_: Any) -> Any:
        source = naming.volume_source(volume)
        yield f"{source.kind}:{msgspec.json.encode(dict(source.fields), order='deterministic').decode()}\0"

    replace(stack, naming, "_named", named)


def take_any_count_for_a_later_term(stack: ExitStack) -> None:
    """Believe a damaged mark: whoever leads is refused, and counts on for ever."""

    def outdates(self: Fence, other: Fence) -> bool:
        return self.lease == other.lease and self.transitions > other.transitions

    replace(stack, Fence, "outdates", outdates)


def count_terms_without_end(stack: ExitStack) -> None:
    """Count on from what the Lease says, also where the API server has no larger number."""
    replace(stack, leases, "next_term", lambda count: count + 1)


TWIN_PLANTS = by_name(compare_sources_by_their_text)
DAMAGE_PLANTS = by_name(take_any_count_for_a_later_term, count_terms_without_end)
