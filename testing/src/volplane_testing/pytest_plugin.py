"""The pytest plugin of volplane: the conformance suite as tests, and virtual time. Importing it loads next to nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from volplane_testing.conformance import Verdict

__all__ = ["conformance_verdicts", "pytest_terminal_summary", "virtual_time"]

pytest.register_assert_rewrite("volplane_testing.conformance")

_WAIVED = "waived"
_NOT_APPLICABLE = "not applicable"
_PROPERTY = "volplane-conformance"


@pytest.fixture(scope="class")
def conformance_verdicts() -> Iterator[dict[str, Verdict]]:
    """What was found so far by the rules of one `BackendConformance` class."""
    verdicts: dict[str, Verdict] = {}
    yield verdicts
    verdicts.clear()


@pytest.fixture
def virtual_time() -> Callable[..., Any]:
    """`virtual_time(main())` runs a coroutine to its end on a loop that never waits: see `volplane_testing.run`."""
    from volplane_testing.clock import run  # noqa: PLC0415 - only tests that ask for it pay

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name every waived rule with its reason, whatever the verbosity; count by reason those that do not concern."""
    waived = [f"{report.nodeid}: {verdict}" for report, verdict in _verdicts(terminalreporter, "xfailed", _WAIVED)]
    elsewhere = Counter(
        f"{report.nodeid.rpartition('::')[0]}: {verdict}"
        for report, verdict in _verdicts(terminalreporter, "passed", _NOT_APPLICABLE)
    )
    counted = [f"{row} ({count} rules)" for row, count in sorted(elsewhere.items())]
    for title, rows in (("waived rules", waived), ("rules that say nothing about a backend", counted)):
        if rows:
            terminalreporter.section(f"volplane conformance: {title}")
        for row in rows:
            terminalreporter.write_line(row)


def _verdicts(terminalreporter: Any, outcome: str, kind: str) -> Iterator[tuple[Any, str]]:
    for report in terminalreporter.getreports(outcome):
        for name, value in getattr(report, "user_properties", ()):
            if name == _PROPERTY and str(value).startswith(kind):
                yield report, str(value)
