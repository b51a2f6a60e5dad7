"""Where the public names of our packages are defined, and which other names of ours their signatures use.

Sources are parsed, not run: so a name that is imported only for type checkers, or on first use, is found as well.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

OURS = re.compile(r"volplane(?:_[a-z_]+)?(?:\.|$)")
SHOWN_SPECIAL = ("__call__", "__contains__")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


class Name(NamedTuple):
    """A name at the place of its definition."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@cache
def parsed(module: str) -> ast.Module:
    """The source of a module of ours."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise SystemExit(f"there is no module {module}")
    return ast.parse(Path(found.origin).read_text("utf-8"))


@cache
def namespace(module: str) -> Mapping[str, Definition | Name]:
    """What the names of a module stand for: a definition there, or a name of another module of ours."""
    found: dict[str, Definition | Name] = {}
    for statement in _statements(parsed(module).body):
        if isinstance(statement, ast.ImportFrom) and statement.module and OURS.match(statement.module):
            if statement.names[0].name == "*":
                defined = namespace(statement.module).items()
                found |= {name: Name(statement.module, name) for name, each in defined if not isinstance(each, Name)}
            else:
                found |= {each.asname or each.name: Name(statement.module, each.name) for each in statement.names}
        elif isinstance(statement, ast.ClassDef | Function):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found[statement.targets[0].id] = statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = statement
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _statements(statement.body)
        else:
            yield statement


def resolve(module: str, name: str) -> Name | None:
    """The definition that a name of a module leads to; None for what is not ours, a module or a type variable."""
    while isinstance(found := namespace(module).get(name), Name):
        module, name = found
    if found is None or (isinstance(found, ast.Assign) and _is_type_variable(found)):
        return None
    return Name(module, name)


def _is_type_variable(statement: ast.Assign) -> bool:
    value = statement.value
    return isinstance(value, ast.Call) and ast.unparse(value.func) in {"TypeVar", "ParamSpec", "NewType"}


def definition(name: Name) -> Definition:
    """The statement that defines it."""
    found = namespace(name.module).get(name.name)
    if found is None or isinstance(found, Name):
        raise SystemExit(f"{name} is not defined there")
    return found


def exported(module: str) -> list[Name]:
    """The names of `__all__`, in its order, or the classes of a module without it; each where it is defined."""
    found = namespace(module)
    listed = found.get("__all__")
    if listed is None:
        return [Name(module, name) for name in sorted(found) if isinstance(found[name], ast.ClassDef)]
    if not isinstance(listed, ast.Assign):
        raise SystemExit(f"{module}.__all__ is no plain list")
    names = [resolve(module, name) for name in ast.literal_eval(listed.value)]
    return [name for name in names if name is not None]


# --- what a definition consists of ---


def note_after(body: Sequence[ast.stmt], index: int) -> str:
    """The text that stands below a statement, on one line."""
    following = body[index + 1] if index + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return " ".join(str(following.value.value).split())
    return ""


def notes_of(kind: ast.ClassDef) -> dict[str, str]:
    """The texts that stand below the fields, or the values, of a class."""
    notes = {}
    for index, statement in enumerate(kind.body):
        if isinstance(statement, ast.AnnAssign | ast.Assign) and (note := note_after(kind.body, index)):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            notes[ast.unparse(target)] = note
    return notes


def attributes_of(kind: ast.ClassDef) -> Iterator[tuple[str, ast.expr, str]]:
    """Public attributes with a type and a text below them: of the class body and of `__init__`."""
    bodies = [kind.body, *(each.body for each in kind.body if isinstance(each, Function) and each.name == "__init__")]
    for body in bodies:
        for index, statement in enumerate(body):
            if isinstance(statement, ast.AnnAssign) and (note := note_after(body, index)):
                name = ast.unparse(statement.target).removeprefix("self.")
                if not name.startswith("_"):
                    yield name, statement.annotation, note


def methods_of(kind: ast.ClassDef) -> Iterator[Function]:
    """Public methods and properties with a docstring; not what pytest collects."""
    for member in kind.body:
        if isinstance(member, Function) and ast.get_docstring(member):
            setter = any(ast.unparse(each).endswith((".setter", "overload")) for each in member.decorator_list)
            shown = member.name in SHOWN_SPECIAL or not member.name.startswith(("_", "pytest_", "test_"))
            if shown and not setter:
                yield member


def constructor_of(kind: ast.ClassDef) -> Function | None:
    """Its own `__init__`."""
    return next((each for each in kind.body if isinstance(each, Function) and each.name == "__init__"), None)


def annotations_of(function: Function) -> Iterator[ast.expr]:
    """Types of the parameters and of the result."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (each.annotation for each in every if each is not None and each.annotation is not None)
    if function.returns is not None:
        yield function.returns


def types_of(statement: Definition, *, constructed: bool) -> Iterator[ast.expr]:
    """Every type that the documented signatures of a definition name."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from annotations_of(statement)
        case ast.ClassDef():
            yield from (annotation for _, annotation, _ in attributes_of(statement))
            if any("dataclass" in ast.unparse(each) for each in statement.decorator_list):
                fields = (each for each in statement.body if isinstance(each, ast.AnnAssign))
                yield from (each.annotation for each in fields if not ast.unparse(each.target).startswith("_"))
            if constructed and (made := constructor_of(statement)):
                yield from annotations_of(made)
            for method in methods_of(statement):
                yield from annotations_of(method)
        case ast.AnnAssign():
            yield statement.annotation
        case ast.Assign() if isinstance(statement.value, ast.Subscript | ast.BinOp):
            yield statement.value


def names_in(module: str, annotation: ast.expr) -> list[Name]:
    """The names of ours in a type, in their order."""
    found: list[Name] = []
    for node in sorted(ast.walk(annotation), key=lambda each: getattr(each, "col_offset", -1)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found += names_in(module, ast.parse(node.value, mode="eval").body)
        elif isinstance(node, ast.Name) and (name := resolve(module, node.id)) and name not in found:
            found.append(name)
    return found


def closure(names: Iterable[Name], elsewhere: Collection[Name] = ()) -> list[Name]:
    """What the signatures of `names` use, and theirs, in the order in which it is met; without what is `elsewhere`.

    Nobody needs to construct what only comes back: the constructors of such classes are no part of it.
    """
    given = list(names)
    found: list[Name] = []
    for name in (waiting := list(given)):
        for annotation in types_of(definition(name), constructed=name in given):
            for used in names_in(name.module, annotation):
                if used not in (*given, *found, *elsewhere):
                    found.append(used)
                    waiting.append(used)
    return found
