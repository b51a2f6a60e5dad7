"""How rules are run and reported, without pytest and with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volplane import Asset, DeleteRequest, DescribeRequest, Done, DriverInfo, InProgress, ProvisionRequest, hookimpl
from volplane.errors import ConfigurationError, PluginError
from volplane_testing.conformance import RULES, Rule, RuleResult, RuleStatus, Subject, judge, run_rules
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

BY_NAME = {rule.name: rule for rule in RULES}
WAIVED = "the-longest-name-works"


class Waives(MemoryBackend):
    reason = "names have at most 40 characters there"

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), waived_rules={WAIVED: self.reason})


class Hangs(MemoryBackend):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        threading.Event().wait(30)
        return super().delete(request)


class BreaksAtOnce(MemoryBackend):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        raise RuntimeError("it is Monday")


def subject(kind: type[MemoryBackend], **fields: object) -> Subject:
    memory = MemoryStorage()
    return replace(Subject(lambda options: kind(options, storage=memory)), **fields)  # type: ignore[arg-type]


def test_there_are_enough_rules_and_each_says_what_it_demands() -> None:
    assert len(RULES) >= 40
    assert len(BY_NAME) == len(RULES)
    for rule in RULES:
        assert rule.says.endswith("."), rule.name
        assert set(rule.after) <= set(BY_NAME), rule.name


def test_rules_come_after_those_that_they_build_on() -> None:
    seen: set[str] = set()
    for rule in RULES:
        assert set(rule.after) <= seen, rule.name
        seen.add(rule.name)


def test_what_no_backend_may_waive() -> None:
    fixed = {rule.name for rule in RULES if not rule.waivable}
    assert fixed >= {
        "provision-again-gives-the-same-asset",
        "a-crash-after-provision-is-survived",
        "a-lost-answer-of-provision-is-resolved",
        "delete-of-what-is-gone-is-done",
        "a-crash-after-delete-is-survived",
        "another-claim-does-not-get-the-asset",
        "another-cluster-does-not-get-the-asset",
        "delete-refuses-the-asset-of-another-claim",
        "delete-refuses-the-asset-of-another-cluster",
        "find-does-not-show-the-assets-of-others",
        "expand-again-changes-nothing",
        "attach-again-is-the-same-attachment",
    }


def test_a_waived_rule_is_reported_with_its_reason() -> None:
    report = run_rules(subject(Waives), [BY_NAME[WAIVED], BY_NAME["waivers-are-honest"]])
    assert report.passed
    assert report.named(RuleStatus.WAIVED) == (WAIVED,)
    assert f"{WAIVED}: {Waives.reason}" in str(report)


@pytest.mark.parametrize(
    ("waived", "says"),
    [
        ({"the-longest-nam-works": "x"}, "which is no rule; did you mean 'the-longest-name-works'?"),
        ({"delete-of-what-is-gone-is-done": "x"}, "which no backend may waive"),
        ({WAIVED: " "}, "without a reason"),
    ],
)
def test_a_waiver_that_is_wrong_is_a_violation(waived: dict[str, str], says: str) -> None:
    class Wrong(MemoryBackend):
        @hookimpl
        def describe(self, request: DescribeRequest) -> DriverInfo:
            return replace(super().describe(request), waived_rules=waived)

    result = judge(BY_NAME["waivers-are-honest"], subject(Wrong))
    assert result.status is RuleStatus.VIOLATED
    assert says in result.reason


def test_a_waiver_of_a_rule_that_cannot_be_waived_has_no_effect() -> None:
    class Wrong(MemoryBackend):
        @hookimpl
        def describe(self, request: DescribeRequest) -> DriverInfo:
            return replace(super().describe(request), waived_rules={"provision-makes-an-asset": "later"})

    assert judge(BY_NAME["provision-makes-an-asset"], subject(Wrong)).status is RuleStatus.KEPT


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"options": "root=/srv"}, "Subject.options: str must be a mapping of options"),
        ({"parameters": {"replicas": 2}}, "Subject.parameters: {'replicas': 2} must be a mapping of texts"),
        ({"nodes": ("node-1",)}, "Subject.nodes: ('node-1',) must be a tuple of NodeIdentity"),
        ({"segments": {"zone": "a"}}, "Subject.segments: {'zone': 'a'} must be a tuple of mappings"),
        ({"secrets": "hunter2"}, "Subject.secrets: str must be a tuple of texts"),
        ({"inspect": {}}, "Subject.inspect: {} must be a function"),
        ({"capacity_bytes": 0}, "Subject.capacity_bytes: 0 must be a whole number from 1 on"),
        ({"patience": -1}, "Subject.patience: -1 must be more than 0 seconds, or None"),
    ],
)
def test_a_subject_that_makes_no_sense_is_refused_by_the_name_of_its_field(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Subject(MemoryBackend, **fields)
    assert str(error.value).startswith(says)


def test_a_subject_needs_a_factory() -> None:
    with pytest.raises(ConfigurationError, match=r"Subject.factory: 'hostpath' must be the backend's class"):
        Subject("hostpath")  # type: ignore[arg-type]


def test_a_hook_that_hangs_is_a_violation_that_says_where() -> None:
    result = judge(BY_NAME["delete-removes-the-asset"], subject(Hangs, patience=0.5))
    assert result.status is RuleStatus.VIOLATED
    assert "delete did not return within 0.5 s; it waits in " in result.reason
    assert result.left, "what could not be deleted is named"


def test_what_cannot_be_judged_is_not_judged() -> None:
    report = run_rules(subject(BreaksAtOnce))
    assert report.violated[0] == "provision-makes-an-asset"
    assert len(report.named(RuleStatus.NOT_JUDGED)) > 40
    assert "provision raised OutcomeUnknown: hook provision of backend" in str(report)
    place = f"line {BreaksAtOnce.provision.__code__.co_firstlineno + 2} of test_conformance_running.py"
    assert f"raised RuntimeError ({place}): it is Monday" in str(report)


def test_a_function_of_the_subject_that_fails_is_not_blamed_on_the_backend() -> None:
    def broken() -> object:
        raise ZeroDivisionError("division by zero")

    result = judge(BY_NAME["describe-touches-nothing"], subject(MemoryBackend, inspect=broken))
    assert result.status is RuleStatus.BROKEN
    assert result.bad
    assert "division by zero" in result.reason


def test_a_backend_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(PluginError, match="hook describe: is required and missing"):
        judge(RULES[0], Subject(lambda _options: object()))


def test_each_rule_gets_a_subject_of_its_own_that_is_closed() -> None:
    open_now: list[int] = []
    heard: list[RuleResult] = []

    @contextmanager
    def fresh() -> Iterator[Subject]:
        open_now.append(1)
        yield subject(MemoryBackend)
        open_now.pop()

    rules: list[Rule] = list(RULES[:3])
    report = run_rules(fresh, rules, observe=heard.append)
    assert [result.rule for result in heard] == rules
    assert report.passed
    assert open_now == []


PYTEST_FILE = """
import dataclasses

