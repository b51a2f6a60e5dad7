"""The API server comes back from a backup: what the process knows may never have been."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.controller_process import running_process
from volplane.controller.config import ALL_CONTROLLERS
from volplane.errors import VolplaneError

pytestmark = pytest.mark.real_time


async def test_a_process_whose_server_was_restored_ends_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with running_process(tmp_path, frozenset(ALL_CONTROLLERS)) as site:
            backup = site.server.store.snapshot()
            await site.make_class("fast")
            await site.make_claim("data", "fast")
            await site.bound("data")
            plane = site.process.plane
            assert plane is not None
            site.server.restore(backup)
            await site.until("it gives up", lambda: gave_up(site))
            assert plane.restored.is_set()
    told, rest = caught.value.split(VolplaneError)
    assert rest is None
    assert told is not None
    assert "restored from a backup" in str(told.exceptions[0])


async def gave_up(site: object) -> bool:
    return site.process.plane is None  # type: ignore[attr-defined]
