"""Who wakes attach-detach, and which changes concern it not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from unit.attach.objects import CSI, PAIR, UNIQUE, attachment, bound, node, pod
from unit.attach.test_attach_detach import IN_TREE, Keys, in_tree, newer, recorded_for
from unit.binding.objects import volume
from unit.deciding import state_with
from volplane.attach.attach_detach import AttachDetachState
from volplane.attach.reconcile import AttachDetach
from volplane.kube.objects import KubeObject, Node, VolumeAttachment


class World:
    """Handlers over caches with a claim, its volume and a pod on node-a."""

    def __init__(self, *objects: KubeObject) -> None:
        self.state = AttachDetachState(state_with(*bound(), pod(), *objects))
        self.pairs, self.nodes = Keys(), Keys()
        AttachDetach(self.state, pairs=self.pairs, nodes=self.nodes).subscribe()
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
    AttachDetach(state, pairs=pairs, nodes=Keys()).subscribe()
    state.cluster.attachments.observe_deleted(through.key, through.uid)
    assert IN_TREE.key in pairs.keys
