"""Looking at an asset of which nothing is known but the handle."""

from __future__ import annotations

from typing import Final

from volplane.assets import Absent, Asset, ListedAsset
from volplane.requests import InspectRequest
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.deleting import delete_removes_the_asset
from volplane_testing.conformance.rules.provisioning import (
    provision_makes_an_asset,
    the_listed_handle_is_the_provisioned_one,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]

_STRANGE: Final = (
    "no-such-handle",
    "no/such@1",
    "../../etc",
    "vol\u00e9",
    "*",
    "{}/no-such@1",
    "{}x",
    "x{}",
    " {}",
    "{}/",
)
"""Texts that are no handle; {} stands for that of an asset."""


def _look(bench: Bench, handle: str) -> ListedAsset | Absent:
    seen: ListedAsset | Absent = bench.instance.patiently(
        "inspect", InspectRequest(context=bench.instance.context(), handle=handle)
    )
    return seen


def _place(asset: Asset) -> dict[str, object]:
    fields = asset.source.fields
    return {key: fields[key] for key in ("driver", "volumeHandle")} if asset.source.kind == "csi" else dict(fields)


@rule("inspect", after=(provision_makes_an_asset,))
def inspect_shows_the_asset(bench: Bench) -> None:
    """`inspect` returns handle, size, marks, source and mount options of an asset, in this process and in the next:
    whoever knows a handle alone deletes and mounts by them.
    """
    for generation in (1, 2):
        made = bench.make(bench.generation(bench.demand(), generation))
        for _ in range(2):
            _require_shown(bench, made)
            bench.restart()


def _require_shown(bench: Bench, made: Made) -> None:
    seen, asset = _look(bench, made.asset.handle), made.asset
    if not isinstance(seen, ListedAsset):
        bench.require(False, f"inspect of {asset.handle} answers Absent, and it was just made")
        return
    shown, expected = (
        (seen.handle, seen.capacity_bytes, seen.owner, seen.mount_options),
        (asset.handle, asset.capacity_bytes, made.demand.owner if bench.info.marks else None, asset.mount_options),
    )
    bench.require(shown == expected, f"inspect shows {shown!r}, made was {expected!r}")
    there = seen.source is not None and seen.source.kind == asset.source.kind
    fields = seen.source.fields if seen.source is not None else {}
    wrong = {key: fields.get(key) for key, value in _place(asset).items() if fields.get(key) != value}
    bench.require(
        there and not wrong, f"inspect shows the source {seen.source!r}, that of the asset is {asset.source!r}"
    )
    bench.require(not seen.condition, f"inspect says of a new asset that {seen.condition}")


@rule("inspect", "delete", after=(inspect_shows_the_asset, delete_removes_the_asset))
def inspect_of_what_is_gone_is_absent(bench: Bench) -> None:
    """`inspect` of a deleted asset is `Absent`, also when another one has its name."""
    made = bench.make()
    bench.remove(made)
    bench.require(_look(bench, made.asset.handle) == Absent(), f"inspect shows {made.asset.handle} after its deletion")
    again = bench.make(bench.generation(made.demand, 2))
    if again.asset.handle != made.asset.handle:
        seen = _look(bench, made.asset.handle)
        bench.require(seen == Absent(), f"inspect of {made.asset.handle}, which is deleted, shows {seen!r}")


@rule("inspect", waivable=False, after=(inspect_shows_the_asset,))
def inspect_of_any_text_is_absent(bench: Bench) -> None:
    """Callers send any text: what is no handle is `Absent`, and never the asset whose handle it resembles."""
    handle = bench.make().asset.handle
    for text in _STRANGE:
        asked = text.format(handle)
        seen = _look(bench, asked)
        bench.require(seen == Absent(), f"inspect of {asked!r} shows {seen!r}")


@rule("inspect", after=(inspect_shows_the_asset,))
def inspect_changes_nothing(bench: Bench) -> None:
    """`inspect` of an asset, and of none, changes nothing on the storage."""
    handle = bench.make().asset.handle
    with bench.unchanged("inspect"):
        _look(bench, handle)
        _look(bench, "no-such-handle")


@rule("inspect", "attach", "detach", after=(inspect_shows_the_asset, the_listed_handle_is_the_provisioned_one))
def inspect_shows_where_it_is_attached(bench: Bench) -> None:
    """`attached_to` of `inspect` is what `list_assets` has."""
    if not bench.supports("list_assets"):
        raise NotApplicable("needs list_assets")
    made, (node, _) = bench.make(), bench.nodes()
    before = _look(bench, made.asset.handle)
    bench.instance.attach(bench.attachment(made, node))
    seen = _look(bench, made.asset.handle)
    listed = next((each for each in bench.instance.listed() if each.handle == made.asset.handle), None)
    shown = seen.attached_to if isinstance(seen, ListedAsset) else ()
    bench.require(isinstance(before, ListedAsset) and not before.attached_to, f"inspect shows {before!r}, not attached")
    bench.require(
        shown and listed is not None and set(shown) == set(listed.attached_to),
        f"inspect says that it is attached to {shown!r}, list_assets {listed!r}",
    )


RULES = (
    inspect_shows_the_asset,
    inspect_of_what_is_gone_is_absent,
    inspect_of_any_text_is_absent,
    inspect_changes_nothing,
    inspect_shows_where_it_is_attached,
)
