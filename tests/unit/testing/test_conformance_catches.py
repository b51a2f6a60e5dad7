"""The conformance suite, judged: a correct backend keeps every rule, and each planted bug breaks the one that it
should.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from clocks import SteppedClock
from unit.testing.planted import BUGS, INSPECT_BUGS, SECRET, SLOW_BUGS, MakesWhatItPlans, PlansFirst
from unit.testing.planted_crashes import Disk
from unit.testing.planted_groups import GROUP_BUGS
from unit.testing.planted_lies import LIES
from unit.testing.planted_snapshots import SNAPSHOT_BUGS
from volplane import (
    Asset,
    VolumeSource,
)
from volplane_testing.conformance import RULES, Report, Rule, RuleStatus, Subject, run_rules
from volplane_testing.conformance.rules import concurrency, crashes, groups, inspecting, naming, snapshots
from volplane_testing.memory import DRIVER, ZONE, MemoryBackend

OF_ASSETS = [rule for rule in RULES if rule not in (*snapshots.RULES, *groups.RULES)]
SLOW = (*crashes.RULES, *concurrency.RULES, *naming.RULES)
WITHOUT_CRASHES = [rule for rule in OF_ASSETS if rule not in SLOW]


def subject(kind: Callable[..., MemoryBackend], points: int, **storage: Any) -> Subject:
    clock = SteppedClock()
    memory = Disk(capacity_bytes=100 << 30, largest=1 << 40, page=3, clock=clock, now=clock, **storage)

    def inspect() -> object:
        memory.sweep()
        assets = [(name, each.handle, each.capacity_bytes, dict(each.modified)) for name, each in memory.assets.items()]
        return [*assets, *memory.snapshots, *memory.files]

    def filled(asset: Asset) -> list[str]:
        made = memory.by_handle(asset.handle)
        assert made is not None
        return made.contents

    def size_of(asset: Asset) -> int:
        made = memory.by_handle(asset.handle)
        assert made is not None
        return made.capacity_bytes

    return Subject(
        lambda options: kind(options, storage=memory),
        other_parameters={"colour": "red"},
        backing_parameters={"colour": "backing"},
        mutable_parameters={"colour": "blue"},
        segments=tuple({ZONE: zone} for zone in memory.zones),
        static_source=VolumeSource(kind="csi", fields={"driver": DRIVER, "volumeHandle": "by-hand"}),
        secrets=(SECRET,),
        advance=clock.advance,
        now=clock,
        inspect=inspect,
        outage=memory.outage,
        size_of=size_of,
        fill=lambda asset: filled(asset).append("of the last claim"),
        is_empty=lambda asset: not filled(asset),
        crash_points=points,
        patience=None,
    )


def report(
    kind: Callable[..., MemoryBackend], points: int = 4, rules: Iterable[Rule] = RULES, **storage: Any
) -> Report:
    return run_rules(lambda: subject(kind, points, **storage), list(rules))


@pytest.mark.parametrize(
    "storage",
    [{}, {"delay": 30.0}, {"zones": ("a", "b"), "most_attached": 2}, {"zones": ("a", "b"), "clones": "anywhere"}],
    ids=["at once", "slow", "in zones", "copied between zones"],
)
def test_a_correct_backend_keeps_every_rule(storage: Mapping[str, Any]) -> None:
    judged = report(MemoryBackend, 48, **storage)
    assert judged.passed, str(judged)
    assert [result.left for result in judged.results if result.left] == []
    assert set(judged.named(RuleStatus.NOT_APPLICABLE)) <= {
        "provision-in-progress-goes-on-after-restarts",
        "provision-in-progress-goes-on-without-its-state",
        "delete-in-progress-goes-on-after-restarts",
        "provision-that-plans-first-makes-nothing-before",
        "capacity-elsewhere-is-nothing",
        "the-place-asked-for-is-the-place",
        "another-place-makes-no-second-asset",
        "a-place-out-of-reach-is-refused",
        "the-limit-of-a-node-is-kept",
        "a-copy-is-made-in-the-place-asked-for",
        "archives-are-listed-apart",
        "a-snapshot-stays-under-assets-that-show-it",
    }


def test_between_them_they_judge_every_rule() -> None:
    kept: set[str] = set()
    for storage in ({"delay": 30.0}, {"zones": ("a", "b"), "most_attached": 2}):
        kept.update(report(MemoryBackend, **storage).named(RuleStatus.KEPT))
    kept.update(report(PlansFirst, rules=crashes.RULES).named(RuleStatus.KEPT))
    # MemoryBackend archives nothing, and copies: backends of directories are judged by these rules.
    others = {"archives-are-listed-apart", "a-snapshot-stays-under-assets-that-show-it"}
    assert kept == {rule.name for rule in RULES} - others


def test_a_backend_that_makes_what_it_should_plan_breaks_the_rule_about_that() -> None:
    judged = report(MakesWhatItPlans, rules=crashes.RULES)
    assert judged.violated == ("provision-that-plans-first-makes-nothing-before",), str(judged)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_breaks_the_rule_that_it_should_and_no_other(bug: type[MemoryBackend]) -> None:
    judged = report(bug, 48 if "crash" in BUGS[bug] else 4, OF_ASSETS)
    assert judged.violated == (BUGS[bug],), str(judged)
    assert not judged.named(RuleStatus.BROKEN)


@pytest.mark.parametrize("bug", LIES, ids=lambda bug: bug.__name__)
def test_a_lie_breaks_the_rule_that_names_its_cause_and_no_other(bug: type[MemoryBackend]) -> None:
    judged = report(bug, rules=WITHOUT_CRASHES)
    assert judged.violated == (LIES[bug],), str(judged)
    assert not judged.named(RuleStatus.BROKEN)


@pytest.mark.parametrize("bug", SLOW_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_a_slow_backend_too(bug: type[MemoryBackend]) -> None:
    judged = report(bug, rules=OF_ASSETS, delay=30.0)
    assert judged.violated == (SLOW_BUGS[bug],), str(judged)


@pytest.mark.parametrize("bug", INSPECT_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_inspect_breaks_the_rule_that_it_should_and_no_other(bug: type[MemoryBackend]) -> None:
    judged = report(bug, rules=inspecting.RULES)
    assert judged.violated == (INSPECT_BUGS[bug],), str(judged)
    assert set(INSPECT_BUGS.values()) == {rule.name for rule in inspecting.RULES}


@pytest.mark.parametrize("bug", SNAPSHOT_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_about_snapshots_breaks_the_rule_that_it_should_and_no_other(bug: type[MemoryBackend]) -> None:
    points, places = 64 if "crash" in SNAPSHOT_BUGS[bug] else 4, {"zones": ("a", "b"), "clones": "anywhere"}
    judged = report(bug, points, snapshots.RULES, **places)
    assert judged.violated == (SNAPSHOT_BUGS[bug],), str(judged)
    assert not judged.named(RuleStatus.BROKEN)


@pytest.mark.parametrize("bug", GROUP_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_about_groups_breaks_the_rule_that_it_should_and_no_other(bug: type[MemoryBackend]) -> None:
    judged = report(bug, rules=groups.RULES)
    assert judged.violated == (GROUP_BUGS[bug],), str(judged)
    assert set(GROUP_BUGS.values()) == {rule.name for rule in groups.RULES}


def test_every_rule_about_snapshots_is_broken_by_a_bug() -> None:
    assert set(SNAPSHOT_BUGS.values()) == {rule.name for rule in snapshots.RULES}
