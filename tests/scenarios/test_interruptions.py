"""Whatever write is lost, refused or the last one of a process: the story ends as it does undisturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scenarios.faults import Call, Fault, refusing
from scenarios.laboratory import Laboratory
from scenarios.stories import STORIES, Story, play, summary
from volplane_testing import clock

WRITES = frozenset({"create", "update", "delete"})
Disturb = Callable[[Laboratory, int], None]


PROTECTED = frozenset({"binder", "provisioner", "reclaimer", "protection"})


def _told(
    story: Story, disturb: Callable[[Laboratory], None], *, protected: bool = False
) -> tuple[dict[str, Any], int]:
    """How the story ends, and after how many writes of the controller. protected: with in-use protection."""

    more: dict[str, Any] = {"controllers": PROTECTED, "disabled_admission": ()} if protected else {}

    async def body() -> tuple[dict[str, Any], int]:
        async with Laboratory(story.backend(), **more) as lab:
            disturb(lab)
            await play(lab, story)
            return await summary(lab), len(lab.rules.writes())

    return clock.run(body())


def _killed(lab: Laboratory, number: int) -> None:
    lab.crash_at_write(number)


def _answer_lost(lab: Laboratory, number: int) -> None:
    lab.rules.faults.append(Fault(lambda call: call.verb in WRITES, after=lambda _call: True, skip=number))


def _refused(status: int, reason: str) -> Disturb:
    def disturb(lab: Laboratory, number: int) -> None:
        before = refusing(status, reason, "by the test")
        lab.rules.faults.append(Fault(lambda call: call.verb in WRITES, before=before, skip=number))

    return disturb


def _backend_lost(lab: Laboratory, number: int) -> None:
    """The process dies right after the backend's `number`-th effect, before anybody knows of it."""
    left = [number]

    def after(_hook: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            lab.crash()

    for backend in lab.backends.values():
        backend.after = after


DISTURBANCES: dict[str, Disturb] = {
    "killed": _killed,
    "answer lost": _answer_lost,
    "conflict": _refused(409, "Conflict"),
    "server error": _refused(500, "InternalError"),
    "throttled": _refused(429, "TooManyRequests"),
}


@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_ends_the_same_whichever_write_is_disturbed(story: Story, kind: str) -> None:
    expected, writes = _told(story, lambda _lab: None)
    for number in range(writes):
        found, _ = _told(story, lambda lab, number=number: DISTURBANCES[kind](lab, number))
        assert found == expected, f"{kind} at write {number}"


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_with_protection_ends_the_same_whichever_write_is_the_last_of_a_process(story: Story) -> None:
    expected, writes = _told(story, lambda _lab: None, protected=True)
    for number in range(writes):
        found, _ = _told(story, lambda lab, number=number: _killed(lab, number), protected=True)
        assert found == expected, f"killed at write {number}"


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_story_ends_the_same_when_the_process_dies_after_a_hook(story: Story) -> None:
    expected, _ = _told(story, lambda _lab: None)
    for number in range(3):
        found, _ = _told(story, lambda lab, number=number: _backend_lost(lab, number))
        assert found == expected, f"killed after effect {number}"


def test_calls_are_named_as_the_scenarios_name_them() -> None:
    assert Call("update", "persistentvolumes/status", "", "v").what == "update persistentvolumes/status"
