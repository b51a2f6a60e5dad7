"""What the parts of one run share: randomness, trace, the server's state, the assets, and the invariants over them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import Final, Self

from volplane_embedded.apiserver.server import ApiServer
from volplane_testing import clock
from volplane_testing.simulation.chance import Chance
from volplane_testing.simulation.cluster_view import ClusterView
from volplane_testing.simulation.disks import Disks
from volplane_testing.simulation.hook_rules import HookRules
from volplane_testing.simulation.safety import Safety
from volplane_testing.simulation.trace import FirstViolation, Trace

__all__ = ["CLUSTER_ID", "LEASE_NAME", "NAMESPACE", "RunContext"]

CLUSTER_ID: Final = "simulated"
NAMESPACE: Final = "volplane-system"
"""Where the controllers keep what is theirs."""
LEASE_NAME: Final = "volplane"
"""Name of the Lease under which they lead, there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The state of one run. Belongs to the running loop."""

    chance: Chance
    trace: Trace
    server: ApiServer
    view: ClusterView
    disks: Disks
    safety: Safety
    hook_rules: HookRules
    violations: FirstViolation

    @classmethod
    def create(
        cls, seed: int, *, faults: Collection[str] | None = None, without_bookmarks: frozenset[str] = frozenset()
    ) -> Self:
        """Make an empty API server and its observers. faults: marks of those that may happen, None = any.

        without_bookmarks: see `ApiServer`.
        """
        trace, disks = Trace(), Disks()
        violations = FirstViolation(trace)
        server = ApiServer(now=clock.now, random=Random(seed), without_bookmarks=without_bookmarks)  # noqa: S311 -- uids
        view = ClusterView(server, trace)
        safety = Safety(view, disks, violations)
        return cls(
            chance=Chance(seed, only=faults),
            trace=trace,
            server=server,
            view=view,
            disks=disks,
            safety=safety,
            hook_rules=HookRules(view, safety, violations),
            violations=violations,
        )
