"""Names and sizes at their limits."""

from __future__ import annotations

import uuid
from dataclasses import replace

from volplane.errors import InvalidArgument, ResourceExhausted, Unsupported
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    require_nothing_made,
)

__all__ = ["RULES"]

_LONGEST_NAME = 63


@rule(
    "provision",
    after=(provision_again_gives_the_same_asset,),
    sanity="CreateVolume should not fail when creating volume with maximum-length name",
)
def the_longest_name_works(bench: Bench) -> None:
    """Two names of 63 characters that differ only in the last one are two assets."""
    stem = f"pvc-{uuid.uuid4().hex}"
    stem += "x" * (_LONGEST_NAME - 1 - len(stem))
    one, two = bench.make(bench.demand(f"{stem}a")), bench.make(bench.demand(f"{stem}b"))
    bench.require(one.asset.handle != two.asset.handle, f"names that differ at the end share {one.asset.handle!r}")
    for made in (one, two):
        bench.require_same(bench.instance.provision(made.demand), made.asset, f"name {made.demand.name} again")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def the_strangest_legal_names_work(bench: Bench) -> None:
    """Names of volumes are DNS subdomains: only digits, dots, doubled hyphens, and names of files that backends use."""
    salt = uuid.uuid4().hex[:12]
    names = (f"0{salt}", f"pvc-{salt}.a.b", f"pvc-{salt}--c", f"pvc-{salt}.json", f"pvc-{salt}.lock", f"pvc-{salt}.tmp")
    made = [bench.make(bench.demand(name)) for name in names]
    handles = {each.asset.handle for each in made}
    bench.require(len(handles) == len(names), f"{len(names)} names have only {len(handles)} handles: {sorted(handles)}")
    for each in made:
        bench.require_same(bench.instance.provision(each.demand), each.asset, f"name {each.demand.name} again")


@rule("provision", "delete", waivable=False, after=(provision_again_gives_the_same_asset,))
def a_name_that_begins_another_is_another(bench: Bench) -> None:
    """`pvc-a`, `pvc-a-b` and `pvc-ab` have nothing to do with each other: deleting the first leaves the others."""
    stem = f"pvc-{uuid.uuid4().hex[:12]}"
    first, *others = [bench.make(bench.demand(name)) for name in (stem, f"{stem}-b", f"{stem}0", f"{stem}.b")]
    bench.remove(first)
    for other in others:
        bench.require_intact(other, f"the deletion of {first.demand.name}")


@rule(
    "provision",
    after=(provision_again_gives_the_same_asset,),
    sanity="CreateVolume should return appropriate values SingleNodeWriter NoCapacity",
)
def the_smallest_size_works(bench: Bench) -> None:
    """An asset of `minimum_bytes` (1 byte by default) can be made, twice with one result."""
    made = bench.make(bench.demand(capacity_bytes=bench.info.minimum_bytes))
    bench.require(made.asset.capacity_bytes >= bench.info.minimum_bytes, f"made only {made.asset.capacity_bytes} bytes")
    bench.require_same(bench.instance.provision(made.demand), made.asset, "the smallest size again")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def odd_sizes_are_rounded_up(bench: Bench) -> None:
    """An odd size is rounded up, never down, and the repeated demand counts as equal."""
    asked = bench.demand().capacity_bytes + 1_048_573
    made = bench.make(bench.demand(capacity_bytes=asked))
    bench.require(made.asset.capacity_bytes >= asked, f"made {made.asset.capacity_bytes} bytes, asked for were {asked}")
    bench.require_same(bench.instance.provision(made.demand), made.asset, "an odd size again")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def the_limit_is_kept(bench: Bench) -> None:
    """An asset is never larger than `limit_bytes`; where rounding makes that impossible, the demand is refused."""
    asked = bench.demand().capacity_bytes + 1_048_573
    demand = bench.will_provision(bench.demand(capacity_bytes=asked, limit_bytes=asked))
    try:
        asset = bench.made(demand, bench.instance.provision(demand)).asset
    except (InvalidArgument, ResourceExhausted, Unsupported):
        require_nothing_made(bench, demand, "a demand whose limit cannot be kept")
    else:
        bench.require(asset.capacity_bytes <= asked, f"made {asset.capacity_bytes} bytes, the limit was {asked}")
    made = bench.make(replace(bench.demand(), limit_bytes=bench.demand().capacity_bytes * 2))
    bench.require(
        made.asset.capacity_bytes <= made.demand.capacity_bytes * 2,
        f"made {made.asset.capacity_bytes} bytes, over the limit",
    )


RULES = (
    the_longest_name_works,
    the_strangest_legal_names_work,
    a_name_that_begins_another_is_another,
    the_smallest_size_works,
    odd_sizes_are_rounded_up,
    the_limit_is_kept,
)
