"""The testing kit for backends: a cluster in virtual time, injected faults, the conformance suite and the simulation.

Tests of backends and of the controllers import it; the core and the plugins never do. It runs the real controllers
against the embedded API server in one process, and never contacts a real cluster. pytest is optional: its plugin is
loaded only by pytest. Names are imported on first use, because pytest loads this package in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from volplane_testing.clock import run
    from volplane_testing.cluster import Cluster
    from volplane_testing.conformance import RULES, BackendConformance, Report, Subject, run_rules
    from volplane_testing.faults import Answer, FailAfter, FailBefore, FaultyBackend, Hang, Slow, Twice
    from volplane_testing.memory import MemoryBackend
    from volplane_testing.memory_storage import MemoryStorage
    from volplane_testing.simulation.report import SeedReport, run_seed

__all__ = [
    "RULES",
    "Answer",
    "BackendConformance",
    "Cluster",
    "FailAfter",
    "FailBefore",
    "FaultyBackend",
    "Hang",
    "MemoryBackend",
    "MemoryStorage",
    "Report",
    "SeedReport",
    "Slow",
    "Subject",
    "Twice",
    "run",
    "run_rules",
    "run_seed",
]

_HOMES = {
    "clock": ("run",),
    "cluster": ("Cluster",),
    "conformance": ("RULES", "BackendConformance", "Report", "Subject", "run_rules"),
    "faults": ("Answer", "FailAfter", "FailBefore", "FaultyBackend", "Hang", "Slow", "Twice"),
    "memory": ("MemoryBackend",),
    "memory_storage": ("MemoryStorage",),
    "simulation.report": ("SeedReport", "run_seed"),
}


def __getattr__(name: str) -> Any:
    """Import the module that has the name."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
