"""Puts the code of a variant in the place of the original, in a process that has imported the original."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tools.mutants.variant import Variant

__all__ = ["Swapper"]


class Swapper:
    """Knows every function of the judged modules.

    A function is the same object for all who imported it, so a change reaches them all. What is computed at the import
    stays as it was.
    """

    def __init__(self, root: Path, modules: frozenset[str]) -> None:
        """modules: files below root. They have to be imported by now."""
        self._root = root
        files = {str(root / path): path for path in modules}
        self._functions: dict[str, list[FunctionType]] = {path: [] for path in modules}
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename in files:
                self._functions[files[found.__code__.co_filename]].append(found)

    def swap(self, variant: Variant) -> bool:
        """Give every function that differs the code of the variant; whether there was one."""
        file = self._root / variant.path
        original = _functions(compile(file.read_text("utf-8"), str(file), "exec", dont_inherit=True))
        changed = _functions(compile(variant.source, str(file), "exec", dont_inherit=True))
        codes = {_key(old): new for old, new in zip(original, changed, strict=True) if old != new}
        swapped = False
        for function in self._functions[variant.path]:
            new = codes.get(_key(function.__code__))
            if new is not None and function.__code__.co_freevars == new.co_freevars:
                function.__code__ = new
                swapped = True
        return swapped


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Functions and methods; not what is within them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if _is_class(each):
                yield from _functions(each)
            elif "<locals>" not in each.co_qualname:
                yield each


def _is_class(code: CodeType) -> bool:
    return "__qualname__" in code.co_names and "__module__" in code.co_names
