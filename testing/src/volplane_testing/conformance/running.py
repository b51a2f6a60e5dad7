"""Judges rules, without pytest: one storage and one bench for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from volplane.errors import BackendError, PluginError, VolplaneError
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.report import Report, RuleResult, RuleStatus
from volplane_testing.conformance.rule import Rule
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.subject import MakeSubject, Subject, opened
from volplane_testing.conformance.violations import HungCall, Interrupted, NotApplicable, Violation

__all__ = ["first_obstacle", "judge", "run_rules"]


def run_rules(
    make: Subject | MakeSubject,
    rules: Collection[Rule] = RULES,
    *,
    begin: Callable[[Rule], None] = lambda _rule: None,
    observe: Callable[[RuleResult], None] = lambda _result: None,
    leave: Callable[[tuple[str, ...]], None] = lambda _left: None,
    stop: Callable[[], str] = lambda: "",
) -> Report:
    """Judge the rules in their order; `begin` is called with each rule before, and `observe` with its result. Raises
    what building the backend raises.

    Interrupted at a KeyboardInterrupt, once what the rule made is deleted; `leave` hears before of what that is.

    make: the subject, or what gives a fresh one for each rule. Rules clean up behind themselves, so that one storage
    can serve all of them. After a call of the backend that does not return, no other rule is judged: its thread is in
    the backend, and may hold what others wait for. stop: asked before each rule; why it is not judged, or "".
    """
    results: dict[str, RuleResult] = {}
    hung = ""
    for rule in rules:
        begin(rule)
        first = first_obstacle(rule, {name: result.status for name, result in results.items()})
        if unheard := f"{hung} did not return" if hung else stop():
            result = RuleResult(rule, RuleStatus.NOT_JUDGED, unheard)
        elif first is not None:
            result = RuleResult(rule, RuleStatus.NOT_JUDGED, f"{first} comes first")
        else:
            with opened(make) as subject:
                result = judge(rule, subject, leave)
        hung = hung or result.hung
        results[rule.name] = result
        observe(result)
    return Report(tuple(results.values()))


def first_obstacle(rule: Rule, statuses: Mapping[str, RuleStatus]) -> str | None:
    """A rule that this one builds on and that did not hold, of those judged so far."""
    bad = (RuleStatus.VIOLATED, RuleStatus.BROKEN, RuleStatus.NOT_JUDGED)
    return next((name for name in rule.after if statuses.get(name) in bad), None)


def judge(rule: Rule, subject: Subject, leave: Callable[[tuple[str, ...]], None] = lambda _left: None) -> RuleResult:
    """Judge one rule. Raises VolplaneError if the backend cannot even be built and started."""
    begun = time.monotonic()
    try:
        bench = Bench(subject)
    except Violation as why:
        hung = why.what if isinstance(why, HungCall) else ""
        return RuleResult(rule, RuleStatus.VIOLATED, str(why), seconds=time.monotonic() - begun, hung=hung)
    try:
        status, reason = _status(rule, bench)
    except KeyboardInterrupt:
        leave(bench.remains())
        doubt = bench.in_doubt()
        raise Interrupted((*bench.close(), *doubt)) from None
    calls = tuple(bench.calls)
    left = bench.close()
    if bench.hung is not None and status is not RuleStatus.VIOLATED:
        status, reason, calls = RuleStatus.VIOLATED, f"in cleaning up, {bench.hung}", tuple(bench.calls)
    hung = bench.hung.what if bench.hung is not None else ""
    return RuleResult(rule, status, reason, calls, left, time.monotonic() - begun, hung)


def _status(rule: Rule, bench: Bench) -> tuple[RuleStatus, str]:
    missing = sorted(hook for hook in rule.hooks if not bench.supports(hook))
    if missing:
        return RuleStatus.NOT_APPLICABLE, f"it does not implement {', '.join(missing)}"
    if rule.waivable and rule.name in bench.info.waived_rules:
        return RuleStatus.WAIVED, bench.info.waived_rules[rule.name]
    try:
        rule.check(bench)
    except NotApplicable as why:
        return RuleStatus.NOT_APPLICABLE, str(why)
    except HungCall as hang:
        bench.hung = hang
        return RuleStatus.VIOLATED, str(hang)
    except Violation as why:
        return RuleStatus.VIOLATED, str(why)
    except (BackendError, PluginError) as error:
        hook = bench.calls[-1].hook if bench.calls else "a hook"
        return RuleStatus.VIOLATED, f"{hook} raised {type(error).__name__}: {error}"
    except VolplaneError as error:
        return RuleStatus.BROKEN, str(error)
    except Exception as error:  # noqa: BLE001 - a function of the subject: reported, the other rules go on
        return RuleStatus.BROKEN, f"{type(error).__name__}: {error}"
    return RuleStatus.KEPT, ""
