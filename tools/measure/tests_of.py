"""Which tests an earlier commit had that are not here any more."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["missing_tests", "names_in", "replaced"]

REPLACED: Final = Path("docs/design/tests-replaced.md")
"""Page whose tables name tests that are gone: `| old name | what replaces it |`."""


def names_in(text: str) -> set[str]:
    """Return the names of the tests of a module; those of classes with the class."""
    tree = ast.parse(text)
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    classes = [(f"{node.name}.", node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        f"{prefix}{node.name}"
        for prefix, body in [("", tree.body), *classes]
        for node in body
        if isinstance(node, functions) and node.name.startswith("test_")
    }


def replaced(root: Path) -> set[str]:
    """Return the names of tests that the page says are replaced."""
    page = root / REPLACED
    return set(re.findall(r"^\| `([\w.]+)` \|", page.read_text("utf-8"), re.MULTILINE)) if page.is_file() else set()


def missing_tests(root: Path, commit: str) -> list[str]:
    """Return `file: name` of every test of a commit that no file has now, and that is not replaced.

    A test that has moved to another file is there. Raises SystemExit if the checkout has no such commit.
    """
    here = {name for path in _test_files(root) for name in names_in(path.read_text("utf-8"))} | replaced(root)
    return [
        f"{path}: {name}"
        for path, text in _files_of(root, commit)
        for name in sorted(names_in(text))
        if name not in here
    ]


def _test_files(root: Path) -> Iterator[Path]:
    for place in ("tests", "plugins", "examples"):
        yield from sorted((root / place).rglob("test_*.py"))


def _files_of(root: Path, commit: str) -> Iterator[tuple[str, str]]:
    listed = _git(root, "ls-tree", "-r", "--name-only", commit, "tests", "plugins", "examples").splitlines()
    for path in listed:
        if re.search(r"(^|/)test_\w+\.py$", path):
            yield path, _git(root, "show", f"{commit}:{path}")


def _git(root: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)}: {ran.stderr.strip()}")
    return ran.stdout
