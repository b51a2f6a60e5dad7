"""Rows of attach-detach, against the two controllers of attachments and a backend that attaches."""

from __future__ import annotations

import pytest

from scenarios.attaching import Row
from scenarios.differences import ATTACH_DIFFERENCES
from scenarios.files import scenario_rows
from scenarios.harness import Json

ROWS = [row for row in scenario_rows("attach-protection.json") if row["group"] == "attach-detach"]


@pytest.mark.parametrize("row", [pytest.param(row, id=row["id"]) for row in ROWS])
async def test_attach_and_detach_do_what_the_scenario_says(row: Json) -> None:
    difference = ATTACH_DIFFERENCES.get(row["id"])
    scenario = Row(difference.applied(row) if difference is not None else row)
    async with scenario.harness as harness:
        await scenario.prepare()
        for step in scenario.row["steps"]:
            await scenario.take(step)
        wrong = await scenario.shortfalls(scenario.row["then"])
        assert not wrong, "\n".join([*wrong, f"reasons: {harness.reasons()}"])
