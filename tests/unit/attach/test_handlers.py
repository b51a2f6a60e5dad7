"""Who wakes attach-detach, and which changes concern it not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from unit.attach.objects import CSI, PAIR, UNIQUE, attachment, bound, node, pod
from unit.attach.test_attach_detach import IN_TREE, Keys, in_tree, newer, recorded_for
from unit.binding.objects import volume
from unit.deciding import state_with
from volplane.attach.attach_detach import AttachDetach, AttachDetachState
from volplane.attach.desired import Pair
from volplane.attach.operation import AttacherHandlers
from volplane.kube.objects import CsiDriver, CsiDriverSpec, KubeObject, Metadata, Node, VolumeAttachment
from volplane.state.progress import UnrecordedAttachment


class World:
    """Handlers over caches with a claim, its volume and a pod on node-a."""

    def __init__(self, *objects: KubeObject) -> None:
        self.state = AttachDetachState(state_with(*bound(), pod(), *objects))
        self.pairs, self.nodes = Keys(), Keys()
        self.state.cluster.follow(AttachDetach(self.state, pairs=self.pairs, nodes=self.nodes))
        self._version = 1

    def becomes(self, item: Node | VolumeAttachment) -> None:
        self._version += 1
        cache = self.state.cluster.nodes if isinstance(item, Node) else self.state.cluster.attachments
        cache.observe(replace(item, metadata=newer(item, self._version)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "woken"),
    [
        (attachment(finalizers=["external-attacher/a"]), False),
        (attachment(annotations={"volplane.dev/node-uid": "uid-other"}), True),
        (attachment(attached=True), True),
        (attachment(error="no room"), True),
        (attachment(deleted=True, finalizers=["external-attacher/a"]), True),
    ],
    ids=["what its attacher records", "made for another machine", "attached", "refused", "deleted"],
)
def test_of_an_attachment_only_what_is_decided_by_wakes(after: VolumeAttachment, woken: bool) -> None:
    world = World(node(), attachment())
    world.becomes(after)
    assert (PAIR.key in world.pairs.keys) == woken


def test_a_detach_that_fails_wakes_who_waits_for_the_volume_on_another_node() -> None:
    world = World(node(), node("node-b"), attachment("node-b", attached=True, deleted=True))
    world.becomes(attachment("node-b", attached=True, deleted=True, detach_error="never"))
    assert PAIR.key in world.pairs.keys


def test_a_volume_that_is_listed_as_we_wrote_it_wakes_nobody() -> None:
    world = World(node(), attachment(attached=True))
    world.state.reports["node-a"] = {UNIQUE}
    world.becomes(node(attached=[UNIQUE]))
    assert world.pairs.keys == []


def test_a_list_that_somebody_else_changed_is_judged() -> None:
    world = World(node(), attachment(attached=True))
    world.becomes(node(attached=[UNIQUE]))
    world.becomes(node())
    assert world.pairs.keys == [PAIR.key, PAIR.key]


def test_all_that_a_new_node_lists_is_judged() -> None:
    world = World()
    world.becomes(node(attached=["kubernetes.io/csi/gone.example.com^h-9", "kubernetes.io/vendor/disk"]))
    assert world.nodes.keys == ["node-a"]
    assert "node-a/kubernetes.io/csi/gone.example.com^h-9" in world.pairs.keys
    assert "node-a/kubernetes.io/vendor/disk" not in world.pairs.keys


def test_a_volume_that_may_be_on_more_nodes_now_wakes_who_waits_for_it() -> None:
    world = World(node())
    shared = bound("ReadWriteMany")[1]
    world.state.cluster.volumes.observe(replace(shared, metadata=newer(shared, 2)))
    assert PAIR.key in world.pairs.keys


def test_a_volume_that_goes_wakes_who_waits_for_its_disk_through_another_one() -> None:
    once = volume("twin", csi={"driver": CSI, "volumeHandle": "h-1"}, hostPath=None)
    world = World(node(), once)
    world.state.cluster.volumes.observe_deleted(once.key, once.uid)
    assert PAIR.key in world.pairs.keys


def test_a_detach_through_a_volume_that_is_gone_wakes_who_waits_for_the_disk() -> None:
    through = attachment("node-b", attached=True, volume="gone", annotations=recorded_for("gone", "h-1"))
    world = World(node(), through)
    world.state.cluster.attachments.observe_deleted(through.key, through.uid)
    assert PAIR.key in world.pairs.keys


def test_so_does_the_detach_of_a_disk_of_an_in_tree_volume() -> None:
    used, made, through = in_tree()
    state = AttachDetachState(state_with(used, made, pod(), node(), through))
    pairs = Keys()
    state.cluster.follow(AttachDetach(state, pairs=pairs, nodes=Keys()))
    state.cluster.attachments.observe_deleted(through.key, through.uid)
    assert IN_TREE.key in pairs.keys


def test_a_claim_that_is_bound_and_one_that_goes_wake_who_uses_the_volume() -> None:
    used, made = bound()
    world = World(node(), attachment())
    lost = replace(used, metadata=newer(used, 2), status=replace(used.status, phase="Lost"))
    for change in (lost, replace(used, metadata=newer(used, 3))):
        world.pairs.keys.clear()
        world.state.cluster.claims.observe(change)
        assert PAIR.key in world.pairs.keys
    world.pairs.keys.clear()
    world.state.cluster.claims.observe_deleted(used.key, used.uid)
    assert PAIR.key in world.pairs.keys
    world.state.cluster.volumes.observe_deleted(made.key, made.uid)
    world.pairs.keys.clear()
    world.state.cluster.claims.observe(replace(used, metadata=newer(used, 9)))
    assert world.pairs.keys == [], "its volume wakes them when it comes"


def test_a_node_that_is_ready_again_wakes_the_pods_there() -> None:
    world = World(node(ready="Unknown"))
    world.becomes(node())
    assert world.nodes.keys == ["node-a"]
    assert PAIR.key in world.pairs.keys


def test_a_driver_whose_volumes_need_no_attaching_any_more_wakes_them_and_no_other_change_does() -> None:
    made = CsiDriver(metadata=Metadata(name=CSI, uid="u", resource_version="1"))
    world = World(node(), made)
    drivers = world.state.cluster.csi_drivers
    drivers.observe(replace(made, metadata=newer(made, 2)))
    assert world.pairs.keys == []
    drivers.observe(replace(made, metadata=newer(made, 3), spec=CsiDriverSpec(attach_required=False)))
    assert PAIR.key in world.pairs.keys
    world.pairs.keys.clear()
    drivers.observe_deleted(CSI, "u")
    assert PAIR.key in world.pairs.keys


def test_a_pod_that_comes_to_a_node_or_ends_there_wakes_its_volumes() -> None:
    world = World(node(), node("node-b"))
    there = pod("q", node="")
    world.state.cluster.pods.observe(there)
    world.pairs.keys.clear()
    world.state.cluster.pods.observe(replace(pod("q", node="node-b"), metadata=newer(there, 2)))
    assert set(world.pairs.keys) == {Pair("node-b", UNIQUE).key}
    world.pairs.keys.clear()
    world.state.cluster.pods.observe(replace(pod("q", node="node-b"), metadata=newer(there, 3)))
    assert world.pairs.keys == []
    world.state.cluster.pods.observe(replace(pod("q", node="node-b", phase="Failed"), metadata=newer(there, 4)))
    assert set(world.pairs.keys) == {Pair("node-b", UNIQUE).key}


# --- the attacher -------------------------------------------------------------------------------------------------


class AttacherWorld:
    """Handlers of the attacher over caches with a volume and its attachment to node-a."""

    def __init__(self, *objects: KubeObject) -> None:
        self.cluster = state_with(*objects)
        self.queue = Keys()
        self.cluster.follow(AttacherHandlers(self.cluster, self.queue))

    def woken(self) -> list[str]:
        """Keys that were queued since the last question."""
        found, self.queue.keys = self.queue.keys, []
        return found


def test_an_attachment_that_is_there_ends_what_was_seen_without_it() -> None:
    subject = attachment()
    world = AttacherWorld(*bound())
    seen = UnrecordedAttachment(volume="v", uid="uid-v", driver=CSI, node="node-a", node_uid="uid-node-a", seen=0.0)
    world.cluster.progress.unrecorded[subject.name] = seen
    world.cluster.attachments.observe(subject)
    assert world.cluster.progress.unrecorded == {}
    assert world.woken() == [subject.name]
    world.cluster.progress.unrecorded[subject.name] = seen
    world.cluster.attachments.observe_deleted(subject.name, subject.uid)
    assert world.cluster.progress.unrecorded == {}, "it is gone: the next listing shows what is left"
    assert world.woken() == []


def test_a_volume_that_comes_ends_or_is_gone_wakes_its_attachments() -> None:
    subject, made = attachment(), bound()[1]
    world = AttacherWorld(subject)
    world.cluster.volumes.observe(made)
    assert world.woken() == [subject.name]
    world.cluster.volumes.observe(replace(made, metadata=newer(made, 2)))
    assert world.woken() == [], "nothing of it that counts has changed"
    ending = replace(newer(made, 3), deletion_timestamp="2026-01-01T00:00:00Z")
    world.cluster.volumes.observe(replace(made, metadata=ending))
    assert world.woken() == [subject.name]
    world.cluster.volumes.observe_deleted(made.key, made.uid)
    assert world.woken() == [subject.name]


def test_a_node_that_comes_changes_its_machine_or_is_gone_wakes_its_attachments() -> None:
    subject, there = attachment(), node()
    world = AttacherWorld(subject, attachment("node-b", name="other"))
    world.cluster.nodes.observe(there)
    assert world.woken() == [subject.name]
    world.cluster.nodes.observe(replace(node(in_use=[UNIQUE]), metadata=newer(there, 2)))
    assert world.woken() == []
    world.cluster.nodes.observe(replace(node(provider_id="aws:///z/i-2"), metadata=newer(there, 3)))
    assert world.woken() == [subject.name]
    world.cluster.nodes.observe_deleted(there.key, there.uid)
    assert world.woken() == [subject.name]
