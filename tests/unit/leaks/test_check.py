"""The leak check of a running controller, in virtual time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from volplane import AssetPage, ListedAsset, Ownership, Unavailable
from volplane.errors import VolplaneError
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, PODS, VOLUMES
from volplane.kube.transport import Response
from volplane.leaks.check import INTERVAL, LeakCheck
from volplane_testing import Answer, FailBefore, Slow
from volplane_testing.transport import ApiCall, Ask, refuse, requests

Tell = Callable[[Any], Any]
ROUND = INTERVAL * 1.1 + 1


def value(cluster: Any, metric: str, **labels: str) -> float | None:
    found: float | None = cluster.metrics.registry.get_sample_value(metric, labels)
    return found


async def test_what_a_whole_life_cycle_leaves_is_nothing(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    for number in range(5):
        await cluster.claim(f"c{number}")
    await asyncio.sleep(ROUND)
    assert len(shelf.assets) == 5
    assert cluster.found() == []
    for number in range(5):
        await cluster.client.delete(CLAIMS, f"default/c{number}")
    await asyncio.sleep(ROUND)
    assert shelf.assets == {}
    assert cluster.found() == []
    assert value(cluster, "volplane_leak_checks_total", driver="shelf.example.com", result="complete") == 3


async def test_an_orphan_is_found_counted_confirmed_by_the_next_check_and_said_once(
    cluster: Any, shelf: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.put("u1", cluster="here")
    await asyncio.sleep(1)
    (finding,) = cluster.check.observations.findings()
    assert (finding.verdict, finding.handle) == ("orphan", "shelf/pvc-u1")
    assert not cluster.check.observations.confirmed(finding)
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]
    await asyncio.sleep(3 * ROUND)
    assert cluster.check.observations.confirmed(finding)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["orphan shelf/pvc-u1: no volume and no claim leads to it"]
    counted = {
        verdict: value(cluster, "volplane_leak_findings", driver="shelf.example.com", verdict=verdict)
        for verdict in ("orphan", "ghost", "drifted", "foreign")
    }
    assert counted == {"orphan": 1, "ghost": 0, "drifted": 0, "foreign": 0}


@pytest.mark.parametrize(
    "noted",
    [
        *("", "{", "[]", "null", "[" * 100_000),
        *(f'{{"shelf.example.com": {each}}}' for each in ("1", '{"k": "x"}', '{"k": -1}', '{"k": 1e999}')),
        '{"another.example.com": {"k": 1}}',
    ],
)
async def test_what_no_leader_before_can_have_noted_is_ignored(cluster: Any, shelf: Any, noted: str) -> None:
    notes: dict[str, str] = {}
    cluster.check.follow(noted, notes)
    shelf.put("u1", cluster="here")
    await asyncio.sleep(1)
    (finding,) = cluster.check.observations.findings()
    assert 0 <= cluster.check.observations.first_seen(finding) - cluster.plane.state.epoch() <= 1
    assert list(json.loads(notes[names.FINDINGS])) == ["shelf.example.com"]


async def test_what_vanishes_between_two_checks_starts_anew(cluster: Any, shelf: Any) -> None:
    asset = shelf.put("u1", cluster="here")
    await asyncio.sleep(ROUND)
    del shelf.assets[asset.name]
    await asyncio.sleep(ROUND)
    assert cluster.found() == []
    shelf.put("u1", cluster="here")
    await asyncio.sleep(ROUND)
    (finding,) = cluster.check.observations.findings()
    assert not cluster.check.observations.confirmed(finding)


async def test_a_volume_whose_asset_is_gone_is_a_ghost(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    uid = await cluster.claim()
    await asyncio.sleep(5)
    shelf.assets.clear()
    await asyncio.sleep(ROUND)
    assert cluster.found() == [("ghost", f"shelf/pvc-{uid}")]


async def test_that_an_asset_is_gone_is_one_event_on_the_volume_and_one_on_its_claim(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    uid = await cluster.claim()
    await asyncio.sleep(5)
    shelf.assets.clear()
    await asyncio.sleep(ROUND)
    assert [event for event in cluster.events if event.reason == "VolumeConditionAbnormal"] == []
    await asyncio.sleep(3 * ROUND)
    events = [event for event in cluster.events if event.reason == "VolumeConditionAbnormal"]
    assert {(event.kind.kind, event.about.name, event.type) for event in events} == {
        ("PersistentVolume", f"pvc-{uid}", "Warning"),
        ("PersistentVolumeClaim", "data", "Warning"),
    }
    (text,) = {event.message for event in events}
    assert f"asset shelf/pvc-{uid} of volume pvc-{uid} is not on the backend of driver shelf.example.com" in text
    assert len(events) > 2  # the recorder folds them into one with a count


async def test_what_find_finds_is_not_gone_though_no_listing_shows_it(cluster: Any, hooks: Any) -> None:
    await cluster.make_class()
    await cluster.claim()
    await asyncio.sleep(5)
    hooks.fail("list_assets", 5 * [Answer(AssetPage(assets=()))])
    await asyncio.sleep(4 * ROUND)
    looks = [call.request for call in hooks.calls if call.hook == "find"]
    assert looks
    assert all(look.only_look for look in looks)
    assert [event for event in cluster.events if event.reason == "VolumeConditionAbnormal"] == []


async def test_a_driver_that_cannot_be_asked_for_one_asset_proves_no_loss(cluster: Any, shelf: Any, hooks: Any) -> None:
    await cluster.make_class()
    uid = await cluster.claim()
    await asyncio.sleep(5)
    shelf.assets.clear()
    hooks.fail("find", 9 * [FailBefore(Unavailable("the storage is away"))])
    await asyncio.sleep(4 * ROUND)
    assert cluster.found() == [("ghost", f"shelf/pvc-{uid}")]
    assert [event for event in cluster.events if event.reason == "VolumeConditionAbnormal"] == []


async def test_a_listing_that_lost_most_volumes_is_about_the_driver_and_not_about_claims(
    cluster: Any, shelf: Any
) -> None:
    """As of a file server whose disk is not mounted."""
    await cluster.make_class()
    for number in range(5):
        await cluster.claim(f"c{number}")
    await asyncio.sleep(5)
    kept = dict(list(shelf.assets.items())[:2])
    shelf.assets.clear()
    shelf.assets.update(kept)
    await asyncio.sleep(4 * ROUND)
    told = {(event.kind.kind, event.about.name, event.reason) for event in cluster.events if event.type == "Warning"}
    assert told == {("StorageClass", "shelves", "ListingIncomplete")}
    (text,) = {event.message for event in cluster.events if event.reason == "ListingIncomplete"}
    assert "lacks the assets of 3 of its 5 volumes" in text
    assert len(cluster.found()) == 3


async def test_a_page_that_is_a_generator_fails_the_check_and_loses_nobody(cluster: Any, hooks: Any) -> None:
    """A check of its entries uses it up: every volume of the driver would seem lost."""
    await cluster.make_class()
    await cluster.claim()
    await asyncio.sleep(5)
    hooks.fail("list_assets", Answer(AssetPage(assets=(each for each in ()))))
    assert not await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert "assets of type generator, expected a tuple" in cluster.check.status["shelf.example.com"].error
    assert cluster.found() == []


def changed(uid: str, term: str, cluster: str = "here") -> ListedAsset:
    owner = Ownership(cluster_id=cluster, claim_uid=uid, volume_name=f"pvc-{uid}")
    return ListedAsset(handle=f"shelf/{uid}", name=uid, capacity_bytes=1, owner=owner, changed_in=term)


@pytest.mark.parametrize(
    ("before", "after", "noticed"),
    [
        (["3//lease"], ["3//lease"], False),
        (["9//lease"], ["9//lease"], False),
        (["3//lease"], ["3//lease", "5//lease"], False),
        (["3//lease"], ["6//lease"], True),
        (["9//lease"], ["9//lease", "10//lease"], True),
        (["3//lease"], ["3//lease", "1//another"], True),
        (["1//another"], ["1//another"], False),
        (["1//another"], ["2//another"], True),
        ([""], ["7"], False),
    ],
)
async def test_a_living_copy_of_the_cluster_is_noticed_by_the_terms_of_its_changes(
    cluster: Any, hooks: Any, before: list[str], after: list[str], *, noticed: bool
) -> None:
    """As of a drill that restores the backup on other machines: it has the same id and the same Lease. Later terms in
    the first listing may be from before a restore of this cluster itself.
    """
    await cluster.make_class()
    await asyncio.sleep(1)
    cluster.plane.state.fence = lambda: "5/me/lease"
    check = LeakCheck(cluster.check._deps, Random(1))
    pages = [AssetPage(assets=tuple(changed(str(n), text) for n, text in enumerate(each))) for each in (before, after)]
    hooks.fail("list_assets", [Answer(page) for page in pages])
    for _ in pages:
        assert await check.check(cluster.plane.drivers.get("shelf.example.com"))
    told = {(event.about.name, event.reason) for event in cluster.events if event.type == "Warning"}
    assert told == ({("shelves", "ClusterIdUsedTwice")} if noticed else set())


async def test_a_check_that_is_asked_for_begins_at_once(cluster: Any, shelf: Any) -> None:
    await asyncio.sleep(1)
    before = cluster.check.status["shelf.example.com"].attempts
    shelf.put("u1", cluster="here")
    assert cluster.check.request() == {"shelf.example.com": before + 1}
    await asyncio.sleep(1)
    assert cluster.found() == [("orphan", "shelf/pvc-u1")]
    assert cluster.check.status["shelf.example.com"].attempts == before + 1


async def test_a_check_that_runs_already_is_not_taken_for_the_one_asked_for(cluster: Any, hooks: Any) -> None:
    await asyncio.sleep(1)
    before = cluster.check.status["shelf.example.com"].attempts
    hooks.fail("list_assets", Slow(before=5))
    cluster.check.request()
    await asyncio.sleep(1)
    assert cluster.check.request("shelf.example.com") == {"shelf.example.com": before + 2}
    await asyncio.sleep(10)
    assert cluster.check.status["shelf.example.com"].attempts == before + 2


async def test_a_driver_that_there_is_not_cannot_be_checked(cluster: Any) -> None:
    with pytest.raises(VolplaneError, match=r"no driver 'shelf\.example\.co'; did you mean 'shelf\.example\.com'\?"):
        cluster.check.request("shelf.example.co")


async def test_an_asset_that_shrank_has_drifted(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    uid = await cluster.claim()
    await asyncio.sleep(5)
    shelf.put(uid, cluster="here", size=1)
    await asyncio.sleep(ROUND)
    (finding,) = cluster.check.observations.findings()
    assert (finding.verdict, finding.volume) == ("drifted", f"pvc-{uid}")
    assert finding.detail == "holds 1 bytes where the volume promises 1048576"


async def test_what_others_made_is_foreign_and_no_reason_to_read_the_cluster(cluster: Any, shelf: Any) -> None:
    await asyncio.sleep(1)
    shelf.put("u1", cluster="elsewhere")
    shelf.put("u2", cluster=None)
    cluster.faults.requests.clear()
    assert await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert cluster.found() == [("foreign", "shelf/pvc-u1"), ("foreign", "shelf/pvc-u2")]
    assert cluster.listed() == []
    shelf.put("u3", cluster="here")
    assert await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert cluster.listed() == ["persistentvolumeclaims", "persistentvolumes"]


async def test_a_volume_that_only_the_server_knows_explains_its_asset(cluster: Any, shelf: Any) -> None:
    shelf.put("u1", cluster="here")
    # The cache is told late: what counts is what the server has.
    cluster.plane.state.volumes.observe = lambda _volume: False
    await cluster.volume("restored", "/shelves/pvc-u1/")
    await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert cluster.found() == []


async def test_an_asset_made_while_the_check_looks_is_no_orphan(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    await asyncio.sleep(1)
    for number in range(200):
        await cluster.claim(f"c{number}")
        if number % 20 == 0:
            assert await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
            assert cluster.found() == []
    await asyncio.sleep(5)
    assert len(shelf.assets) == 200
    for number in range(200):
        await cluster.client.delete(CLAIMS, f"default/c{number}")
        if number % 20 == 0:
            assert await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
            assert [found for found in cluster.found() if found[0] != "orphan"] == []
    await asyncio.sleep(5)
    assert await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert cluster.found() == []


async def test_a_listing_that_fails_changes_nothing_and_is_tried_again_soon(
    cluster: Any, shelf: Any, hooks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.put("u1", cluster="here")
    await asyncio.sleep(1)
    hooks.fail("list_assets", FailBefore(Unavailable("the shelf is away")))
    await asyncio.sleep(ROUND)
    (status,) = cluster.check.status.values()
    assert status.error == "the shelf is away"
    assert cluster.found() == [("orphan", "shelf/pvc-u1")]
    await asyncio.sleep(70)
    (status,) = cluster.check.status.values()
    assert status.error == ""
    (finding,) = cluster.check.observations.findings()
    assert cluster.check.observations.confirmed(finding)
    assert "the leak check failed: the shelf is away" in caplog.text
    assert value(cluster, "volplane_leak_checks_total", driver="shelf.example.com", result="failed") == 1


async def test_a_listing_that_never_ends_is_a_failure(cluster: Any, shelf: Any, hooks: Any) -> None:
    await asyncio.sleep(1)
    hooks.fail("list_assets", [Answer(AssetPage(assets=(), next_page="again"), effect=False)] * 3)
    assert not await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert "names page 'again' twice" in cluster.check.status["shelf.example.com"].error


async def test_an_api_server_that_is_away_is_a_failure(cluster: Any, shelf: Any) -> None:
    await asyncio.sleep(1)
    shelf.put("u1", cluster="here")
    cluster.faults.add(requests("list"), refuse(503, "no answer"))
    assert not await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert "no answer" in cluster.check.status["shelf.example.com"].error
    assert cluster.found() == []


async def test_a_claim_that_cannot_be_read_may_lead_to_anything(cluster: Any, shelf: Any) -> None:
    await asyncio.sleep(1)
    shelf.put("u1", cluster="here")
    await cluster.claim("odd", storage_class="none")

    async def damaged(_call: ApiCall, ask: Ask) -> Response:
        answer = await ask()
        return Response(answer.status, answer.headers, answer.body.replace(b'"storage":"1Mi"', b'"storage":["1Mi"]'))

    cluster.faults.add(requests("list", "persistentvolumeclaims"), damaged)
    assert not await cluster.check.check(cluster.plane.drivers.get("shelf.example.com"))
    assert "PersistentVolumeClaim default/odd cannot be read" in cluster.check.status["shelf.example.com"].error
    assert cluster.found() == []


async def test_the_counts_are_taken_back_when_another_process_leads(cluster: Any, shelf: Any) -> None:
    shelf.put("u1", cluster="here")
    await asyncio.sleep(1)
    cluster.check.forget()
    assert value(cluster, "volplane_leak_findings", driver="shelf.example.com", verdict="orphan") == 0


async def test_a_claim_whose_finalizer_a_tenant_took_away_leaves_an_orphan_only_once_it_is_bound_elsewhere(
    cluster: Any,
    shelf: Any,
) -> None:
    uid = await cluster.claim(storage_class="none")
    shelf.put(uid, cluster="here")
    await asyncio.sleep(ROUND)
    assert cluster.found() == []
    await cluster.client.patch(CLAIMS, "default/data", {"spec": {"volumeName": "other"}})
    await asyncio.sleep(ROUND)
    (finding,) = cluster.check.observations.findings()
    assert finding.detail == "claim default/data is bound to other instead"


async def test_a_claim_whose_volume_object_was_lost_keeps_its_asset(cluster: Any, shelf: Any) -> None:
    await cluster.make_class()
    uid = await cluster.claim()
    await asyncio.sleep(5)
    volume = f"pvc-{uid}"
    await cluster.client.patch(VOLUMES, volume, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}})
    await cluster.client.patch(VOLUMES, volume, {"metadata": {"finalizers": None}})
    await cluster.client.delete(VOLUMES, volume)
    await asyncio.sleep(ROUND)
    (finding,) = cluster.check.observations.findings()
    assert finding.verdict == "drifted"
    assert finding.detail == f"claim default/data is bound to volume {volume}, which does not exist; restore the volume"
    assert names.PROVISIONING_FINALIZER not in (
        (await cluster.client.get(CLAIMS, "default/data")).metadata.finalizers or []
    )
    assert (await cluster.client.list(PODS)).items == []
