"""Deleting orphans on request: only what is confirmed, only what nothing leads to now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from volplane import InProgress, Unavailable
from volplane.controller.actions import Run
from volplane.errors import VolplaneError
from volplane.kube.transport import Response
from volplane.leaks.check import INTERVAL
from volplane.leaks.repair import digest_of
from volplane.requests import Fence
from volplane_testing import Answer, FailBefore
from volplane_testing.transport import ApiCall, Ask, requests

Tell = Callable[[Any], Any]
ROUND = INTERVAL * 1.1 + 1


async def confirmed(cluster: Any) -> None:
    await asyncio.sleep(2 * ROUND)
    assert all(cluster.check.observations.confirmed(finding) for finding in cluster.check.observations.findings())


def outcomes(cluster: Any, findings: Any) -> dict[str, tuple[str, str]]:
    told = {
        finding.handle: (str(outcome.state), outcome.detail) for finding, outcome in cluster.repair.one_shots.listed()
    }
    return {finding.handle: told[finding.handle] for finding in findings}


async def test_a_confirmed_orphan_is_deleted_and_no_finding_any_more(
    cluster: Any, shelf: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for uid in ("u1", "u2", "u3"):
        shelf.put(uid, cluster="here")
    await confirmed(cluster)
    findings = cluster.repair.start()
    assert len(findings) == 3
    await asyncio.sleep(1)
    assert set(outcomes(cluster, findings).values()) == {("done", "deleted")}
    assert shelf.assets == {}
    assert cluster.found() == []
    labels = {"driver": "shelf.example.com", "verdict": "orphan"}
    assert cluster.metrics.registry.get_sample_value("volplane_leak_findings", labels) == 0
    assert cluster.repair.start() == []
    assert "deleted the orphan shelf/pvc-u1" in caplog.text


async def test_an_orphan_seen_once_is_left_alone(cluster: Any, shelf: Any, hooks: Any) -> None:
    shelf.put("u1", cluster="here")
    await asyncio.sleep(ROUND / 2)
    assert cluster.found() == [("orphan", "shelf/pvc-u1")]
    assert cluster.repair.start() == []
    await asyncio.sleep(1)
    assert not hooks.asked["delete"]


async def test_what_a_person_has_seen_needs_no_second_check(cluster: Any, shelf: Any) -> None:
    shelf.put("u1", cluster="here")
    shelf.put("u2", cluster="elsewhere")
    await asyncio.sleep(ROUND / 2)
    shown = digest_of([("shelf.example.com", "shelf/pvc-u1")])
    assert len(cluster.repair.start(agreed=shown)) == 1
    await asyncio.sleep(1)
    assert sorted(shelf.assets) == ["pvc-u2"]


async def test_what_a_person_has_not_seen_is_not_deleted_with_it(cluster: Any, shelf: Any, hooks: Any) -> None:
    shelf.put("u1", cluster="here")
    shelf.put("u2", cluster="here")
    await asyncio.sleep(ROUND / 2)
    with pytest.raises(VolplaneError, match="not those that were shown any more"):
        cluster.repair.start(agreed=digest_of([("shelf.example.com", "shelf/pvc-u1")]))
    await asyncio.sleep(1)
    assert not hooks.asked["delete"]


async def test_what_a_volume_needs_by_now_stays_whatever_was_agreed(cluster: Any, shelf: Any, hooks: Any) -> None:
    shelf.put("u1", cluster="here")
    await asyncio.sleep(ROUND / 2)
    await cluster.volume("mine", "/shelves/pvc-u1")
    findings = cluster.repair.start(agreed=digest_of([("shelf.example.com", "shelf/pvc-u1")]))
    await asyncio.sleep(1)
    [(state, why)] = outcomes(cluster, findings).values()
    assert (state, hooks.asked["delete"]) == ("failed", 0)
    assert "it is no orphan any more" in why


async def test_nothing_is_deleted_while_a_copy_of_the_cluster_works(cluster: Any, shelf: Any, hooks: Any) -> None:
    shelf.put("u1", cluster="here")
    await confirmed(cluster)
    own = cluster.plane.state.cluster_id
    cluster.check.living["shelf.example.com", own] = Fence(7, "other", "lease")
    findings = cluster.repair.start()
    await asyncio.sleep(1)
    [(state, why)] = outcomes(cluster, findings).values()
    assert (state, hooks.asked["delete"]) == ("failed", 0)
    assert "another cluster with the id of this one" in why


async def test_what_is_not_an_orphan_is_never_touched(cluster: Any, shelf: Any, hooks: Any) -> None:
    await cluster.make_class()
    ghost, drifted = await cluster.claim("a"), await cluster.claim("b")
    await asyncio.sleep(5)
    del shelf.assets[f"pvc-{ghost}"]
    shelf.put(drifted, cluster="here", size=1)
    shelf.put("u1", cluster="elsewhere")
    shelf.put("u2", cluster=None)
    await confirmed(cluster)
    assert sorted(verdict for verdict, _ in cluster.found()) == ["drifted", "foreign", "foreign", "ghost"]
    assert cluster.repair.start() == []
    assert not hooks.asked["delete"]


@pytest.mark.parametrize("name", ["pvc-u1", "mine"])
async def test_a_volume_that_came_meanwhile_keeps_the_asset(cluster: Any, shelf: Any, hooks: Any, name: str) -> None:
    shelf.put("u1", cluster="here")
    await confirmed(cluster)
    await cluster.volume(name, "/shelves/pvc-u1")
    findings = cluster.repair.start()
    await asyncio.sleep(1)
    ((state, detail),) = outcomes(cluster, findings).values()
    assert state == "failed"
    assert detail.startswith("it is no orphan any more")
    assert not hooks.asked["delete"]
    await asyncio.sleep(ROUND)
    assert cluster.found() == []


async def test_a_volume_that_comes_after_the_look_and_before_the_hook_keeps_the_asset(
    cluster: Any, shelf: Any, hooks: Any
) -> None:
    shelf.put("u1", cluster="here")
    await confirmed(cluster)

    async def late(_call: ApiCall, ask: Ask) -> Response:
        await cluster.volume("pvc-u1", "/shelves/pvc-u1")
        return await ask()

    cluster.faults.add(requests("get"), late)
    findings = cluster.repair.start()
    await asyncio.sleep(1)
    assert list(outcomes(cluster, findings).values()) == [
        ("failed", "it is no orphan any more: PersistentVolume pvc-u1 leads to it")
    ]
    assert not hooks.asked["delete"]


async def test_a_long_deletion_goes_on_by_itself(cluster: Any, shelf: Any, hooks: Any) -> None:
    shelf.put("u1", cluster="here")
    await confirmed(cluster)
    answers = [InProgress(retry_after=30, state={"at": number}) for number in range(5)]
    hooks.fail("delete", [Answer(answer, effect=False) for answer in answers])
    findings = cluster.repair.start()
    await asyncio.sleep(1)
    assert list(outcomes(cluster, findings).values()) == [("running", "")]
    assert cluster.repair.start() == findings
    await asyncio.sleep(200)
    assert list(outcomes(cluster, findings).values()) == [("done", "deleted")]
    assert hooks.asked["delete"] == 6
    assert shelf.assets == {}


async def test_a_failed_deletion_is_told_and_not_repeated_by_itself(
    cluster: Any, shelf: Any, hooks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    shelf.put("u1", cluster="here")
    await confirmed(cluster)
    hooks.fail("delete", FailBefore(Unavailable("the shelf is away")))
    findings = cluster.repair.start()
    await asyncio.sleep(0.2)
    assert list(outcomes(cluster, findings).values()) == [("failed", "the shelf is away")]
    cluster.repair.start()
    ((state, detail),) = outcomes(cluster, findings).values()
    assert state == "refused"
    assert "next try in" in detail
    await asyncio.sleep(60)
    assert hooks.asked["delete"] == 1
    cluster.repair.start()
    await asyncio.sleep(1)
    assert list(outcomes(cluster, findings).values()) == [("done", "deleted")]


async def test_an_asset_that_another_operation_holds_is_not_touched(cluster: Any, shelf: Any, hooks: Any) -> None:
    shelf.put("u1", cluster="here")
    await confirmed(cluster)
    run = Run(verb="provision", key="default/c", uid="u1", driver="shelf.example.com", asset="pvc-u1")
    cluster.plane.operations.start(run, lambda: asyncio.sleep(60), lambda: None)
    findings = cluster.repair.start()
    ((state, detail),) = outcomes(cluster, findings).values()
    assert state == "refused"
    assert "waits for provision-default/c[u1]" in detail
    await asyncio.sleep(100)
    assert not hooks.asked["delete"]


async def test_one_look_at_the_cluster_serves_many_repairs(cluster: Any, shelf: Any) -> None:
    for number in range(40):
        shelf.put(f"u{number}", cluster="here")
    await confirmed(cluster)
    cluster.faults.requests.clear()
    cluster.repair.start()
    await asyncio.sleep(5)
    assert shelf.assets == {}
    looks = [kind for kind in cluster.listed() if kind != "events"]  # Their watch begins anew whenever it is due.
    assert looks == ["persistentvolumeclaims", "persistentvolumes"]


async def test_a_driver_that_cannot_be_used_is_said(cluster: Any, shelf: Any) -> None:
    shelf.put("u1", cluster="here")
    await confirmed(cluster)
    await cluster.plane.drivers.stop_all()
    findings = cluster.repair.start(driver="shelf.example.com")
    await asyncio.sleep(1)
    ((state, detail),) = outcomes(cluster, findings).values()
    assert (state, "driver shelf.example.com cannot be used" in detail) == ("failed", True)
    assert cluster.repair.start(driver="another") == []
    assert cluster.repair.start(handle="another") == []
