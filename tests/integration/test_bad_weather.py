"""A server that answers badly for a minute: all goes on afterwards, nothing is lost, and few requests were made
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from integration.weather import WEATHERS, Outdoors
from scenarios.backends import ScriptedBackend
from scenarios.stories import DRIVER, claim, storage_class, volume

MANY = 30
MINUTE = 60.0
MOST_REQUESTS = 500
"""What is under way fails once (64 workers for claims, as many for volumes, each some tries); then one call a
second."""


async def _crowd(harness: Outdoors) -> None:
    """Half of the claims find a volume, for half one is made."""
    await harness.create("classes", storage_class())
    for number in range(MANY):
        await harness.create("volumes", volume(f"v{number}"))
        await harness.create("claims", claim(f"static-{number}"))
        await harness.create("claims", claim(f"made-{number}", storageClassName="fast"))


async def _phases(harness: Outdoors) -> Counter[str]:
    """How many claims are in each phase."""
    return Counter(item["status"]["phase"] for item in await harness.everything("claims"))


def _tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("kind", WEATHERS)
@pytest.mark.parametrize("served", [0, 10, 40])
async def test_a_minute_of_bad_weather_while_claims_are_served(
    kind: str, served: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend = ScriptedBackend(DRIVER)

    async with Outdoors(backend) as harness:
        await _crowd(harness)
        await harness.start()
        while (await _phases(harness))["Bound"] < served:
            await asyncio.sleep(0)
        assert (await _phases(harness))["Pending"] > 0
        assert await harness.storm(WEATHERS[kind], MINUTE) < MOST_REQUESTS
        await harness.settle()
        assert await _phases(harness) == {"Bound": 2 * MANY}
        assert len(backend.assets) == MANY
        assert backend.calls["delete"] == 0
    assert _tracebacks(caplog) == []


@pytest.mark.parametrize("kind", WEATHERS)
async def test_a_minute_of_bad_weather_while_volumes_go(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = ScriptedBackend(DRIVER)

    async with Outdoors(backend) as harness:
        await _crowd(harness)
        await harness.start()
        await harness.settle()
        for number in range(MANY):
            await harness.delete("claims", f"made-{number}")
            await harness.delete("claims", f"static-{number}")
        await asyncio.sleep(0.03)
        assert await harness.storm(WEATHERS[kind], MINUTE) < MOST_REQUESTS
        await harness.settle()
        assert await harness.everything("claims") == []
        volumes = await harness.everything("volumes")
        assert {item["metadata"]["name"] for item in volumes} == {f"v{number}" for number in range(MANY)}
        assert {item["status"]["phase"] for item in volumes} == {"Released"}
        assert backend.assets == {}
    assert _tracebacks(caplog) == []


@pytest.mark.parametrize("kind", WEATHERS)
async def test_a_start_in_bad_weather_waits_for_better(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async with Outdoors(ScriptedBackend(DRIVER)) as harness:
        await _crowd(harness)
        starting = asyncio.create_task(harness.start())
        assert await harness.storm(WEATHERS[kind], MINUTE) < 150
        assert not harness.plane.synced
        assert len(harness.plane.unread(required=True)) > 0
        await starting
        await harness.settle()
        assert await _phases(harness) == {"Bound": 2 * MANY}
        assert harness.plane.unread(required=True) == ()
    assert _tracebacks(caplog) == []
    assert "trying again in" in caplog.text
