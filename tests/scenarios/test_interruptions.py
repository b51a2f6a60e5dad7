"""Whatever write is lost, refused or the last one of a process: the story ends as it does undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from scenarios.faults import Call, refusing
from scenarios.harness import Harness
from scenarios.stories import STORIES, Story, play, summary
from volplane_testing import clock

WRITES = frozenset({"create", "update", "delete"})
Disturb = Callable[[Harness, int], None]


PROTECTED = frozenset({"binder", "provisioner", "reclaimer", "protection"})


def _told(story: Story, disturb: Callable[[Harness], None], *, protected: bool = False) -> tuple[dict[str, Any], int]:
    """How the story ends, and after how many writes of the controller. protected: with in-use protection."""

    more: dict[str, Any] = {"controllers": PROTECTED, "disabled_admission": ()} if protected else {}

    async def body() -> tuple[dict[str, Any], int]:
        async with Harness(story.backend(), **more) as harness:
            disturb(harness)
            await play(harness, story)
            return await summary(harness), len(harness.rules.writes())

    return clock.run(body())


@cache
def _undisturbed(story: Story, *, protected: bool = False) -> tuple[dict[str, Any], int]:
    return _told(story, lambda _harness: None, protected=protected)


def _killed(harness: Harness, number: int) -> None:
    harness.crash_at_write(number)


def _answer_lost(harness: Harness, number: int) -> None:
    harness.rules.fault(lambda call: call.verb in WRITES, after=lambda _call: True, skip=number)


def _refused(status: int, reason: str) -> Disturb:
    def disturb(harness: Harness, number: int) -> None:
        before = refusing(status, reason, "by the test")
        harness.rules.fault(lambda call: call.verb in WRITES, before=before, skip=number)

    return disturb


def _backend_lost(harness: Harness, number: int) -> None:
    """The process dies right after the backend's `number`-th effect, before anybody knows of it."""
    left = [number]

    def after(_hook: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            harness.crash()

    for backend in harness.backends.values():
        backend.after = after


DISTURBANCES: dict[str, Disturb] = {
    "killed": _killed,
    "answer lost": _answer_lost,
    "conflict": _refused(409, "Conflict"),
    "server error": _refused(500, "InternalError"),
    "throttled": _refused(429, "TooManyRequests"),
}
LONGER = frozenset({"killed", "conflict", "server error", "throttled"})
"""Left out by the tests that run each time: what is refused is less trouble than a lost answer, and stories with
protection are killed at each write."""


@pytest.mark.parametrize(
    "kind", [kind if kind not in LONGER else pytest.param(kind, marks=pytest.mark.soak) for kind in DISTURBANCES]
)
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_ends_the_same_whichever_write_is_disturbed(story: Story, kind: str) -> None:
    expected, writes = _undisturbed(story)
    for number in range(writes):
        found, _ = _told(story, lambda harness, number=number: DISTURBANCES[kind](harness, number))
        assert found == expected, f"{kind} at write {number}"


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_with_protection_ends_the_same_whichever_write_is_the_last_of_a_process(story: Story) -> None:
    expected, writes = _undisturbed(story, protected=True)
    for number in range(writes):
        found, _ = _told(story, lambda harness, number=number: _killed(harness, number), protected=True)
        assert found == expected, f"killed at write {number}"


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_ends_the_same_when_the_process_dies_after_a_hook(story: Story) -> None:
    expected, _ = _undisturbed(story)
    for number in range(3):
        found, _ = _told(story, lambda harness, number=number: _backend_lost(harness, number))
        assert found == expected, f"killed after effect {number}"


def test_calls_are_named_as_the_scenarios_name_them() -> None:
    assert Call("update", "persistentvolumes/status", "", "v").what == "update persistentvolumes/status"
