"""Pages of docs/reference about the testing kit and its conformance suite."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator

from tools.reference_fields import BAR, MARK, attribute_notes, bare, contract

import volplane_testing as testing
from volplane_testing.conformance import RULES, Subject


def kit_page() -> Iterator[str]:
    """Every public name of volplane_testing."""
    yield "# Testing kit\n"
    yield MARK + "\n"
    yield contract(testing) + "\n"
    yield "[How to use it](../how-to/test-a-backend.md). The rules and `Subject` are in [conformance.md](conformance.md).\n"
    for name in sorted(set(testing.__all__) - {"RULES", "Subject"}, key=str.lower):
        member = getattr(testing, name)
        yield f"\n## {name}\n\n`{name}{call_of(member)}`\n\n{contract(member)}\n"
        if inspect.isclass(member):
            yield from members_of(member)


def members_of(kind: type) -> Iterator[str]:
    """What an instance offers, in the order of the source; not what pytest asks of a test class."""
    for below in vars(kind).values():
        member = below.fget if isinstance(below, property) else below
        name = getattr(member, "__name__", "_")
        if not inspect.isfunction(member) or not member.__doc__ or name.startswith(("pytest_", "test_")):
            continue
        said = " ".join(re.sub(r"\s*\n- ", " ", contract(member)).split())
        if name == "__init__":
            yield f"- made with: {said}"
        elif not name.startswith("_"):
            yield f"- `{name}{'' if isinstance(below, property) else call_of(member)}`: {said}"


def call_of(member: Callable[..., object]) -> str:
    """How it is called, as the source spells it; without self."""
    made = inspect.isclass(member)
    if made and (dataclasses.is_dataclass(member) or "__init__" not in vars(member)):
        return bare(inspect.signature(member)).removesuffix(" -> None")
    source = inspect.getsource(vars(member)["__init__"] if made else member)
    parsed = typing.cast("ast.FunctionDef", ast.parse(textwrap.dedent(source)).body[0])
    returned = f" -> {ast.unparse(parsed.returns)}" if parsed.returns and not made else ""
    return f"({ast.unparse(parsed.args).removeprefix('self').removeprefix(', ')}){returned}"


def conformance_page() -> Iterator[str]:
    """Every rule of the conformance suite, and what the suite may be told of a backend."""
    fixed = sum(not rule.waivable for rule in RULES)
    yield "# Conformance\n"
    yield MARK + "\n"
    yield f"""\
{len(RULES)} rules say what every backend promises. [How to run them](../how-to/test-a-backend.md), with pytest or from the
command line. They are judged in this order; a rule that builds on one that is violated is not judged. A rule that says
nothing about a backend (it lacks the hook, or the subject the means) is reported as not applicable, with the reason.

A backend that cannot keep a rule declares that in `describe().waived_rules`, rule -> reason, and every report shows it.
{fixed} rules cannot be waived: without them nothing that volplane promises could be kept. An unknown rule, one that cannot be
waived, or a missing reason there is itself a violation (`waivers-are-honest`).
"""
    yield "| rule | the backend promises | needs | can be waived |\n|---|---|---|---|"
    for rule in RULES:
        needs = ", ".join(f"`{hook}`" for hook in sorted(rule.hooks))
        yield f"| `{rule.name}` | {rule.says.replace('|', BAR)} | {needs} | {'yes' if rule.waivable else 'no'} |"
    yield "\n## After csi-sanity\n"
    yield "These rules follow a check of csi-test's sanity suite:\n"
    yield "| rule | csi-sanity |\n|---|---|"
    for rule in RULES:
        if rule.sanity:
            yield f"| `{rule.name}` | {rule.sanity} |"
    yield "\n## Subject\n"
    yield contract(Subject) + "\n"
    yield "| field | type | |\n|---|---|---|"
    notes = attribute_notes(Subject)
    for row in dataclasses.fields(Subject):
        if row.name != "_":
            kind = str(row.type).replace("|", BAR)
            yield f"| `{row.name}` | `{kind}` | {notes.get(row.name, '')} |"
