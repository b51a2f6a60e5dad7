"""The results of rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from volplane_testing.conformance.instance import Call
from volplane_testing.conformance.rule import Rule

__all__ = ["Report", "RuleResult", "RuleStatus"]

_LAST_CALLS = 12


class RuleStatus(StrEnum):
    """How a rule came out."""

    KEPT = "kept"
    VIOLATED = "violated"
    WAIVED = "waived"
    """Declared in `describe().waived_rules`."""
    NOT_APPLICABLE = "not applicable"
    """The backend has not the hooks or the ability, or the subject not the means."""
    NOT_JUDGED = "not judged"
    """A rule that it builds on is violated."""
    BROKEN = "broken"
    """The rule itself, or a function of the subject, failed: nothing is known of the backend."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The status on one rule. reason: for people, empty if it was kept. calls: what was done, oldest first.

    left: assets that could not be cleaned up afterwards, with the reason. seconds: real time it took. hung: the call
    of the backend that did not return, or "".
    """

    rule: Rule
    status: RuleStatus
    reason: str = ""
    calls: tuple[Call, ...] = ()
    left: tuple[str, ...] = ()
    seconds: float = 0.0
    hung: str = ""

    @property
    def bad(self) -> bool:
        """Whether something must be mended."""
        return self.status in (RuleStatus.VIOLATED, RuleStatus.BROKEN)

    def explanation(self) -> str:
        """Rule, reason and the last calls, in several lines."""
        lines = [f"{self.rule.name} is {self.status}: {self.reason}", *self.details()]
        return "\n".join(lines)

    def details(self) -> list[str]:
        """The rule and the last calls, line by line."""
        lines = [f"The rule: {self.rule.says}"]
        if self.calls:
            skipped = len(self.calls) - _LAST_CALLS
            lines += ["What was done" + (f" (after {skipped} other calls):" if skipped > 0 else ":")]
            lines += [f"  {call}" for call in self.calls[-_LAST_CALLS:]]
        return [*lines, *(f"left behind: {each}" for each in self.left)]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all rules that were judged, in their order."""

    results: tuple[RuleResult, ...]

    def named(self, status: RuleStatus) -> tuple[str, ...]:
        """Names of the rules with this status."""
        return tuple(result.rule.name for result in self.results if result.status is status)

    @property
    def violated(self) -> tuple[str, ...]:
        """Names of the rules that the backend breaks."""
        return self.named(RuleStatus.VIOLATED)

    @property
    def passed(self) -> bool:
        """Every rule was judged, unless it does not apply or is waived, and none is violated or broken."""
        return not any(result.bad or result.status is RuleStatus.NOT_JUDGED for result in self.results)

    def summary(self) -> str:
        """How many rules have each status, in one line."""
        counts = [(len(self.named(status)), status) for status in RuleStatus]
        return ", ".join(f"{count} {status}" for count, status in counts if count)

    def __str__(self) -> str:
        return "\n\n".join(self._parts())

    def _parts(self) -> Iterator[str]:
        for result in self.results:
            if result.bad:
                yield result.explanation()
        for status in (RuleStatus.WAIVED, RuleStatus.NOT_JUDGED):
            rows = [f"  {each.rule.name}: {each.reason}" for each in self.results if each.status is status]
            if rows:
                yield "\n".join([f"{status}:", *rows])
        yield self.summary()
