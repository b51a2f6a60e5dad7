"""Growing, changing, listing, capacity, static volumes."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    Absent,
    BackendError,
    CapacityRequest,
    InvalidArgument,
    OutOfRange,
    OwnsRequest,
    Unavailable,
    Unsupported,
    VolumeMode,
    VolumeSource,
)
from volplane_csi.testing import ALL_CAPABILITIES, Behaviour

GIB = 1 << 30
ZONE = "topology.example.com/zone"


def test_growth_tells_whether_the_node_has_to_go_on(world: Any) -> None:
    asset = world.provision()
    grown = world.expand(asset, 2 * GIB)
    assert (grown.capacity_bytes, grown.node_expansion_required) == (2 * GIB, True)
    assert grown.source == asset.source
    block = world.provision("u2", volume_mode=VolumeMode.BLOCK)
    grown = world.expand(block, 2 * GIB, volume_mode=VolumeMode.BLOCK)
    assert grown.node_expansion_required is False


def test_what_only_a_node_can_grow_is_left_to_it(new_world: Any) -> None:
    world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - {"EXPAND_VOLUME"}))
    grown = world.expand(world.provision(), 2 * GIB)
    assert (grown.capacity_bytes, grown.node_expansion_required) == (2 * GIB, True)
    rigid = new_world(
        Behaviour(capabilities=ALL_CAPABILITIES - {"EXPAND_VOLUME"}, node_capabilities=frozenset({"GET_VOLUME_STATS"}))
    )
    with pytest.raises(Unsupported, match="grows no volumes"):
        rigid.expand(rigid.provision(), 2 * GIB)


def test_a_size_beyond_the_largest_may_be_wished_smaller(world: Any) -> None:
    with pytest.raises(OutOfRange):
        world.expand(world.provision(), 1 << 50)
    with pytest.raises(OutOfRange):
        world.expand(world.provision("u2"), 1 << 63)


def test_mutable_parameters_are_changed_without_those_of_sidecars(world: Any) -> None:
    asset = world.provision(mutable_parameters={"iops": "1"})
    assert world.fake.volumes["pvc-u1"].mutable == {"iops": "1"}
    world.modify(asset, **{"iops": "2", "csi.storage.k8s.io/fstype": "xfs"})
    assert world.fake.volumes["pvc-u1"].mutable == {"iops": "2"}
    with pytest.raises(InvalidArgument, match="unknown parameters"):
        world.modify(asset, colour="red")


def test_a_driver_without_a_capability_says_which(new_world: Any) -> None:
    world = new_world(Behaviour(capabilities=frozenset({"CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"})))
    asset = world.provision()
    for act, capability in (
        (lambda: world.modify(asset, iops="1"), "MODIFY_VOLUME"),
        (world.listed, "LIST_VOLUMES"),
        (lambda: world.snapshot(asset), "CREATE_DELETE_SNAPSHOT"),
        (lambda: world.backend.get_capacity(CapacityRequest(context=world.context())), "GET_CAPACITY"),
    ):
        with pytest.raises(Unsupported, match=capability) as error:
            act()
        assert error.value.nothing_left
    for fields in ({"source_volume": "x"}, {"source_snapshot": "x"}, {"mutable_parameters": {"iops": "1"}}):
        with pytest.raises(InvalidArgument):
            world.backend.provision(world.demand("u2", **fields))


def test_a_list_has_all_pages_and_nobodys_marks(new_world: Any) -> None:
    world = new_world(Behaviour(page=2))
    made = {world.provision(f"u{number}").handle for number in range(5)}
    assert {each.handle for each in world.listed()} == made
    assert {each.owner for each in world.listed()} == {None}


def test_a_list_that_does_not_tell_what_is_attached_is_none_for_drivers_that_attach(new_world: Any) -> None:
    """An attachment that it lacks would look lost."""
    behaviour = Behaviour(capabilities=ALL_CAPABILITIES - {"LIST_VOLUMES_PUBLISHED_NODES"})
    with pytest.raises(Unsupported, match="where volumes are attached"):
        new_world(behaviour).listed()
    assert new_world(behaviour, attach=False).listed() == []


def test_a_list_that_never_ends_is_an_error(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from volplane import ListRequest
    from volplane.csi.wire import build

    monkeypatch.setattr(world.fake, "_ListVolumes", lambda _request: build("ListVolumesResponse", next_token="again"))
    page = world.backend.list_assets(ListRequest(context=world.context()))
    with pytest.raises(Unavailable, match="next of itself"):
        world.backend.list_assets(ListRequest(context=world.context(), page=page.next_page))


@pytest.mark.parametrize("capability", ["GET_VOLUME", "LIST_VOLUMES"])
def test_a_volume_is_looked_at_by_its_id_or_in_the_list(new_world: Any, capability: str) -> None:
    others = {"GET_VOLUME", "LIST_VOLUMES"} - {capability}
    world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - others, page=2, condition="it is degraded"))
    *_, last = [world.provision(f"u{number}") for number in range(5)]
    world.attach(last)
    seen = world.look(last.handle)
    assert (seen.handle, seen.capacity_bytes, seen.owner) == (last.handle, GIB, None)
    assert (seen.attached_to, seen.condition) == (("id-of-node-1",), "it is degraded")
    assert seen.source.fields == {"driver": "fake.csi.example.com", "volumeHandle": last.handle}
    world.detach(last)
    world.delete(last)
    for handle in (last.handle, "", "x" * 2000, "no-such"):
        assert world.look(handle) == Absent()
    assert world.fake.calls["ControllerGetVolume" if capability == "LIST_VOLUMES" else "ListVolumes"] == 0


@pytest.mark.parametrize("method", ["ControllerGetVolume", "ListVolumes"])
def test_a_look_that_fails_proves_no_absence(new_world: Any, method: str) -> None:
    without = {"GET_VOLUME"} if method == "ListVolumes" else set()
    world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - without))
    handle = world.provision().handle
    for code in ("INVALID_ARGUMENT", "INTERNAL", "UNAVAILABLE", "PERMISSION_DENIED"):
        world.refuse(method, code)
        with pytest.raises(BackendError):
            world.look(handle)
    assert world.look(handle).handle == handle


@pytest.mark.parametrize("missing", [("GET_VOLUME", "LIST_VOLUMES"), ("LIST_VOLUMES_PUBLISHED_NODES",)])
def test_a_driver_that_shows_too_little_is_not_looked_at(new_world: Any, missing: tuple[str, ...]) -> None:
    """A volume whose attachments it does not tell would look unused."""
    world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - {*missing}))
    with pytest.raises(Unsupported, match=missing[-1]):
        world.look(world.provision().handle)


def test_a_driver_that_shows_another_volume_is_not_believed(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = world.provision("u1"), world.provision("u2")
    monkeypatch.setattr(world.fake, "_volume", lambda _id: world.fake.by_id(second.handle))
    with pytest.raises(BackendError, match="was asked for"):
        world.look(first.handle)


def test_capacity_is_that_of_the_place(new_world: Any) -> None:
    world = new_world(Behaviour(zones=("a", "b"), room=10 * GIB, largest=4 * GIB), topology_keys=ZONE)
    world.provision(segment={ZONE: "a"})

    def free(zone: str) -> int:
        request = CapacityRequest(context=world.context(), segment={ZONE: zone}, parameters={"": {"tier": "x"}})
        capacity = world.backend.get_capacity(request)
        assert capacity.maximum_volume_bytes == 4 * GIB
        return int(capacity.available_bytes)

    assert (free("a"), free("b"), free("c")) == (9 * GIB, 10 * GIB, 0)


def test_it_owns_what_names_its_driver(world: Any) -> None:
    def owns(**fields: Any) -> bool:
        source = VolumeSource(kind="csi", fields=fields)
        return bool(world.backend.owns(OwnsRequest(context=world.context(), source=source)))

    assert owns(driver="fake.csi.example.com", volumeHandle="by-hand")
    assert not owns(driver="fake.csi.example.com", volumeHandle="")
    assert not owns(driver="other.csi.example.com", volumeHandle="by-hand")
