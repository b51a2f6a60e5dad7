"""Crashes, lost results and late results: the next call finds what the last one did."""

from __future__ import annotations

from dataclasses import replace

from volplane.assets import Asset, InProgress
from volplane.errors import BackendError
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.deleting import (
    a_deleted_asset_leaves_nothing,
    delete_of_what_is_gone_is_done,
    delete_removes_the_asset,
    find_answers_with_the_asset,
)
from volplane_testing.conformance.rules.provisioning import provision_again_gives_the_same_asset
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES", "a_crash_after_delete_is_survived", "a_crash_after_provision_is_survived"]


@rule("provision", waivable=False, after=(provision_again_gives_the_same_asset,))
def a_crash_after_provision_is_survived(bench: Bench) -> None:
    """The process dies after `provision` and before its result is saved: the next process gets the same, only asset."""
    made = bench.make()
    bench.restart()
    bench.require_same(bench.instance.provision(made.demand), made.asset, "an equal demand after a crash")
    bench.require_one(made, "a crash")


@rule("provision", waivable=False, after=(a_crash_after_provision_is_survived, find_answers_with_the_asset))
def a_lost_answer_of_provision_is_resolved(bench: Bench) -> None:
    """The result of `provision` is lost with its state: `find`, or else the same call, returns the asset."""
    demand = bench.will_provision(bench.demand())
    answer = bench.instance.patiently("provision", demand)
    bench.restart()
    if bench.supports("find"):
        found = bench.instance.find(bench.question(demand))
        if isinstance(answer, Asset):
            bench.require_same(found, answer, "find after a lost answer")
    made = bench.make(demand)
    if isinstance(answer, Asset):
        bench.require_same(made.asset, answer, "an equal demand after a lost answer")
    bench.require_one(made, "a lost answer")


@rule("delete", waivable=False, after=(delete_of_what_is_gone_is_done,))
def a_crash_after_delete_is_survived(bench: Bench) -> None:
    """The process dies after `delete` and before its result is saved: the same call in the next process is `Done`."""
    made = bench.make()
    bench.remove(made)
    bench.restart()
    bench.remove(made)
    bench.require_gone(made, "a crash after its deletion")


@rule("delete", waivable=False, after=(a_crash_after_delete_is_survived,))
def a_lost_answer_of_delete_is_resolved(bench: Bench) -> None:
    """The result of `delete` is lost with its state: the same call in the next process ends
    it.
    """
    made = bench.make()
    bench.instance.patiently("delete", bench.deletion(made))
    bench.restart()
    bench.remove(made)
    bench.require_gone(made, "a lost answer of its deletion")


@rule(
    "provision",
    "delete",
    after=(a_lost_answer_of_provision_is_resolved, delete_removes_the_asset, a_deleted_asset_leaves_nothing),
)
def a_crash_in_the_middle_of_provision_is_made_whole(bench: Bench) -> None:
    """`provision` dies at any line of the backend: the next process makes one whole asset of it, and can delete it,
    with all that the crash left (as far as `Subject.inspect` sees it).
    """
    steps = bench.crash_points(bench.lines_of("provision", bench.will_provision(bench.demand())))
    before = bench.picture()
    for step in steps:
        demand = bench.will_provision(bench.demand())
        bench.crash("provision", demand, step)
        made = bench.make(demand)
        bench.require_same(
            bench.instance.provision(demand), made.asset, f"an equal demand after a crash at line {step}"
        )
        bench.require_one(made, f"a crash at line {step}")
        bench.remove(made)
        bench.require_gone(made, f"a crash of provision at line {step}, and its deletion")
        bench.require_nothing_left(before, f"a crash of provision at line {step}, another call, and its deletion")


@rule("provision", "find", "delete", after=(a_crash_in_the_middle_of_provision_is_made_whole,))
def a_crash_in_the_middle_of_provision_leaves_nothing_unseen(bench: Bench) -> None:
    """`provision` dies at any line: `find` returns what exists, so that it can be deleted, or nothing exists: neither
    in `list_assets` nor, as far as `Subject.inspect` sees it, on the storage.
    """
    steps = bench.crash_points(bench.lines_of("provision", bench.will_provision(bench.demand())))
    picture = bench.picture()
    for step in steps:
        demand = bench.will_provision(bench.demand())
        before = _listed(bench)
        bench.crash("provision", demand, step)
        found = bench.instance.find(bench.question(demand))
        if found is not None:
            bench.remove(bench.made(demand, found))
        left = _listed(bench) - before
        bench.require(
            not left,
            f"provision crashed at line {step}, find said {found!r}, and list_assets has, unseen, {sorted(left)}",
        )
        bench.require_nothing_left(
            picture, f"a crash of provision at line {step}, find, and the deletion of what it saw"
        )


