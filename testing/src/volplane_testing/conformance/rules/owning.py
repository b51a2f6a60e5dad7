"""Ownership: an asset is returned, changed and deleted only for the owner in its marks."""

from __future__ import annotations

from dataclasses import replace

from volplane.assets import Ownership
from volplane.errors import AlreadyExists, BackendError
from volplane.requests import AdoptRequest, ProvisionRequest, RecycleRequest
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    the_listed_handle_is_the_provisioned_one,
)

__all__ = ["RULES", "of_another_claim", "of_another_cluster"]

_OTHER_UID = "00000000-0000-4000-8000-000000000000"
_OTHER_CLUSTER = "another-cluster"


def of_another_claim(demand: ProvisionRequest) -> ProvisionRequest:
    """The same demand of another claim."""
    return replace(
        demand, owner=replace(demand.owner, claim_uid=_OTHER_UID), claim=replace(demand.claim, uid=_OTHER_UID)
    )


def of_another_cluster(demand: ProvisionRequest) -> ProvisionRequest:
    """The same demand of another cluster."""
    return replace(
        demand,
        owner=replace(demand.owner, cluster_id=_OTHER_CLUSTER),
        context=replace(demand.context, cluster_id=_OTHER_CLUSTER),
    )


def _require_not_handed_over(bench: Bench, made: Made, other: ProvisionRequest, who: str) -> None:
    try:
        asset = bench.made(other, bench.instance.provision(bench.will_provision(other))).asset
    except BackendError:
        bench.require_intact(made, f"a demand of {who}")
        return
    bench.require(asset.handle != made.asset.handle, f"{who} got the asset {asset.handle!r}, which is not its own")


@rule("provision", waivable=False, after=(provision_again_gives_the_same_asset,))
def another_claim_does_not_get_the_asset(bench: Bench) -> None:
    """A demand with the same name but of another claim gets an error or an asset of its own, never this one."""
    made = bench.make()
    _require_not_handed_over(bench, made, of_another_claim(made.demand), "another claim")


@rule("provision", waivable=False, after=(provision_again_gives_the_same_asset,))
def another_cluster_does_not_get_the_asset(bench: Bench) -> None:
    """A cluster that was restored from another's backup has the same claims; it does not get the other's assets."""
    bench.require_marks()
    made = bench.make()
    _require_not_handed_over(bench, made, of_another_cluster(made.demand), "another cluster")


@rule("find", waivable=False, after=(provision_again_gives_the_same_asset,))
def find_does_not_show_the_assets_of_others(bench: Bench) -> None:
    """`find` for another claim, cluster or generation is `Absent`, or an error; it never returns this asset."""
    made = bench.make()
    strangers = {
        "another claim": of_another_claim(made.demand),
        "another cluster": of_another_cluster(made.demand),
        "another generation": bench.generation(made.demand, 2),
    }
    for who, demand in strangers.items():
        question = replace(bench.question(demand), context=demand.context)
        try:
            found = bench.instance.find(question)
        except BackendError:
            continue
        handle = found.handle if found is not None else None
        bench.require(handle != made.asset.handle, f"find for {who} answers with the asset of {made.demand.owner}")


@rule("delete", waivable=False, after=(provision_again_gives_the_same_asset,))
def delete_refuses_the_asset_of_another_claim(bench: Bench) -> None:
    """`delete` of an asset that carries another claim's marks is `AlreadyExists`, and the asset stays."""
    bench.require_marks()
    made = bench.make()
    other = bench.deletion(made, owner=of_another_claim(made.demand).owner)
    bench.require_refused("delete", other, AlreadyExists, why="the asset is marked as another claim's", retry=True)
    bench.require_intact(made, "an attempt to delete it for another claim")


@rule("delete", waivable=False, after=(provision_again_gives_the_same_asset,))
def delete_refuses_the_asset_of_another_cluster(bench: Bench) -> None:
    """`delete` by another cluster is refused, and the asset stays: two clusters may share a storage."""
    bench.require_marks()
    made = bench.make()
    other = of_another_cluster(made.demand)
    request = replace(bench.deletion(made, owner=other.owner), context=other.context)
    bench.require_refused("delete", request, BackendError, why="the asset is marked as another cluster's", retry=True)
    bench.require_intact(made, "an attempt of another cluster to delete it")


