"""Every exchange recorded with a real API server, sent to ours: in process, and over HTTP."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from tools.api_exchanges import Exchange, read
from tools.exchange_clients import InProcess, OverHttp, replay

from volplane_embedded.apiserver.http import serve
from volplane_embedded.apiserver.server import ApiServer
from volplane_testing import clock

OWN = Path(__file__).parent / "exchanges"
HANDED = {
    "apiserver": ("discovery", "volumes", "claims", "pods-attachments-leases", "lists-and-watches"),
    "apiserver-more/growth": ("growth",),
    "apiserver-more/attributes": ("attributes",),
    "apiserver-more/attachments": ("attachments",),
    "apiserver-snapshots/snapshots": ("snapshots",),
    "apiserver-snapshots/contents": ("contents",),
    "apiserver-snapshots/sources": ("sources",),
}
"""Sets of recordings beside the checkout, and their files in the order in which they were recorded on one server."""


def _handed(shared: Path, which: str) -> list[Exchange]:
    return [exchange for name in HANDED[which] for exchange in read(shared / which.partition("/")[0] / f"{name}.json")]


def _server(now: Callable[[], datetime], which: str) -> ApiServer:
    """As the recorded server was: the first ones had no definitions of snapshots, the last ones less admission."""
    snapshots = which.startswith("apiserver-snapshots")
    disabled = frozenset({"StorageObjectInUseProtection", "DefaultStorageClass"}) if snapshots else frozenset[str]()
    without = () if snapshots else ("snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io")
    return ApiServer(now=now, random=random.Random(36), disabled_admission=disabled, without=without)


async def _in_process(exchanges: list[Exchange], which: str = "") -> None:
    found = await replay(InProcess(_server(clock.now, which)), exchanges)
    assert not found, "\n".join(found)


async def _over_http(exchanges: list[Exchange], which: str = "") -> None:
    listener = await serve(_server(lambda: datetime.now(UTC), which), port=0, token="secret")
    try:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer secret"}) as session:
            found = await replay(OverHttp(session, listener.url), exchanges)
    finally:
        await listener.close()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("which", HANDED)
async def test_every_recorded_exchange_is_reproduced_in_process(shared: Path, which: str) -> None:
    await _in_process(_handed(shared, which), which)


@pytest.mark.real_time
@pytest.mark.parametrize("which", HANDED)
async def test_every_recorded_exchange_is_reproduced_over_http(shared: Path, which: str) -> None:
    await _over_http(_handed(shared, which), which)


@pytest.mark.parametrize("name", sorted(path.stem for path in OWN.glob("*.json")))
async def test_every_exchange_of_the_repository_is_reproduced_in_process(name: str) -> None:
    await _in_process(read(OWN / f"{name}.json"))


@pytest.mark.real_time
@pytest.mark.parametrize("name", sorted(path.stem for path in OWN.glob("*.json")))
async def test_every_exchange_of_the_repository_is_reproduced_over_http(name: str) -> None:
    await _over_http(read(OWN / f"{name}.json"))
