"""What the backend says of its storage: static sources, the list of assets, free capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from volplane.assets import AssetPage, ListedAsset, VolumeSource
from volplane.errors import BackendError, ResourceExhausted
from volplane.requests import CapacityRequest, InspectRequest, ListRequest, OwnsRequest
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.instance import Instance, pages_of
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.deleting import delete_removes_the_asset
from volplane_testing.conformance.rules.provisioning import (
    provision_makes_an_asset,
    require_nothing_made,
    the_listed_handle_is_the_provisioned_one,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]

_FOREIGN: Final = (
    VolumeSource(kind="nfs", fields={"server": "no-such-server.invalid", "path": "/no/such/export"}),
    VolumeSource(kind="csi", fields={"driver": "no-such-driver.invalid", "volumeHandle": "x"}),
    VolumeSource(kind="hostPath", fields={"path": "/no/such/directory/of/yours"}),
    VolumeSource(kind="local", fields={"path": "/no/such/directory/of/yours"}),
    VolumeSource(kind="iscsi", fields={"targetPortal": "192.0.2.1", "iqn": "iqn.2001-04.invalid:x", "lun": 0}),
)
_MALFORMED: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"path": ""},
    {"path": "relative/../.."},
    {"path": 7, "server": None, "driver": ["x"], "volumeHandle": {}},
    {"path": "/\0", "server": "\0", "driver": "", "volumeHandle": ""},
)


def _owns(instance: Instance, source: VolumeSource) -> bool:
    return bool(instance.once("owns", OwnsRequest(context=instance.context(), source=source)))


@rule("owns", after=(provision_makes_an_asset,))
def owns_its_own_sources(bench: Bench) -> None:
    """`owns` is true for the source of an asset that was made, and for one that a user can write for this backend."""
    sources = [bench.make().asset.source]
    if bench.subject.static_source is not None:
        sources.append(bench.subject.static_source)
    for source in sources:
        bench.require(_owns(bench.instance, source), f"owns says no to {source!r}, which is its own")


@rule("owns", waivable=False)
def owns_nothing_foreign(bench: Bench) -> None:
    """`owns` is false for other servers, drivers and paths: two drivers that claim one volume stop its deletion."""
    for source in (*_FOREIGN, *bench.subject.foreign_sources):
        bench.require(not _owns(bench.instance, source), f"owns says yes to {source!r}, which is not its own")


@rule("owns", after=(provision_makes_an_asset,))
def owns_survives_any_source(bench: Bench) -> None:
    """Users write volumes: `owns` is false for malformed sources, and raises nothing."""
    kinds = {bench.make().asset.source.kind, "hostPath", "nfs", "csi", "noSuchKind"}
    for kind in sorted(kinds):
        for fields in _MALFORMED:
            source = VolumeSource(kind=kind, fields=fields)
            bench.require(not _owns(bench.instance, source), f"owns says yes to {source!r}")


@rule("owns", after=(owns_its_own_sources,))
def owns_touches_nothing(bench: Bench) -> None:
    """`owns` changes nothing and needs no `start`: it may be asked about any volume, at any time."""
    source = bench.make().asset.source
    with bench.unchanged("owns"):
        answers = {_owns(bench.instance, source), _owns(bench.another(start=False), source)}
    bench.require(answers == {True}, f"owns of {source!r} says {answers} before and after start")


def _one_entry(bench: Bench, handle: str) -> ListedAsset | None:
    found = [each for each in bench.instance.listed() if each.handle == handle]
    bench.require(len(found) <= 1, f"list_assets has {handle} {len(found)} times")
    return found[0] if found else None


@rule(after=(delete_removes_the_asset, the_listed_handle_is_the_provisioned_one))
def a_reported_size_is_real(bench: Bench) -> None:
    """`provision` and `expand` report the size that the storage has made, also where it rounds: `list_assets`,
    `inspect`, `find` and `Subject.size_of` know no other. Capacity of volumes and quotas are this number.
    """
    made = bench.make(bench.demand(capacity_bytes=bench.demand().capacity_bytes + 1_048_573))
    _require_real(bench, made, "provision")
    if bench.supports("expand"):
        grown = bench.instance.expand(bench.expansion(made, made.asset.capacity_bytes * 2 + 1_048_573))
        _require_real(bench, bench.made(made.demand, grown), "expand")


def _require_real(bench: Bench, made: Made, hook: str) -> None:
    bench.restart()
    handle, known = made.asset.handle, dict[str, int | None]()
    if bench.subject.size_of is not None:
        known["the storage (Subject.size_of)"] = bench.subject.size_of(made.asset)
    if bench.supports("list_assets") and (entry := _one_entry(bench, handle)) is not None:
        known["list_assets"] = entry.capacity_bytes
    if bench.supports("inspect"):
        seen = bench.instance.patiently("inspect", InspectRequest(context=bench.instance.context(), handle=handle))
        known |= {"inspect": seen.capacity_bytes} if isinstance(seen, ListedAsset) else {}
    if bench.supports("find"):
        found = bench.instance.find(bench.question(made.demand))
        known |= {"find in the next process": found.capacity_bytes} if found is not None else {}
    if not known:
        raise NotApplicable("it has no list_assets, inspect or find, and Subject.size_of is missing")
    for who, size in known.items():
        bench.require(
            size == made.asset.capacity_bytes,
            f"{hook} reports {made.asset.capacity_bytes} bytes, and {who} says {size}: report what was made",
        )


@rule(
    "list_assets",
    after=(delete_removes_the_asset, the_listed_handle_is_the_provisioned_one),
    sanity="ListVolumes check the presence of new volumes and absence of deleted ones in the volume list",
)
def list_shows_what_is_there(bench: Bench) -> None:
    """A new asset is in `list_assets`, with its handle; a deleted one is not."""
    made = bench.make()
    there = _one_entry(bench, made.asset.handle)
    bench.require(there is not None, f"list_assets lacks {made.asset.handle}, which was just made")
    bench.remove(made)
    bench.require(
        _one_entry(bench, made.asset.handle) is None, f"list_assets has {made.asset.handle} after its deletion"
    )


@rule("list_assets", waivable=False, after=(the_listed_handle_is_the_provisioned_one,))
def list_shows_the_marks(bench: Bench) -> None:
    """`list_assets` returns the marks of every asset as they were given: the leak check uses nothing else."""
    bench.require_marks()
    for generation in (1, 2):
        made = bench.make(bench.generation(bench.demand(), generation))
        entry = _one_entry(bench, made.asset.handle)
        owner = entry.owner if entry is not None else None
        bench.require(
            owner == made.demand.owner, f"list_assets shows the marks {owner!r}, given were {made.demand.owner!r}"
        )


@rule(
    "list_assets",
    after=(list_shows_what_is_there,),
    sanity=(
        "ListVolumes pagination should detect volumes added between pages and accept tokens when the last "
        "volume from a page is deleted"
    ),
)
def list_is_complete_over_pages(bench: Bench) -> None:
    """Every asset is on exactly one page, also where the caller wants small ones."""
    handles = {bench.make().asset.handle for _ in range(bench.subject.page_assets)}
    for most in (0, 1):
        pages: Iterator[AssetPage] = pages_of(bench.instance, partial(ListRequest, max_entries=most))
        listed = [each.handle for page in pages for each in page.assets]
        missing, twice = handles - set(listed), {each for each in listed if listed.count(each) > 1}
        what = f"list_assets with max_entries {most}"
        bench.require(not missing, f"{what} lacks {sorted(missing)}")
        bench.require(not twice, f"{what} has twice {sorted(twice)}")


@rule("list_assets", "delete", after=(list_is_complete_over_pages, delete_removes_the_asset))
def list_is_complete_while_things_change(bench: Bench) -> None:
    """Assets come and go between the pages: one that is there all the time is in the list, once."""
    made = [bench.make() for _ in range(bench.subject.page_assets + 4)]
    kept = {each.asset.handle: each for each in made}
    listed: list[str] = []
    pages: Iterator[AssetPage] = pages_of(bench.instance, ListRequest)
    for number, page in enumerate(pages):
        listed += [each.handle for each in page.assets]
        if number % 2:
            bench.make()
            continue
        for handle in [handle for handle in kept if handle in listed][:2]:
            bench.remove(kept.pop(handle))
    counts = {handle: listed.count(handle) for handle in kept}
    wrong = {handle: count for handle, count in counts.items() if count != 1}
    bench.require(not wrong, f"list_assets has these, which were there all the time, so often: {wrong}")


@rule("list_assets", sanity="ListVolumes should fail when an invalid starting_token is passed")
def list_survives_a_strange_page(bench: Bench) -> None:
    """An unknown page token is refused or accepted, without an unexpected exception."""
    request = ListRequest(context=bench.instance.context(), page="no-such-page \u2013 ?")
    try:
        bench.instance.once("list_assets", request)
    except BackendError as error:
        bench.require(type(error).__name__ != "OutcomeUnknown", f"a strange page token is an accident: {error}")


@rule("list_assets", after=(list_is_complete_over_pages,))
def archives_are_listed_apart(bench: Bench) -> None:
    """With `DriverInfo.archives`, a list of archives has no assets, and a volume that lives is no archive."""
    if not bench.info.archives:
        raise NotApplicable("it keeps nothing of deleted assets (`DriverInfo.archives`)")
    made = bench.make()
    pages: list[AssetPage] = list(pages_of(bench.instance, partial(ListRequest, archives=True)))
    assets = [each.handle for page in pages for each in page.assets]
    bench.require(not assets, f"list_assets lists assets where archives are asked for: {assets[:5]}")
    names = [each.volume for page in pages for each in page.archives]
    bench.require(made.demand.name not in names, f"list_assets calls {made.demand.name} an archive, and it lives")


@rule("get_capacity", sanity="GetCapacity should return capacity (no optional values added)")
def capacity_is_a_size(bench: Bench) -> None:
    """`get_capacity` answers with and without parameters, and is never negative."""
    for parameters in ({}, bench.parameters(bench.subject.parameters)):
        request = CapacityRequest(context=bench.instance.context(), parameters=parameters, segment=bench.segment())
        capacity = bench.instance.patiently("get_capacity", request)
        largest = capacity.maximum_volume_bytes
        bench.require(capacity.available_bytes >= 0, f"available_bytes is {capacity.available_bytes}")
        bench.require(largest is None or largest >= 0, f"maximum_volume_bytes is {largest}")


@rule("get_capacity", "delete", after=(delete_removes_the_asset, capacity_is_a_size))
def capacity_is_used_and_given_back(bench: Bench) -> None:
    """An asset takes its size from the capacity, at least half of it (others use the storage too); deletion gives it
    back.
    """
    before = bench.instance.available_bytes(segment=bench.segment())
    made = bench.make()
    between = bench.instance.available_bytes(segment=bench.segment())
    bench.remove(made)
    after = bench.instance.available_bytes(segment=bench.segment())
    half = made.asset.capacity_bytes // 2
    bench.require(
        before - between >= half,
        f"{made.asset.capacity_bytes} bytes were made; available were {before} before and {between} afterwards",
    )
    bench.require(after - between >= half, f"deletion of {made.asset.capacity_bytes} bytes: {between}, then {after}")


@rule("get_capacity", "provision", after=(capacity_is_a_size,))
def capacity_ends(bench: Bench) -> None:
    """A demand for more than `get_capacity` has is `ResourceExhausted` and leaves nothing."""
    size = bench.instance.available_bytes(segment=bench.segment()) + bench.demand().capacity_bytes
    if bench.info.maximum_bytes is not None and size > bench.info.maximum_bytes:
        raise NotApplicable("more fits than a single asset can hold")
    demand = bench.will_provision(bench.demand(capacity_bytes=size))
    bench.require_refused(
        "provision", demand, ResourceExhausted, why=f"{size} bytes are more than there are", retry=True
    )
    require_nothing_made(bench, demand, "a demand for more than there is")


@rule("get_capacity", after=(capacity_is_a_size,))
def capacity_elsewhere_is_nothing(bench: Bench) -> None:
    """In a place that the backend does not serve there is no capacity: the scheduler goes by that."""
    if not bench.info.topology_keys:
        raise NotApplicable("its assets can be reached from everywhere")
    nowhere = dict.fromkeys(bench.info.topology_keys, "no-such-place")
    request = CapacityRequest(context=bench.instance.context(), segment=nowhere)
    try:
        capacity = bench.instance.patiently("get_capacity", replace(request))
    except BackendError:
        return
    bench.require(capacity.available_bytes == 0, f"available in {nowhere} are {capacity.available_bytes} bytes")


RULES = (
    owns_its_own_sources,
    owns_nothing_foreign,
    owns_survives_any_source,
    owns_touches_nothing,
    a_reported_size_is_real,
    list_shows_what_is_there,
    list_shows_the_marks,
    list_is_complete_over_pages,
    list_is_complete_while_things_change,
    list_survives_a_strange_page,
    archives_are_listed_apart,
    capacity_is_a_size,
    capacity_is_used_and_given_back,
    capacity_ends,
    capacity_elsewhere_is_nothing,
)
