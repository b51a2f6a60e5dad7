"""The conformance suite: what every backend promises, as rules that anybody can run."""

from volplane.testing.conformance.pytest_class import BackendConformance
from volplane.testing.conformance.report import Outcome, Report, Verdict
from volplane.testing.conformance.rule import NotApplicable, Rule, Violation, rule
from volplane.testing.conformance.rules import RULES
from volplane.testing.conformance.running import judge, run_rules
from volplane.testing.conformance.subject import Subject

__all__ = [
    "RULES",
    "BackendConformance",
    "NotApplicable",
    "Outcome",
    "Report",
    "Rule",
    "Subject",
    "Verdict",
    "Violation",
    "judge",
    "rule",
    "run_rules",
]
