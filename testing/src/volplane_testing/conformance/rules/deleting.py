"""Finding and deleting."""

from __future__ import annotations

import contextlib
import uuid

from volplane.assets import VolumeSource
from volplane.errors import BackendError
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    provision_makes_an_asset,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES", "a_deleted_asset_leaves_nothing", "delete_removes_the_asset", "find_answers_with_the_asset"]


@rule("find", after=(provision_makes_an_asset,), waivable=False)
def find_answers_with_the_asset(bench: Bench) -> None:
    """`find` answers with what `provision` made, in the process that made it and in the next one."""
    made = bench.make()
    bench.require_same(bench.instance.find(bench.question(made.demand)), made.asset, "find")
    bench.restart()
    bench.require_same(bench.instance.find(bench.question(made.demand)), made.asset, "find after a restart")


@rule("find", waivable=False)
def find_of_what_never_was_is_absent(bench: Bench) -> None:
    """`find` of a name that was never demanded is `Absent`, not an error: it is called after lost results."""
    found = bench.instance.find(bench.question(bench.demand()))
    bench.require(found is None, f"find answered {found!r} for a name that nobody has demanded")


@rule("find", after=(find_answers_with_the_asset,))
def find_changes_nothing_on_a_finished_asset(bench: Bench) -> None:
    """`find` changes nothing."""
    made = bench.make()
    bench.instance.find(bench.question(made.demand))
    with bench.unchanged("find"):
        bench.instance.find(bench.question(made.demand))


@rule(
    "delete",
    waivable=False,
    after=(provision_makes_an_asset,),
    sanity="DeleteVolume should return appropriate values (no optional values added)",
)
def delete_removes_the_asset(bench: Bench) -> None:
    """After `delete` nothing of the asset is left: `find` is `Absent`, `list_assets` lacks it."""
    made = bench.make()
    bench.remove(made)
    bench.require_gone(made, "its deletion")


@rule("delete", after=(delete_removes_the_asset,))
def a_deleted_asset_leaves_nothing(bench: Bench) -> None:
    """The storage is after `delete` what it was before `provision`, in all that `Subject.inspect` sees: a file that
    `list_assets` does not show is a leak that no check finds.
    """
    if bench.subject.inspect is None:
        raise NotApplicable("Subject.inspect is missing")
    bench.remove(bench.make())  # what only the first asset leaves, such as directories, may stay
    before = bench.picture()
    made = [bench.make(), bench.make()]
    for each in made:
        bench.remove(each)
    bench.require_nothing_left(before, "two assets and their deletion")


@rule("delete", waivable=False, after=(delete_removes_the_asset,))
def delete_of_what_is_gone_is_done(bench: Bench) -> None:
    """`delete` of an asset that is gone is `Done`, also when it is repeated."""
    made = bench.make()
    for _ in range(3):
        bench.remove(made)


@rule(
    "delete",
    after=(delete_of_what_is_gone_is_done, provision_again_gives_the_same_asset),
    sanity="DeleteVolume should succeed when an invalid volume id is used",
)
def delete_of_what_never_was_is_done(bench: Bench) -> None:
    """`delete` of a handle that never was, even one that is not a handle of this backend, is `Done`."""
    made = bench.make()
    stranger = bench.demand()
    fields = {key: _replaced(value) for key, value in made.asset.source.fields.items()}
    source = VolumeSource(kind=made.asset.source.kind, fields=fields)
    for handle in (f"no-such-asset-{uuid.uuid4().hex}", "?"):
        request = bench.deletion(made, name=stranger.name, handle=handle, owner=stranger.owner, source=source)
        bench.instance.delete(request)
    bench.require_intact(made, "the deletion of assets that never were")


def _replaced(value: object) -> object:
    return f"{value}-no-such-asset" if isinstance(value, str) and len(value) > 3 else value


@rule("delete", waivable=False, after=(delete_removes_the_asset, provision_again_gives_the_same_asset))
def delete_leaves_other_assets(bench: Bench) -> None:
    """`delete` removes one asset; its neighbours, made before and after it, stay."""
    before, made, after = bench.make(), bench.make(), bench.make()
    bench.remove(made)
    for other in (before, after):
        bench.require_intact(other, f"the deletion of {made.demand.name}")


@rule("delete", waivable=False, after=(delete_removes_the_asset, provision_again_gives_the_same_asset))
def a_late_duplicate_of_delete_leaves_the_next_generation(bench: Bench) -> None:
    """A duplicate of `delete` for generation 1 that arrives when generation 2 was made leaves generation 2 alone."""
    made = bench.make()
    bench.remove(made)
    later = bench.make(bench.generation(made.demand, 2))
    with contextlib.suppress(BackendError):
        bench.instance.delete(bench.deletion(made))
    bench.require_intact(later, "a late duplicate of the deletion of generation 1")


RULES = (
    find_answers_with_the_asset,
    find_of_what_never_was_is_absent,
    find_changes_nothing_on_a_finished_asset,
    delete_removes_the_asset,
    a_deleted_asset_leaves_nothing,
    delete_of_what_is_gone_is_done,
    delete_of_what_never_was_is_done,
    delete_leaves_other_assets,
    a_late_duplicate_of_delete_leaves_the_next_generation,
)
