"""Names that users depend on are those of commit 3487d747, or those that CHANGELOG.md has announced since."""

from __future__ import annotations

import json
from typing import Any

import pytest

from golden.surface import FILE, SECTIONS, answers

GOLDEN: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
HOW = "a difference is told to users in CHANGELOG.md, and recorded by `python -m golden.surface` in tests/"


def differences(recorded: Any, found: Any) -> list[str]:
    """Return lines as of a diff; lists are sets of lines."""
    if not isinstance(recorded, dict):
        return [f"- {line}" for line in recorded if line not in found] + [
            f"+ {line}" for line in found if line not in recorded
        ]
    groups = sorted({*recorded, *found})
    return [f"{name}: {line}" for name in groups for line in differences(recorded.get(name, []), found.get(name, []))]


@pytest.mark.parametrize("section", SECTIONS)
def test_names_that_users_depend_on_stay(section: str) -> None:
    assert differences(GOLDEN[section], SECTIONS[section]()) == [], HOW


@pytest.mark.real_time
async def test_answers_for_programs_keep_their_keys_and_exit_codes_and_queues_their_names() -> None:
    assert differences(GOLDEN["answers"], await answers()) == [], HOW


def test_every_section_is_recorded() -> None:
    assert set(GOLDEN) == {*SECTIONS, "answers"}
