"""How docstrings and defaults become Markdown."""

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


def contract(subject: object) -> str:
    """The docstring of a module, class or function as Markdown."""
    return prose(subject.__doc__ or "")


def prose(docstring: str) -> str:
    """A docstring; its `name: meaning.` sentences as a list."""
    text = inspect.cleandoc(docstring)
    listed = re.sub(r"(?:(?<=\.) |^)([a-z_]\w*(?:, \w+)*): ", r"\n- `\1`: ", text, flags=re.MULTILINE)
    return re.sub(r"\n+(?=- )", r"\n", re.sub(r"(?<=[.])\n+- ", r"\n\n- ", listed, count=1))


def one_line(docstring: str | None) -> str:
    """A docstring on one line."""
    return " ".join(re.sub(r"\s*\n- ", " ", prose(docstring or "")).split())


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
