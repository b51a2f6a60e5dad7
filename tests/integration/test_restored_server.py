"""The API server comes back from a backup: what the process knows may never have been."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from integration.controller_process import DRIVER, Site, running_process
from volplane import Context, ProbeRequest
from volplane.controller.leader import Leadership
from volplane.drivers.driver import Driver
from volplane.errors import Fenced, VolplaneError
from volplane.kube.kinds import CLAIMS
from volplane.leaks.check import Observations
from volplane.process.duties import ALL_CONTROLLERS
from volplane_embedded.apiserver.server import ApiServer
from volplane_embedded.apiserver.store import Snapshot

pytestmark = pytest.mark.real_time(seconds=240)


CONTROLLERS = frozenset(ALL_CONTROLLERS)


async def restored(site: Site, backup: Snapshot, *, version: int = 0) -> None:
    """Put the backup back, and wait until the process has seen that."""
    site.server.restore(backup, version=version)

    async def gave_up() -> bool:
        return site.process.plane is None

    await site.until("it gives up", gave_up)


async def run_through_a_restore(directory: Path) -> None:
    """The process ends within the block, and what it raises comes out of it."""
    async with running_process(directory, CONTROLLERS) as site:
        backup = site.server.store.snapshot()
        await site.make_class("fast")
        await site.make_claim("data", "fast")
        await site.bound("data")
        await restored(site, backup)


async def change_much_and_restore(directory: Path, server: ApiServer) -> None:
    """Of two claims one is only in the backup, and one was made later."""
    async with running_process(directory, CONTROLLERS, server=server) as site:
        await site.make_class("fast")
        await site.make_claim("deleted", "fast")
        await site.bound("deleted")
        backup = server.store.snapshot()
        await site.client.delete(CLAIMS, "default/deleted")
        await site.until("its asset is gone", lambda: not list(site.root.glob("default/*")))
        await site.make_claim("later", "fast")
        await site.bound("later")
        await restored(site, backup, version=10**9)


async def test_a_process_whose_server_was_restored_ends_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await run_through_a_restore(tmp_path)
    told, rest = caught.value.split(VolplaneError)
    assert rest is None
    assert told is not None
    assert "restored from a backup" in str(told.exceptions[0])


async def test_the_commands_of_the_page_find_and_remove_what_the_backup_does_not_know(
    repository: Path, tmp_path: Path
) -> None:
    page = (repository / "docs" / "how-to" / "restore-a-cluster.md").read_text("utf-8")
    look, fix = (line.split() for line in re.findall(r"^ *\$ volplane (.*)$", page, re.MULTILINE))
    server = ApiServer(now=lambda: datetime.now(UTC), random=Random(1))
    with pytest.raises(ExceptionGroup):
        await change_much_and_restore(tmp_path, server)
    async with running_process(tmp_path, CONTROLLERS, server=server, leader_elect=False) as site:
        (asset,) = (site.root / "default").iterdir()
        await check_for_leaks_twice(site)
        code, said = await site.command(*look)
        assert (code, asset.name.startswith("later-")) == (1, True)
        assert re.search(rf"^ *orphan .*pvc-{asset.name.removeprefix('later-')}", said, re.MULTILINE), said
        assert re.search(r"^ *ghost ", said, re.MULTILINE), said
        code, said = await site.command(*fix)
        assert "ok    deleted" in said, said
        assert not asset.exists()
        assert await site.phase("deleted") == "Bound"


async def check_for_leaks_twice(site: Site) -> None:
    """After the check with which the process begins: one that runs at the same time would begin before the first."""
    assert site.process.plane is not None
    check = site.process.plane.leak_check
    driver = site.process.plane.state.drivers.get(DRIVER)
    assert driver is not None
    await site.until("the process has checked by itself", check.observations.findings)
    check.observations = Observations(grace=0.0)
    for _ in range(2):
        await check.check(driver)


async def test_a_leader_that_began_after_the_restore_counts_on_from_the_term_that_storage_knows(tmp_path: Path) -> None:
    """Who led in that term ended before the restore."""
    async with running_process(tmp_path, CONTROLLERS) as site:
        leadership = await leading(site)
        assert leadership.fence is not None
        former = replace(leadership.fence, transitions=7, holder="gone")
        plane = site.process.plane
        assert plane is not None

        def refuse(_driver: Driver, _request: object) -> None:
            raise Fenced("a later leader has it", fence=str(former))

        calls = plane.drivers.calls
        calls.call_hook = refuse
        with pytest.raises(Fenced):
            calls._call_in_thread(calls.drivers[DRIVER], ProbeRequest(context=Context(driver=DRIVER, cluster_id="")))
        calls.call_hook = Driver.call

        async def leads_later() -> bool:
            now = await leading(site)
            return now.fence is not None and now.fence.outdates(former)

        await site.until("it leads in a later term", leads_later)
        await site.make_class("fast")
        await site.make_claim("data", "fast")
        await site.bound("data")


async def leading(site: Site) -> Leadership:
    elector = site.process._elector

    async def leads() -> bool:
        return elector is not None and elector.leadership is not None

    await site.until("it leads", leads)
    assert elector is not None
    assert elector.leadership is not None
    return elector.leadership
