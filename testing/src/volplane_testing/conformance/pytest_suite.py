"""The suite as a pytest class: one item per rule. pytest is imported only when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from volplane_testing.conformance.report import RuleResult, RuleStatus
from volplane_testing.conformance.rule import Rule
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.running import first_obstacle, judge
from volplane_testing.conformance.subject import Subject

if TYPE_CHECKING:
    import pytest

__all__ = ["BackendConformance"]

PROPERTY = "volplane-conformance"


class BackendConformance:
    """Subclass it, and give a fixture `backend` that returns a `Subject` with an empty storage.

        class TestFolders(BackendConformance):
            @pytest.fixture
            def backend(self, tmp_path):
                return Subject(FolderBackend, {"root": str(tmp_path)})

    A rule that is kept passes, one that is violated fails. A waived rule is an expected failure with its reason. One
    that says nothing about this backend passes; the summary names both kinds with the reason.
    """

    rules: ClassVar[tuple[Rule, ...]] = RULES
    """What is judged; a backend with promises of its own adds rules."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One item per rule."""
        if "conformance_rule" in metafunc.fixturenames:
            metafunc.parametrize("conformance_rule", self.rules, ids=str)

    def test_rule(
        self,
        conformance_rule: Rule,
        backend: Any,
        conformance_statuses: dict[str, RuleStatus],
        record_property: Callable[[str, object], None],
    ) -> None:
        """Judge one rule on a fresh subject."""
        import pytest  # noqa: PLC0415 - the suite runs without it too

        if not isinstance(backend, Subject):
            pytest.fail(f"the fixture backend returned {type(backend).__name__}, expected a Subject", pytrace=False)
        first = first_obstacle(conformance_rule, conformance_statuses)
        if first is not None:
            result = RuleResult(conformance_rule, RuleStatus.NOT_JUDGED, f"{first} comes first")
        else:
            result = judge(conformance_rule, backend)
        conformance_statuses[conformance_rule.name] = result.status
        record_property(PROPERTY, f"{result.status}: {result.reason}".rstrip(": "))
        match result.status:
            case RuleStatus.VIOLATED | RuleStatus.BROKEN:
                pytest.fail(result.explanation(), pytrace=False)
            case RuleStatus.WAIVED:
                pytest.xfail(f"waived by the backend: {result.reason}")
            case RuleStatus.NOT_JUDGED:
                pytest.skip(f"{result.status}: {result.reason}")
