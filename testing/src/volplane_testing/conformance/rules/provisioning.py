"""Provisioning: a whole asset, the same one for the same demand, never one for two demands."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from volplane.errors import (
    AlreadyExists,
    BackendError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unsupported,
)
from volplane.requests import ClaimIdentity, ProvisionRequest
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.violations import NotApplicable

__all__ = [
    "RULES",
    "provision_again_gives_the_same_asset",
    "provision_makes_an_asset",
    "require_nothing_made",
    "the_listed_handle_is_the_provisioned_one",
]

_SOURCES: Final = frozenset(
    {
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "csi",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "glusterfs",
        "hostPath",
        "iscsi",
        "local",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    }
)


def require_nothing_made(bench: Bench, demand: ProvisionRequest, after: str) -> None:
    """Neither `find` nor `list_assets` knows of an asset for the demand."""
    if bench.supports("find"):
        found = bench.instance.find(bench.question(demand))
        bench.require(found is None, f"{after} left {found!r}")
    if bench.lists_marks:
        left = bench.entries(demand)
        bench.require(not left, f"{after} left {left!r}")


@rule(
    "provision",
    waivable=False,
    sanity="CreateVolume should return appropriate values SingleNodeWriter WithCapacity 10Gi",
)
def provision_makes_an_asset(bench: Bench) -> None:
    """`provision` answers with an asset that a PersistentVolume can be made of and that is as large as was asked."""
    made = bench.make()
    asset, demand = made.asset, made.demand
    bench.require(
        asset.capacity_bytes >= demand.capacity_bytes,
        f"made {asset.capacity_bytes} bytes, asked for were {demand.capacity_bytes}",
    )
    bench.require(
        asset.source.kind in _SOURCES, f"source kind {asset.source.kind!r} is no source of a PersistentVolume"
    )
    whole = {"source": dict(asset.source.fields), "attributes": dict(asset.attributes)}
    try:
        text = json.dumps({**whole, "affinity": [dict(each) for each in asset.node_affinity]}, allow_nan=False)
    except (TypeError, ValueError) as error:
        bench.require(False, f"the asset cannot be written as JSON: {error}")
    else:
        bench.require(len(text) < 1 << 17, f"source and attributes take {len(text)} bytes, far more than a volume may")
    keys = {key for segment in asset.node_affinity for key in segment}
    unknown = keys - set(bench.info.topology_keys)
    bench.require(
        not unknown, f"node_affinity has keys that describe does not name in topology_keys: {sorted(unknown)}"
    )


@rule("list_assets", waivable=False, after=(provision_makes_an_asset,))
def the_listed_handle_is_the_provisioned_one(bench: Bench) -> None:
    """`list_assets` calls an asset by the handle that `provision` gave it: under another one the leak check takes it
    for an orphan, and its volume for a ghost.
    """
    made = bench.make()
    handles = [each.handle for each in bench.entries(made.demand)]
    bench.require(
        not handles or made.asset.handle in handles,
        f"list_assets calls the asset of this claim {', '.join(map(repr, handles))}, "
        f"and provision has called it {made.asset.handle!r}",
    )


@rule(
    "provision",
    waivable=False,
    after=(provision_makes_an_asset,),
    sanity=(
        "CreateVolume should not fail when requesting to create a volume with already existing name and same capacity"
    ),
)
def provision_again_gives_the_same_asset(bench: Bench) -> None:
    """An equal demand gets the asset that exists: a repeated call never makes a second one."""
    made = bench.make()
    for _ in range(3):
        bench.require_same(bench.instance.provision(made.demand), made.asset, "an equal demand")
    bench.require_one(made, "equal demands")


@rule("provision", waivable=False, after=(provision_makes_an_asset,))
def every_claim_gets_its_own_asset(bench: Bench) -> None:
    """Two claims never share an asset, even with equal demands."""
    one, two = bench.make(), bench.make()
    bench.require(one.asset.handle != two.asset.handle, f"two claims got one handle, {one.asset.handle!r}")
    bench.require(one.asset.source != two.asset.source, f"two claims got one source, {one.asset.source!r}")


@rule(
    "provision",
    after=(provision_again_gives_the_same_asset,),
    sanity=(
        "CreateVolume should fail when requesting to create a volume with already existing name and different capacity"
    ),
)
def another_size_is_refused(bench: Bench) -> None:
    """The same name with another size is `AlreadyExists`, and the asset stays as it is."""
    made = bench.make()
    larger = replace(made.demand, capacity_bytes=made.asset.capacity_bytes * 2 + 1)
    bench.require_refused("provision", larger, AlreadyExists, why="the asset exists with another size", retry=True)
    bench.require_intact(made, "a demand for another size")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def other_parameters_are_refused(bench: Bench) -> None:
    """The same name with other parameters is `AlreadyExists`: a class that was made anew never gets half of its
    wish.
    """
    if bench.subject.other_parameters is None:
        raise NotApplicable("Subject.other_parameters names none")
    made = bench.make()
    other = replace(made.demand, parameters=bench.parameters(bench.subject.other_parameters))
    bench.require_refused("provision", other, AlreadyExists, why="the asset has other parameters", retry=True)
    bench.require_intact(made, "a demand with other parameters")


@rule("provision", "delete", after=(provision_makes_an_asset,))
def a_deleted_name_can_be_made_again(bench: Bench) -> None:
    """After its deletion a name is free: the next generation may have another size, and old demands do not count."""
    made = bench.make()
    bench.remove(made)
    again = replace(made.demand, capacity_bytes=made.asset.capacity_bytes * 2)
    bench.make(bench.generation(again, 2))


@rule("provision", after=(provision_again_gives_the_same_asset,))
def a_new_generation_is_another_asset(bench: Bench) -> None:
    """While the asset of generation 1 exists, a demand of generation 2 gets an error or an asset of its own."""
    made = bench.make()
    later = bench.will_provision(bench.generation(made.demand, 2))
    try:
        asset = bench.made(later, bench.instance.provision(later)).asset
    except BackendError:
        bench.require_intact(made, "a demand of generation 2")
        return
    bench.require(asset.handle != made.asset.handle, f"generation 2 got the asset of generation 1, {asset.handle!r}")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def what_tenants_write_does_no_harm(bench: Bench) -> None:
    """Names of 253 characters, and labels and annotations that look like paths, options or code, are only text."""
    hostile = {
        "a/../../b": "../../../etc",
        "x": "$(reboot); `id`\n\0",
        "ü": "\u202e\U0001f4a3",
        "-rf": "/",
        "e" * 63: "",
    }
    identity = ClaimIdentity(
        namespace="n" * 63, name=f"{'a.' * 126}z", uid=bench.demand().claim.uid, labels=hostile, annotations=hostile
    )
    demand = bench.demand(name=f"pvc-{identity.uid}", claim=identity)
    made = bench.make(demand)
    bench.require_same(bench.instance.provision(demand), made.asset, "an equal demand")


@rule("provision", sanity="CreateVolume should fail when the volume source snapshot is not found")
def an_unknown_snapshot_is_refused(bench: Bench) -> None:
    """A demand for a copy of a missing snapshot is refused: an empty asset would look like restored data."""
    demand = bench.will_provision(bench.demand(source_snapshot="no-such-snapshot"))
    refusals = (NotFound, Unsupported, InvalidArgument)
    bench.require_refused("provision", demand, *refusals, why="the snapshot does not exist", retry=True)
    require_nothing_made(bench, demand, "a demand for a copy of a missing snapshot")


@rule("provision", sanity="CreateVolume should fail when the volume source volume is not found")
def an_unknown_source_volume_is_refused(bench: Bench) -> None:
    """A demand for a copy of a missing asset is refused."""
    demand = bench.will_provision(bench.demand(source_volume="no-such-asset"))
    refusals = (NotFound, Unsupported, InvalidArgument)
    bench.require_refused("provision", demand, *refusals, why="the source volume does not exist", retry=True)
    require_nothing_made(bench, demand, "a demand for a copy of a missing asset")


@rule("provision", "delete", after=(provision_makes_an_asset,))
def a_late_duplicate_of_provision_can_be_undone(bench: Bench) -> None:
    """A duplicate of `provision` that arrives after the deletion carries its owner's marks: it is found, listed,
    deleted.
    """
    made = bench.make()
    bench.remove(made)
    try:
        late = bench.make(made.demand)
    except BackendError:
        return
    if bench.supports("find"):
        found = bench.instance.find(bench.question(late.demand))
        bench.require_same(found, late.asset, "find after a late duplicate of provision")
    bench.require_one(late, "a late duplicate of provision")
    bench.remove(late)
    bench.require_gone(late, "the deletion of what a late duplicate made")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def a_refused_demand_leaves_nothing(bench: Bench) -> None:
    """A demand that is refused because it can never fit leaves nothing; one that is accepted makes a whole asset."""
    size = bench.subject.too_large_bytes or (bench.info.maximum_bytes or (1 << 62)) + 1
    demand = bench.will_provision(bench.demand(capacity_bytes=size))
    try:
        asset = bench.made(demand, bench.instance.provision(demand)).asset
    except (InvalidArgument, ResourceExhausted, Unsupported):
        require_nothing_made(bench, demand, "a demand that is too large")
    else:
        bench.require(asset.capacity_bytes >= size, f"made {asset.capacity_bytes} bytes, asked for were {size}")


@rule("provision", after=(a_refused_demand_leaves_nothing,))
def a_size_out_of_range_is_said_to_be(bench: Bench) -> None:
    """A demand for more than `maximum_bytes` is `OutOfRange`: whoever asked may ask for less."""
    if bench.info.maximum_bytes is None:
        raise NotApplicable("it knows no largest size (`DriverInfo.maximum_bytes`)")
    size = bench.info.maximum_bytes + bench.demand().capacity_bytes
    demand = bench.will_provision(bench.demand(capacity_bytes=size))
    bench.require_refused("provision", demand, OutOfRange, why="it is larger than maximum_bytes", retry=True)


RULES = (
    provision_makes_an_asset,
    the_listed_handle_is_the_provisioned_one,
    provision_again_gives_the_same_asset,
    every_claim_gets_its_own_asset,
    another_size_is_refused,
    other_parameters_are_refused,
    a_deleted_name_can_be_made_again,
    a_new_generation_is_another_asset,
    what_tenants_write_does_no_harm,
    an_unknown_snapshot_is_refused,
    an_unknown_source_volume_is_refused,
    a_late_duplicate_of_provision_can_be_undone,
    a_refused_demand_leaves_nothing,
    a_size_out_of_range_is_said_to_be,
)
