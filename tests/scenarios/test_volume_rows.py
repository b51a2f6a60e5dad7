"""Every row of the volume scenarios, against the control plane over the embedded API server."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios import rows
from scenarios.differences import VOLUME_DIFFERENCES
from scenarios.files import scenario_rows
from scenarios.harness import Harness, Json

ROWS = scenario_rows("pv.json")


def _of(harness: str) -> list[Any]:
    return [pytest.param(row, id=row["id"]) for row in ROWS if row["harness"] == harness]


def _harness(row: Json) -> Harness:
    tuning = row.get("tuning", {})
    settings = {} if tuning.get("enable_dynamic_provisioning", True) else {"provisioner": False}
    return Harness(*rows.backends_of(row), settings=settings)


def _inject(harness: Harness, row: Json) -> None:
    for fault in row.get("inject", ()):
        if "on" in fault:
            harness.fail(fault["on"], fault["error"], fault["times"])
        elif fault["after"].startswith("backend "):
            hook, left = fault["after"].removeprefix("backend "), [fault["times"]]

            def after(called: str, hook: str = hook, left: list[int] = left) -> None:
                if called == hook and left[0] > 0:
                    left[0] -= 1
                    harness.crash()

            for backend in harness.backends.values():
                backend.after = after
        else:
            harness.crash_after(fault["after"])


def _expected(row: Json) -> Json:
    difference = VOLUME_DIFFERENCES.get(row["id"])
    return difference.applied(row) if difference is not None else row


@pytest.mark.parametrize("row", _of("api"))
async def test_the_cluster_comes_to_rest_as_the_scenario_says(row: Json) -> None:
    row = _expected(row)

    async with _harness(row) as harness:
        meaning = rows.Meaning()
        await rows.prepare(harness, row, meaning)
        harness.follow("volumes", lambda _event, item: _note_phase(harness, item))
        harness.follow(
            "pods", lambda _event, item: harness.pods_seen.setdefault(item["metadata"]["name"], []).append(item)
        )
        _inject(harness, row)
        for step in row.get("steps", [{"start": "controller"}]):
            await rows.take(harness, step, meaning)
        await harness.settle()
        wrong = await rows.shortfalls(harness, row["then"], meaning, exact=True)
        wrong += rows.strange_events(harness, row) + rows.wrong_calls(harness, row) + _histories(harness, row)
        wrong += rows.strange_pods(harness, row, meaning)
        crashes = sum(f["times"] for f in row.get("inject", ()) if f.get("do") == "kill-and-restart-controller")
        if harness.restarts != crashes:
            wrong.append(f"the controller was killed {harness.restarts} times, not {crashes}")
        assert not wrong, "\n".join([*wrong, f"reasons: {harness.reasons()}", f"writes: {harness.rules.writes()}"])


def _note_phase(harness: Harness, item: Json) -> None:
    phases = harness.phases.setdefault(item["metadata"]["name"], [])
    phase = item.get("status", {}).get("phase", "")
    if not phases or phases[-1] != phase:
        phases.append(phase)


def _histories(harness: Harness, row: Json) -> list[str]:
    wrong = []
    for name, expected in (row["then"].get("phase_history") or {}).items():
        seen = [phase for phase in harness.phases[name] if phase not in ("", "Pending")]
        while seen and seen[0] != expected[0]:
            seen.pop(0)
        if seen != expected:
            wrong.append(f"{name} went through {seen}, expected {expected}")
    return wrong
