"""Runs tests in a process that imports a variant instead of the original: for what is computed at the import.

`python -m tools.mutants.fresh ORIGINAL VARIANT TEST...`; without tests it runs the simulation. Exit code 0: nobody
noticed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

import pytest

__all__ = ["main"]


class _Finder(MetaPathFinder):
    """Finds the module whose file is the original, and gives it the variant's source."""

    def __init__(self, original: Path, variant: Path) -> None:
        self._original = original
        self._variant = variant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.rpartition(".")[2] != self._original.stem:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin != str(self._original):
            return None
        return importlib.util.spec_from_loader(fullname, _Loader(spec.origin, self._variant))


class _Loader(SourceLoader):
    def __init__(self, origin: str, variant: Path) -> None:
        self._origin = origin
        self._variant = variant

    def get_filename(self, fullname: str) -> str:
        return self._origin

    def get_data(self, path: str | bytes) -> bytes:
        if os.fsdecode(path) != self._origin:
            raise OSError("the bytecode is not kept")
        return self._variant.read_bytes()


def main(arguments: list[str]) -> int:
    original, variant, *tests = arguments
    sys.meta_path.insert(0, _Finder(Path(original), Path(variant)))
    if tests:
        return int(pytest.main(["-x", "-q", "-p", "no:randomly", *tests]))
    from tools.mutants.simulating import broken_seed  # noqa: PLC0415 - it imports the variant

    return int(bool(broken_seed(original)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
