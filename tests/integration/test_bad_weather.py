"""A server that answers badly for a minute: all goes on afterwards, nothing is lost, and few requests were made
meanwhile.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from integration.weather import WEATHERS, Outdoors
from scenarios.backends import ScriptedBackend
from scenarios.stories import DRIVER, claim, storage_class, volume

MANY = 60
MINUTE = 60.0
MOST_REQUESTS = 500
"""What is under way fails once (64 workers for claims, as many for volumes, each some tries); then one call a
second."""


async def _crowd(lab: Outdoors) -> None:
    """Half of the claims find a volume, for half one is made."""
    await lab.create("classes", storage_class())
    for number in range(MANY):
        await lab.create("volumes", volume(f"v{number}"))
        await lab.create("claims", claim(f"static-{number}"))
        await lab.create("claims", claim(f"made-{number}", storageClassName="fast"))


async def _phases(lab: Outdoors) -> set[str]:
    return {item["status"]["phase"] for item in await lab.everything("claims")}


def _tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("kind", WEATHERS)
@pytest.mark.parametrize("moment", [0.0, 0.02, 0.1])
async def test_a_minute_of_bad_weather_while_claims_are_served(
    kind: str, moment: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend = ScriptedBackend(DRIVER)

    async with Outdoors(backend) as lab:
        await _crowd(lab)
        await lab.start()
        await asyncio.sleep(moment)
        assert await lab.storm(WEATHERS[kind], MINUTE) < MOST_REQUESTS
        await lab.settle()
        assert await _phases(lab) == {"Bound"}
        assert len(backend.assets) == MANY
        assert backend.calls["delete"] == 0
    assert _tracebacks(caplog) == []


@pytest.mark.parametrize("kind", WEATHERS)
async def test_a_minute_of_bad_weather_while_volumes_go(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    backend = ScriptedBackend(DRIVER)

    async with Outdoors(backend) as lab:
        await _crowd(lab)
        await lab.start()
        await lab.settle()
        for number in range(MANY):
            await lab.delete("claims", f"made-{number}")
            await lab.delete("claims", f"static-{number}")
        await asyncio.sleep(0.03)
        assert await lab.storm(WEATHERS[kind], MINUTE) < MOST_REQUESTS
        await lab.settle()
        assert await lab.everything("claims") == []
        volumes = await lab.everything("volumes")
        assert {item["metadata"]["name"] for item in volumes} == {f"v{number}" for number in range(MANY)}
        assert {item["status"]["phase"] for item in volumes} == {"Released"}
        assert backend.assets == {}
    assert _tracebacks(caplog) == []


@pytest.mark.parametrize("kind", WEATHERS)
async def test_a_start_in_bad_weather_waits_for_better(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async with Outdoors(ScriptedBackend(DRIVER)) as lab:
        await _crowd(lab)
        starting = asyncio.create_task(lab.start())
        assert await lab.storm(WEATHERS[kind], MINUTE) < 150
        assert not lab.plane.synced
        assert len(lab.plane.failing) > 0
        await starting
        await lab.settle()
        assert await _phases(lab) == {"Bound"}
        assert lab.plane.failing == ()
    assert _tracebacks(caplog) == []
    assert "trying again in" in caplog.text
