"""The conformance rules of attach, expand and modify once more, asked for by objects of the API.

`volplane check` calls the hooks; here the controllers do, and what the rule promises is read from the API and the
storage. A test sees that every rule has a story.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from scenarios.attached_world import World, a_world
from volplane_testing.conformance import RULES

GIB = 1 << 30
NOT_FOUND, EXHAUSTED = 5, 8
"""google.rpc.Code."""


# --- attach -----------------------------------------------------------------------------------------------------------


async def attach_and_detach_work(world: World) -> None:
    for node in ("node-1", "node-2"):
        status = await world.attach(node)
        assert status["attached"] is True
        assert status["attachmentMetadata"]["device"] == f"/dev/{world.asset.handle}"
        assert world.asset.attached_to == [node]
        await world.detach(node)
        assert world.asset.attached_to == []


async def attach_again_is_the_same_attachment(world: World) -> None:
    first = await world.attach("node-1")
    await world.cluster.restart()
    world.api.patch("volumeattachments", "to-node-1", {"status": {"attached": False}}, subresource="status")
    again = await world.later("to-node-1")
    assert again["attachmentMetadata"] == first["attachmentMetadata"]
    assert world.asset.attached_to == ["node-1"]


async def attach_elsewhere_is_refused(world: World) -> None:
    await world.attach("node-1")
    refused = await world.attach("node-2")
    assert refused["attached"] is False
    assert "node-1" in refused["attachError"]["message"]
    assert world.asset.attached_to == ["node-1"]


async def a_late_detach_leaves_the_new_attachment(world: World) -> None:
    await world.attach("node-1")
    world.cluster.delay("patch", "volumeattachments/status", 20.0)
    world.api.delete("volumeattachments", "to-node-1")
    await world.cluster.restart()
    status = await world.attach("node-2")
    await world.cluster.advance(120.0)
    assert status is not None
    assert world.asset.attached_to == ["node-2"]
    assert not world.api.get("volumeattachments", "to-node-1")


async def detach_of_what_is_not_attached_is_done(world: World) -> None:
    await world.attach("node-1")
    world.asset.attached_to.clear()
    world.api.delete("nodes", "node-1")
    await world.detach("node-1")


async def detach_of_what_is_gone_is_done(world: World) -> None:
    await world.attach("node-1")
    world.lose_the_asset()
    await world.detach("node-1")


async def attach_of_what_is_gone_is_not_found(world: World) -> None:
    world.lose_the_asset()
    status = await world.attach("node-1")
    assert status["attachError"]["errorCode"] == NOT_FOUND
    assert world.storage.assets == {}
    await world.detach("node-1")


async def attach_to_an_unknown_node_is_not_found(world: World) -> None:
    status = await world.attach("unknown")
    assert status["attachError"]["errorCode"] == NOT_FOUND
    assert "unknown does not exist" in status["attachError"]["message"]
    await world.detach("unknown")
    assert (await world.attach("node-1"))["attached"] is True


async def the_limit_of_a_node_is_kept(world: World) -> None:
    world.storage.most_attached = 1
    await world.attach("node-1")
    other = await world.cluster.wait_bound(await world.cluster.create_claim("other", storage_class="fast"))
    status = await world.attach("node-1", other["metadata"]["name"])
    assert status["attachError"]["errorCode"] == EXHAUSTED
    await world.detach("node-1")
    await world.cluster.advance(600.0)
    assert (await world.later(f"{other['metadata']['name']}-to-node-1"))["attached"] is True


async def list_shows_where_assets_are_attached(world: World) -> None:
    await world.attach("node-1")
    world.asset.attached_to.clear()
    for _ in range(2):
        assert world.asset.attached_to == [], "once may be a late answer"
        await world.compare()
    await world.cluster.advance(30.0)
    assert world.asset.attached_to == ["node-1"], "what the storage does not list is attached again"


async def delete_refuses_what_is_in_use(world: World) -> None:
    await world.attach("node-1")
    await world.cluster.delete_claim(world.claim)
    await world.cluster.advance(300.0)
    assert world.asset.attached_to == ["node-1"]
    await world.detach("node-1")
    await world.cluster.advance(300.0)
    assert world.storage.assets == {}
    assert world.api.all("persistentvolumes") == []


# --- expand -----------------------------------------------------------------------------------------------------------


async def expand_grows_the_asset(world: World) -> None:
    claim = await world.ask(2)
    assert world.asset.capacity_bytes == 2 * GIB
    assert claim["status"]["capacity"] == {"storage": "2Gi"}
    assert world.api.get("persistentvolumes", world.volume)["spec"]["capacity"] == {"storage": "2Gi"}  # type: ignore[index]


async def expand_of_a_block_device_needs_no_node(world: World) -> None:
    claim = await world.cluster.create_claim("raw", storage_class="fast", volumeMode="Block")
    await world.cluster.wait_bound(claim)
    world.api.patch("persistentvolumeclaims", "raw", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    await world.cluster.advance(60.0)
    grown = world.api.get("persistentvolumeclaims", "raw")
    assert grown is not None
    assert grown["status"]["capacity"] == {"storage": "2Gi"}
    assert not grown["status"].get("conditions"), "nothing waits for a node"


async def expand_again_changes_nothing(world: World) -> None:
    world.cluster.fail("patch", "persistentvolumes", status=0)
    world.api.patch("persistentvolumeclaims", "data", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
    await world.cluster.restart()
    await world.cluster.advance(120.0)
    assert world.asset.capacity_bytes == 2 * GIB
    assert world.claim["status"]["capacity"] == {"storage": "2Gi"}


async def expand_never_shrinks(world: World) -> None:
    await world.ask(3)
    with pytest.raises(Exception, match="can not be less than"):
        await world.ask(2)
    await world.cluster.advance(60.0)
    assert world.asset.capacity_bytes == 3 * GIB


async def expand_of_what_is_gone_is_not_found(world: World) -> None:
    world.lose_the_asset()
    claim = await world.ask(2)
    assert claim["status"]["capacity"] == {"storage": "1Gi"}
    assert "does not exist" in world.told("VolumeResizeFailed")
    assert world.storage.assets == {}


async def an_expanded_asset_still_answers_its_demand(world: World) -> None:
    await world.ask(2)
    await world.cluster.restart()
    await world.cluster.advance(60.0)
    assert world.asset.capacity_bytes == 2 * GIB
    assert len(world.storage.assets) == 1
    await world.cluster.delete_claim(world.claim)
    await world.cluster.advance(120.0)
    assert world.storage.assets == {}, "it is known as the claim's, whatever its size"


async def expand_refuses_the_asset_of_another_claim(world: World) -> None:
    world.asset.owner = None
    claim = await world.ask(2)
    assert world.asset.capacity_bytes == GIB
    assert claim["status"]["capacity"] == {"storage": "1Gi"}
    assert world.told("VolumeResizeFailed")


# --- modify -----------------------------------------------------------------------------------------------------------


async def modify_can_be_repeated(world: World) -> None:
    world.cluster.fail("patch", "persistentvolumes", status=0)
    claim = await world.name_attributes("red", colour="red")
    await world.cluster.restart()
    await world.cluster.advance(120.0)
    assert world.asset.modified == {"colour": "red"}
    claim = world.claim
    assert claim["status"]["currentVolumeAttributesClassName"] == "red"
    assert "modifyVolumeStatus" not in claim["status"]


async def mutable_parameters_make_no_other_demand(world: World) -> None:
    for name in ("red", "blue"):
        body = {"metadata": {"name": name}, "driverName": world.driver, "parameters": {"colour": name}}
        world.api.create("volumeattributesclasses", body)
    world.cluster.fail("create", "persistentvolumes", status=0)
    more = {"storage_class": "fast", "volumeAttributesClassName": "red"}
    claim = await world.cluster.create_claim("other", **more)
    await world.cluster.restart()
    volume = await world.cluster.wait_bound(claim)
    assert world.storage.assets[volume["metadata"]["name"]].modified == {"colour": "red"}
    assert len(world.storage.assets) == 2
    world.api.patch("persistentvolumeclaims", "other", {"spec": {"volumeAttributesClassName": "blue"}})
    await world.cluster.advance(60.0)
    assert world.storage.assets[volume["metadata"]["name"]].modified == {"colour": "blue"}


async def modify_refuses_unknown_parameters(world: World) -> None:
    claim = await world.name_attributes("odd", weight="1")
    assert claim["status"]["modifyVolumeStatus"]["status"] == "Infeasible"
    assert "cannot be modified" in world.told("VolumeModifyFailed")
    assert world.asset.modified == {}


async def modify_of_what_is_gone_is_not_found(world: World) -> None:
    world.lose_the_asset()
    claim = await world.name_attributes("red", colour="red")
    assert "currentVolumeAttributesClassName" not in claim["status"]
    assert "does not exist" in world.told("VolumeModifyFailed")


STORIES: Mapping[str, Callable[[World], Awaitable[None]]] = {
    story.__name__.replace("_", "-"): story
    for story in (
        attach_and_detach_work,
        attach_again_is_the_same_attachment,
        attach_elsewhere_is_refused,
        a_late_detach_leaves_the_new_attachment,
        detach_of_what_is_not_attached_is_done,
        detach_of_what_is_gone_is_done,
        attach_of_what_is_gone_is_not_found,
        attach_to_an_unknown_node_is_not_found,
        the_limit_of_a_node_is_kept,
        list_shows_where_assets_are_attached,
        delete_refuses_what_is_in_use,
        expand_grows_the_asset,
        expand_of_a_block_device_needs_no_node,
        expand_again_changes_nothing,
        expand_never_shrinks,
        expand_of_what_is_gone_is_not_found,
        an_expanded_asset_still_answers_its_demand,
        expand_refuses_the_asset_of_another_claim,
        modify_can_be_repeated,
        mutable_parameters_make_no_other_demand,
        modify_refuses_unknown_parameters,
        modify_of_what_is_gone_is_not_found,
    )
}


@pytest.mark.parametrize("name", STORIES)
async def test_what_a_rule_promises_comes_true_for_objects_of_the_api(name: str) -> None:
    async with a_world() as world:
        await STORIES[name](world)


def test_every_rule_of_attach_expand_and_modify_has_its_story() -> None:
    """But those about `inspect`, which no controller calls."""
    hooks = {"attach", "detach", "expand", "modify"}
    about = {rule.name for rule in RULES if rule.hooks & hooks and "inspect" not in rule.hooks}
    assert about <= set(STORIES)
    assert set(STORIES) - about == {"delete-refuses-what-is-in-use"}
