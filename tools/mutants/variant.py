"""A variant of a module: its source with one small change."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Name", "Variant"]

Name = tuple[str, str, str, str]
"""What a variant is called in lists, whatever the numbers of its lines: path, function, what was and what is."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One changed module. path: below the root of the repository. line, last: of what was changed."""

    path: str
    function: str
    """Where, such as `DeleteOperation._delete`; "" outside of functions and classes."""
    at_import: bool
    """Whether what was changed runs at the import: it is in no body of a function."""
    line: int
    last: int
    was: str
    now: str
    source: str

    @property
    def name(self) -> Name:
        return self.path, self.function, self.was, self.now

    def __str__(self) -> str:
        before = "".join(f"    - {line}\n" for line in self.was.splitlines())
        after = "".join(f"    + {line}\n" for line in self.now.splitlines())
        return f"{self.path}:{self.line} in {self.function or 'the module'}\n{before}{after}"
