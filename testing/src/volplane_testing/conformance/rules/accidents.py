"""Ownership again, where it seems to be checked and is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from volplane.assets import Absent, Asset
from volplane.errors import BackendError, OutcomeUnknown
from volplane.requests import DeleteRequest, ExpandRequest, RecycleRequest
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.instance import shown
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules import owning
from volplane_testing.conformance.rules.crashes import a_crash_after_provision_is_survived
from volplane_testing.conformance.violations import Violation

__all__ = ["RULES"]


@rule(
    "delete",
    waivable=False,
    after=(*owning.RULES, a_crash_after_provision_is_survived),
)
def a_refusal_of_others_is_no_accident(bench: Bench) -> None:
    """Others are refused because of the marks on the storage: also by a process that has not made the asset, and never
    by an exception that nobody meant, which the next release may not raise.
    """
    bench.require_marks()
    made = bench.make()
    bench.restart()
    claim, cluster = owning.of_another_claim(made.demand), owning.of_another_cluster(made.demand)
    owners = {"another claim": claim.owner, "another cluster": cluster.owner}
    for who, owner in {**owners, **({"a static volume": None} if bench.supports("owns") else {})}.items():
        volume = made.volume(owner=owner)
        context = replace(bench.instance.context(), cluster_id=owner.cluster_id if owner else bench.subject.cluster_id)
        requests: list[Any] = [
            ExpandRequest(context=context, volume=volume, capacity_bytes=made.asset.capacity_bytes * 2),
            RecycleRequest(context=context, volume=volume),
            DeleteRequest(context=context, volume=volume),
        ]
        # A static volume may be grown and scrubbed; it is the deletion that takes the claim's data away.
        for request in requests if owner is not None else requests[-1:]:
            if bench.supports(request.hook):
                _require_meant(bench, request.hook, request, who, made)
    for who, demand in (("another claim", claim), ("another cluster", cluster)):
        if bench.supports("find"):
            _require_meant(bench, "find", replace(bench.question(demand), context=demand.context), who, made)
        _require_meant(bench, "provision", bench.will_provision(demand), who, made)
    bench.require_intact(made, "attempts of others on it in a process that has not made it")


def _require_meant(bench: Bench, hook: str, request: Any, who: str, made: Made) -> None:
    """The call does not reach the asset, by an answer or an error that the backend has meant."""
    try:
        result = bench.instance.finish(hook, request)
    except OutcomeUnknown as error:
        raise Violation(f"{hook} for {who} is refused by accident, not by a check of the owner: {error}") from error
    except BackendError:
        return
    if isinstance(result, Asset):
        bench.require(result.handle != made.asset.handle, f"{hook} for {who} gave the asset after a restart")
        if hook == "provision":
            bench.made(request, result)
    elif not isinstance(result, Absent):
        bench.require(False, f"{hook} for {who} answered {shown(result)} after a restart: the marks are not compared")


RULES = (a_refusal_of_others_is_no_accident,)
