"""Puts the code of a variant in the place of the original, in a process that has imported the original."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tools.mutants.variant import Variant

__all__ = ["Swapper"]


class Swapper:
    """Knows every function of the judged modules.

    A function is the same object for all who imported it, so a change reaches them all. Tables and numbers of a module
    are changed in all modules that have them under the same name.
    """

    def __init__(self, root: Path, modules: frozenset[str]) -> None:
        """modules: files below root. They have to be imported by now."""
        self._root = root
        self._original = {
            path: list(
                _functions(compile((root / path).read_text("utf-8"), str(root / path), "exec", dont_inherit=True))
            )
            for path in modules
        }
        files = {str(root / path): path for path in modules}
        gc.unfreeze()  # The tests freeze what is imported, and frozen objects are not listed.
        self._functions: dict[str, list[FunctionType]] = {path: [] for path in modules}
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename in files:
                self._functions[files[found.__code__.co_filename]].append(found)
        gc.freeze()

    def recompute(self, variant: Variant) -> bool:
        """Change the values that the module computes at its import; whether one differs.

        Classes stay as they were, and so do default values of arguments.
        """
        file = str(self._root / variant.path)
        module = next((each for each in sys.modules.values() if getattr(each, "__file__", None) == file), None)
        if module is None:
            return False
        original = self._run(Path(file).read_text("utf-8"), module)
        made = self._run(variant.source, module)
        changed = False
        for name, old in list(vars(module).items()):
            new = made.get(name)
            if not _is_value(name, old) or type(old) is not type(new) or old == new:
                continue
            if original.get(name) != old:
                continue  # It differs each time, as a reading of a clock does.
            changed = True
            for each in list(sys.modules.values()):
                if vars(each).get(name) is old:
                    setattr(each, name, new)
        return changed

    def _run(self, source: str, module: ModuleType) -> dict[str, object]:
        """What the module would have if this were its source."""
        made: dict[str, object] = {
            "__name__": module.__name__,
            "__package__": module.__package__,
            "__file__": module.__file__,
        }
        exec(compile(source, str(module.__file__), "exec", dont_inherit=True), made)
        return made

    def swap(self, variant: Variant) -> bool:
        """Give every function that differs the code of the variant; whether there was one."""
        file = str(self._root / variant.path)
        changed = _functions(compile(variant.source, file, "exec", dont_inherit=True))
        codes = {_key(old): new for old, new in zip(self._original[variant.path], changed, strict=True) if old != new}
        swapped = False
        for function in self._functions[variant.path]:
            new = codes.get(_key(function.__code__))
            if new is not None and function.__code__.co_freevars == new.co_freevars:
                function.__code__ = new
                swapped = True
        return swapped


def _is_value(name: str, value: object) -> bool:
    return not name.startswith("__") and isinstance(
        value, int | float | str | bytes | tuple | list | dict | set | frozenset
    )


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
