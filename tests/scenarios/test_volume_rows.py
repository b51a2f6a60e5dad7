"""Every row of the volume scenarios, against the control plane over the embedded API server."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios import rows
from scenarios.differences import VOLUME_DIFFERENCES
from scenarios.files import scenario_rows
from scenarios.laboratory import Json, Laboratory

ROWS = scenario_rows("pv.json")


def _of(harness: str) -> list[Any]:
    return [pytest.param(row, id=row["id"]) for row in ROWS if row["harness"] == harness]


def _laboratory(row: Json) -> Laboratory:
    tuning = row.get("tuning", {})
    settings = {} if tuning.get("enable_dynamic_provisioning", True) else {"provisioner": False}
    return Laboratory(*rows.backends_of(row), settings=settings)


def _inject(lab: Laboratory, row: Json) -> None:
    for fault in row.get("inject", ()):
        if "on" in fault:
            lab.fail(fault["on"], fault["error"], fault["times"])
        elif fault["after"].startswith("backend "):
            hook, left = fault["after"].removeprefix("backend "), [fault["times"]]

            def after(called: str, hook: str = hook, left: list[int] = left) -> None:
                if called == hook and left[0] > 0:
                    left[0] -= 1
                    lab.crash()

            for backend in lab.backends.values():
                backend.after = after
        else:
            lab.crash_after(fault["after"])


def _expected(row: Json) -> Json:
    difference = VOLUME_DIFFERENCES.get(row["id"])
    return difference.applied(row) if difference is not None else row


@pytest.mark.parametrize("row", _of("api"))
async def test_the_cluster_comes_to_rest_as_the_scenario_says(row: Json) -> None:
    row = _expected(row)

    async with _laboratory(row) as lab:
        meaning = rows.Meaning()
        await rows.prepare(lab, row, meaning)
        lab.follow("volumes", lambda _event, item: _note_phase(lab, item))
        lab.follow("pods", lambda _event, item: lab.pods_seen.setdefault(item["metadata"]["name"], []).append(item))
        _inject(lab, row)
        for step in row.get("steps", [{"start": "controller"}]):
            await rows.take(lab, step, meaning)
        await lab.settle()
        wrong = await rows.shortfalls(lab, row["then"], meaning, exact=True)
        wrong += rows.strange_events(lab, row) + rows.wrong_calls(lab, row) + _histories(lab, row)
        wrong += rows.strange_pods(lab, row, meaning)
        crashes = sum(f["times"] for f in row.get("inject", ()) if f.get("do") == "kill-and-restart-controller")
        if lab.restarts != crashes:
            wrong.append(f"the controller was killed {lab.restarts} times, not {crashes}")
        assert not wrong, "\n".join([*wrong, f"reasons: {lab.reasons()}", f"writes: {lab.rules.writes()}"])


def _note_phase(lab: Laboratory, item: Json) -> None:
    phases = lab.phases.setdefault(item["metadata"]["name"], [])
    phase = item.get("status", {}).get("phase", "")
    if not phases or phases[-1] != phase:
        phases.append(phase)


def _histories(lab: Laboratory, row: Json) -> list[str]:
    wrong = []
    for name, expected in (row["then"].get("phase_history") or {}).items():
        seen = [phase for phase in lab.phases[name] if phase not in ("", "Pending")]
        while seen and seen[0] != expected[0]:
            seen.pop(0)
        if seen != expected:
            wrong.append(f"{name} went through {seen}, expected {expected}")
    return wrong
