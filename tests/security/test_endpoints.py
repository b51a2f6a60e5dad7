"""Whoever reaches a loopback port of the controller, as a pod with the host's network does, cannot change anything."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from integration.test_observability import observed


@pytest.mark.real_time
@pytest.mark.parametrize("path", ["/leaks/fix", "/adopt?from=old", "/adopt/plan?from=old"])
async def test_nothing_is_changed_without_the_credential(tmp_path: Path, path: str) -> None:
    async with observed(tmp_path, leader_elect=False) as site, aiohttp.ClientSession() as session:
        headers = {"content-type": "application/json"}
        async with session.post(f"{site.url}{path}", headers=headers) as answer:
            assert answer.status == 401
            assert "it needs the token" in (await answer.json())["error"]
