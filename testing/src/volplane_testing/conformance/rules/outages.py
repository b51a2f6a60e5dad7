"""A storage that cannot be reached: no answer is no answer."""

from __future__ import annotations

from typing import Any

from volplane.errors import BackendError, PluginError
from volplane.requests import (
    FindSnapshotRequest,
    InspectRequest,
    ListRequest,
    ListSnapshotsRequest,
    ModifyRequest,
    ProbeRequest,
    RecycleRequest,
)
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.instance import Instance, shown
from volplane_testing.conformance.outage import answers_nothing
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    provision_makes_an_asset,
)

__all__ = ["RULES"]


def _require_errors(bench: Bench, instance: Instance, requests: list[Any]) -> None:
    for request in requests:
        if not instance.driver.supports(request.hook):
            continue
        try:
            result = instance.once(request.hook, request)
        except (BackendError, PluginError):
            continue
        bench.require(
            not answers_nothing(result),
            f"{request.hook} answers {shown(result)} while the storage cannot be reached: an error of the storage is "
            "swallowed, expected Unavailable",
        )


@rule(waivable=False, after=(provision_makes_an_asset,))
def a_storage_out_of_reach_is_not_empty(bench: Bench) -> None:
    """While the storage cannot be reached, no hook answers `Absent` or an empty page: volplane would make a second
    asset, or forget one.
    """
    made = bench.make()
    cut = bench.cut(made) if bench.supports("create_snapshot", "find_snapshot") else None

    def check(instance: Instance) -> None:
        context = instance.context()
        requests: list[Any] = [
            bench.question(made.demand),
            ListRequest(context=context),
            InspectRequest(context=context, handle=made.asset.handle),
            ListSnapshotsRequest(context=context),
        ]
        if cut is not None:
            # By name nobody finds it on a storage without marks, reachable or not.
            by_handle = FindSnapshotRequest(context=context, handle=cut.snapshot.handle)
            requests.append(bench.snapshot_question(cut.request) if bench.info.marks else by_handle)
        _require_errors(bench, instance, requests)

    bench.while_cut_off(check)


@rule(waivable=False, after=(provision_again_gives_the_same_asset,))
def nothing_is_done_on_a_storage_out_of_reach(bench: Bench) -> None:
    """While the storage cannot be reached, no hook answers `Done` or `Erased`, and `probe` does not call it well."""
    made = bench.make()
    cut = bench.cut(made) if bench.supports("create_snapshot", "delete_snapshot") else None

    def check(instance: Instance) -> None:
        context = instance.context()
        requests: list[Any] = [
            ProbeRequest(context=context),
            *(bench.detachment(made, node) for node in bench.subject.nodes[:1]),
            ModifyRequest(context=context, volume=made.volume(), parameters=bench.subject.mutable_parameters),
            RecycleRequest(context=context, volume=made.volume()),
        ]
        if cut is not None:
            requests.append(bench.snapshot_deletion(cut))
        _require_errors(bench, instance, [*requests, bench.deletion(made)])

    bench.while_cut_off(check)
    bench.require_intact(made, "an attempt to delete it while the storage could not be reached")


RULES = (a_storage_out_of_reach_is_not_empty, nothing_is_done_on_a_storage_out_of_reach)
