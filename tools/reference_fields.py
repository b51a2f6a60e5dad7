"""How docstrings, signatures and fields become Markdown."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from enum import Enum

MARK = "<!-- Written by tools/reference.py from the code; change it there, then `make docs`. -->"
BAR = "\\|"


def fields_of(kind: type) -> Iterator[str]:
    """A heading, the contract, a table of fields. Types are shown as the source spells them."""
    yield f"\n### {kind.__name__}\n"
    yield contract(kind) + "\n"
    rows = dataclasses.fields(typing.cast("typing.Any", kind))
    notes = attribute_notes(kind) | {"context": "Who calls, and under which circumstances: [Context](#context)."}
    if rows:
        yield "| field | type | default | |\n|---|---|---|---|"
    for row in rows:
        yield f"| `{row.name}` | `{str(row.type).replace('|', BAR)}` | {default_of(row)} | {notes[row.name]} |"


def default_of(row: dataclasses.Field[typing.Any]) -> str:
    """What stands there when nobody says otherwise."""
    if row.default is not dataclasses.MISSING:
        value = row.default
    elif row.default_factory is not dataclasses.MISSING:
        value = row.default_factory()
    else:
        return "required"
    if callable(value) or type(value).__module__ == "logging":
        return "set by volplane"
    if value in ({}, frozenset(), (), ""):
        return "empty"
    return f"`{plain(value)}`"


def plain(value: object) -> str:
    """A default as an author would write it."""
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, (tuple, frozenset)):
        return ", ".join(plain(item) for item in value)
    return repr(value)


def bare(signature: inspect.Signature) -> str:
    """A signature without the quotes of postponed annotations."""
    return str(signature).replace("'", "")


def contract(subject: object) -> str:
    """A docstring; its `name: meaning.` sentences as a list."""
    text = inspect.cleandoc(subject.__doc__ or "")
    listed = re.sub(r"(?:(?<=\.) |^)(\w+(?:, \w+)*): ", r"\n- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"\n+(?=- )", r"\n", re.sub(r"(?<=[.])\n+- ", r"\n\n- ", listed, count=1))


def attribute_notes(kind: type) -> dict[str, str]:
    """The texts that stand below the fields of a class."""
    body = ast.parse(inspect.cleandoc(inspect.getsource(kind))).body[0]
    notes: dict[str, str] = {}
    name = ""
    for statement in typing.cast("ast.ClassDef", body).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            notes[name] = " ".join(str(statement.value.value).split())
    return notes
