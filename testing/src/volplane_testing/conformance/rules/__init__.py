"""All rules, in the order in which they are judged: what others build on comes first."""

from __future__ import annotations

from typing import Final

from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import Rule, rule
from volplane_testing.conformance.rules import (
    attaching,
    basics,
    deleting,
    growing,
    interrupted,
    listing,
    making,
    naming,
    owning,
    together,
)
from volplane_testing.conformance.waivers import waiver_flaws

__all__ = ["RULES"]

_PROMISES: Final = (
    *making.RULES,
    *basics.RULES,
    *naming.RULES,
    *deleting.RULES,
    *owning.RULES,
    *interrupted.RULES,
    *together.RULES,
    *listing.RULES,
    *growing.RULES,
    *attaching.RULES,
)


@rule(waivable=False)
def waivers_are_honest(bench: Bench) -> None:
    """`describe().waived_rules` names only rules that exist and may be waived, each with its reason."""
    flaws = waiver_flaws(bench.info.waived_rules, RULES)
    bench.require(not flaws, "; ".join(flaws))


RULES: Final[tuple[Rule, ...]] = (waivers_are_honest, *_PROMISES)
"""Every rule of the suite."""
