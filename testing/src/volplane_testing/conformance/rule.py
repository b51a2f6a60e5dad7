"""What a rule is: a function over a `Bench`, with what must be known about it before it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volplane_testing.conformance.bench import Bench

__all__ = ["Check", "Rule", "rule"]

Check = Callable[["Bench"], None]
"""Tries a rule on the subject of a `Bench`. Raises Violation where the rule is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One promise of the contract, and how to find out whether a backend keeps it.

    name: for reports and for `DriverInfo.waived_rules`. says: the promise, for people. hooks: what the backend must
    implement for the rule to say anything. waivable: a backend may declare, with a reason, that it cannot keep it.
    after: rules without which this one cannot be judged. sanity: the check of csi-sanity that it follows, if any.
    check: raises Violation or NotApplicable; an error of the backend that it lets through is a violation too.
    """

    name: str
    says: str
    check: Check
    hooks: frozenset[str]
    waivable: bool = True
    after: tuple[str, ...] = ()
    sanity: str = ""

    def __str__(self) -> str:
        return self.name


def rule(*hooks: str, waivable: bool = True, after: tuple[Rule, ...] = (), sanity: str = "") -> Callable[[Check], Rule]:
    """Make a rule of a function: its name with hyphens is the rule's name, its docstring the promise."""

    def make(check: Check) -> Rule:
        return Rule(
            name=check.__name__.replace("_", "-"),
            says=" ".join(inspect.cleandoc(check.__doc__ or "").split()),
            check=check,
            hooks=frozenset(hooks),
            waivable=waivable,
            after=tuple(each.name for each in after),
            sanity=sanity,
        )

    return make
