"""Rows of unit tables: a single pass over one object, with caches that differ from the server, or a busy registry."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from scenarios import rows, single
from scenarios.differences import VOLUME_DIFFERENCES
from scenarios.files import scenario_rows
from scenarios.harness import Harness, Json
from volplane.kube.cache import Cache
from volplane.kube.kinds import VOLUMES
from volplane.kube.objects import Metadata, Volume

ROWS = [row for row in scenario_rows("pv.json") if row["harness"] == "unit"]
SYNCS = {"sync-claim": "claims", "sync-volume": "volumes"}


def _where(*whens: str) -> list[Any]:
    return [pytest.param(row, id=row["id"]) for row in ROWS if row["when"] in whens]


@pytest.mark.parametrize("row", _where(*SYNCS))
async def test_one_pass_does_what_the_table_says(row: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    difference = VOLUME_DIFFERENCES.get(row["id"])
    row = difference.applied(row) if difference is not None else row
    everything_migrated = row["given"].get("migration", {}).get("all_plugins")
    if everything_migrated:
        migrated = MagicMock()
        migrated.get.return_value = everything_migrated
        monkeypatch.setattr("volplane.kube.names.MIGRATED_PLUGINS", migrated)

    async with Harness(*rows.backends_of(row)) as harness:
        meaning = rows.Meaning()
        await single.foretell(harness, row, meaning)
        await rows.prepare(harness, row, meaning)
        await single.divert(harness, row, meaning)
        held: list[str] = []

        async def act(operation: str) -> None:
            held.append(operation)
            await single.act(harness, row, meaning, operation)

        harness.adjust = lambda plane: single.hold(plane.operations, act)
        await single.one_sync(harness, SYNCS[row["when"]], row["target"], before=lambda: single.outdate(harness, row))
        wrong = await rows.shortfalls(harness, row["then"], meaning, exact=True)
        wrong += rows.strange_events(harness, row) + rows.wrong_calls(harness, row)
        if any("at" in entry for entry in row.get("inject", ())) and len(held) != 1:
            wrong.append(f"operations were {held}, expected one")
        assert not wrong, "\n".join([*wrong, f"writes: {harness.rules.writes()}"])


@pytest.mark.parametrize("row", _where("run-controller"))
async def test_without_attributes_classes_their_names_do_not_matter(row: Json) -> None:
    """The gate is locked on since Kubernetes 1.36; a server without it drops the field, and we never see it."""
    for step in row["steps"]:
        for body in (each for objects in step.get("create", {}).values() for each in objects):
            body["spec"].pop("volumeAttributesClassName", None)

    async with Harness(*rows.backends_of(row)) as harness:
        meaning = rows.Meaning()
        for step in row["steps"]:
            await rows.take(harness, step, meaning)
        await harness.settle()
        wrong = await rows.shortfalls(harness, row["then"], meaning, exact=True)
        assert not wrong + rows.strange_events(harness, row)


@pytest.mark.parametrize("row", _where("store-in-cache"))
async def test_the_cache_takes_versions_that_are_numbers_only(row: Json) -> None:
    cache: Cache[Volume] = Cache(VOLUMES)
    for entry in row["then"]["sequence"]:
        volume = Volume(metadata=Metadata(name="v", uid="u", resource_version=entry["put"]))
        if entry.get("error"):
            with pytest.raises(ValueError, match="invalid literal"):
                cache.observe(volume)
        else:
            cache.observe(volume)
            assert (cache.get("v") is volume) is entry["stored"]


def test_every_row_is_played() -> None:
    played = [*_where(*SYNCS), *_where("run-controller"), *_where("store-in-cache")]
    assert len(played) == len(ROWS)
