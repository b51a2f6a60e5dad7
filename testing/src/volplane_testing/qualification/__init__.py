"""The suite for any cluster: volplane at work on a cluster that exists, section by section, with a report.

It starts `volplane run` itself, with a driver, classes and namespaces of its own, and removes them afterwards.
"""

from volplane_testing.qualification.plan import SECTIONS, Plan
from volplane_testing.qualification.report import SectionResult, SectionStatus, SuiteReport
from volplane_testing.qualification.suite import run_suite

__all__ = ["SECTIONS", "Plan", "SectionResult", "SectionStatus", "SuiteReport", "run_suite"]
