"""Taking assets over from another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from volplane import AssetPage, ListedAsset, Unavailable
from volplane.controller.actions import Run
from volplane.errors import ConfigurationError
from volplane.kube import names
from volplane.kube.kinds import VOLUMES
from volplane.leaks.check import INTERVAL
from volplane_testing import Answer, FailBefore

Tell = Callable[[Any], Any]
OURS = {names.PROVISIONED_BY: "shelf.example.com", names.HANDLE: "shelf/pvc-u1"}


async def restored(cluster: Any, shelf: Any) -> None:
    """One asset of cluster "old" with its volume, one without; one of a third cluster."""
    shelf.put("u1", cluster="old")
    shelf.put("u2", cluster="old")
    shelf.put("u3", cluster="third")
    await cluster.volume("pvc-u1", "/shelves/pvc-u1", annotations=OURS)
    await asyncio.sleep(1)


async def test_what_a_volume_points_at_is_taken_over_and_the_rest_stays_foreign(
    cluster: Any, shelf: Any, hooks: Any
) -> None:
    await restored(cluster, shelf)
    plan = await cluster.adoption.plan("old")
    assert [(each.handle, each.obstacle) for each in plan] == [
        ("shelf/pvc-u1", ""),
        ("shelf/pvc-u2", "no volume of this cluster has its name"),
    ]
    assert not hooks.asked["adopt"]
    plan = await cluster.adoption.start("old")
    await asyncio.sleep(1)
    ((each, status),) = cluster.adoption.one_shots.listed()
    assert each == plan[0]
    assert (status.state, status.detail) == ("done", "carries the marks of cluster here")
    assert {uid: shelf.assets[f"pvc-{uid}"].owner.cluster_id for uid in ("u1", "u2", "u3")} == {
        "u1": "here",
        "u2": "old",
        "u3": "third",
    }
    assert [each.handle for each in await cluster.adoption.plan("old")] == ["shelf/pvc-u2"]


async def test_nothing_is_taken_over_from_a_cluster_that_still_changes_assets(
    cluster: Any, shelf: Any, hooks: Any
) -> None:
    await restored(cluster, shelf)

    def page(term: str) -> Answer:
        owner = shelf.assets["pvc-u1"].owner
        listed = ListedAsset(handle="shelf/pvc-u1", name="pvc-u1", capacity_bytes=1, owner=owner, changed_in=term)
        return Answer(AssetPage(assets=(listed,)))

    hooks.fail("list_assets", [page(""), page("4//its-lease")])
    assert [each.obstacle for each in await cluster.adoption.plan("old")] == [""]
    (living,) = await cluster.adoption.start("old")
    assert living.obstacle == "cluster old still changes assets (term 4): stop it first"
    await asyncio.sleep(1)
    assert not hooks.asked["adopt"]


@pytest.mark.parametrize(
    ("annotations", "obstacle"),
    [
        ({names.PROVISIONED_BY: "other.example.com"}, "volume pvc-u1 was made by other.example.com"),
        ({}, "volume pvc-u1 was made by a person"),
        ({**OURS, names.HANDLE: "shelf/x"}, "volume pvc-u1 points at shelf/x"),
    ],
)
async def test_another_volume_of_that_name_is_no_reason(
    cluster: Any, shelf: Any, hooks: Any, annotations: Any, obstacle: str
) -> None:
    shelf.put("u1", cluster="old")
    await cluster.volume("pvc-u1", annotations=annotations)
    await asyncio.sleep(1)
    (each,) = await cluster.adoption.start("old")
    assert each.obstacle == obstacle
    await asyncio.sleep(1)
    assert not hooks.asked["adopt"]


async def test_a_volume_that_goes_meanwhile_is_no_reason(cluster: Any, shelf: Any, hooks: Any) -> None:
    await restored(cluster, shelf)
    for name in ("a", "b"):
        run = Run(verb="delete", key=name, uid=name, driver="shelf.example.com", asset=name)
        cluster.plane.operations.start(run, lambda: asyncio.sleep(30), lambda: None)
    await cluster.adoption.start("old")
    ((_, status),) = cluster.adoption.one_shots.listed()
    assert status.state == "running"
    await cluster.client.delete(VOLUMES, "pvc-u1")
    await asyncio.sleep(60)
    ((_, status),) = cluster.adoption.one_shots.listed()
    assert status.detail == "volume pvc-u1 is gone"
    assert not hooks.asked["adopt"]


async def test_a_failure_is_told(cluster: Any, shelf: Any, hooks: Any) -> None:
    await restored(cluster, shelf)
    hooks.fail("adopt", FailBefore(Unavailable("the shelf is away")))
    await cluster.adoption.start("old")
    await asyncio.sleep(0.2)
    ((_, status),) = cluster.adoption.one_shots.listed()
    assert status.detail == "the shelf is away"


async def test_what_cannot_be_asked_is_refused_with_what_would_be_right(cluster: Any, shelf: Any) -> None:
    with pytest.raises(ConfigurationError, match='--from is "here"; it must be the id of another cluster'):
        await cluster.adoption.plan("here")
    with pytest.raises(ConfigurationError, match='--driver: "x" is not configured here; drivers are shelf'):
        await cluster.adoption.plan("old", "x")
    with pytest.raises(ConfigurationError, match='--back: --from is "old", which is no driver here'):
        await cluster.adoption.plan("old", back=True)
    unknown = '--from is "older", and no asset of driver shelf.*there are none; `volplane leaks` shows'
    with pytest.raises(ConfigurationError, match=unknown):
        await cluster.adoption.plan("older")
    await cluster.plane.drivers.stop_all()
    with pytest.raises(Unavailable, match=r"driver shelf\.example\.com cannot be asked"):
        await cluster.adoption.plan("old")


async def test_an_id_that_is_misspelt_is_an_error_with_the_nearest_one(cluster: Any, shelf: Any) -> None:
    shelf.put("u1", cluster="6b1c8f0a-4d2e")
    await asyncio.sleep(1.2 * INTERVAL)
    with pytest.raises(ConfigurationError, match="did you mean '6b1c8f0a-4d2e'"):
        await cluster.adoption.plan("6b1c8f0a-4d2f")
