"""All rules, in the order in which they are judged: what others build on comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from volplane._messages import nearest
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import Rule, rule
from volplane_testing.conformance.rules import (
    accidents,
    attaching,
    basics,
    concurrency,
    crashes,
    deleting,
    expansion,
    groups,
    inspecting,
    listing,
    naming,
    outages,
    owning,
    provisioning,
    snapshots,
)

__all__ = ["RULES", "waiver_flaws"]

_PROMISES: Final = (
    *provisioning.RULES,
    *basics.RULES,
    *naming.RULES,
    *deleting.RULES,
    *outages.RULES,
    *owning.RULES,
    *crashes.RULES,
    *accidents.RULES,
    *concurrency.RULES,
    *listing.RULES,
    *inspecting.RULES,
    *expansion.RULES,
    *attaching.RULES,
    *snapshots.RULES,
    *groups.RULES,
)


@rule(waivable=False)
def waivers_are_honest(bench: Bench) -> None:
    """`describe().waived_rules` names only rules that exist and may be waived, each with its reason."""
    flaws = waiver_flaws(bench.info.waived_rules, RULES)
    bench.require(not flaws, "; ".join(flaws))


RULES: Final[tuple[Rule, ...]] = (waivers_are_honest, *_PROMISES)
"""Every rule of the suite."""


def waiver_flaws(waived: Mapping[str, str], rules: Iterable[Rule]) -> tuple[str, ...]:
    """What is wrong with `DriverInfo.waived_rules`: unknown names, rules that cannot be waived, missing reasons."""
    known = {rule.name: rule for rule in rules}
    flaws = []
    for name, reason in sorted(waived.items()):
        if name not in known:
            flaws.append(f"waived_rules names {name!r}, which is no rule{nearest(name, known)}")
        elif not known[name].waivable:
            flaws.append(f"waived_rules names {name!r}, which no backend may waive: {known[name].says}")
        elif not reason.strip():
            flaws.append(f"waived_rules names {name!r} without a reason")
    return tuple(flaws)
