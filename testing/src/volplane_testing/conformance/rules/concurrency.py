"""Several calls at once, by threads and by processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from volplane.errors import BackendError, PluginError, RetryPolicy
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.crashes import (
    a_crash_after_delete_is_survived,
    a_crash_after_provision_is_survived,
)
from volplane_testing.conformance.rules.provisioning import provision_again_gives_the_same_asset
from volplane_testing.conformance.violations import Violation

__all__ = ["RULES"]

_AT_ONCE = 4


def _together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The result or error of each call; all start together."""
    answers: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def run(number: int) -> None:
        gate.wait()
        try:
            answers[number] = calls[number]()
        except (BackendError, PluginError, Violation) as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _require_harmless(answers: Sequence[Any], what: str) -> None:
    """Every error among the results allows a repetition of the call."""
    for answer in answers:
        if isinstance(answer, Violation | PluginError):
            raise answer
        if isinstance(answer, BackendError) and answer.retry is not RetryPolicy.BACKOFF:
            raise Violation(
                f"{what} raised {type(answer).__name__} ({answer}), expected an answer or an error that is soon retried"
            )


@rule("provision", waivable=False, after=(a_crash_after_provision_is_survived,))
def equal_demands_at_once_make_one_asset(bench: Bench) -> None:
    """A late duplicate may run beside the real call, in another process: both end, and there is one asset."""
    demand = bench.will_provision(bench.demand())
    processes = [bench.instance, bench.another()]
    answers = _together(
        [lambda p=processes[number % 2]: p.provision(demand) for number in range(_AT_ONCE)]  # type: ignore[misc]
    )
    _require_harmless(answers, f"one of {_AT_ONCE} equal demands at once")
    made = bench.make(demand)
    for answer in answers:
        if not isinstance(answer, BackendError):
            bench.require_same(answer, made.asset, "an equal demand at the same time")
    bench.require_one(made, "equal demands at once")


@rule("provision", after=(provision_again_gives_the_same_asset,))
def different_demands_at_once_do_not_meet(bench: Bench) -> None:
    """Demands for different claims run at once, in one process: each gets its own whole asset."""
    demands = [bench.will_provision(bench.demand()) for _ in range(_AT_ONCE)]
    answers = _together([lambda d=demand: bench.instance.provision(d) for demand in demands])  # type: ignore[misc]
    _require_harmless(answers, f"one of {_AT_ONCE} different demands at once")
    made = [bench.make(demand) for demand in demands]
    for one, answer in zip(made, answers, strict=True):
        if not isinstance(answer, BackendError):
            bench.require_same(answer, one.asset, "a demand beside others")
    handles = {one.asset.handle for one in made}
    bench.require(len(handles) == _AT_ONCE, f"{_AT_ONCE} demands at once have only {len(handles)} assets")


@rule("delete", after=(a_crash_after_delete_is_survived,))
def equal_deletions_at_once_end_well(bench: Bench) -> None:
    """Several calls of `delete` for one asset in two processes: all return, none fails finally, the asset is gone."""
    made = bench.make()
    processes = [bench.instance, bench.another()]
    request = bench.deletion(made)
    answers = _together(
        [lambda p=processes[number % 2]: p.delete(request) for number in range(_AT_ONCE)]  # type: ignore[misc]
    )
    _require_harmless(answers, f"one of {_AT_ONCE} equal deletions at once")
    bench.remove(made)
    bench.require_gone(made, "several deletions at once")


@rule("provision", "delete", after=(equal_demands_at_once_make_one_asset, equal_deletions_at_once_end_well))
def a_demand_beside_a_deletion_leaves_no_ruin(bench: Bench) -> None:
    """A late duplicate of `provision` runs while the asset is deleted: what is left is a whole asset, or nothing."""
    made = bench.make()
    beside, request = bench.another(), bench.deletion(made)
    answers = _together([lambda: bench.instance.delete(request), lambda: beside.provision(made.demand)])
    _require_harmless(answers[:1], "a deletion beside an equal demand")
    left = bench.make(made.demand)
    bench.require_same(bench.instance.provision(made.demand), left.asset, "an equal demand after the race")
    bench.require_one(left, "a race of provision and delete")
    bench.remove(left)
    bench.require_gone(left, "its deletion after a race")


RULES = (
    equal_demands_at_once_make_one_asset,
    different_demands_at_once_do_not_meet,
    equal_deletions_at_once_end_well,
    a_demand_beside_a_deletion_leaves_no_ruin,
)
