"""The validation rules of custom kinds (`x-kubernetes-validations`): the part of CEL that definitions of storage use.

Logic, comparisons, `has`, `size`, fields of `self` and `oldSelf`, numbers and texts. A rule with anything else is
refused where its definition is created, not where it would have decided.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_TOKEN: Final = re.compile(r"\s*(\|\||&&|==|!=|<=|>=|[!<>().]|\d+|'[^'\\]*'|\"[^\"\\]*\"|[A-Za-z_]\w*)")
_ESCAPED: Final = re.compile(r"__(namespace|true|false|null|in|as|import|package|if|else|for|while)__")
"""Names of fields that are words of CEL."""
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_Value = Callable[[Mapping[str, Any]], Any]
"""Takes `self` and `oldSelf`. Raises KeyError for a field that is not there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A compiled rule."""

    holds: _Value
    compares: bool
    """Whether it compares with the former value. Then it says nothing of a new one."""


@functools.lru_cache(maxsize=1024)
def compiled(text: str) -> Rule:
    """Compile a rule. Raises ValueError for what is not served here."""
    parser = _Parser(text)
    holds = parser.either()
    parser.expect("")
    return Rule(holds, "oldSelf" in parser.tokens)


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                raise ValueError(f"{text[position:].strip()!r} is not served here")
            self.tokens.append(found[1])
            position = found.end()
        self._next = 0

    def either(self) -> _Value:
        parts = [self._both()]
        while self._takes("||"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else functools.partial(_first, parts, True)

    def expect(self, token: str) -> None:
        if not self._takes(token):
            raise ValueError(f"{self._peek()!r} is not served here" if self._peek() else "it breaks off")

    def _both(self) -> _Value:
        parts = [self._compared()]
        while self._takes("&&"):
            parts.append(self._compared())
        return parts[0] if len(parts) == 1 else functools.partial(_first, parts, False)

    def _compared(self) -> _Value:
        left = self._plain()
        compare = _COMPARISONS.get(self._peek())
        if compare is None:
            return left
        self._next += 1
        right = self._plain()
        return lambda known: compare(left(known), right(known))

    def _plain(self) -> _Value:
        if self._takes("!"):
            inner = self._plain()
            return lambda known: not inner(known)
        if self._takes("("):
            inner = self.either()
            self.expect(")")
            return inner
        word = self._peek()
        self._next += 1
        if word in ("has", "size") and self._takes("("):
            return self._has() if word == "has" else self._size()
        if word.isdigit():
            number = int(word)
            return lambda _: number
        if word[:1] in ("'", '"'):
            return lambda _: word[1:-1]
        if word not in ("self", "oldSelf"):
            raise ValueError(f"{word!r} is not served here" if word else "it breaks off")
        value: _Value = operator.itemgetter(word)
        while self._takes("."):
            value = functools.partial(_field, value, self._name())
        return value

    def _has(self) -> _Value:
        value = self._plain()
        self.expect(")")
        if not isinstance(value, functools.partial) or value.func is not _field:
            raise ValueError("`has` asks for a field")
        owner, name = value.args
        return lambda known: name in owner(known)

    def _size(self) -> _Value:
        value = self.either()
        self.expect(")")
        return lambda known: len(value(known))

    def _name(self) -> str:
        token = self._peek()
        self._next += 1
        if not token.isidentifier():
            raise ValueError("a name of a field is missing")
        return _ESCAPED.sub(r"\1", token)

    def _peek(self) -> str:
        return self.tokens[self._next] if self._next < len(self.tokens) else ""

    def _takes(self, token: str) -> bool:
        if self._peek() != token:
            return False
        self._next += 1
        return True


def _field(owner: _Value, name: str, known: Mapping[str, Any]) -> Any:
    return owner(known)[name]


def _first(parts: list[_Value], decisive: bool, known: Mapping[str, Any]) -> bool:
    """Return `decisive` if any part is that, even beside one that fails, as `||` (True) and `&&` (False) do."""
    failed: KeyError | None = None
    for part in parts:
        try:
            if bool(part(known)) is decisive:
                return decisive
        except KeyError as missing:
            failed = failed or missing
    if failed is not None:
        raise failed
    return not decisive
