"""The results of sections, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Facts", "Failed", "Measured", "NotPossible", "SectionResult", "SectionStatus", "SuiteReport"]

Measured = Mapping[str, float | str]
"""What a section measured: a name with its unit (`slowest_bind_seconds`) and a value."""


class Failed(Exception):
    """The cluster, or volplane on it, did not do what a section asks. The text says what, for people."""


class NotPossible(Exception):
    """This cluster has not what a section needs. The text says what is missing."""


class SectionStatus(StrEnum):
    """How a section came out."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible"
    """The cluster has not what the section needs: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionResult:
    """One section. reason: why it did not pass, for people. seconds: of real time."""

    name: str
    status: SectionStatus
    reason: str = ""
    seconds: float = 0.0
    measured: Measured = field(default_factory=dict)

    def line(self) -> str:
        """Return the measured value, or the reason."""
        if self.reason:
            return self.reason
        shown = (f"{name.replace('_', ' ')} {_number(value)}" for name, value in self.measured.items())
        return ", ".join(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found out about the cluster before the first section.

    server: address. kubernetes: version of the API server. nodes: those that are Ready. binder: whether somebody
    else binds claims. no_pods: why pods with our volumes cannot run; "" = they can.
    """

    server: str
    kubernetes: str
    nodes: tuple[str, ...] = ()
    binder: bool = False
    no_pods: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """A whole run.

    volplane: its version. controllers: those that ran. backend: the one whose volumes were used. left: what could not
    be removed afterwards. logs: where the logs of the controllers are; "" = removed.
    """

    run: str
    volplane: str
    controllers: str
    backend: str
    facts: Facts
    results: tuple[SectionResult, ...]
    left: tuple[str, ...] = ()
    logs: str = ""

    def named(self, status: SectionStatus) -> tuple[str, ...]:
        """Return the names of the sections with this status."""
        return tuple(result.name for result in self.results if result.status is status)

    @property
    def passed(self) -> bool:
        """Some section passed, none failed, and nothing was left behind."""
        failed = self.named(SectionStatus.FAILED)
        return bool(self.named(SectionStatus.PASSED)) and not failed and not self.left

    def summary(self) -> str:
        """Describe how many sections have each status, in one line."""
        counts = [(len(self.named(status)), status) for status in SectionStatus]
        return ", ".join(f"{count} {status}" for count, status in counts if count)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {
            "run": self.run,
            "passed": self.passed,
            "volplane": self.volplane,
            "controllers": self.controllers.split(","),
            "backend": self.backend,
            "cluster": {
                "server": self.facts.server,
                "kubernetes": self.facts.kubernetes,
                "readyNodes": list(self.facts.nodes),
                "stockBinder": self.facts.binder,
                "podsNotPossible": self.facts.no_pods,
            },
            "sections": [
                {
                    "name": each.name,
                    "status": each.status.value,
                    "reason": each.reason,
                    "seconds": round(each.seconds, 3),
                    "measured": dict(each.measured),
                }
                for each in self.results
            ],
            "left": list(self.left),
            "logs": self.logs,
        }


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else str(value)
