"""What is known of variants: verdicts of earlier runs, and those that need not be noticed, with the reason."""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.variant import Name, Variant

__all__ = ["Verdict", "Verdicts", "excused_variants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a variant was noticed, and by what. missed_by: marks of the tests that ran it and passed."""

    noticed: bool
    by: str = ""
    missed_by: frozenset[str] = frozenset()


def excused_variants(file: Path) -> set[Name]:
    """Names of those that need not be noticed. Raises ValueError for an entry without a reason."""
    found: set[Name] = set()
    for path, entries in tomllib.loads(file.read_text("utf-8")).items():
        for entry in entries:
            if not entry["reason"].strip():
                raise ValueError(f"{file}: no reason is given for {entry['was']!r} in {path}")
            found.update((path, entry["function"], entry["was"], now) for now in entry["now"])
    return found


class Verdicts:
    """Variants that were noticed, and tests that missed one, kept until their function changes.

    A test that is removed is not seen: `forget`.
    """

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self._file = directory / "verdicts.json"
        known = json.loads(self._file.read_text("utf-8")) if self._file.exists() else {}
        self._known: dict[str, dict[str, dict[str, str | list[str]]]] = known
        """By module and by function with the digest of its source: what noticed a variant, or who missed it."""
        self._digests: dict[str, dict[str, str]] = {}

    def forget(self, path: str) -> None:
        """Judge the variants of the module anew."""
        self._known.pop(path, None)

    def noticed_by(self, variant: Variant) -> str:
        """What noticed it; "" if it is not known to be noticed."""
        known = self._of_function(variant).get(_name(variant), "")
        return known if isinstance(known, str) else ""

    def missed_by(self, variant: Variant) -> frozenset[str]:
        """Marks of tests that ran it and passed, though nothing else noticed it."""
        known = self._of_function(variant).get(_name(variant), "")
        return frozenset() if isinstance(known, str) else frozenset(known)

    def keep(self, variant: Variant, verdict: Verdict) -> None:
        """Remember it."""
        of_function = self._known.setdefault(variant.path, {}).setdefault(self._key(variant), {})
        missed = sorted(self.missed_by(variant) | verdict.missed_by)
        of_function[_name(variant)] = verdict.by if verdict.noticed else missed

    def telling(self, path: str) -> dict[str, Counter[str]]:
        """By function of the module, whatever its source was: tests that noticed changes of it, and how many."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for function, known in self._known.get(path, {}).items():
            found[function.partition(" ")[0]].update(by for by in known.values() if by and isinstance(by, str))
        return found

    def save(self) -> None:
        """Write all down."""
        self._file.write_text(json.dumps(self._known), "utf-8")

    def _of_function(self, variant: Variant) -> dict[str, str | list[str]]:
        return self._known.get(variant.path, {}).get(self._key(variant), {})

    def _key(self, variant: Variant) -> str:
        digests = self._digests.get(variant.path)
        if digests is None:
            source = (self._root / variant.path).read_text("utf-8")
            digests = {"": _digest(source), **_functions(source, ast.parse(source), "")}
            self._digests[variant.path] = digests
        return f"{variant.function} {digests.get(variant.function, digests[''])}"


def _functions(source: str, node: ast.AST, outer: str) -> dict[str, str]:
    """Digests of classes, functions and methods, by name."""
    found: dict[str, str] = {}
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{outer}.{child.name}".strip(".")
            found[name] = _digest(ast.get_source_segment(source, child) or "")
            found |= _functions(source, child, name)
        else:
            found |= _functions(source, child, outer)
    return found


def _name(variant: Variant) -> str:
    return "\n\n".join(variant.name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
