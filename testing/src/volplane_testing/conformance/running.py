"""Judges rules, without pytest: one storage and one bench for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from volplane.errors import BackendError, PluginError, VolplaneError
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.report import Report, RuleResult, RuleStatus
from volplane_testing.conformance.rule import NotApplicable, Rule, Violation
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.subject import MakeSubject, Subject, opened

__all__ = ["first_obstacle", "judge", "run_rules"]


def run_rules(
    make: Subject | MakeSubject,
    rules: Collection[Rule] = RULES,
    *,
    observe: Callable[[RuleResult], None] = lambda _result: None,
) -> Report:
    """Judge the rules in their order and call `observe` with each result. Raises what building the backend raises.

    make: the subject, or what gives a fresh one for each rule. Rules clean up behind themselves, so that one storage
    can serve all of them.
    """
    results: dict[str, RuleResult] = {}
    for rule in rules:
        first = first_obstacle(rule, {name: result.status for name, result in results.items()})
        if first is not None:
            result = RuleResult(rule, RuleStatus.NOT_JUDGED, f"{first} comes first")
        else:
            with opened(make) as subject:
                result = judge(rule, subject)
        results[rule.name] = result
        observe(result)
    return Report(tuple(results.values()))


def first_obstacle(rule: Rule, statuses: Mapping[str, RuleStatus]) -> str | None:
    """A rule that this one builds on and that did not hold, of those judged so far."""
    bad = (RuleStatus.VIOLATED, RuleStatus.BROKEN, RuleStatus.NOT_JUDGED)
    return next((name for name in rule.after if statuses.get(name) in bad), None)


def judge(rule: Rule, subject: Subject) -> RuleResult:
    """Judge one rule. Raises VolplaneError if the backend cannot even be built and started."""
    begun = time.monotonic()
    bench = Bench(subject)
    missing = sorted(hook for hook in rule.hooks if not bench.supports(hook))
    if missing:
        bench.close()
        return RuleResult(rule, RuleStatus.NOT_APPLICABLE, f"it does not implement {', '.join(missing)}")
    if rule.waivable and rule.name in bench.info.waived_rules:
        bench.close()
        return RuleResult(rule, RuleStatus.WAIVED, bench.info.waived_rules[rule.name])
    status, reason = _status(rule, bench)
    calls = tuple(bench.calls)
    left = bench.close()
    return RuleResult(rule, status, reason, calls, left, time.monotonic() - begun)


def _status(rule: Rule, bench: Bench) -> tuple[RuleStatus, str]:
    try:
        rule.check(bench)
    except NotApplicable as why:
        return RuleStatus.NOT_APPLICABLE, str(why)
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
