"""The conformance suite: the promises of the backend contract, as rules that are run against one backend.

Authors run it by `BackendConformance` in pytest, by `run_rules`, or by `volplane check`. A rule calls the hooks of one
backend on the storage that a `Subject` describes. The suite starts no API server and no controllers, and it deletes
whatever it made on the storage.
"""

from volplane_testing.conformance.pytest_suite import BackendConformance
from volplane_testing.conformance.report import Report, RuleResult, RuleStatus
from volplane_testing.conformance.rule import Rule, rule
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.running import judge, run_rules
from volplane_testing.conformance.subject import Subject
from volplane_testing.conformance.violations import NotApplicable, Violation

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
