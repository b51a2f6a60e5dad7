"""Puts the code of a variant in the place of the original, in a process that has imported the original."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tools.mutants.variants import Variant

__all__ = ["swap"]


def swap(root: Path, variant: Variant) -> bool:
    """Give every function that differs the code of the variant; whether one was found.

    A function is the same object for all who imported it, so this reaches them all. What is computed at the import
    stays as it was.
    """
    path = str(root / variant.path)
    original = list(_functions(compile((root / variant.path).read_text("utf-8"), path, "exec", dont_inherit=True)))
    changed = list(_functions(compile(variant.source, path, "exec", dont_inherit=True)))
    codes = {_key(old): new for old, new in zip(original, changed, strict=True) if old != new}
    swapped = False
    for found in gc.get_objects():
        if type(found) is FunctionType and found.__code__.co_filename == path:
            new = codes.get(_key(found.__code__))
            if new is not None and found.__code__.co_freevars == new.co_freevars:
                found.__code__ = new
                swapped = True
    return swapped


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Functions and methods; not what is within them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if "<locals>" not in each.co_qualname and not _is_class(each):
                yield each
            elif _is_class(each):
                yield from _functions(each)


def _is_class(code: CodeType) -> bool:
    return "__qualname__" in code.co_names and "__module__" in code.co_names
