"""What a controller process shows of itself after volumes have lived and died: metrics, readiness, leaks."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from integration.controller_process import DRIVER, Site, running_process
from volplane.asking.leader import Leader
from volplane.controller.actions import Settled
from volplane.controller.config import Configuration, DriverSettings
from volplane.controller.controller import Controller, Duty, Role, Watch
from volplane.controller.metrics import Metrics
from volplane.intents.operation import OperationDeps
from volplane.kube.cache import Cache
from volplane.kube.events import EVENTS
from volplane.kube.kinds import CLAIMS, LEASES, NAMESPACES, VOLUMES
from volplane.kube.leases import LEASE
from volplane.kube.names import DRIVERS, FINDINGS
from volplane.leaks.comparison import Observations
from volplane.process import duties
from volplane.process.duties import ALL_CONTROLLERS, DEFAULT_CONTROLLERS, parse_controllers
from volplane.process.process import ControllerProcess, Options
from volplane.snapshots.objects import VOLUME_SNAPSHOTS
from volplane_testing.given_plugins import GivenPlugins

Story = Callable[[Site], Awaitable[None]]
EVERYTHING = frozenset(ALL_CONTROLLERS)
BROKEN = DriverSettings(name="odd.example.com", backend="odd", where="drivers[0]")


@asynccontextmanager
async def observed(directory: Path, *broken: DriverSettings, **options: Any) -> AsyncIterator[Site]:
    configuration = replace(Configuration(), drivers=broken)
    async with running_process(directory, EVERYTHING, configuration=configuration, **options) as site:
        yield site


@asynccontextmanager
async def waiting_behind(leader: Site, directory: Path, *broken: DriverSettings) -> AsyncIterator[Site]:
    """A second process on the leader's API server."""
    async with observed(directory, *broken, server=leader.server, leads=False) as site:

        async def waits() -> bool:
            status, text = await site.get("/readyz")
            return status == 200 and text.startswith("ok")

        await site.until("it waits for the lease", waits)
        yield site


@pytest.mark.real_time(seconds=240)
async def test_a_start_says_in_one_line_what_works_where_and_who_leads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="volplane.process.process")
    async with observed(tmp_path, BROKEN) as site:
        cluster = (await site.client.get(NAMESPACES, "kube-system")).uid
        labels = (await site.client.get(NAMESPACES, "volplane-system")).metadata.labels or {}
    told = [record.getMessage() for record in caplog.records if record.name == "volplane.process.process"]
    (start,) = [each for each in told if each.startswith("volplane ")]
    assert f"for cluster {cluster}: controllers {', '.join(ALL_CONTROLLERS)}; " in start
    assert f"drivers {DRIVER} (hostpath), odd.example.com (odd, not usable); " in start
    assert start.endswith("takes lease volplane-system/volplane, which nobody holds")
    assert told[told.index(start) + 1] == "leads by lease volplane-system/volplane"
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.real_time(seconds=240)
async def test_a_start_behind_another_leader_says_who_holds_the_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="volplane.process.process")
    async with observed(tmp_path) as site, asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        options = Options(controllers=EVERYTHING, identity="second")
        second = ControllerProcess(site.client, Configuration(), options, metrics=Metrics(), plugins=GivenPlugins([]))
        group.create_task(second.run(stop))
        first = await site.process.leader()
        line = f"drivers none; waits for lease volplane-system/volplane, which {first} holds"
        await site.until("it is said", lambda: any(line in record.getMessage() for record in caplog.records))
        line = f"the leader serves drivers that this process is not configured with: {DRIVER}; nobody serves them once"
        await site.until("it is said", lambda: any(line in record.getMessage() for record in caplog.records))
        stop.set()


