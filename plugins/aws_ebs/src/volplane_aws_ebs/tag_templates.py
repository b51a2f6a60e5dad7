"""Values of tags with placeholders, in the notation of the official driver: Go's package text/template.

What is understood is what names need: fields, literals, pipelines, parentheses, `if … else … end`, comments, and the
functions below. The functions beyond those of text/template, and the four that are refused, are the official driver's
(kubernetes-sigs/aws-ebs-csi-driver, docs/tagging.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

FIELDS: Final = ("PVCNamespace", "PVCName", "PVName")
SNAPSHOT_FIELDS: Final = ("VolumeSnapshotNamespace", "VolumeSnapshotName", "VolumeSnapshotContentName")
"""Fields of tags of volumes, and of snapshots."""

Value = str | int | bool
Render = Callable[[Mapping[str, str]], str]
"""From the fields' values to the text."""
_Expression = Callable[[Mapping[str, str]], Value]

_DEEPEST: Final = 20
_ACTION: Final = re.compile(r"""\{\{(-\s)?((?:"(?:[^"\\\n]|\\.)*"|`[^`]*`|[^"`}]|\}(?!\}))*?)(\s-)?\}\}""")
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<mark>[|()])|(?P<quoted>"(?:[^"\\\n]|\\.)*")|`(?P<raw>[^`]*)`|(?P<number>[+-]?\d+)(?![\w.])"""
    r"""|\.(?P<field>[A-Za-z_]\w*)|(?P<word>[A-Za-z_]\w*))""",
    re.ASCII,
)
_VERB: Final = re.compile(r"%(.?)", re.DOTALL)


class TemplateError(ValueError):
    """The text is no template, or cannot be filled in; the message says why."""


def parsed(text: str, fields: Sequence[str] = FIELDS) -> Render:
    """Return the template as a function. fields: that it may use. Raises TemplateError, and so does the function."""
    parts = _parts(text)
    actions = [content for kind, content in parts if kind == "action" and not content.startswith("/*")]
    for match in (each for content in actions for each in _TOKEN.finditer(content)):
        if match["field"] and match["field"] not in fields:
            raise TemplateError(f"there is no .{match['field']}, but .{', .'.join(fields)}")
    render, ended = _sequence(parts, depth=0)
    if ended:
        raise TemplateError(f"{{{{{ended}}}}} has no {{{{if}}}} before it")
    return render


# --- text and actions -------------------------------------------------------------------------------------------


def _parts(text: str) -> list[tuple[str, str]]:
    """Return pairs ("text", literal) and ("action", content), the first one last, to be popped."""
    parts: list[tuple[str, str]] = []
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        literal = text[at : match.start()]
        literal = literal.lstrip() if trim else literal
        parts.append(("text", literal.rstrip() if match[1] else literal))
        parts.append(("action", match[2].strip()))
        at, trim = match.end(), bool(match[3])
    rest = text[at:]
    parts.append(("text", rest.lstrip() if trim else rest))
    if any("{{" in literal for kind, literal in parts if kind == "text"):
        raise TemplateError("an action {{ is not closed by }}, or a quote in it is not closed")
    return parts[::-1]


def _sequence(parts: list[tuple[str, str]], depth: int) -> tuple[Render, str]:
    """Return what comes up to the end, or up to an action that belongs to an `if` outside, and that action or ""."""
    if depth > _DEEPEST:
        raise TemplateError(f"more than {_DEEPEST} levels")
    pieces: list[Render] = []
    while parts:
        kind, content = parts.pop()
        word, _, rest = content.partition(" ")
        if kind == "text":
            pieces.append(_constant(content))
        elif content.startswith("/*") and content.endswith("*/"):
            continue
        elif word in ("end", "else"):
            return _joined(pieces), content
        elif word == "if":
            pieces.append(_condition(rest, parts, depth))
        else:
            pieces.append(_shown(_expression(content)))
    return _joined(pieces), ""


def _condition(test: str, parts: list[tuple[str, str]], depth: int) -> Render:
    holds = _expression(test)
    then, ended = _sequence(parts, depth + 1)
    otherwise: Render = _constant("")
    if ended.startswith("else if "):
        otherwise = _condition(ended.removeprefix("else if "), parts, depth + 1)
    elif ended == "else":
        otherwise, ended = _sequence(parts, depth + 1)
    if not ended.startswith("else if ") and ended != "end":
        raise TemplateError("{{if}} has no {{end}}")
    return lambda fields: then(fields) if holds(fields) else otherwise(fields)


def _constant(text: str) -> Render:
    return lambda _fields: text


def _joined(pieces: Sequence[Render]) -> Render:
    return lambda fields: "".join(piece(fields) for piece in pieces)


def _shown(expression: _Expression) -> Render:
    return lambda fields: _text(expression(fields))


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- expressions ------------------------------------------------------------------------------------------------


def _expression(text: str) -> _Expression:
    tokens: list[tuple[str, str]] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise TemplateError(f"{text[at:].strip()!r} is not understood")
        kind = str(match.lastgroup)
        tokens.append((kind, match[kind]))
        at = match.end()
    tokens.reverse()
    result = _pipeline(tokens, depth=0)
    if tokens:
        raise TemplateError(f"unexpected {tokens[-1][1]!r} in {text!r}")
    return result


def _pipeline(tokens: list[tuple[str, str]], depth: int) -> _Expression:
    if depth > _DEEPEST:
        raise TemplateError(f"more than {_DEEPEST} levels")
    result = _command(tokens, depth, None)
    while tokens and tokens[-1] == ("mark", "|"):
        tokens.pop()
        result = _command(tokens, depth, result)
    return result


