"""The simulation as a judge: some tens of seeds of the scenarios in which the module has most to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

__all__ = ["broken_seed"]

SEEDS: Final = 10
"""Of each scenario."""
_SCENARIOS: Final[Mapping[str, tuple[str, ...]]] = {
    "attach": ("attach",),
    "binding": ("bind", "restore", "mixed"),
    "intents": ("provision", "tenants", "leaders"),
    "provision": ("provision", "tenants", "leaders"),
    "protection": ("bind", "restore", "mixed"),
    "reclaim": ("recycle", "reclaim", "leaders"),
}
"""By the package of the module; others get "any": the seed chooses."""


def broken_seed(path: str) -> str:
    """The first seed that breaks an invariant, as the command that shows it; "" if all hold. path: of the module."""
    # pytest has to prepare these for its assertions before anybody imports them.
    from volplane_testing.simulation.run import Trial, simulate  # noqa: PLC0415
    from volplane_testing.simulation.schedule import generate  # noqa: PLC0415

    logging.disable(logging.CRITICAL)
    for scenario in _SCENARIOS.get(path.split("/")[-2], ("any",)):
        for seed in range(SEEDS if scenario != "any" else 3 * SEEDS):
            violation = simulate(Trial(generate(seed, scenario))).violation
            if violation is not None:
                return f"volplane sim --scenario {scenario} --seeds {seed} ({violation.invariant})"
    return ""