@pytest.mark.real_time(seconds=240)
async def test_a_leader_says_on_its_lease_which_drivers_of_the_last_one_are_not_served_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with observed(tmp_path) as site:
        lease = await site.client.get(LEASES, "volplane-system/volplane")
        assert lease.annotation(DRIVERS) == DRIVER
        # As the process before this one has left it, with one driver more, and one that this one adds.
        left = {"annotations": {DRIVERS: "gone.example.com"}, "resourceVersion": lease.metadata.resource_version}
        await site.client.patch(
            LEASES, lease.key, {"metadata": left, "spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        )

        async def told() -> bool:
            events = (await site.client.list(EVENTS, namespace="volplane-system")).items
            return any(each.name.startswith(f"{lease.name}.") for each in events)

        await site.until("it is told", told)
        assert (await site.client.get(LEASES, lease.key)).annotation(DRIVERS) == DRIVER
    (said,) = [each.getMessage() for each in caplog.records if "not served any more" in each.getMessage()]
    assert "not served any more: gone.example.com. " in said


@pytest.mark.real_time(seconds=240)
async def test_what_a_stopped_controller_counted_of_its_caches_is_void(tmp_path: Path) -> None:
    async with observed(tmp_path) as site:
        await site.make_claim("early")

        async def counted() -> bool:
            return any(name.startswith("pv_collector_unbound_pvc_count") for name in await scraped(site))

        await site.until("the claim is counted", counted)
    assert b"\npv_collector_" not in site.metrics.exposition()


async def scraped(site: Site) -> dict[str, float]:
    """Every sample as `name{label=value,…}`, histograms by count."""
    status, text = await site.get("/metrics")
    assert status == 200
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


@pytest.mark.real_time(seconds=240)
async def test_a_scrape_after_a_life_cycle_tells_the_truth(tmp_path: Path) -> None:
    async with observed(tmp_path) as site:
        await site.make_claim("early")
        await site.make_class("fast", default=True)
        for name in ("a", "b"):
            await site.make_claim(name, "fast")
        await site.make_claim("large", "fast", size="1Ei")
        await site.bound("a", "b", "early")
        await site.client.delete(CLAIMS, "default/a")

        async def two_volumes() -> bool:
            return len((await site.client.list(VOLUMES)).items) == 2

        await site.until("two volumes are left", two_volumes)

        samples: dict[str, float] = {}

        async def large_waits() -> bool:
            """It has failed, and is not tried again at the moment of the scrape."""
            samples.update(await scraped(site))
            failed = samples.get(f"volume_operation_errors_total{{operation_name=provision,plugin_name={DRIVER}}}", 0)
            phase = f"volplane_operations{{driver={DRIVER},operation=provision,phase=waiting}}"
            return failed >= 1 and samples.get(phase, 0) == 1 and samples["workqueue_depth{name=claims}"] == 0

        await site.until("the large claim has failed", large_waits)
        expected = {
            "controller_persistentvolumeclaim_provision_total{class=fast,source=}": 3,
            "controller_persistentvolumeclaim_provision_duration_seconds_count{class=fast,source=}": 3,
            "controller_persistentvolume_delete_total{class=fast}": 1,
            "controller_persistentvolume_delete_duration_seconds_count{class=fast}": 1,
            "pv_collector_total_pv_count{plugin_name=kubernetes.io/host-path,volume_mode=Filesystem}": 2,
            "pv_collector_bound_pv_count{storage_class=fast}": 2,
            "pv_collector_bound_pvc_count{namespace=default,storage_class=fast,volume_attributes_class=}": 2,
            "pv_collector_unbound_pvc_count{namespace=default,storage_class=fast,volume_attributes_class=}": 1,
            f"volume_operation_total_seconds_count{{operation_name=provision,plugin_name={DRIVER}}}": 3,
            f"volume_operation_total_seconds_count{{operation_name=delete,plugin_name={DRIVER}}}": 1,
            f"storage_operation_duration_seconds_count{{migrated=false,operation_name=volume_provision,"
            f"status=success,volume_plugin={DRIVER}}}": 3,
            f"volplane_hook_calls_total{{driver={DRIVER},hook=delete,result=ok}}": 1,
            f"volplane_hook_calls_total{{driver={DRIVER},hook=start,result=ok}}": 1,
            f"volplane_driver_healthy{{driver={DRIVER}}}": 1,
            f"volplane_leak_findings{{driver={DRIVER},verdict=orphan}}": 0,
            f"volplane_leak_checks_total{{driver={DRIVER},result=complete}}": 1,
            f"volplane_operations{{driver={DRIVER},operation=provision,phase=waiting}}": 1,
            "retroactive_storageclass_total{}": 1,
            "retroactive_storageclass_errors_total{}": 0,
            "volplane_leading{lease=volplane}": 1,
            "workqueue_depth{name=claims}": 0,
        }
        assert {name: samples.get(name) for name in expected} == expected
        assert samples["controller_persistentvolumeclaim_provision_failed_total{class=fast,source=}"] >= 1
        assert samples["workqueue_work_duration_seconds_count{name=claims}"] > 3
        assert samples["workqueue_adds_total{name=volumes}"] > 3


@pytest.mark.real_time(seconds=240)
async def test_ready_says_beside_ok_what_cannot_work(tmp_path: Path) -> None:
    async with observed(tmp_path, BROKEN) as site:
        status, text = await site.get("/readyz")
        assert status == 200
        assert re.fullmatch(r"ok\ndriver odd\.example\.com is broken: .*backend 'odd' is not there.*\n", text)


@pytest.mark.real_time(seconds=240)
async def test_a_kind_that_is_not_served_is_told_and_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller of snapshots, on a server without them."""

    def snapshots(_role: Role, _deps: OperationDeps) -> Iterable[Controller]:
        cache = Cache(VOLUME_SNAPSHOTS)
        watches = (Watch(cache=cache, required=False),)
        yield Controller(queue="snapshots", cache=cache, decide=lambda _key, _reads: Settled(), watches=watches)

    monkeypatch.setattr("volplane.process.duties.DUTIES", (*duties.DUTIES, Duty(option="", controllers=snapshots)))
    async with observed(tmp_path) as site:
        definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/volumesnapshots.snapshot.storage.k8s.io"
        missing = "volumesnapshots cannot be read: VolumeSnapshot is not served by this API server"
        assert await site.get("/readyz") == (200, "ok\n")
        site.server.handle("DELETE", definition, {}, {}, b"")
        await site.until("it is noticed", lambda: site.process.details() == [missing])
        assert await site.get("/readyz") == (200, f"ok\n{missing}\n")
        assert json.loads((await site.get("/status"))[1])["missing"] == [missing]
        await site.make_class("fast")
        await site.make_claim("a", "fast")
        await site.bound("a")


@pytest.mark.real_time(seconds=240)
async def test_it_is_not_ready_when_no_driver_can_work_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volplane.process.control_plane.HUNG_INTERVAL", 0.02)
    caplog.set_level("INFO", logger="volplane.process.control_plane")

    def said(text: str) -> list[str]:
        told = [record.getMessage() for record in caplog.records if record.name == "volplane.process.control_plane"]
        return [each for each in told if each.startswith(text)]

    async with observed(tmp_path, BROKEN) as site:
        site.root.rename(site.root.with_name("unmounted"))
        drivers = site.process.plane.drivers  # type: ignore[union-attr]
        assert "does not exist" in await drivers.probe(DRIVER)
        status, text = await site.get("/readyz")
        lines = text.splitlines()
        assert (status, lines[0]) == (503, "no driver can work")
        assert [line.split(" is ")[0] for line in lines[1:]] == [f"driver {DRIVER}", "driver odd.example.com"]
        await site.until("it is logged", lambda: said("no driver can work"))
        await asyncio.sleep(0.1)
        (line,) = said("no driver can work")
        assert f"driver {DRIVER} is " in line
        site.root.with_name("unmounted").rename(site.root)
        assert await drivers.probe(DRIVER) == ""
        await site.until("it is logged", lambda: said("a driver works again"))
        assert (await site.get("/readyz"))[0] == 200


@pytest.mark.real_time(seconds=240)
@pytest.mark.parametrize(("controllers", "ready"), [("provisioner,reclaimer", 503), ("all", 200)])
async def test_without_any_driver_only_a_binder_is_ready(
    controllers: str, ready: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with observed(tmp_path) as site:
        stop = asyncio.Event()
        options = Options(controllers=parse_controllers(controllers), leader_elect=False)
        none = ControllerProcess(site.client, Configuration(), options, metrics=Metrics(), plugins=GivenPlugins([]))
        running = asyncio.ensure_future(none.run(stop))
        await none.wait_working()
        await asyncio.sleep(0.05)
        assert bool(none.unready()) == (ready == 503)
        logged = any("no driver is configured" in record.getMessage() for record in caplog.records)
        assert logged == (ready == 503)
        stop.set()
        await running


@pytest.mark.real_time(seconds=240)
async def test_a_process_whose_drivers_are_served_by_those_of_nodes_is_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It assigns their claims; a Deployment that is never ready is never rolled out."""

    def statuses(plane: Any) -> list[tuple[str, bool, str]]:
        return [(each.name, each.healthy, each.error) for each in plane.drivers_on_nodes()]

    caplog.set_level("INFO", logger="volplane.process.process")
    (tmp_path / "disks").mkdir()
    driver = DriverSettings(
        name="local.example.com", backend="hostpath", options={"root": str(tmp_path / "disks")}, distributed=True
    )
    async with observed(tmp_path) as site:
        stop = asyncio.Event()
        options = Options(controllers=parse_controllers(DEFAULT_CONTROLLERS), leader_elect=False)
        central = ControllerProcess(site.client, Configuration(drivers=(driver,)), options, metrics=Metrics())
        running = asyncio.ensure_future(central.run(stop))
        await central.wait_working()
        await site.until("it is ready", lambda: not central.unready())
        assert central.plane is not None
        ((name, healthy, _),) = statuses(central.plane)
        assert (name, healthy) == ("local.example.com", True), "without a class nobody waits for it"
        await site.make_class("local", driver=name)
        await site.until("it is not healthy", lambda: not statuses(central.plane)[0][1])
        assert "kubectl -n volplane-system-nodes get pods" in statuses(central.plane)[0][2]
        assert "no driver is configured" not in caplog.text
        assert "drivers local.example.com (hostpath, on nodes);" in caplog.text
        stop.set()
        await running


@pytest.mark.real_time(seconds=240)
async def test_leaks_are_told_over_http_and_fixed_only_by_post(tmp_path: Path) -> None:
    async with observed(tmp_path) as site:
        await site.make_class("fast")
        claim = await site.make_claim("a", "fast")
        await site.bound("a")
        plane = site.process.plane
        assert plane is not None
        driver = site.process.plane.state.drivers.get(DRIVER)  # type: ignore[union-attr]
        assert driver is not None
        (site.root / "stray").mkdir()
        await plane.leak_check.check(driver)
        status, text = await site.get("/leaks")
        report = json.loads(text)
        assert status == 200
        assert [(each["driver"], each["can_list"], each["error"]) for each in report["drivers"]] == [(DRIVER, True, "")]
        (finding,) = report["findings"]
        assert (finding["verdict"], finding["handle"]) == ("foreign", str(site.root / "stray"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", finding["first_seen"])
        assert (await site.get("/leaks/fix"))[0] == 404
        assert (site.root / "default" / f"a-{claim.uid}").is_dir()


@pytest.mark.real_time(seconds=240)
async def test_who_does_not_lead_says_who_to_ask(tmp_path: Path) -> None:
    async with observed(tmp_path, identity="first") as first, waiting_behind(first, tmp_path) as second:
        status, text = await second.get("/leaks")
        assert status == 400
        assert json.loads(text)["error"].startswith("this process waits for the lease, which first holds; ask")


@pytest.mark.real_time(seconds=240)
async def test_who_does_not_lead_is_ready_and_tells_of_broken_drivers_all_the_same(tmp_path: Path) -> None:
    async with observed(tmp_path) as first, waiting_behind(first, tmp_path, BROKEN) as second:
        status, text = await second.get("/readyz")
        assert (status, "driver odd.example.com is broken" in text) == (200, True)
        assert (await scraped(second))["volplane_driver_healthy{driver=odd.example.com}"] == 0


@pytest.mark.real_time(seconds=240)
async def test_the_command_deletes_a_confirmed_orphan_and_nothing_else(tmp_path: Path) -> None:
    async with observed(tmp_path) as site:
        await site.make_class("kept", reclaimPolicy="Retain")
        claims = {name: await site.make_claim(name, "kept") for name in ("orphan", "wanted")}
        await site.bound(*claims)
        assert site.process.plane is not None
        driver = site.process.plane.state.drivers.get(DRIVER)
        assert driver is not None
        await site.client.delete(CLAIMS, "default/orphan")
        await site.gone(CLAIMS, "default/orphan")
        await site.client.delete(VOLUMES, f"pvc-{claims['orphan'].uid}")
        await site.gone(VOLUMES, f"pvc-{claims['orphan'].uid}")
        check = site.process.plane.leak_check
        await check.check(driver)
        code, said = await site.command("leaks")
        assert (code, "1 orphan is not confirmed yet" in said) == (1, True), said
        assert (await site.command("leaks", "--fix"))[0] == 1
        assert len(list((site.root / "default").iterdir())) == 2
        check.observations = Observations(grace=0.0)
        for _ in range(2):
            await check.check(driver)
        code, said = await site.command("leaks", "--fix")
        assert (code, "ok    deleted" in said) == (0, True), said
        assert [path.name for path in (site.root / "default").iterdir()] == [f"wanted-{claims['wanted'].uid}"]


@pytest.mark.real_time(seconds=240)
async def test_when_an_orphan_was_first_seen_is_known_after_a_restart(tmp_path: Path) -> None:
    async def first_seen(site: Site) -> list[tuple[str, bool]]:
        assert site.process.plane is not None
        driver = site.process.plane.state.drivers.get(DRIVER)
        assert driver is not None
        await site.process.plane.leak_check.check(driver)
        found = json.loads((await site.get("/leaks"))[1])["findings"]
        return [(each["first_seen"], each["confirmed"]) for each in found]

    lease = f"volplane-system/{LEASE}"
    async with observed(tmp_path) as first:
        await first.make_class("kept", reclaimPolicy="Retain")
        claim = await first.make_claim("orphan", "kept")
        await first.bound("orphan")
        for kind, key in ((CLAIMS, "default/orphan"), (VOLUMES, f"pvc-{claim.uid}")):
            await first.client.delete(kind, key)
            await first.gone(kind, key)
        assert len(await first_seen(first)) == 1
    noted = json.loads((await first.client.get(LEASES, lease)).annotation(FINDINGS) or "")
    ((key, _),) = noted[DRIVER].items()
    earlier = json.dumps({DRIVER: {key: 1_700_000_000}})
    await first.client.patch(LEASES, lease, {"metadata": {"annotations": {FINDINGS: earlier}}})
    async with observed(tmp_path, server=first.server) as second:
        assert await first_seen(second) == [("2023-11-14T22:13:20Z", False)]
        shutil.rmtree(second.root / "default")
        assert await first_seen(second) == []
    assert (await first.client.get(LEASES, lease)).annotation(FINDINGS) == json.dumps(
        {DRIVER: {}}, separators=(",", ":")
    )


@pytest.mark.real_time(seconds=240)
@pytest.mark.parametrize("path", ["/leaks", "/adopt", "/status", "/metrics"])
async def test_every_page_answers(tmp_path: Path, path: str) -> None:
    async with observed(tmp_path, leader_elect=False) as site:
        assert (await site.get(path))[0] == 200


@pytest.mark.real_time(seconds=240)
async def test_archives_are_told_over_http_as_the_backends_have_them_now(tmp_path: Path) -> None:
    async with observed(tmp_path) as site:
        await site.make_class("kept", parameters={"onDelete": "archive", "archiveRetention": "168h"})
        claim = await site.make_claim("a", "kept")
        await site.bound("a")
        address = site.url.removeprefix("http://")
        assert await Leader("ours", address).ask("/archives", method="POST") == {"archives": [], "untold": {}}
        await site.client.delete(CLAIMS, "default/a")

        async def archived() -> bool:
            return bool((await Leader("ours", address).ask("/archives", method="POST"))["archives"])

        await site.until("it is archived", archived)
        (found,) = (await Leader("ours", address).ask("/archives", method="POST"))["archives"]
        assert (found["driver"], found["volume"], found["claim"]) == (DRIVER, f"pvc-{claim.uid}", "default/a")
        assert found["until"] - found["archived_at"] == pytest.approx(7 * 86400.0)
        assert (Path(found["place"]) / "data").is_dir()
