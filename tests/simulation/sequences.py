"""What controllers do to each object where nothing goes wrong, as one digest a seed.

    python -m simulation.sequences                      write ../golden/sequences.json, from tests/
    python -m simulation.sequences --show bind 3        print the sequences of a seed, to compare two commits

A schedule keeps only what users do; nothing fails, nothing is slow, and tasks that are ready together run in the order
in which they became ready. Of each object the sequence of writes (which fields), of hook calls (how they ended) and of
reasons of events stays. Texts are left out, so is the order between objects: both may change with the code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

from volplane_testing.simulation.cluster_view import Commit
from volplane_testing.simulation.loop import ScheduleLoop
from volplane_testing.simulation.network import NetworkFaults
from volplane_testing.simulation.run import Trial, simulate
from volplane_testing.simulation.scenarios import SCENARIOS
from volplane_testing.simulation.schedule import Schedule, generate

__all__ = ["FILE", "SEEDS", "digest", "sequences"]

FILE = Path(__file__).resolve().parent.parent / "golden" / "sequences.json"
SEEDS = range(12)
USERS = frozenset(
    {
        "create_class",
        "create_claim",
        "delete_claim",
        "create_pod",
        "delete_pod",
        "create_volume",
        "delete_volume",
        "set_policy",
        "select_node",
        "grow_claim",
        "grow",
        "ask_for_less",
        "set_attributes",
    }
)
"""What stays of a schedule: actions of people who make no mistakes."""
HOOK = re.compile(r"(\w+) (\S+) of \S+ (gives|raises)(?: (\w+))?.*", re.DOTALL)
EVENT = re.compile(r"tells (\S+): (\w+): .*", re.DOTALL)
UNSTABLE = frozenset(
    {"resourceVersion", "managedFields", "generation", "message", "reason", "time", "lastTransitionTime"}
)
"""Fields that say the same in other words, or when."""


def _quiet(schedule: Schedule) -> Schedule:
    """Leave out faults and what administrators break."""
    return replace(
        schedule,
        actions=tuple(action for action in schedule.actions if action.what in USERS),
        network=NetworkFaults(slow=0.0),
        hooks=replace(schedule.hooks, errors=0.0, slow=0.0, hangs=0.0, crashes=0.0, listing=0.0),
        pods=replace(schedule.pods, failing=0.0, slow=0.0),
        alpha=replace(schedule.alpha, late=0.0),
        beta=replace(schedule.beta, late=0.0, full=0.0),
    )


def sequences(seed: int, scenario: str) -> dict[str, list[str]]:
    """Return the steps of the controllers for each object, by its name."""
    with patch.object(ScheduleLoop, "_shuffle"):
        result = simulate(Trial(_quiet(generate(seed, scenario)), faults=frozenset()))
    assert result.violation is None, f"{scenario} {seed}: {result.violation}"
    found: dict[str, list[str]] = {}
    for entry in result.trace.entries:
        if re.fullmatch(r"p\d+", entry.who):
            for name, step in _steps(entry.what):
                found.setdefault(name, []).append(step)
    return {name: [step for step, _ in groupby(steps)] for name, steps in sorted(found.items())}


def _steps(what: object) -> Iterator[tuple[str, str]]:
    if isinstance(what, Commit):
        if what.old is None or what.new is None:
            yield f"{what.kind} {what.name}", "is created" if what.old is None else "is gone"
            return
        changed = sorted(set(_changed(what.old, what.new)))
        yield f"{what.kind} {what.name}", f"writes {' '.join(changed)}"
    elif found := HOOK.fullmatch(str(what)):
        hook, name, how, result = found.groups()
        yield f"hooks {name}", f"{hook} {how} {result if how == 'gives' else ''}".rstrip()
    elif told := EVENT.fullmatch(str(what)):
        yield f"events {told[1]}", told[2]


def _changed(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that differ; of phases and of lists of texts the new value too."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {*old, *new} - UNSTABLE:
            yield from _changed(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        plain = path.endswith((".phase", ".finalizers"))
        yield f"{path}={json.dumps(new)}" if plain else f"-{path}" if new is None else path


def digest(seed: int, scenario: str) -> str:
    """Return a hash of the sequences of all objects."""
    text = json.dumps(sequences(seed, scenario), sort_keys=True)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def record() -> None:
    """Write the digests of every scenario."""
    lines = (f" {json.dumps(name)}: {json.dumps([digest(seed, name) for seed in SEEDS])}" for name in sorted(SCENARIOS))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--show"]:
        for name, steps in sequences(int(sys.argv[3]), sys.argv[2]).items():
            sys.stdout.write("\n   ".join((name, *steps)) + "\n")
    else:
        record()
