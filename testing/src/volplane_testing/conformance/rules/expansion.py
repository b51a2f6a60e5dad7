"""Expanding, modifying, recycling, placing."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from volplane.assets import Asset, Erased, PodScrub, VolumeMode
from volplane.errors import AlreadyExists, BackendError, InvalidArgument, NotFound
from volplane.requests import ModifyRequest, RecycleRequest
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.deleting import delete_removes_the_asset
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    provision_makes_an_asset,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]


@rule("expand", after=(provision_makes_an_asset,), sanity="ControllerExpandVolume should work")
def expand_grows_the_asset(bench: Bench) -> None:
    """`expand` answers with the same asset, at least as large as was asked, and `find` sees the new size."""
    made = bench.make()
    wanted = made.asset.capacity_bytes * 2
    grown = bench.instance.expand(bench.expansion(made, wanted))
    bench.require(grown.capacity_bytes >= wanted, f"it has {grown.capacity_bytes} bytes, asked for were {wanted}")
    bench.require_same(
        replace(grown, capacity_bytes=made.asset.capacity_bytes), made.asset, "expand, but for the size,"
    )
    if bench.supports("find"):
        bench.require_same(bench.instance.find(bench.question(made.demand)), grown, "find after expand")


@rule("expand", after=(expand_grows_the_asset,))
def expand_of_a_block_device_needs_no_node(bench: Bench) -> None:
    """A volume of mode Block has no file system that a node could grow: `node_expansion_required` is not True."""
    if VolumeMode.BLOCK not in bench.info.volume_modes:
        raise NotApplicable("its assets are no block devices")
    made = bench.make(bench.demand(volume_mode=VolumeMode.BLOCK))
    grown = bench.instance.expand(bench.expansion(made, made.asset.capacity_bytes * 2))
    bench.require(not grown.node_expansion_required, "expand of a block device says that a node has to grow it")


@rule("expand", waivable=False, after=(expand_grows_the_asset,))
def expand_again_changes_nothing(bench: Bench) -> None:
    """An equal `expand`, in this process or the next, answers with the asset as it is: it does not grow twice."""
    made = bench.make()
    request = bench.expansion(made, made.asset.capacity_bytes * 2)
    grown = bench.instance.expand(request)
    bench.require_same(bench.instance.expand(request), grown, "an equal expand")
    bench.restart()
    bench.require_same(bench.instance.expand(request), grown, "an equal expand after a crash")


@rule("expand", after=(expand_again_changes_nothing,))
def expand_never_shrinks(bench: Bench) -> None:
    """A demand for less than there is answers with the asset as it is."""
    made = bench.make()
    for size in (made.asset.capacity_bytes, max(made.asset.capacity_bytes // 2, 1)):
        same = bench.instance.expand(bench.expansion(made, size))
        bench.require_same(same, made.asset, f"expand to {size} bytes of {made.asset.capacity_bytes}")


@rule("expand", "delete", after=(delete_removes_the_asset,))
def expand_of_what_is_gone_is_not_found(bench: Bench) -> None:
    """`expand` of a deleted asset is `NotFound`: it is not created again."""
    made = bench.make()
    bench.remove(made)
    request = bench.expansion(made, made.asset.capacity_bytes * 2)
    bench.require_refused("expand", request, NotFound, why="the asset is gone", retry=True)
    bench.require_gone(made, "an attempt to expand it")


@rule("expand", after=(expand_grows_the_asset, provision_again_gives_the_same_asset))
def an_expanded_asset_still_answers_its_demand(bench: Bench) -> None:
    """A late duplicate of the first demand gets the grown asset; it is neither refused nor shrunk."""
    made = bench.make()
    grown = bench.instance.expand(bench.expansion(made, made.asset.capacity_bytes * 2))
    bench.require_same(bench.instance.provision(made.demand), grown, "the first demand after expand")


# --- modify -----------------------------------------------------------------------------------------------------


def _modification(bench: Bench, made: Made, parameters: Mapping[str, str]) -> ModifyRequest:
    return ModifyRequest(context=bench.instance.context(), volume=made.volume(), parameters=parameters)


@rule("modify", after=(provision_makes_an_asset,), sanity="ModifyVolume should work")
def modify_can_be_repeated(bench: Bench) -> None:
    """`modify` with `Subject.mutable_parameters` is `Done`, also when repeated, and the asset stays the same."""
    if not bench.subject.mutable_parameters:
        raise NotApplicable("Subject.mutable_parameters names none")
    made = bench.make()
    for _ in range(2):
        bench.instance.modify(_modification(bench, made, bench.subject.mutable_parameters))
    bench.restart()
    bench.instance.modify(_modification(bench, made, bench.subject.mutable_parameters))
    bench.require_one(made, "modify")


@rule("modify", after=(provision_again_gives_the_same_asset,))
def mutable_parameters_make_no_other_demand(bench: Bench) -> None:
    """`provision` with `Subject.mutable_parameters` makes an asset that `modify` leaves as it is, and that the demand
    without them gets, too: the claim may have named another VolumeAttributesClass since.
    """
    if not bench.subject.mutable_parameters:
        raise NotApplicable("Subject.mutable_parameters names none")
    demand = bench.demand()
    made = bench.make(replace(demand, mutable_parameters=bench.subject.mutable_parameters))
    bench.instance.modify(_modification(bench, made, bench.subject.mutable_parameters))
    bench.require_same(bench.instance.provision(demand), made.asset, "the same demand without mutable parameters")
    bench.require_one(made, "provision with mutable parameters")


@rule("modify", after=(provision_makes_an_asset,), sanity="ModifyVolume should fail when an unknown parameter is given")
def modify_refuses_unknown_parameters(bench: Bench) -> None:
    """A parameter that `modify` does not know is `InvalidArgument`, and nothing is changed."""
    request = _modification(bench, bench.make(), {**bench.subject.mutable_parameters, "no-such-parameter": "x"})
    with bench.unchanged("a modify that is refused"):
        bench.require_refused("modify", request, InvalidArgument, why="the parameter is unknown", retry=True)


@rule(
    "modify",
    "delete",
    after=(delete_removes_the_asset,),
    sanity="ModifyVolume should fail when the volume does not exist",
)
def modify_of_what_is_gone_is_not_found(bench: Bench) -> None:
    """`modify` of a deleted asset is `NotFound`."""
    made = bench.make()
    bench.remove(made)
    request = _modification(bench, made, bench.subject.mutable_parameters)
    bench.require_refused("modify", request, NotFound, why="the asset is gone", retry=True)


# --- recycle ----------------------------------------------------------------------------------------------------


def _recycled(bench: Bench, made: Made) -> PodScrub | Erased:
    request = RecycleRequest(context=bench.instance.context(), volume=made.volume())
    answer: PodScrub | Erased = bench.instance.recycle(request)
    return answer


@rule("recycle", after=(provision_again_gives_the_same_asset,))
def recycle_keeps_the_asset(bench: Bench) -> None:
    """`recycle` may be repeated and leaves the asset what it is: the same handle, size and place, for the next
    claim.
    """
    made = bench.make()
    for _ in range(2):
        answer = _recycled(bench, made)
        if isinstance(answer, PodScrub) and answer.volume is not None:
            bench.require(
                len(answer.volume) == 1, f"the pod volume is {dict(answer.volume)}, expected one source without a name"
            )
    bench.require_intact(made, "recycle")


@rule("recycle", after=(recycle_keeps_the_asset,))
def recycle_erases_everything(bench: Bench) -> None:
    """After `recycle`, and the pod it asks for, nothing of what the last claim wrote can be read."""
    fill, is_empty = bench.subject.fill, bench.subject.is_empty
    if fill is None or is_empty is None:
        raise NotApplicable("needs Subject.fill and Subject.is_empty")
    made = bench.make()
    fill(made.asset)
    bench.require(not is_empty(made.asset), "Subject.is_empty sees nothing of what Subject.fill wrote")
    answer = _recycled(bench, made)
    if isinstance(answer, PodScrub):
        _scrub(answer, made.asset)
    bench.require(is_empty(made.asset), f"after recycle ({answer!r}) something of the last claim is left")


def _scrub(answer: PodScrub, asset: Asset) -> None:
    """What the scrubber pod does, for what it mounts from the host."""
    source = answer.volume if answer.volume is not None else {asset.source.kind: asset.source.fields}
    fields: Any = source.get("hostPath") or source.get("local")
    if fields is None:
        raise NotApplicable(f"the kit cannot mount {dict(source)} as the scrubber pod would")
    for entry in Path(fields["path"], answer.sub_path).iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


# --- places -----------------------------------------------------------------------------------------------------


def _places(bench: Bench) -> None:
    if not bench.info.topology_keys:
        raise NotApplicable("its assets can be reached from everywhere")
    if not bench.subject.segments:
        raise NotApplicable("Subject.segments names none")


@rule("provision", after=(provision_makes_an_asset,))
def the_place_asked_for_is_the_place(bench: Bench) -> None:
    """An asset is made in `segment`, and its affinity says so: a pod that is sent elsewhere could not reach it."""
    _places(bench)
    for segment in bench.subject.segments:
        made = bench.make(bench.demand(segment=dict(segment)))
        reaches = any(all(each.get(k) == v for k, v in segment.items()) for each in made.asset.node_affinity)
        affinity = [dict(each) for each in made.asset.node_affinity]
        bench.require(reaches, f"asked for was {dict(segment)}, the affinity is {affinity}")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def another_place_makes_no_second_asset(bench: Bench) -> None:
    """The same name in another place is `AlreadyExists` or the asset that exists: a claim has one asset."""
    _places(bench)
    if len(bench.subject.segments) < 2:
        raise NotApplicable("Subject.segments names only one")
    made = bench.make()
    elsewhere = bench.will_provision(replace(made.demand, segment=dict(bench.subject.segments[1])))
    try:
        bench.require_same(bench.instance.provision(elsewhere), made.asset, "the same name in another place")
    except AlreadyExists:
        bench.require_intact(made, "a demand in another place")
    bench.require_one(made, "a demand in another place")


@rule("provision")
def a_place_out_of_reach_is_refused(bench: Bench) -> None:
    """A demand for a place that the backend does not serve is an error, not an asset somewhere else."""
    if not bench.info.topology_keys:
        raise NotApplicable("its assets can be reached from everywhere")
    nowhere = dict.fromkeys(bench.info.topology_keys, "no-such-place")
    demand = bench.will_provision(bench.demand(segment=nowhere))
    bench.require_refused("provision", demand, BackendError, why=f"{nowhere} is out of reach", retry=True)


RULES = (
    expand_grows_the_asset,
    expand_of_a_block_device_needs_no_node,
    expand_again_changes_nothing,
    expand_never_shrinks,
    expand_of_what_is_gone_is_not_found,
    an_expanded_asset_still_answers_its_demand,
    modify_can_be_repeated,
    mutable_parameters_make_no_other_demand,
    modify_refuses_unknown_parameters,
    modify_of_what_is_gone_is_not_found,
    recycle_keeps_the_asset,
    recycle_erases_everything,
    the_place_asked_for_is_the_place,
    another_place_makes_no_second_asset,
    a_place_out_of_reach_is_refused,
)
