"""Attaching and detaching."""

from __future__ import annotations

import contextlib

from volplane.assets import AccessMode
from volplane.errors import AttachedElsewhere, NotFound, ResourceExhausted, VolumeInUse
from volplane.requests import NodeIdentity
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.deleting import delete_removes_the_asset
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    provision_makes_an_asset,
    the_listed_handle_is_the_provisioned_one,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]

_NOWHERE = NodeIdentity(
    name="no-such-node", uid="no-such-uid", instance_id="no-such-instance", csi_node_id="no-such-node"
)
_SINGLE = frozenset({AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD})
_MOST_ATTACHED = 32


def _made_for_one_node(bench: Bench) -> Made:
    """An asset that may be attached to one node at a time."""
    single = _SINGLE & bench.info.access_modes
    if not single:
        raise NotApplicable("every asset may be attached to several nodes")
    return bench.make(bench.demand(access_modes=(min(single),)))


@rule("attach", "detach", after=(provision_makes_an_asset,), sanity="volume lifecycle should work")
def attach_and_detach_work(bench: Bench) -> None:
    """An asset is attached to a node, detached, and attached to another one."""
    made = _made_for_one_node(bench)
    for node in bench.nodes():
        bench.instance.attach(bench.attachment(made, node))
        bench.instance.detach(bench.detachment(made, node))


@rule(
    "attach", "detach", waivable=False, after=(attach_and_detach_work,), sanity="volume lifecycle should be idempotent"
)
def attach_again_is_the_same_attachment(bench: Bench) -> None:
    """`attach` to the node where it is answers with the same attachment, in this process and in the next."""
    made, node = _made_for_one_node(bench), bench.nodes()[0]
    request = bench.attachment(made, node)
    first = bench.instance.attach(request)
    again = bench.instance.attach(request)
    bench.restart()
    later = bench.instance.attach(request)
    bench.require(first == again == later, f"equal calls gave {first!r}, {again!r}, and after a crash {later!r}")


@rule("attach", "detach", waivable=False, after=(attach_and_detach_work,))
def attach_elsewhere_is_refused(bench: Bench) -> None:
    """An asset for one node that is attached to another is `AttachedElsewhere`, naming that node: two writers ruin
    it.
    """
    made, (one, two) = _made_for_one_node(bench), bench.nodes()
    bench.instance.attach(bench.attachment(made, one))
    error = bench.require_refused(
        "attach", bench.attachment(made, two), AttachedElsewhere, why=f"it is attached to {one.name}", retry=True
    )
    node = getattr(error, "node", "")
    bench.require(node == one.name, f"AttachedElsewhere names the node {node!r}, expected {one.name!r}")
    bench.instance.detach(bench.detachment(made, one))
    bench.instance.attach(bench.attachment(made, two))


@rule("attach", "detach", waivable=False, after=(attach_elsewhere_is_refused,))
def a_late_detach_leaves_the_new_attachment(bench: Bench) -> None:
    """A duplicate of `detach` from the first node is `Done` and leaves the asset attached to the second one."""
    made, (one, two) = _made_for_one_node(bench), bench.nodes()
    bench.instance.attach(bench.attachment(made, one))
    late = bench.detachment(made, one)
    bench.instance.detach(late)
    bench.instance.attach(bench.attachment(made, two))
    bench.instance.detach(late)
    bench.require_refused(
        "attach", bench.attachment(made, one), AttachedElsewhere, why=f"it is still attached to {two.name}", retry=True
    )


@rule("attach", "detach", waivable=False, after=(attach_and_detach_work,))
def detach_of_what_is_not_attached_is_done(bench: Bench) -> None:
    """`detach` is `Done` for an asset that never was attached, again after a detach, and from a node that is gone."""
    made, node = _made_for_one_node(bench), bench.nodes()[0]
    bench.instance.detach(bench.detachment(made, node))
    bench.instance.attach(bench.attachment(made, node))
    for _ in range(2):
        bench.instance.detach(bench.detachment(made, node))
    bench.instance.detach(bench.detachment(made, _NOWHERE))