import pytest

from volplane import Done, hookimpl
from volplane_testing import BackendConformance, MemoryBackend, MemoryStorage, Subject


class Forgetful(MemoryBackend):
    @hookimpl
    def describe(self, request):
        waived = {"the-smallest-size-works": "a stripe is the least"}
        return dataclasses.replace(super().describe(request), waived_rules=waived)

    @hookimpl
    def delete(self, request):
        return Done()


class TestForgetful(BackendConformance):
    @pytest.fixture
    def backend(self):
        storage = MemoryStorage()
        return Subject(lambda options: Forgetful(options, storage=storage))


class TestWithoutSubject(BackendConformance):
    rules = BackendConformance.rules[:1]

    @pytest.fixture
    def backend(self):
        return MemoryBackend()
"""


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.more)])
def test_under_pytest_each_rule_is_an_item(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_it.py").write_text(PYTEST_FILE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "--color=no",
        f"--numprocesses={workers}",
        "test_it.py",
    ]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "200"},
    )
    told = ran.stdout
    assert ran.returncode == 1, told + ran.stderr
    assert "delete-removes-the-asset is violated: find after its deletion still answers Asset(" in told
    assert "The rule: After `delete` nothing of the asset is left" in told
    assert "process 1: delete(memory-1) -> Done()" in told
    assert "volplane conformance: waived rules" in told
    assert "TestForgetful::test_rule[the-smallest-size-works]: waived: a stripe is the least" in told
    assert "the fixture backend returned MemoryBackend, expected a Subject" in told
    assert " 1 xfailed" in told
    assert "Traceback" not in told
