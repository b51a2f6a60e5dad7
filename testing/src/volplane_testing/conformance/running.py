"""Judges rules, without pytest: one storage and one bench for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from volplane.errors import BackendError, PluginError, VolplaneError
from volplane_testing.conformance.bench import Bench
from volplane_testing.conformance.report import Outcome, Report, Verdict
from volplane_testing.conformance.rule import NotApplicable, Rule, Violation
from volplane_testing.conformance.rules import RULES
from volplane_testing.conformance.subject import MakeSubject, Subject, opened

__all__ = ["first_obstacle", "judge", "run_rules"]


def run_rules(
    make: Subject | MakeSubject,
    rules: Collection[Rule] = RULES,
    *,
    told: Callable[[Outcome], None] = lambda _outcome: None,
) -> Report:
    """Judge the rules in their order; `told` hears of each outcome at once. Raises what building the backend raises.

    make: the subject, or what gives a fresh one for each rule. Rules clean up behind themselves, so that one storage can
    serve all of them.
    """
    outcomes: dict[str, Outcome] = {}
    for rule in rules:
        first = first_obstacle(rule, {name: outcome.verdict for name, outcome in outcomes.items()})
        if first is not None:
            outcome = Outcome(rule, Verdict.NOT_JUDGED, f"{first} comes first")
        else:
            with opened(make) as subject:
                outcome = judge(rule, subject)
        outcomes[rule.name] = outcome
        told(outcome)
    return Report(tuple(outcomes.values()))


def first_obstacle(rule: Rule, verdicts: Mapping[str, Verdict]) -> str | None:
    """A rule that this one builds on and that did not hold, of those judged so far."""
    bad = (Verdict.VIOLATED, Verdict.BROKEN, Verdict.NOT_JUDGED)
    return next((name for name in rule.after if verdicts.get(name) in bad), None)


def judge(rule: Rule, subject: Subject) -> Outcome:
    """Judge one rule. Raises VolplaneError if the backend cannot even be built and started."""
    begun = time.monotonic()
    bench = Bench(subject)
    missing = sorted(hook for hook in rule.hooks if not bench.supports(hook))
    if missing:
        bench.close()
        return Outcome(rule, Verdict.NOT_APPLICABLE, f"it does not implement {', '.join(missing)}")
    if rule.waivable and rule.name in bench.info.waived_rules:
        bench.close()
        return Outcome(rule, Verdict.WAIVED, bench.info.waived_rules[rule.name])
    verdict, reason = _verdict(rule, bench)
    calls = tuple(bench.calls)
    left = bench.close()
    return Outcome(rule, verdict, reason, calls, left, time.monotonic() - begun)


def _verdict(rule: Rule, bench: Bench) -> tuple[Verdict, str]:
    try:
        rule.check(bench)
    except NotApplicable as why:
        return Verdict.NOT_APPLICABLE, str(why)
    except Violation as why:
        return Verdict.VIOLATED, str(why)
    except (BackendError, PluginError) as error:
        hook = bench.calls[-1].hook if bench.calls else "a hook"
        return Verdict.VIOLATED, f"{hook} raised {type(error).__name__}: {error}"
    except VolplaneError as error:
        return Verdict.BROKEN, str(error)
    except Exception as error:  # noqa: BLE001 - a function of the subject: reported, the other rules go on
        return Verdict.BROKEN, f"{type(error).__name__}: {error}"
    return Verdict.KEPT, ""
