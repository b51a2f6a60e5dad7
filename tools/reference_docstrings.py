"""How docstrings, defaults and parameter schemas become Markdown."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Collection
from enum import Enum

from volplane.drivers.parameters import entries
from volplane.schemas import ParameterSchema

MARK = "<!-- Made from the code by tools/reference.py. -->"
BAR = "\\|"
ITEM = re.compile(r"(?:(?<=\.)\s+|^)([a-z_]\w*(?:, \w+)*): ", re.MULTILINE)
LONGEST_DEFAULT = 60


def default_of(row: dataclasses.Field[typing.Any], source: ast.expr | None) -> str:
    """The default of a field: its value, or its source code if that is shorter to read."""
    if row.default is not dataclasses.MISSING:
        value = row.default
    elif row.default_factory is not dataclasses.MISSING:
        value = row.default_factory()
    else:
        return "required"
    if value in ({}, frozenset(), (), "", []):
        return "empty"
    text = plain(value)
    readable = not text.startswith("<") and not callable(value) and len(text) <= LONGEST_DEFAULT
    return f"`{text if readable or source is None else spelled(source)}`"


def spelled(source: ast.expr) -> str:
    """The source code of a default, or the factory of `field(default_factory=...)`."""
    if isinstance(source, ast.Call) and ast.unparse(source.func) == "field":
        made = source.keywords[0].value
        if source.keywords[0].arg == "default_factory":
            return ast.unparse(made.body) if isinstance(made, ast.Lambda) else f"{ast.unparse(made)}()"
        return ast.unparse(made)
    return ast.unparse(source)


def plain(value: object) -> str:
    """A default as Python code."""
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
    return without_items(docstring, ())


def without_items(docstring: str, elsewhere: Collection[str]) -> str:
    """The same, without the sentences about the names that are described `elsewhere`."""
    paragraphs = []
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        text, items = split(paragraph)
        listed = [f"- `{', '.join(names)}`: {meaning}" for names, meaning in items if not {*names} & {*elsewhere}]
        paragraphs += [part for part in (text, "\n".join(listed)) if part]
    return "\n\n".join(paragraphs)


def items_of(docstring: str) -> dict[str, str]:
    """Name -> meaning, from sentences of the form `name: meaning.` in a docstring."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    found = [item for paragraph in paragraphs for item in split(paragraph)[1]]
    return {name: meaning[:1].upper() + meaning[1:] for names, meaning in found for name in names}


def split(paragraph: str) -> tuple[str, list[tuple[list[str], str]]]:
    """The text of a paragraph before its first `name: meaning.` sentence, and these sentences."""
    if paragraph.startswith(" "):
        return paragraph, []
    text, *parts = ITEM.split(paragraph)
    items = [(names.split(", "), " ".join(meaning.split())) for names, meaning in zip(*[iter(parts)] * 2, strict=True)]
    return text.strip(), items


def one_line(docstring: str | None) -> str:
    """A docstring on one line."""
    return " ".join(re.sub(r"^- ", "", prose(docstring or ""), flags=re.MULTILINE).split())


def parameter_table(schema: ParameterSchema) -> str:
    """The parameters of a schema as a Markdown table; "None." if there are none."""
    if not schema.parameters:
        return "None.\n"
    lines = ["| name | value | default | |", "|---|---|---|---|"]
    for name, accepted, default, doc in entries(schema):
        value = re.sub(r"(?<=that matches )(.*)", r"`\1`", accepted)
        cells = (f"`{name}`", value, f"`{default}`" if default else "", doc)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
