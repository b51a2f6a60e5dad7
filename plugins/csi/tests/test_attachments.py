"""Attaching and detaching by the ids that node plugins give."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    AccessMode,
    AlreadyExists,
    AttachedElsewhere,
    BackendError,
    Done,
    InvalidArgument,
    NodeIdentity,
    NotFound,
    ResourceExhausted,
    Unavailable,
    VolumeMode,
)
from volplane_csi.testing import ALL_CAPABILITIES, Behaviour

ONE = NodeIdentity(name="node-1", csi_node_id="id-of-node-1")
TWO = NodeIdentity(name="node-2", csi_node_id="id-of-node-2")
FRESH = NodeIdentity(name="node-3", instance_id="cloud://3")


def test_a_volume_is_published_with_what_is_known_of_it(world: Any) -> None:
    asset = world.provision(parameters={"csi.storage.k8s.io/fstype": "ext4"})
    attachment = world.attach(asset, mount_options=("ro",), volume_mode=VolumeMode.FILESYSTEM)
    assert attachment.metadata == {"device": "/dev/vol-000001"}
    (sent,) = world.sent("ControllerPublishVolume")
    assert (sent.volume_id, sent.node_id, sent.readonly) == ("vol-000001", "id-of-node-1", False)
    assert (sent.volume_capability.mount.fs_type, list(sent.volume_capability.mount.mount_flags)) == ("ext4", ["ro"])
    assert dict(sent.volume_context) == dict(asset.attributes)


def test_read_only_is_told_only_to_drivers_that_know_it(world: Any, new_world: Any) -> None:
    world.attach(world.provision(), read_only=True)
    assert not world.sent("ControllerPublishVolume")[0].readonly
    knowing = new_world(Behaviour(capabilities=ALL_CAPABILITIES | {"PUBLISH_READONLY"}))
    asset = knowing.provision()
    knowing.attach(asset, read_only=True)
    assert knowing.sent("ControllerPublishVolume")[0].readonly
    with pytest.raises(AlreadyExists):
        knowing.attach(asset)


def test_a_node_without_a_node_plugin_gets_nothing(world: Any) -> None:
    with pytest.raises(NotFound, match="node-3 has no id of the CSI driver") as error:
        world.attach(world.provision(), FRESH)
    assert error.value.nothing_done
    assert world.sent("ControllerPublishVolume") == []


def test_nothing_is_detached_from_a_node_whose_id_is_not_known(world: Any) -> None:
    """An empty id would detach it from all nodes."""
    asset = world.provision()
    world.attach(asset)
    with pytest.raises(Unavailable, match="remove the finalizer"):
        world.detach(asset, FRESH)
    assert world.fake.volumes["pvc-u1"].published == {"id-of-node-1": False}
    assert world.detach(asset) == Done()
    assert world.fake.volumes["pvc-u1"].published == {}


def test_it_is_told_who_has_the_volume(new_world: Any) -> None:
    for lacking in ((), ("GET_VOLUME",)):
        world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - set(lacking), page=2))
        for number in range(5):
            world.provision(f"x{number}")
        asset = world.provision()
        world.attach(asset)
        with pytest.raises(AttachedElsewhere) as error:
            world.attach(asset, TWO)
        assert error.value.node == "node-1"


def test_a_driver_that_does_not_tell_who_has_it_is_asked_again(new_world: Any) -> None:
    world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - {"LIST_VOLUMES_PUBLISHED_NODES"}))
    asset = world.provision()
    world.attach(asset)
    with pytest.raises(Unavailable, match="is published to id-of-node-1"):
        world.attach(asset, TWO)


def test_a_full_node_and_an_unknown_one_are_told_apart(new_world: Any) -> None:
    world = new_world(Behaviour(attach_limit=1))
    world.attach(world.provision("a"))
    with pytest.raises(ResourceExhausted) as error:
        world.attach(world.provision("b"))
    assert error.value.scope == "node node-1"
    with pytest.raises(NotFound):
        world.attach(world.provision("c"), NodeIdentity(name="x", csi_node_id="no-such-id"))


def test_several_nodes_have_what_may_be_shared(world: Any) -> None:
    asset = world.provision(access_modes=(AccessMode.READ_WRITE_MANY,))
    for node in (ONE, TWO):
        world.attach(asset, node, access_modes=(AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_MANY))
    assert set(world.fake.volumes["pvc-u1"].published) == {"id-of-node-1", "id-of-node-2"}
    assert [each.attached_to for each in world.listed()] == [("id-of-node-1", "id-of-node-2")]


def test_modes_that_csi_cannot_tell_together_are_refused(world: Any) -> None:
    asset = world.provision()
    for modes in (
        (AccessMode.READ_WRITE_ONCE, AccessMode.READ_ONLY_MANY),
        (AccessMode.READ_WRITE_ONCE_POD, AccessMode.READ_WRITE_ONCE),
    ):
        with pytest.raises(InvalidArgument):
            world.attach(asset, access_modes=modes)


def test_detaching_what_is_not_attached_is_done(new_world: Any) -> None:
    world = new_world(Behaviour(unpublish_not_found=True))
    assert world.detach(world.provision()) == Done()
    assert world.detach("vol-999999") == Done()


def test_what_is_attached_is_not_deleted(world: Any) -> None:
    asset = world.provision()
    world.attach(asset)
    with pytest.raises(BackendError, match="is published to"):
        world.delete(asset)
    assert "pvc-u1" in world.fake.volumes
