"""The API server comes back from a backup: what the process knows may never have been."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.controller_process import running_process
from volplane.controller.config import ALL_CONTROLLERS
from volplane.errors import VolplaneError

pytestmark = pytest.mark.real_time


async def run_through_a_restore(directory: Path) -> None:
    """The process ends within the block, and what it raises comes out of it."""
    async with running_process(directory, frozenset(ALL_CONTROLLERS)) as site:
        backup = site.server.store.snapshot()
        await site.make_class("fast")
        await site.make_claim("data", "fast")
        await site.bound("data")
        site.server.restore(backup)

        async def gave_up() -> bool:
            return site.process.plane is None

        await site.until("it gives up", gave_up)


async def test_a_process_whose_server_was_restored_ends_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run_through_a_restore(tmp_path)
    told, rest = caught.value.split(VolplaneError)
    assert rest is None
    assert told is not None
    assert "restored from a backup" in str(told.exceptions[0])
