"""Which small changes are made to a module: most of those of mutmut, and some that remove what guards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import libcst as cst
from mutmut.mutation import mutators

__all__ = ["RULES", "SILENT", "Rule"]

SILENT: Final = ("why",)
"""Arguments that only logs and traces show."""

Rule = tuple[type[cst.CSTNode], Callable[[Any], Iterable[cst.CSTNode]]]
"""A kind of node, and what may stand in the place of one."""

_PASS: Final = cst.SimpleStatementLine([cst.Pass()])
_TRUE, _FALSE = cst.Name("True"), cst.Name("False")


def _string(node: cst.SimpleString) -> Iterator[cst.CSTNode]:
    """Keys, names and values are changed; sentences for people are not: their words decide nothing."""
    text = node.evaluated_value
    if isinstance(text, str) and " " not in text:
        yield from list(mutators.operator_string(node))[:1] if text else (cst.SimpleString('"XX"'),)


def _condition(node: cst.If | cst.While) -> Iterator[cst.CSTNode]:
    if isinstance(node, cst.If):
        yield node.with_changes(test=_TRUE)
    yield node.with_changes(test=_FALSE)


def _filter(node: cst.CompIf) -> Iterator[cst.CSTNode]:
    yield node.with_changes(test=_TRUE)


def _guard(node: cst.MatchCase) -> Iterator[cst.CSTNode]:
    if node.guard is not None:
        yield node.with_changes(guard=_TRUE)


def _operand(node: cst.BooleanOperation) -> Iterator[cst.CSTNode]:
    """One of the two decides alone."""
    for kept in (node.left, node.right):
        yield kept.with_changes(lpar=[*node.lpar, *kept.lpar], rpar=[*kept.rpar, *node.rpar])


def _statement(node: cst.SimpleStatementLine) -> Iterator[cst.CSTNode]:
    """What has an effect does not happen."""
    for each in node.body:
        called = isinstance(each, cst.Expr) and isinstance(each.value, cst.Call | cst.Await)
        stored = isinstance(each, cst.Assign) and not isinstance(each.targets[0].target, cst.Name)
        if called or stored or isinstance(each, cst.Raise | cst.Return | cst.AugAssign | cst.Del):
            yield _PASS


def _argument(node: cst.Call) -> Iterator[cst.CSTNode]:
    """An argument is None (not where it is False, as that is as false); one with a name is missing."""
    for index, argument in enumerate(node.args):
        name = argument.keyword.value if argument.keyword is not None else ""
        if argument.star or name in SILENT:
            continue
        before, after = node.args[:index], node.args[index + 1 :]
        if not (isinstance(argument.value, cst.Name) and argument.value.value in ("None", "False")):
            yield node.with_changes(args=[*before, argument.with_changes(value=cst.Name("None")), *after])
        if name:
            yield node.with_changes(args=[*before, *after])


def _element(node: cst.List | cst.Tuple | cst.Set | cst.Dict) -> Iterator[cst.CSTNode]:
    """One of the elements is missing."""
    for index in range(len(node.elements)):
        left = [*node.elements[:index], *node.elements[index + 1 :]]
        if isinstance(node, cst.Set) and not left:
            yield cst.Call(cst.Name("set"))
        elif isinstance(node, cst.Tuple) and len(left) == 1 and left[0].comma == cst.MaybeSentinel.DEFAULT:
            yield node.with_changes(elements=[left[0].with_changes(comma=cst.Comma())])
        else:
            yield node.with_changes(elements=left)


def _assignment(node: cst.Assign | cst.AnnAssign) -> Iterator[cst.CSTNode]:
    """None is as false as False."""
    if not (isinstance(node.value, cst.Name) and node.value.value == "False"):
        yield from mutators.operator_assignment(node)


_REPLACED: Final = (mutators.operator_string, mutators.operator_arg_removal, mutators.operator_assignment)
"""Rules of mutmut in whose place one of ours stands."""

RULES: Final[tuple[Rule, ...]] = (
    *((kind, rule) for kind, rule in mutators.mutation_operators if rule not in _REPLACED),
    (cst.Assign, _assignment),
    (cst.AnnAssign, _assignment),
    (cst.SimpleString, _string),
    (cst.If, _condition),
    (cst.While, _condition),
    (cst.Call, _argument),
    (cst.CompIf, _filter),
    (cst.MatchCase, _guard),
    (cst.BooleanOperation, _operand),
    (cst.SimpleStatementLine, _statement),
    (cst.List, _element),
    (cst.Tuple, _element),
    (cst.Set, _element),
    (cst.Dict, _element),
)
