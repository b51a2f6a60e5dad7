"""What everybody in one run shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from volplane_testing.simulation.chance import Fate
from volplane_testing.simulation.disks import Disks
from volplane_testing.simulation.safety import Safety
from volplane_testing.simulation.trace import Trace
from volplane_testing.simulation.truth import Truth
from volplane_testing.simulation.verdict import Verdict

__all__ = ["CLUSTER_ID", "Stage"]

CLUSTER_ID: Final = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The world of a run and those who watch it."""

    fate: Fate
    trace: Trace
    truth: Truth
    disks: Disks
    safety: Safety
    verdict: Verdict
