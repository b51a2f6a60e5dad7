"""Code that stands in several places: the same lines of two plugins, and runs of one shape anywhere."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Copy", "Place", "shapes", "shared_by_plugins"]

ALIKE: Final = (("aws_ebs", "gce_pd"), ("hostpath", "nfs"))
"""Plugins that do alike: two clouds, and two that keep directories."""
WINDOW: Final = 3
SHAPE: Final = 12
PASSED_OVER: Final = re.compile(r"\s*(#.*|from .*|import .*|[\])},:\"']*|\"\"\".*\"\"\"|[A-Za-z_, ]+,?)?\s*")
"""Lines that count nowhere: blank, comments, imports, punctuation, docstrings of one line, names of an import."""
DECLARED: Final = re.compile(
    r"""
    \(?(\w+=)?\(?(''[ ]?)*[\w.]*[,)\]}]*  # one text, number or name: a row, an argument, part of a message
    | [\w.]+\( | [\w.]+\ =\ [\w.]*[(\[{]      # the beginning of a call or of a table
    | \w+:\ [\w.\[\], |]+                    # a declared type
    | @\w+ | def\ \w+\(self,\ request:.*      # a hook, whose signature the contract sets
    """,
    re.VERBOSE,
)
"""Lines that only declare something, with texts replaced: each backend has its own values, in the words of the kits."""


class Line(NamedTuple):
    """A line that counts. number: in its file, from 1."""

    number: int
    text: str


class Place(NamedTuple):
    """Lines of a file."""

    path: str
    first: int
    last: int

    def overlaps(self, other: Place) -> bool:
        """Return whether the two have a line in common."""
        return self.path == other.path and self.first <= other.last and other.first <= self.last

    def within(self, other: Place) -> bool:
        """Return whether the other has all of these lines."""
        return self.path == other.path and other.first <= self.first and self.last <= other.last


class Copy(NamedTuple):
    """Two places of one shape."""

    one: Place
    other: Place

    def within(self, pair: Copy) -> bool:
        """Return whether the other pair says all of this."""
        return self.one.within(pair.one) and self.other.within(pair.other)

    def __str__(self) -> str:
        return " ~ ".join(f"{place.path}:{place.first}-{place.last}" for place in self)


def _lines(path: Path) -> list[Line]:
    numbered = enumerate(path.read_text("utf-8").splitlines(), 1)
    return [Line(number, " ".join(text.split())) for number, text in numbered if not PASSED_OVER.fullmatch(text)]


def _without_values(lines: list[Line]) -> list[Line]:
    """Replace texts and numbers, which differ from backend to backend."""
    return [Line(number, re.sub(r"\b\d[\w.]*", "0", _TEXTS.sub("''", text))) for number, text in lines]


_TEXTS: Final = re.compile(r"[a-z]?\"[^\"]*\"|[a-z]?'[^']*'")


def shared_by_plugins(root: Path, *, declared: bool = False) -> dict[str, int]:
    """Return, for each pair of ALIKE, how many lines of the first plugin stand in the second too.

    A line counts in a run of three or more that are the same but for texts and numbers. declared: lines
    that only declare something count too.
    """
    found = {}
    for first, second in ALIKE:
        files = {name: _files(root / "plugins" / name / "src", declared) for name in (first, second)}
        windows = {
            tuple(line.text for line in lines[start : start + WINDOW])
            for lines in files[second].values()
            for start in range(len(lines) - WINDOW + 1)
        }
        shared: set[tuple[Path, int]] = set()
        for path, lines in files[first].items():
            for start in range(len(lines) - WINDOW + 1):
                run = lines[start : start + WINDOW]
                if tuple(line.text for line in run) in windows:
                    shared |= {(path, line.number) for line in run}
        found[f"{first} in {second}"] = len(shared)
    return found


def _files(directory: Path, declared: bool) -> dict[Path, list[Line]]:
    files = {path: _without_values(_lines(path)) for path in sorted(directory.rglob("*.py"))}
    return {
        path: [line for line in lines if declared or not DECLARED.fullmatch(line.text)] for path, lines in files.items()
    }


def shapes(root: Path, places: Iterable[str]) -> list[Copy]:
    """Return pairs of places below these directories that share twelve lines of one shape.

    A shape is the syntax of statements without names and values; imports and docstrings are left out.
    """
    where: dict[str, list[Place]] = defaultdict(list)
    for place in places:
        for path in sorted((root / place).rglob("*.py")):
            for run in _runs(ast.parse(path.read_text("utf-8"))):
                where[" ".join(_skeleton(node) for node in run)].append(
                    Place(str(path.relative_to(root)), run[0].lineno, run[-1].end_lineno or 0)
                )
    pairs = {
        Copy(first, second)
        for same in where.values()
        for number, first in enumerate(same)
        for second in same[number + 1 :]
        if not first.overlaps(second)
    }
    return sorted(pair for pair in pairs if not any(pair.within(other) for other in pairs if other != pair))


def _runs(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the shortest runs of statements that have twelve lines; of modules and classes only functions count."""
    for node in ast.walk(tree):
        outside = isinstance(node, ast.Module | ast.ClassDef)
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            statements = [each for each in body if not _passed_over(each)] if isinstance(body, list) else []
            if outside:
                statements = [each for each in statements if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            for first in range(len(statements)):
                run: list[ast.stmt] = []
                for statement in statements[first:]:
                    run.append(statement)
                    if sum(_height(each) for each in run) >= SHAPE:
                        yield run
                        break


def _height(node: ast.stmt) -> int:
    """Return how many lines a statement has, without docstrings and imports in it."""
    passed = [each for each in ast.walk(node) if isinstance(each, ast.stmt) and _passed_over(each)]
    return _lines_of(node) - sum(map(_lines_of, passed))


def _lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def _passed_over(node: ast.stmt) -> bool:
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return text or isinstance(node, ast.Import | ast.ImportFrom)


def _skeleton(node: ast.AST) -> str:
    """Return the syntax below a node as a text; names, attributes and values are all the same."""
    if isinstance(node, ast.Name | ast.Constant | ast.JoinedStr):
        return "_"
    if isinstance(node, ast.Attribute):
        return _skeleton(node.value)
    children = [each for each in ast.iter_child_nodes(node) if not (isinstance(each, ast.stmt) and _passed_over(each))]
    shown = [_skeleton(each) for each in children if not isinstance(each, ast.expr_context)]
    return f"{type(node).__name__}({','.join(shown)})"
