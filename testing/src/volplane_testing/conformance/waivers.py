"""Rules that a backend declares it cannot keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from volplane.messages import nearest
from volplane_testing.conformance.rule import Rule

__all__ = ["waiver_flaws"]


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