@rule("delete", "owns", waivable=False, after=(provision_again_gives_the_same_asset,))
def delete_refuses_a_marked_asset_behind_a_static_volume(bench: Bench) -> None:
    """A user may write a volume whose source is a claim's asset; deleting that volume is refused, the asset stays."""
    bench.require_marks()
    made = bench.make()
    static = bench.deletion(made, name="static", uid="pv-static", owner=None)
    bench.require_refused("delete", static, BackendError, why="the asset is marked as a claim's", retry=True)
    bench.require_intact(made, "an attempt to delete it as a static volume")


@rule("expand", waivable=False, after=(provision_again_gives_the_same_asset,))
def expand_refuses_the_asset_of_another_claim(bench: Bench) -> None:
    """`expand` for another claim is refused, and the asset stays as it is."""
    bench.require_marks()
    made = bench.make()
    other = of_another_claim(made.demand).owner
    request = bench.expansion(made, made.asset.capacity_bytes * 2, owner=other)
    bench.require_refused("expand", request, BackendError, why="the asset is marked as another claim's", retry=True)
    bench.require_intact(made, "an attempt to expand it for another claim")


@rule("recycle", waivable=False, after=(provision_again_gives_the_same_asset,))
def recycle_refuses_the_asset_of_another_claim(bench: Bench) -> None:
    """`recycle` for another claim is refused: erasing is as final as deleting."""
    made = bench.make()
    volume = made.volume(owner=of_another_claim(made.demand).owner)
    request = RecycleRequest(context=bench.instance.context(), volume=volume)
    bench.require_refused("recycle", request, BackendError, why="the asset is marked as another claim's", retry=True)


def _adoption(bench: Bench, made: Made, former: Ownership) -> AdoptRequest:
    """Take the asset over for this cluster."""
    owner = replace(made.demand.owner, cluster_id=bench.subject.cluster_id)
    return AdoptRequest(context=bench.instance.context(), volume=made.volume(owner=owner), former=former)


@rule("adopt", waivable=False, after=(provision_again_gives_the_same_asset, the_listed_handle_is_the_provisioned_one))
def adopt_replaces_the_marks_of_the_former_cluster(bench: Bench) -> None:
    """After `adopt`, twice, the asset is this cluster's and no longer the former one's: found, listed, deleted as
    such.
    """
    bench.require_marks()
    demand = bench.demand()
    former = replace(demand.owner, cluster_id=_OTHER_CLUSTER)
    made = bench.make(replace(demand, owner=former))
    request = _adoption(bench, made, former)
    for _ in range(2):
        bench.instance.finish("adopt", request)
    adopted = bench.made(demand, made.asset)
    if bench.supports("find"):
        bench.require_same(bench.instance.find(bench.question(demand)), made.asset, "find after adopt")
    if bench.supports("list_assets"):
        owners = [each.owner for each in bench.instance.listed() if each.handle == made.asset.handle]
        bench.require(owners == [demand.owner], f"after adopt list_assets shows the marks {owners}")
    bench.remove(adopted)
    bench.require_gone(adopted, "its deletion after adopt")


@rule("adopt", waivable=False, after=(provision_again_gives_the_same_asset,))
def adopt_refuses_what_is_not_the_former_owners(bench: Bench) -> None:
    """`adopt` of an asset that carries neither the former nor the new marks is `AlreadyExists`, and it stays as it
    is.
    """
    bench.require_marks()
    made = bench.make()
    stranger = of_another_claim(made.demand).owner
    former = replace(stranger, cluster_id=_OTHER_CLUSTER)
    request = AdoptRequest(context=bench.instance.context(), volume=made.volume(owner=stranger), former=former)
    bench.require_refused("adopt", request, AlreadyExists, why="the asset is marked as another claim's", retry=True)
    bench.require_intact(made, "an attempt to adopt it for another claim")


RULES = (
    another_claim_does_not_get_the_asset,
    another_cluster_does_not_get_the_asset,
    find_does_not_show_the_assets_of_others,
    delete_refuses_the_asset_of_another_claim,
    delete_refuses_the_asset_of_another_cluster,
    delete_refuses_a_marked_asset_behind_a_static_volume,
    expand_refuses_the_asset_of_another_claim,
    recycle_refuses_the_asset_of_another_claim,
    adopt_replaces_the_marks_of_the_former_cluster,
    adopt_refuses_what_is_not_the_former_owners,
)
