"""Makes the variants of a module."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator
from pathlib import Path
from types import CodeType

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from tools.mutants.rules import RULES, SILENT
from tools.mutants.variant import Variant

__all__ = ["variants_of"]


def variants_of(root: Path, path: str, lines: Collection[int] | None = None) -> Iterator[Variant]:
    """Every change of a module once. lines: only of what begins on one of these; None = all."""
    source = (root / path).read_text("utf-8")
    wrapper = MetadataWrapper(cst.parse_module(source))
    positions = wrapper.resolve(PositionProvider)
    seen = {source}
    for node, function, at_import in _places(wrapper.module):
        where = positions.get(node)
        if where is None or (lines is not None and where.start.line not in lines):
            continue
        for kind, rule in RULES:
            for changed in rule(node) if isinstance(node, kind) else ():
                code = _replaced(wrapper.module, node, changed, source, where)
                if code not in seen and _is_python(code):
                    seen.add(code)
                    was, now = _difference(source, code, where)
                    if now == "pass" and _same_code(source, code):
                        continue  # Such as `return None` at the end of a function.
                    yield Variant(path, function, at_import, where.start.line, where.end.line, was, now, code)


def _replaced(module: cst.Module, node: cst.CSTNode, changed: cst.CSTNode, source: str, where: CodeRange) -> str:
    """The source with the change. Blocks are written by libcst, which knows their indents and takes long."""
    if isinstance(node, cst.BaseCompoundStatement | cst.MatchCase):
        return str(module.deep_replace(node, changed).code)  # type: ignore[attr-defined,unused-ignore]
    lines = source.splitlines(keepends=True)
    before = "".join(lines[: where.start.line - 1]) + lines[where.start.line - 1][: where.start.column]
    after = lines[where.end.line - 1][where.end.column :] + "".join(lines[where.end.line :])
    return f"{before}{module.code_for_node(changed).rstrip()}{after}"


def _is_python(code: str) -> bool:
    """It is not where an operand over several lines lost its parentheses, for one."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return False
    return True


def _same_code(one: str, other: str) -> bool:
    """Whether the two compile to the same, but for the numbers of lines."""
    return _instructions(compile(one, "", "exec")) == _instructions(compile(other, "", "exec"))


def _instructions(code: CodeType) -> tuple[object, ...]:
    constants = tuple(_instructions(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, constants


def _places(
    node: cst.CSTNode, function: str = "", *, at_import: bool = True
) -> Iterator[tuple[cst.CSTNode, str, bool]]:
    """Every node that may be changed, the function that it is in the body of, and whether it runs at the import."""
    yield node, function, at_import
    for child in node.children:
        if _is_left_alone(child):
            continue
        if isinstance(node, cst.FunctionDef | cst.ClassDef) and child is node.body:
            inner = f"{function}.{node.name.value}".strip(".")
            yield from _places(child, inner, at_import=at_import and isinstance(node, cst.ClassDef))
        else:
            yield from _places(child, function, at_import=at_import)


def _is_left_alone(node: cst.CSTNode) -> bool:
    """Types and names of types, decorators, imports, docstrings, lists of names, and what is only logged."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom() | cst.Expr(value=cst.SimpleString()):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value="__all__" | "log" | "_LOG"))]):
            return True
        case cst.Assign(value=cst.Call(func=cst.Name(value="TypeVar"))):
            return True
        case cst.SimpleStatementLine(
            body=[cst.Expr(value=cst.Call(func=cst.Attribute(value=cst.Name(value="log" | "_LOG"))))]
        ):
            return True
        case cst.Assign(
            targets=[cst.AssignTarget(target=cst.Name(value=name))], value=cst.Subscript() | cst.BinaryOperation()
        ):
            return name.lstrip("_")[0].isupper() and not name.isupper()  # Such as `Requeue = Callable[[], None]`.
        case cst.Arg(keyword=cst.Name(value=name)) if name in SILENT:
            return True
    return False


def _difference(source: str, code: str, where: CodeRange) -> tuple[str, str]:
    """The lines that went and the lines that came."""
    old, new = source.splitlines(), code.splitlines()
    first, end = where.start.line - 1, where.end.line
    changes = difflib.unified_diff(old[first:end], new[first : end + len(new) - len(old)], lineterm="", n=0)
    shown = list(changes)[2:]
    gone = [line[1:].strip() for line in shown if line.startswith("-")]
    come = [line[1:].strip() for line in shown if line.startswith("+")]
    return "\n".join(gone), "\n".join(come)