def _listed(bench: Bench) -> set[str]:
    """Handles of everything that may be ours: our marks, or none."""
    if not bench.supports("list_assets"):
        return set()
    cluster = bench.subject.cluster_id
    return {each.handle for each in bench.instance.listed() if each.owner is None or each.owner.cluster_id == cluster}


@rule("delete", after=(a_lost_answer_of_delete_is_resolved, a_deleted_asset_leaves_nothing))
def a_crash_in_the_middle_of_delete_is_finished(bench: Bench) -> None:
    """`delete` dies at any line of the backend: the next process finishes it, and leaves nothing (as far as
    `Subject.inspect` sees it).
    """
    steps = bench.crash_points(bench.lines_of("delete", bench.deletion(bench.make())))
    before = bench.picture()
    for step in steps:
        made = bench.make()
        bench.crash("delete", bench.deletion(made), step)
        bench.remove(made)
        bench.require_gone(made, f"a crash of delete at line {step}, and another call")
        bench.require_nothing_left(before, f"a crash of delete at line {step}, and another call")


@rule("provision", after=(a_lost_answer_of_provision_is_resolved,))
def a_call_nobody_waits_for_ends_whole_or_not_at_all(bench: Bench) -> None:
    """The deadline has passed and `cancelled()` is true: the call still returns, and its late result is correct."""
    demand = bench.will_provision(bench.demand())
    late = replace(demand, context=replace(demand.context, timeout=0.01, cancelled=lambda: True))
    try:
        answer = bench.instance.once("provision", late)
    except BackendError:
        answer = None
    made = bench.make(demand)
    if isinstance(answer, Asset):
        bench.require_same(made.asset, answer, "an equal demand after a late answer")
    bench.require_one(made, "a late answer")


@rule("provision", after=(a_crash_after_provision_is_survived,))
def provision_in_progress_goes_on_after_restarts(bench: Bench) -> None:
    """A restart between any two calls: `state` is all that the next process needs, and there is one asset."""
    demand = bench.will_provision(bench.demand())
    answer = bench.instance.patiently("provision", demand)
    if not isinstance(answer, InProgress):
        raise NotApplicable("provision is never in progress")
    asset = bench.resume("provision", demand, answer)
    bench.require_one(bench.made(demand, asset), "restarts while it was in progress")


@rule("provision", after=(a_lost_answer_of_provision_is_resolved,))
def provision_in_progress_goes_on_without_its_state(bench: Bench) -> None:
    """The state of every `InProgress` is lost, as by crashes before it was saved: there is still one asset."""
    bench.require_marks()
    demand = bench.will_provision(bench.demand())
    answer = bench.instance.patiently("provision", demand)
    if not isinstance(answer, InProgress) or bench.info.plans_first:
        raise NotApplicable("provision is never in progress, or does nothing without its state")
    asset = bench.resume("provision", demand, answer, keep_state=False)
    bench.require_one(bench.made(demand, asset), "lost states")


@rule("provision", after=(a_lost_answer_of_provision_is_resolved,))
def provision_that_plans_first_makes_nothing_before(bench: Bench) -> None:
    """With `DriverInfo.plans_first`, the first call returns a state and makes nothing, however often it is made."""
    if not bench.info.plans_first:
        raise NotApplicable("nothing is planned first (`DriverInfo.plans_first`)")
    demand = bench.will_provision(bench.demand())
    with bench.unchanged("the first call of provision"):
        for _ in range(2):
            answer = bench.instance.patiently("provision", demand)
            bench.require(isinstance(answer, InProgress) and answer.state, "the first call returned no state")
    bench.require_one(bench.made(demand, bench.resume("provision", demand, answer)), "two plans")


@rule("delete", after=(a_crash_after_delete_is_survived,))
def delete_in_progress_goes_on_after_restarts(bench: Bench) -> None:
    """A restart between any two calls of a long deletion: `state` is all that the next process needs."""
    made = bench.make()
    request = bench.deletion(made)
    answer = bench.instance.patiently("delete", request)
    if not isinstance(answer, InProgress):
        raise NotApplicable("delete is never in progress")
    bench.resume("delete", request, answer)
    bench.require_gone(made, "its deletion with restarts")


RULES = (
    a_crash_after_provision_is_survived,
    a_lost_answer_of_provision_is_resolved,
    a_crash_after_delete_is_survived,
    a_lost_answer_of_delete_is_resolved,
    a_crash_in_the_middle_of_provision_is_made_whole,
    a_crash_in_the_middle_of_provision_leaves_nothing_unseen,
    a_crash_in_the_middle_of_delete_is_finished,
    a_call_nobody_waits_for_ends_whole_or_not_at_all,
    provision_in_progress_goes_on_after_restarts,
    provision_in_progress_goes_on_without_its_state,
    provision_that_plans_first_makes_nothing_before,
    delete_in_progress_goes_on_after_restarts,
)
