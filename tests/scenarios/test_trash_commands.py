"""`volplane undelete` and `volplane trash` beside running controllers, and what explain and metrics say."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from scenarios.test_trash import VOLUMES, Site, a_site
from volplane.cli.trash import counted, give, row_of
from volplane.controller.metrics import Metrics
from volplane.errors import VolplaneError
from volplane.kube.cache import Cache
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS
from volplane.kube.kinds import VOLUMES as KIND
from volplane.process.measuring import count_inventory
from volplane.state.records import trashed
from volplane_embedded.inprocess import InProcessTransport
from volplane_testing import clock

GIB = 1 << 30


def person(site: Site) -> Client:
    return Client(InProcessTransport(site.cluster.server))


async def given(site: Site, volume: dict[str, Any], key: str) -> str:
    """The key of the claim that the volume refers to, once the command has done its part."""
    await give(person(site), volume["metadata"]["name"], key)
    claim = site.api.get("persistentvolumeclaims", key.partition("/")[2], key.partition("/")[0])
    assert claim is not None
    await site.cluster.wait_bound(claim)
    return site.claim_of(volume)


@pytest.mark.parametrize("key", ["default/data", "default/other", "elsewhere/data"])
async def test_undelete_makes_a_claim_and_gives_it_the_volume(key: str) -> None:
    async with a_site() as site:
        volume = await site.deleted()
        site.api.create("namespaces", {"metadata": {"name": "elsewhere"}})
        assert await given(site, volume, key) == key
        assert site.record(volume) is None


async def test_undelete_gives_the_volume_to_a_claim_that_waits() -> None:
    async with a_site() as site:
        volume = await site.deleted()
        site.claim("waits", storageClassName="")
        await site.cluster.settle()
        assert await given(site, volume, "default/waits") == "default/waits"


async def test_undelete_into_a_namespace_that_was_made_again_asks_for_the_right_to_change_volumes() -> None:
    async with a_site() as site:
        volume = await site.deleted(namespace="team")
        site.api.delete("namespaces", "team")
        await site.cluster.advance(5)
        site.api.create("namespaces", {"metadata": {"name": "team"}})
        assert await given(site, volume, "team/data") == "team/data"
        patched = [call for call in site.cluster.requests if call.resource == "namespaces"]
        assert patched == []  # The controller had no proof to look at: an administrator's annotation is enough.


async def test_undelete_says_why_it_cannot() -> None:
    async with a_site() as site:
        volume = await site.deleted()
        other = await site.bound()
        name = volume["metadata"]["name"]
        for wrong, key, words in (
            (name, "default/data", f'is bound to volume "{other["metadata"]["name"]}": its name is taken'),
            (other["metadata"]["name"], "default/x", "is not in the trash: it is Bound"),
            ("absent", "default/x", "is not in the trash: it does not exist"),
        ):
            with pytest.raises(VolplaneError, match=re.escape(words)):
                await give(person(site), wrong, key)
        assert site.record(volume) is not None


async def test_a_row_says_what_becomes_of_the_volume() -> None:
    async with a_site() as site:
        made = await site.deleted()
        volume = await person(site).get(KIND, made["metadata"]["name"])
        record = trashed(volume)
        assert record is not None
        row = row_of(volume, record, {"kept"}, clock.now() + timedelta(days=2))
        assert row.cells()[:4] == (volume.name, "kept", "1Gi", "default/data")
        assert row.cells()[6:] == ("5d", "archived")
        late = row_of(volume, record, (), clock.now() + timedelta(days=8))
        assert late.cells()[6:] == ("due", "destroyed")
        assert counted([volume]) == (1, GIB)


async def test_explain_tells_until_when_and_how_to_get_it_back() -> None:
    async with a_site() as site:
        volume = await site.bound(says="2d")
        plane, name = site.cluster.controllers.plane, volume["metadata"]["name"]
        kept = "once the claim is deleted the volume is kept for 2d"
        assert kept in plane.explain("claim", "default/data").situation
        assert kept in plane.explain("volume", name).situation
        assert any("are kept for 7d" in each for each in plane.explain("class", "kept").situation)
        site.api.delete("persistentvolumeclaims", "data")
        await site.cluster.settle()
        told, record = plane.explain("volume", name), site.record(volume)
        assert record is not None
        assert any(f"it is in the trash until {record['until']}" in each for each in told.situation)
        assert any(f"`volplane undelete {name} --claim" in each for each in told.next)


async def test_metrics_count_what_is_in_the_trash() -> None:
    async with a_site() as site:
        await site.deleted()
        metrics, volumes = Metrics(), Cache(KIND)
        count_inventory(volumes, Cache(CLAIMS), metrics)
        volume = (await person(site).list(KIND)).items[0]
        volumes.observe(volume)
        metrics.exposition()
        shown = {
            name: metrics.registry.get_sample_value(name, {"storage_class": "kept"})
            for name in ("volplane_trash_volumes", "volplane_trash_bytes")
        }
        assert shown == {"volplane_trash_volumes": 1.0, "volplane_trash_bytes": float(GIB)}
        site.api.delete(VOLUMES, volume.name)
        volumes.observe_deleted(volume.key, volume.uid)
        metrics.exposition()
        assert metrics.registry.get_sample_value("volplane_trash_volumes", {"storage_class": "kept"}) is None
