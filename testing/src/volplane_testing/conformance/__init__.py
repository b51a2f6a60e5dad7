"""The conformance suite: what every backend promises, as rules that anybody can run."""

from volplane_testing.conformance.pytest_suite import BackendConformance
from volplane_testing.conformance.report import Report, RuleResult, RuleStatus
from volplane_testing.conformance.rule import NotApplicable, Rule, Violation, rule
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.running import judge, run_rules
from volplane_testing.conformance.subject import Subject

__all__ = [
    "RULES",
    "BackendConformance",
    "NotApplicable",
    "Report",
    "Rule",
    "RuleResult",
    "RuleStatus",
    "Subject",
    "Violation",
    "judge",
    "rule",
    "run_rules",
]
