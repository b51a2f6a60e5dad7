"""What csi-sanity 5.5 asks of a driver's Identity and Controller, in words of our own.

A specification is a coroutine function that gets a caller; its docstring is the name of its like there. One that says
nothing about a driver returns False.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from integration.csi.caller import GIB, WRITER, Caller
from volplane.csi.codes import CsiError

Specification = Callable[[Caller], Coroutine[Any, Any, bool | None]]
READER = {"mount": {}, "access_mode": {"mode": "MULTI_NODE_READER_ONLY"}}
LONGEST = "Ab" * 64


# --- Identity, capabilities, capacity -----------------------------------------------------------------------------


async def it_tells_its_name(csi: Caller) -> None:
    """GetPluginInfo should return appropriate information"""
    info = await csi.call("GetPluginInfo")
    assert info.name == csi.subject.driver_name
    assert info.vendor_version


async def it_tells_what_the_plugin_can_do(csi: Caller) -> None:
    """GetPluginCapabilities should return appropriate capabilities"""
    found = (await csi.call("GetPluginCapabilities")).capabilities
    assert 1 in [each.service.type for each in found]
    assert all(each.WhichOneof("type") for each in found)


async def it_is_ready(csi: Caller) -> None:
    """Probe should return appropriate information"""
    assert (await csi.call("Probe")).ready.value


async def it_tells_what_the_controller_can_do(csi: Caller) -> None:
    """ControllerGetCapabilities should return appropriate capabilities"""
    found = [each.rpc.type for each in (await csi.call("ControllerGetCapabilities")).capabilities]
    assert found
    assert 0 not in found
    assert len(found) == len(set(found))


async def capacity_is_measured(csi: Caller) -> bool | None:
    """GetCapacity should return capacity (no optional values added)"""
    if not csi.has("get_capacity"):
        return False
    assert (await csi.call("GetCapacity")).available_capacity >= 0
    return None


# --- ListVolumes --------------------------------------------------------------------------------------------------


async def a_list_is_right_where_there_is_nothing(csi: Caller) -> None:
    """ListVolumes should return appropriate values (no optional values added)"""
    assert await csi.ids() == []


async def a_strange_token_ends_the_list(csi: Caller) -> None:
    """ListVolumes should fail when an invalid starting_token is passed"""
    await csi.refused("ABORTED", "ListVolumes", starting_token="invalid-token")


async def a_list_has_new_volumes_and_no_deleted_ones(csi: Caller) -> None:
    """ListVolumes check the presence of new volumes and absence of deleted ones in the volume list"""
    volume = await csi.create()
    assert await csi.ids() == [volume.volume_id]
    await csi.delete(volume.volume_id)
    assert await csi.ids() == []


async def pages_are_whole(csi: Caller) -> None:
    """ListVolumes pagination should detect volumes added between pages and accept tokens when the last volume from a
    page is deleted
    """
    made = {(await csi.create(f"page-{number}")).volume_id for number in range(5)}
    first = await csi.call("ListVolumes", max_entries=3)
    seen = [each.volume.volume_id for each in first.entries]
    assert len(seen) == 3
    await csi.delete(seen[-1])
    more = (await csi.create("page-later")).volume_id
    token = first.next_token
    while token:
        page = await csi.call("ListVolumes", max_entries=1, starting_token=token)
        seen += [each.volume.volume_id for each in page.entries]
        token = page.next_token
    assert made <= set(seen) <= made | {more}
    assert len(seen) == len(set(seen))


# --- CreateVolume -------------------------------------------------------------------------------------------------


async def a_volume_needs_a_name(csi: Caller) -> None:
    """CreateVolume should fail when no name is provided"""
    await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand(""))


async def a_volume_needs_capabilities(csi: Caller) -> None:
    """CreateVolume should fail when no volume capabilities are provided"""
    await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand("sanity", volume_capabilities=[]))


async def a_volume_may_have_any_size(csi: Caller) -> None:
    """CreateVolume should return appropriate values SingleNodeWriter NoCapacity"""
    volume = await csi.create(capacity_range=None)
    assert volume.volume_id


async def a_volume_has_the_size_that_was_asked_for(csi: Caller) -> None:
    """CreateVolume should return appropriate values SingleNodeWriter WithCapacity 1Gi"""
    volume = await csi.create()
    assert volume.volume_id
    assert csi.subject.capacity_bytes <= volume.capacity_bytes < csi.subject.capacity_bytes + GIB


async def the_same_volume_twice_is_one(csi: Caller) -> None:
    """CreateVolume should not fail when requesting to create a volume with already existing name and same capacity"""
    assert (await csi.create()).volume_id == (await csi.create()).volume_id


async def another_size_is_another_volume(csi: Caller) -> None:
    """CreateVolume should fail when requesting to create a volume with already existing name and different capacity"""
    await csi.create()
    larger = {"required_bytes": csi.subject.capacity_bytes * 2, "limit_bytes": csi.subject.capacity_bytes * 2}
    await csi.refused("ALREADY_EXISTS", "CreateVolume", **csi.demand("sanity", capacity_range=larger))


async def the_longest_name_works(csi: Caller) -> None:
    """CreateVolume should not fail when creating volume with maximum-length name"""
    volume = await csi.create(LONGEST)
    assert (await csi.create(LONGEST)).volume_id == volume.volume_id


async def a_snapshot_becomes_a_volume(csi: Caller) -> bool | None:
    """CreateVolume should create volume from an existing source snapshot"""
    if not csi.has("create_snapshot"):
        return False
    snapshot = await snapshot_of(csi, await csi.create())
    source = {"snapshot": {"snapshot_id": snapshot.snapshot_id}}
    restored = await csi.create("restored", volume_content_source=source)
    assert restored.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    return None


async def a_missing_snapshot_becomes_none(csi: Caller) -> bool | None:
    """CreateVolume should fail when the volume source snapshot is not found"""
    if not csi.has("create_snapshot"):
        return False
    source = {"snapshot": {"snapshot_id": "non-existing-snapshot-id"}}
    await csi.refused("NOT_FOUND", "CreateVolume", **csi.demand("restored", volume_content_source=source))
    return None


async def a_volume_is_copied(csi: Caller) -> bool | None:
    """CreateVolume should create volume from an existing source volume"""
    if not csi.bridge.view.info.clones:
        return False
    volume = await csi.create()
    source = {"volume": {"volume_id": volume.volume_id}}
    copied = await csi.create("copied", volume_content_source=source)
    assert copied.volume_id != volume.volume_id
    assert copied.content_source.volume.volume_id == volume.volume_id
    return None


async def a_missing_volume_is_not_copied(csi: Caller) -> bool | None:
    """CreateVolume should fail when the volume source volume is not found"""
    if not csi.bridge.view.info.clones:
        return False
    source = {"volume": {"volume_id": "non-existing-volume-id"}}
    await csi.refused("NOT_FOUND", "CreateVolume", **csi.demand("copied", volume_content_source=source))
    return None


async def a_volume_gets_its_attributes(csi: Caller) -> bool | None:
    """CreateVolume should create volume with VolumeAttributesClass"""
    if not csi.subject.mutable_parameters:
        return False
    assert (await csi.create(mutable_parameters=dict(csi.subject.mutable_parameters))).volume_id
    return None


async def wrong_attributes_leave_no_volume(csi: Caller) -> bool | None:
    """CreateVolume should fail when the VolumeAttributesClass is invalid"""
    if not csi.has("modify"):
        return False
    await csi.refused("INVALID_ARGUMENT", "CreateVolume", **csi.demand("sanity", mutable_parameters={"no-such": "x"}))
    assert await csi.ids() == []
    return None


# --- DeleteVolume, ValidateVolumeCapabilities ---------------------------------------------------------------------


async def a_deletion_needs_an_id(csi: Caller) -> None:
    """DeleteVolume should fail when no volume id is provided"""
    await csi.refused("INVALID_ARGUMENT", "DeleteVolume")


async def an_unknown_id_is_deleted(csi: Caller) -> None:
    """DeleteVolume should succeed when an invalid volume id is used"""
    await csi.delete("reallyfakevolumeid")


async def a_volume_is_deleted(csi: Caller) -> None:
    """DeleteVolume should return appropriate values (no optional values added)"""
    volume = await csi.create()
    await csi.delete(volume.volume_id)
    await csi.delete(volume.volume_id)


async def a_check_needs_an_id(csi: Caller) -> None:
    """ValidateVolumeCapabilities should fail when no volume id is provided"""
    await csi.refused("INVALID_ARGUMENT", "ValidateVolumeCapabilities", volume_capabilities=[WRITER])


async def a_check_needs_capabilities(csi: Caller) -> None:
    """ValidateVolumeCapabilities should fail when no volume capabilities are provided"""
    volume = await csi.create()
    await csi.refused("INVALID_ARGUMENT", "ValidateVolumeCapabilities", volume_id=volume.volume_id)


async def what_a_volume_can_do_is_confirmed(csi: Caller) -> None:
    """ValidateVolumeCapabilities should return appropriate values (no optional values added)"""
    volume = await csi.create()
    answer = await csi.call("ValidateVolumeCapabilities", volume_id=volume.volume_id, volume_capabilities=[WRITER])
    assert len(answer.confirmed.volume_capabilities) == 1


async def a_missing_volume_is_not_checked(csi: Caller) -> None:
    """ValidateVolumeCapabilities should fail when the requested volume does not exist"""
    await csi.refused(
        "NOT_FOUND", "ValidateVolumeCapabilities", volume_id="reallyfakevolumeid", volume_capabilities=[WRITER]
    )


# --- ControllerPublishVolume, ControllerUnpublishVolume -----------------------------------------------------------


async def an_attachment_needs_a_volume(csi: Caller) -> bool | None:
    """ControllerPublishVolume should fail when no volume id is provided"""
    return await _refused_attachment(csi, "INVALID_ARGUMENT", node_id=csi.node, volume_capability=WRITER)


async def an_attachment_needs_a_node(csi: Caller) -> bool | None:
    """ControllerPublishVolume should fail when no node id is provided"""
    return await _refused_attachment(csi, "INVALID_ARGUMENT", volume_id="id", volume_capability=WRITER)


async def an_attachment_needs_a_capability(csi: Caller) -> bool | None:
    """ControllerPublishVolume should fail when no volume capability is provided"""
    return await _refused_attachment(csi, "INVALID_ARGUMENT", volume_id="id", node_id=csi.node)


async def a_missing_volume_is_not_attached(csi: Caller) -> bool | None:
    """ControllerPublishVolume should fail when the volume does not exist"""
    return await _refused_attachment(
        csi, "NOT_FOUND", volume_id="reallyfakevolumeid", node_id=csi.node, volume_capability=WRITER
    )


async def nothing_is_attached_to_a_missing_node(csi: Caller) -> bool | None:
    """ControllerPublishVolume should fail when the node does not exist"""
    if not csi.has("attach"):
        return False
    volume = await csi.create()
    return await _refused_attachment(
        csi, "NOT_FOUND", volume_id=volume.volume_id, node_id="some-fake-node-id", volume_capability=WRITER
    )


async def a_node_takes_so_many_and_no_more(csi: Caller) -> bool | None:
    """ControllerPublishVolume should fail when publishing more volumes than the node max attach limit"""
    most = csi.bridge.view.info.max_attached_per_node
    if most is None:
        return False
    volumes = [await csi.create(f"attached-{number}") for number in range(most + 1)]

    async def attach_all() -> None:
        for volume in volumes:
            fields = {"volume_id": volume.volume_id, "node_id": csi.node, "volume_capability": WRITER}
            await csi.call("ControllerPublishVolume", **fields)

    with pytest.raises(CsiError) as error:
        await attach_all()
    assert error.value.code == "RESOURCE_EXHAUSTED"
    return None


async def a_volume_is_attached_and_detached(csi: Caller) -> bool | None:
    """Controller Volume Lifecycle should work"""
    if not csi.has("attach"):
        return False
    volume = await csi.create()
    fields = {"volume_id": volume.volume_id, "node_id": csi.node, "volume_capability": WRITER}
    await csi.call("ControllerPublishVolume", **fields)
    await csi.refused("FAILED_PRECONDITION", "DeleteVolume", volume_id=volume.volume_id)
    await csi.call("ControllerUnpublishVolume", volume_id=volume.volume_id, node_id=csi.node)
    await csi.delete(volume.volume_id)
    return None


async def attaching_and_detaching_can_be_repeated(csi: Caller) -> bool | None:
    """Controller Volume Lifecycle should be idempotent"""
    if not csi.has("attach"):
        return False
    volume = await csi.create()
    fields = {"volume_id": volume.volume_id, "node_id": csi.node, "volume_capability": WRITER}
    contexts = [(await csi.call("ControllerPublishVolume", **fields)).publish_context for _ in range(2)]
    assert contexts[0] == contexts[1]
    for node in (csi.node, csi.node, ""):
        await csi.call("ControllerUnpublishVolume", volume_id=volume.volume_id, node_id=node)
    await csi.delete(volume.volume_id)
    await csi.call("ControllerUnpublishVolume", volume_id=volume.volume_id, node_id=csi.node)
    return None


async def without_a_node_it_is_detached_from_all(csi: Caller) -> bool | None:
    """ControllerUnpublishVolume (the specification: an empty node_id means all nodes)"""
    if not csi.has("attach"):
        return False
    volume = await csi.create()
    fields = {"volume_id": volume.volume_id, "node_id": csi.node, "volume_capability": WRITER}
    await csi.call("ControllerPublishVolume", **fields)
    await csi.call("ControllerUnpublishVolume", volume_id=volume.volume_id)
    await csi.delete(volume.volume_id)
    return None


async def a_detachment_needs_a_volume(csi: Caller) -> bool | None:
    """ControllerUnpublishVolume should fail when no volume id is provided"""
    if not csi.has("detach"):
        return False
    await csi.refused("INVALID_ARGUMENT", "ControllerUnpublishVolume", node_id=csi.node)
    return None


async def _refused_attachment(csi: Caller, code: str, **fields: Any) -> bool | None:
    if not csi.has("attach"):
        return False
    await csi.refused(code, "ControllerPublishVolume", **fields)
    return None


# --- snapshots ----------------------------------------------------------------------------------------------------


async def snapshot_of(csi: Caller, volume: Any, name: str = "before") -> Any:
    """Return a snapshot that is ready."""
    for _ in range(100):
        snapshot = (await csi.call("CreateSnapshot", source_volume_id=volume.volume_id, name=name)).snapshot
        if snapshot.ready_to_use:
            return snapshot
        await asyncio.sleep(30.0)
    raise AssertionError("the snapshot is never ready")


async def a_snapshot_needs_a_name(csi: Caller) -> bool | None:
    """CreateSnapshot should fail when no name is provided"""
    if not csi.has("create_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "CreateSnapshot", source_volume_id="testId")
    return None


async def a_snapshot_needs_a_source(csi: Caller) -> bool | None:
    """CreateSnapshot should fail when no source volume id is provided"""
    if not csi.has("create_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "CreateSnapshot", name="name")
    return None


async def the_same_snapshot_twice_is_one(csi: Caller) -> bool | None:
    """CreateSnapshot should succeed when requesting to create a snapshot with already existing name and same source
    volume ID
    """
    if not csi.has("create_snapshot"):
        return False
    volume = await csi.create()
    one, other = await snapshot_of(csi, volume), await snapshot_of(csi, volume)
    assert one == other
    return None


async def another_source_is_another_snapshot(csi: Caller) -> bool | None:
    """CreateSnapshot should fail when requesting to create a snapshot with already existing name and different source
    volume ID
    """
    if not csi.has("create_snapshot"):
        return False
    await snapshot_of(csi, await csi.create())
    other = await csi.create("other")
    await csi.refused("ALREADY_EXISTS", "CreateSnapshot", source_volume_id=other.volume_id, name="before")
    return None


async def the_longest_name_of_a_snapshot_works(csi: Caller) -> bool | None:
    """CreateSnapshot should succeed when creating snapshot with maximum-length name"""
    if not csi.has("create_snapshot"):
        return False
    volume = await csi.create()
    assert await snapshot_of(csi, volume, LONGEST) == await snapshot_of(csi, volume, LONGEST)
    return None


async def a_deletion_of_a_snapshot_needs_an_id(csi: Caller) -> bool | None:
    """DeleteSnapshot should fail when no snapshot id is provided"""
    if not csi.has("delete_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "DeleteSnapshot")
    return None


async def an_unknown_snapshot_is_deleted(csi: Caller) -> bool | None:
    """DeleteSnapshot should succeed when an invalid snapshot id is used"""
    if not csi.has("delete_snapshot"):
        return False
    await csi.call("DeleteSnapshot", snapshot_id="reallyfakesnapshotid")
    return None


async def a_snapshot_is_deleted(csi: Caller) -> bool | None:
    """DeleteSnapshot should return appropriate values (no optional values added)"""
    if not csi.has("delete_snapshot"):
        return False
    snapshot = await snapshot_of(csi, await csi.create())
    for _ in range(2):
        await csi.call("DeleteSnapshot", snapshot_id=snapshot.snapshot_id)
    return None


async def snapshots_are_listed(csi: Caller) -> bool | None:
    """ListSnapshots (7: plain, by id, unknown id, by source, unknown source, new present, next token)"""
    if not csi.has("list_snapshots"):
        return False

    async def listed(**fields: Any) -> list[str]:
        return [each.snapshot.snapshot_id for each in (await csi.call("ListSnapshots", **fields)).entries]

    assert await listed() == []
    volume, other = await csi.create(), await csi.create("other")
    made = []
    for number in range(4):
        made.append((await snapshot_of(csi, volume, f"before-{number}")).snapshot_id)
        await asyncio.sleep(700.0)  # Clouds cut a disk once in ten minutes.
    assert sorted(await listed()) == sorted(made)
    assert await listed(snapshot_id=made[1]) == [made[1]]
    assert await listed(snapshot_id="none-exist-id") == []
    assert sorted(await listed(source_volume_id=volume.volume_id)) == sorted(made)
    assert await listed(source_volume_id="none-exist-volume-id") == []
    assert await listed(source_volume_id=other.volume_id) == []
    page = await csi.call("ListSnapshots", max_entries=2)
    rest = await csi.call("ListSnapshots", starting_token=page.next_token)
    pages = [each.snapshot.snapshot_id for each in (*page.entries, *rest.entries)]
    assert sorted(pages) == sorted(made)
    assert not rest.next_token
    return None


async def a_snapshot_is_shown(csi: Caller) -> bool | None:
    """GetSnapshot (3: no id, by id, unknown id)"""
    if not csi.has("find_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "GetSnapshot")
    await csi.refused("NOT_FOUND", "GetSnapshot", snapshot_id="none-exist-id")
    volume = await csi.create()
    snapshot = await snapshot_of(csi, volume)
    shown = (await csi.call("GetSnapshot", snapshot_id=snapshot.snapshot_id)).snapshot
    assert (shown.snapshot_id, shown.source_volume_id) == (snapshot.snapshot_id, volume.volume_id)
    assert shown.ready_to_use
    assert shown.creation_time == snapshot.creation_time
    return None


# --- ControllerExpandVolume, ControllerModifyVolume, ControllerGetVolume ------------------------------------------


async def growth_needs_an_id(csi: Caller) -> bool | None:
    """ExpandVolume should fail if no volume id is given"""
    if not csi.has("expand"):
        return False
    await csi.refused("INVALID_ARGUMENT", "ControllerExpandVolume", capacity_range={"required_bytes": GIB})
    return None


async def growth_needs_a_size(csi: Caller) -> bool | None:
    """ExpandVolume should fail if no capacity range is given"""
    if not csi.has("expand"):
        return False
    await csi.refused("INVALID_ARGUMENT", "ControllerExpandVolume", volume_id="id")
    return None


async def a_volume_grows(csi: Caller) -> bool | None:
    """ExpandVolume should work"""
    if not csi.has("expand"):
        return False
    volume, size = await csi.create(), csi.subject.capacity_bytes * 2
    for _ in range(2):
        grown = await csi.call(
            "ControllerExpandVolume", volume_id=volume.volume_id, capacity_range={"required_bytes": size}
        )
        assert grown.capacity_bytes >= size
    await csi.refused(
        "NOT_FOUND", "ControllerExpandVolume", volume_id="reallyfake", capacity_range={"required_bytes": size}
    )
    return None


async def a_change_needs_a_volume(csi: Caller) -> bool | None:
    """ModifyVolume should fail when no volume id is provided / the volume does not exist"""
    if not csi.has("modify"):
        return False
    await csi.refused("INVALID_ARGUMENT", "ControllerModifyVolume", mutable_parameters={"a": "b"})
    await csi.refused(
        "NOT_FOUND", "ControllerModifyVolume", volume_id="reallyfakevolumeid", mutable_parameters={"a": "b"}
    )
    return None


async def a_volume_is_changed(csi: Caller) -> bool | None:
    """ModifyVolume: unsupported parameters, without and with a class before, unsupported ones after"""
    if not csi.subject.mutable_parameters:
        return False
    wanted = dict(csi.subject.mutable_parameters)
    plain, attributed = await csi.create(), await csi.create("attributed", mutable_parameters=wanted)
    for volume in (plain, attributed):
        await csi.refused(
            "INVALID_ARGUMENT",
            "ControllerModifyVolume",
            volume_id=volume.volume_id,
            mutable_parameters={"no-such-parameter": "x"},
        )
        await csi.call("ControllerModifyVolume", volume_id=volume.volume_id, mutable_parameters=wanted)
    return None


async def a_volume_is_shown(csi: Caller) -> None:
    """ControllerGetVolume (the specification)"""
    volume = await csi.create()
    shown = await csi.call("ControllerGetVolume", volume_id=volume.volume_id)
    assert shown.volume.volume_id == volume.volume_id
    assert not shown.status.volume_condition.abnormal
    await csi.refused("NOT_FOUND", "ControllerGetVolume", volume_id="reallyfakevolumeid")


# --- the service GroupController ----------------------------------------------------------------------------------


async def groups_are_announced(csi: Caller) -> bool | None:
    """GroupControllerGetCapabilities should return appropriate capabilities"""
    if not csi.has("create_group_snapshot"):
        return False
    (capability,) = (await csi.call("GroupControllerGetCapabilities")).capabilities
    assert capability.rpc.type == 1
    assert 3 in [each.service.type for each in (await csi.call("GetPluginCapabilities")).capabilities]
    return None


async def a_group_needs_a_name(csi: Caller) -> bool | None:
    """CreateVolumeGroupSnapshot should fail when no name is provided (nor volumes)"""
    if not csi.has("create_group_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "CreateVolumeGroupSnapshot", source_volume_ids=["testId"])
    for sources in ([], ["testId", "testId"], [""]):
        await csi.refused("INVALID_ARGUMENT", "CreateVolumeGroupSnapshot", name="group", source_volume_ids=sources)
    return None


async def a_group_that_is_asked_for_needs_an_id(csi: Caller) -> bool | None:
    """GetVolumeGroupSnapshot (2: no id, invalid id)"""
    if not csi.has("find_group_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "GetVolumeGroupSnapshot")
    await csi.refused("NOT_FOUND", "GetVolumeGroupSnapshot", group_snapshot_id="reallyfakegroup")
    return None


async def a_group_that_is_deleted_needs_an_id(csi: Caller) -> bool | None:
    """DeleteVolumeGroupSnapshot (2: no id, invalid id)"""
    if not csi.has("delete_group_snapshot"):
        return False
    await csi.refused("INVALID_ARGUMENT", "DeleteVolumeGroupSnapshot")
    await csi.call("DeleteVolumeGroupSnapshot", group_snapshot_id="reallyfakegroup")
    return None


async def a_group_is_made_once_and_deleted_whole(csi: Caller) -> bool | None:
    """CreateVolumeGroupSnapshot, GetVolumeGroupSnapshot and DeleteVolumeGroupSnapshot (the specification)"""
    if not csi.has("create_group_snapshot"):
        return False
    volumes = [(await csi.create(f"sanity-{number}")).volume_id for number in range(3)]
    if csi.has("attach"):
        for each in volumes[:2]:
            await csi.call("ControllerPublishVolume", volume_id=each, node_id=csi.node, volume_capability=WRITER)
    wanted = {"name": "groupsnapshot-1", "source_volume_ids": volumes[:2]}
    try:
        made = (await csi.call("CreateVolumeGroupSnapshot", **wanted)).group_snapshot
    except CsiError as error:
        if error.code != "INVALID_ARGUMENT":
            raise
        return False  # These volumes cannot be cut at one moment.
    members = [each.snapshot_id for each in made.snapshots]
    assert {each.source_volume_id for each in made.snapshots} == set(volumes[:2])
    assert {each.group_snapshot_id for each in made.snapshots} == {made.group_snapshot_id}
    assert made.ready_to_use == all(each.ready_to_use for each in made.snapshots)
    group = {"group_snapshot_id": made.group_snapshot_id, "snapshot_ids": members}
    again = (await csi.call("CreateVolumeGroupSnapshot", **wanted)).group_snapshot
    for shown in (again, (await csi.call("GetVolumeGroupSnapshot", **group)).group_snapshot):
        assert shown.group_snapshot_id == made.group_snapshot_id
        assert sorted(each.snapshot_id for each in shown.snapshots) == sorted(members)
        assert shown.creation_time == made.creation_time
    other = {**wanted, "source_volume_ids": volumes[1:]}
    await csi.refused("ALREADY_EXISTS", "CreateVolumeGroupSnapshot", **other)
    await csi.refused("INVALID_ARGUMENT", "DeleteVolumeGroupSnapshot", **{**group, "snapshot_ids": members[:1]})
    await csi.call("DeleteVolumeGroupSnapshot", **group)
    await csi.refused("NOT_FOUND", "GetVolumeGroupSnapshot", **group)
    for each in members:
        await csi.refused("NOT_FOUND", "GetSnapshot", snapshot_id=each)
    await csi.call("DeleteVolumeGroupSnapshot", **group)
    return None


SPECIFICATIONS: tuple[Specification, ...] = tuple(
    value
    for name, value in list(globals().items())
    if asyncio.iscoroutinefunction(value) and not name.startswith("_") and name != "snapshot_of"
)