def _command(tokens: list[tuple[str, str]], depth: int, before: _Expression | None) -> _Expression:
    """before: what the command before the `|` gives, which is the last argument."""
    function = ""
    if tokens and tokens[-1][0] == "word" and tokens[-1][1] not in ("true", "false"):
        function = tokens.pop()[1]
    arguments: list[_Expression] = []
    while tokens and tokens[-1] not in (("mark", "|"), ("mark", ")")):
        arguments.append(_operand(tokens, depth))
    if before is not None:
        arguments.append(before)
    if function:
        return _call(function, arguments)
    if len(arguments) != 1 or before is not None:
        raise TemplateError("a value is missing" if not arguments else "a value is no function: it takes no arguments")
    return arguments[0]


def _operand(tokens: list[tuple[str, str]], depth: int) -> _Expression:
    kind, text = tokens.pop()
    if kind == "field":
        return lambda fields: fields[text]
    if kind == "mark":
        if text != "(":
            raise TemplateError(f"unexpected {text!r}")
        inner = _pipeline(tokens, depth + 1)
        if not tokens or tokens.pop() != ("mark", ")"):
            raise TemplateError("a parenthesis is not closed")
        return inner
    if kind == "word" and text not in ("true", "false"):
        return _call(text, [])
    value = _literal(kind, text)
    return lambda _fields: value


def _literal(kind: str, text: str) -> Value:
    if kind == "word":
        return text == "true"
    if kind == "number":
        return int(text[:18])
    if kind == "raw":
        return text
    try:
        return str(json.loads(text))
    except ValueError:
        raise TemplateError(f"{text} is no string") from None


# --- functions --------------------------------------------------------------------------------------------------


def _call(name: str, arguments: Sequence[_Expression]) -> _Expression:
    if name in _REFUSED:
        raise TemplateError(f"the function {name} cannot be called")
    known = _FUNCTIONS.get(name)
    if known is None:
        raise TemplateError(f"there is no function {name}, but {', '.join(sorted(_FUNCTIONS))}")
    types, function = known
    if types is not None and len(types) != len(arguments):
        raise TemplateError(f"the function {name} takes {len(types)} arguments, not {len(arguments)}")

    def called(fields: Mapping[str, str]) -> Value:
        values = [argument(fields) for argument in arguments]
        for value, wanted in zip(values, types or (), strict=False):
            if wanted is not object and type(value) is not wanted:
                raise TemplateError(f"the function {name} takes no {type(value).__name__} {_text(value)!r} there")
        return function(*values)

    return called


def _substring(start: int, end: int, text: str) -> str:
    if start < 0:
        start = 0
    elif end < 0 or end > len(text):
        end = len(text)
    if not 0 <= start <= end <= len(text):
        raise TemplateError(f"{text!r} has no characters from {start} to {end}")
    return text[start:end]


def _field(delimiter: str, index: int, text: str) -> str:
    words = text.split(delimiter) if delimiter else list(text)
    if not 0 <= index < len(words):
        raise TemplateError(f"{text!r} has {len(words)} parts between {delimiter!r}, so none of index {index}")
    return words[index]


def _compared(compare: Callable[[int], bool]) -> Callable[..., bool]:
    def result(left: Value, right: Value) -> bool:
        if type(left) is not type(right):
            raise TemplateError(f"{_text(left)!r} and {_text(right)!r} are of different types")
        return compare((left > right) - (left < right))  # type: ignore[operator]

    return result


def _printf(form: Value, *values: Value) -> str:
    left = list(values)

    def one(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[1] not in ("s", "d", "v", "q", "t") or not left:
            raise TemplateError(f"printf: {match[0]!r} is not understood or has no value; there are %s %d %v %q %t")
        text = _text(left.pop(0))
        return json.dumps(text, ensure_ascii=False) if match[1] == "q" else text

    text = _VERB.sub(one, str(form))
    if left:
        raise TemplateError(f"printf: {len(left)} values too many for {form!r}")
    return text


def _first(values: Sequence[Value], *, wanted: bool) -> Value:
    if not values:
        raise TemplateError("and, or: a value is missing")
    return next((value for value in values if bool(value) is wanted), values[-1])


_REFUSED: Final = frozenset({"html", "js", "call", "urlquery"})
_FUNCTIONS: Final[Mapping[str, tuple[tuple[type, ...] | None, Callable[..., Value]]]] = {
    "contains": ((str, str), lambda part, text: part in text),
    "field": ((str, int, str), _field),
    "index": ((str, str), lambda part, text: text.find(part)),
    "lastIndex": ((str, str), lambda part, text: text.rfind(part)),
    "substring": ((int, int, str), _substring),
    "toLower": ((str,), str.lower),
    "toUpper": ((str,), str.upper),
    "and": (None, lambda *values: _first(values, wanted=False)),
    "or": (None, lambda *values: _first(values, wanted=True)),
    "not": ((object,), lambda value: not value),
    "eq": ((object, object), _compared(lambda order: order == 0)),
    "ne": ((object, object), _compared(lambda order: order != 0)),
    "lt": ((object, object), _compared(lambda order: order < 0)),
    "le": ((object, object), _compared(lambda order: order <= 0)),
    "gt": ((object, object), _compared(lambda order: order > 0)),
    "ge": ((object, object), _compared(lambda order: order >= 0)),
    "len": ((str,), len),
    "print": (None, lambda *values: "".join(map(_text, values))),
    "printf": (None, _printf),
}
"""Types of the arguments, None = any number of any; and what is done."""
