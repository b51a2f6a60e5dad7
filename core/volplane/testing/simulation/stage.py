"""What everybody in one run shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from volplane.testing.simulation.chance import Fate
from volplane.testing.simulation.disks import Disks
from volplane.testing.simulation.safety import Safety
from volplane.testing.simulation.trace import Trace
from volplane.testing.simulation.truth import Truth
from volplane.testing.simulation.verdict import Verdict

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