@rule("attach", "detach", "delete", waivable=False, after=(delete_removes_the_asset, attach_and_detach_work))
def detach_of_what_is_gone_is_done(bench: Bench) -> None:
    """`detach` of an asset that was deleted is `Done`: else its VolumeAttachment stays for ever."""
    made = bench.make()
    bench.remove(made)
    bench.instance.detach(bench.detachment(made, bench.nodes()[0]))


@rule(
    "attach",
    "detach",
    "delete",
    after=(delete_removes_the_asset,),
    sanity="ControllerPublishVolume should fail when the volume does not exist",
)
def attach_of_what_is_gone_is_not_found(bench: Bench) -> None:
    """`attach` of a deleted asset is `NotFound`."""
    made = bench.make()
    bench.remove(made)
    request = bench.attachment(made, bench.nodes()[0])
    bench.require_refused("attach", request, NotFound, why="the asset is gone", retry=True)


@rule(
    "attach",
    "detach",
    after=(attach_and_detach_work,),
    sanity="ControllerPublishVolume should fail when the node does not exist",
)
def attach_to_an_unknown_node_is_not_found(bench: Bench) -> None:
    """`attach` to a node that the backend does not know is `NotFound`, and the asset can be attached elsewhere."""
    made = _made_for_one_node(bench)
    request = bench.attachment(made, _NOWHERE)
    bench.require_refused("attach", request, NotFound, why="the node does not exist", retry=True)
    bench.instance.attach(bench.attachment(made, bench.nodes()[0]))


@rule(
    "attach",
    "detach",
    after=(attach_and_detach_work,),
    sanity="ControllerPublishVolume should fail when publishing more volumes than the node max attach limit",
)
def the_limit_of_a_node_is_kept(bench: Bench) -> None:
    """One asset more than `max_attached_per_node` is `ResourceExhausted`."""
    limit = bench.info.max_attached_per_node
    if limit is None:
        raise NotApplicable("describe names no limit")
    if limit > _MOST_ATTACHED:
        raise NotApplicable(f"a limit of {limit} is too many assets for a test; lower it by an option")
    node = bench.nodes()[0]
    for _ in range(limit):
        bench.instance.attach(bench.attachment(bench.make(), node))
    request = bench.attachment(bench.make(), node)
    bench.require_refused("attach", request, ResourceExhausted, why=f"{limit} are attached already", retry=True)


@rule("attach", "detach", "list_assets", after=(attach_and_detach_work, the_listed_handle_is_the_provisioned_one))
def list_shows_where_assets_are_attached(bench: Bench) -> None:
    """`list_assets` names the node of an attached asset: the leak check repairs nothing that is in use."""
    made, node = _made_for_one_node(bench), bench.nodes()[0]
    bench.instance.attach(bench.attachment(made, node))
    during = _places(bench, made)
    bench.instance.detach(bench.detachment(made, node))
    after = _places(bench, made)
    bench.require(len(during) == 1 and len(during[0]) == 1, f"while attached to {node.name} the list says {during}")
    bench.require(after == [()], f"after the detach the list says {after}")


def _places(bench: Bench, made: Made) -> list[tuple[str, ...]]:
    return [tuple(each.attached_to) for each in bench.instance.listed() if each.handle == made.asset.handle]


@rule("delete", after=(delete_removes_the_asset, provision_again_gives_the_same_asset, attach_and_detach_work))
def delete_refuses_what_is_in_use(bench: Bench) -> None:
    """`delete` of an asset that is attached, mounted or open is `VolumeInUse`; nothing of it is gone."""
    made = bench.make()
    if bench.subject.use is not None:
        holding = bench.subject.use(made.asset)
    elif bench.supports("attach", "detach"):
        bench.instance.attach(bench.attachment(made, bench.nodes()[0]))
        holding = contextlib.nullcontext(None)
    else:
        raise NotApplicable("it has no attach, and Subject.use tells no other way to use an asset")
    with holding:
        bench.require_refused("delete", bench.deletion(made), VolumeInUse, why="the asset is in use", retry=True)
        bench.require_intact(made, "an attempt to delete it while it was in use")
    if bench.subject.use is None:
        bench.instance.detach(bench.detachment(made, bench.nodes()[0]))
    bench.remove(made)
    bench.require_gone(made, "its deletion once it was not in use any more")


RULES = (
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
)
