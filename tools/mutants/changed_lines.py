"""The lines of a change: what `git diff` shows against a base, uncommitted lines included."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

__all__ = ["changed_lines"]

_FILE = re.compile(r"^\+\+\+ b/(.*)$")
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def changed_lines(root: Path, base: str) -> dict[str, set[int]]:
    """By file, below `root`: lines that are new or different since the common ancestor with `base`.

    Raises ValueError if git knows no such base.
    """
    ancestor = _git(root, "merge-base", base, "HEAD").strip()
    found: dict[str, set[int]] = {}
    lines: set[int] = set()
    for line in _git(root, "diff", "--unified=0", "--no-color", "--no-ext-diff", ancestor, "--").splitlines():
        if named := _FILE.match(line):
            lines = found.setdefault(named[1], set())
        elif hunk := _HUNK.match(line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.update(range(first, first + count))
    return {path: numbers for path, numbers in found.items() if numbers}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"git {arguments[0]} {arguments[-1]}: {done.stderr.strip()}")
    return done.stdout
