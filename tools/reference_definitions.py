"""How the definition of a public name becomes Markdown, and how a type in a signature becomes a link to its
definition.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

from tools.reference_docstrings import BAR, contract, default_of, items_of, one_line, without_items
from tools.reference_names import (
    Function,
    Name,
    annotations_of,
    attributes_of,
    constructor_of,
    definition,
    methods_of,
    names_in,
    namespace,
    note_after,
    notes_of,
    parsed,
)

CONTEXT = {"context": "Who calls, and under which circumstances."}


class Index:
    """Which page of the reference defines a name. Every name of ours in a documented signature must have a place."""

    def __init__(self, pages: Mapping[str, Iterable[Name]]) -> None:
        self._pages = {name: page for page, names in pages.items() for name in names}
        for page in pages:
            anchors = [name.name.lower() for name, place in self._pages.items() if place == page]
            if twice := {anchor for anchor in anchors if anchors.count(anchor) > 1}:
                raise SystemExit(f"{page} would define twice: {', '.join(sorted(twice))}")

    def defined_on(self, page: str) -> list[Name]:
        """The names that a page defines."""
        return [name for name, place in self._pages.items() if place == page]

    def link(self, name: Name, page: str) -> str:
        """The target of a link on `page`."""
        if name not in self._pages:
            raise SystemExit(f"a signature on {page} names {name}, which no page of the reference defines")
        place = self._pages[name]
        return f"{'' if place == page else place}#{name.name.lower()}"

    def linked(self, name: Name, page: str) -> str:
        """The name as a link."""
        return f"[`{name.name}`]({self.link(name, page)})"

    def typed(self, code: str, names: Iterable[Name], page: str) -> str:
        """A type as code: a link if it is of one name of ours, else with links behind it."""
        found = list(names)
        if len(found) == 1:
            return f"[`{code}`]({self.link(found[0], page)})"
        return f"`{code}`" + self.behind(found, page)

    def behind(self, names: Iterable[Name], page: str) -> str:
        """Links to the names that a signature has, as they stand behind it."""
        links = ", ".join(self.linked(name, page) for name in names)
        return f" ({links})" if links else ""


def definition_of(
    name: Name, page: str, index: Index, *, level: int, constructed: bool = True, methods: bool = True
) -> Iterator[str]:
    """Heading, contract and members. constructed: readers create instances of it."""
    statement = definition(name)
    subject = getattr(importlib.import_module(name.module), name.name)
    yield f"\n{'#' * level} {name.name}\n"
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield f"{call(name, statement, page, index)}\n\n{contract(subject)}\n"
        case ast.ClassDef() if issubclass(subject, Enum):
            yield contract(subject) + "\n"
            yield from members_of(subject, notes_of(statement))
        case ast.ClassDef() if dataclasses.is_dataclass(subject):
            fields = [field for field in dataclasses.fields(subject) if not field.name.startswith("_")]
            yield without_items(subject.__doc__ or "", [field.name for field in fields]) + "\n"
            yield from fields_of(name, fields, page, index)
            yield from methods_listed(name, statement, page, index)
        case ast.ClassDef():
            made = constructor_of(statement)
            if made is not None and constructed:
                yield call(name, made, page, index, shown=name.name) + "\n"
            yield contract(subject) + "\n"
            if made is not None and constructed and ast.get_docstring(made):
                yield one_line(ast.get_docstring(made)) + "\n"
            yield from attributes(name, statement, page, index)
            if methods:
                yield from methods_listed(name, statement, page, index)
        case ast.Assign() | ast.AnnAssign():
            yield from constant(name, statement, page, index)


def call(name: Name, function: Function, page: str, index: Index, *, shown: str = "") -> str:
    """How a function is called, with links to the types of ours."""
    made = bool(shown)
    static = any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
    arguments = ast.unparse(function.args)
    if not static:
        arguments = re.sub(r"^(?:self|cls)(?:, )?", "", arguments)
    returned = f" -> {ast.unparse(function.returns)}" if function.returns is not None and not made else ""
    waits = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    parts = [part for part in annotations_of(function) if not (made and part is function.returns)]
    names = [each for part in parts for each in names_in(name.module, part)]
    own = [each for each in dict.fromkeys(names) if each != name]
    return f"`{waits}{shown or function.name}({arguments}){returned}`" + index.behind(own, page)


def methods_listed(name: Name, kind: ast.ClassDef, page: str, index: Index) -> Iterator[str]:
    """Public methods and properties, one line each, in source order."""
    lines = []
    for member in methods_of(kind):
        text = one_line(ast.get_docstring(member))
        if any(ast.unparse(each).endswith("property") for each in member.decorator_list) and member.returns is not None:
            names = [each for each in names_in(name.module, member.returns) if each != name]
            lines.append(f"- `{member.name}: {ast.unparse(member.returns)}`{index.behind(names, page)}: {text}")
        else:
            lines.append(f"- {call(name, member, page, index)}: {text}")
    yield "\n".join(lines) + "\n"


def attributes(name: Name, kind: ast.ClassDef, page: str, index: Index) -> Iterator[str]:
    """Documented attributes, one line each."""
    lines = []
    for attribute, annotation, note in attributes_of(kind):
        names = [each for each in names_in(name.module, annotation) if each != name]
        lines.append(f"- `{attribute}: {ast.unparse(annotation)}`{index.behind(names, page)}: {note}")
    yield "\n".join(lines) + "\n"


def fields_of(name: Name, rows: Iterable[dataclasses.Field[Any]], page: str, index: Index) -> Iterator[str]:
    """The fields of a dataclass as a table. Types are shown as the source spells them."""
    kind = definition(name)
    if not isinstance(kind, ast.ClassDef) or not rows:
        return
    bases = [namespace(name.module).get(ast.unparse(base)) for base in kind.bases]
    notes = CONTEXT | {k: v for each in bases if isinstance(each, ast.ClassDef) for k, v in notes_of(each).items()}
    notes |= items_of(ast.get_docstring(kind) or "") | notes_of(kind)
    defaults = {ast.unparse(each.target): each.value for each in kind.body if isinstance(each, ast.AnnAssign)}
    yield "| field | type | default | |\n|---|---|---|---|"
    for row in rows:
        names = names_in(name.module, ast.parse(str(row.type), mode="eval").body)
        spelled = index.typed(str(row.type).replace("|", BAR), names, page)
        yield f"| `{row.name}` | {spelled} | {default_of(row, defaults.get(row.name))} | {notes.get(row.name, '')} |"
    yield ""


def members_of(kind: type[Enum], notes: Mapping[str, str]) -> Iterator[str]:
    """The values of an enumeration."""
    yield "| name | value | |\n|---|---|---|"
    for member in kind:
        yield f"| `{member.name}` | `{member.value!r}` | {notes.get(member.name, '')} |"
    yield ""


def constant(name: Name, statement: ast.Assign | ast.AnnAssign, page: str, index: Index) -> Iterator[str]:
    """A name for a type, or a value."""
    body = parsed(name.module).body
    note = note_after(body, body.index(statement))
    if isinstance(statement, ast.AnnAssign):
        names = names_in(name.module, statement.annotation)
        yield f"`{name.name}: {ast.unparse(statement.annotation)}`{index.behind(names, page)}\n\n{note}\n"
    elif isinstance(statement.value, ast.Subscript | ast.BinOp):
        names = names_in(name.module, statement.value)
        yield f"`{name.name} = {ast.unparse(statement.value)}`{index.behind(names, page)}\n\n{note}\n"
    else:
        yield f"{note}\n"
