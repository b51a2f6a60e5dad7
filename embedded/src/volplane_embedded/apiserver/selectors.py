"""Label and field selectors, as `k8s.io/apimachinery/pkg/{labels,fields}` parse and match them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from volplane_embedded.apiserver import names
from volplane_embedded.apiserver.errors import bad_request
from volplane_embedded.apiserver.resources import Json, Resource
from volplane_embedded.apiserver.subscribers import Route

_TOKEN = re.compile(r"\s*(?:(==|!=|=|!|<|>|\(|\)|,)|([^\s=!<>(),]+))")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement on labels; `operator` is one of = != in notin exists !exists < >."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key)
        if self.operator in ("=", "in"):
            return found is not None and found in self.values
        if self.operator in ("!=", "notin"):
            return found is None or found not in self.values
        if self.operator == "exists":
            return found is not None
        if self.operator == "!exists":
            return found is None
        return self._compares(found)

    def _compares(self, found: str | None) -> bool:
        try:
            here, there = int(found or ""), int(next(iter(self.values)))
        except ValueError:
            return False
        return here > there if self.operator == ">" else here < there


class _Tokens:
    """The tokens of a label selector. All errors are StatusError (400)."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, bool]] = []
        position = 0
        end = len(text.rstrip())
        while position < end:
            found = _TOKEN.match(text, position)
            if found is None:
                raise bad_request(f"unable to parse requirement: found '{text[position:]}', expected: identifier")
            self._tokens.append((found[1] or found[2], found[1] is None))
            position = found.end()
        self._next = 0

    def peek(self) -> tuple[str, bool]:
        """Return the token and whether it is a word; ("", False) at the end."""
        return self._tokens[self._next] if self._next < len(self._tokens) else ("", False)

    def take(self) -> tuple[str, bool]:
        token = self.peek()
        self._next += 1
        return token

    def word(self, expected: str) -> str:
        token, is_word = self.take()
        if not is_word:
            raise bad_request(f"unable to parse requirement: found '{token}', expected: {expected}")
        return token

    def sign(self, expected: str) -> None:
        token, _ = self.take()
        if token != expected:
            raise bad_request(f"unable to parse requirement: found '{token}', expected: '{expected}'")


def parse_labels(text: str) -> Sequence[Requirement]:
    """Return the requirements of a label selector; empty selects everything. Raises StatusError (400)."""
    tokens = _Tokens(text)
    requirements: list[Requirement] = []
    while tokens.peek()[0]:
        requirements.append(_checked(_requirement(tokens)))
        found, is_word = tokens.take()
        if found and (is_word or found != ","):
            raise bad_request(f"unable to parse requirement: found '{found}', expected: ',' or 'end of string'")
        if found and not tokens.peek()[0]:
            raise bad_request("found '', expected: identifier after ','")
    return requirements


def _requirement(tokens: _Tokens) -> Requirement:
    if tokens.peek() == ("!", False):
        tokens.take()
        return Requirement(tokens.word("identifier"), "!exists")
    key = tokens.word("!, identifier, or 'end of string'")
    operator, is_word = tokens.peek()
    if not operator or (operator == "," and not is_word):
        return Requirement(key, "exists")
    tokens.take()
    if operator in ("in", "notin"):
        return Requirement(key, operator, _set(tokens))
    if is_word or operator not in ("=", "==", "!=", "<", ">"):
        raise bad_request(f"unable to parse requirement: found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
    value = tokens.take()[0] if tokens.peek()[1] else ""
    return Requirement(key, "=" if operator == "==" else operator, frozenset((value,)))


def _set(tokens: _Tokens) -> frozenset[str]:
    """`(a, b)`; an empty element is the empty value."""
    tokens.sign("(")
    values: list[str] = []
    while True:
        values.append(tokens.take()[0] if tokens.peek()[1] else "")
        if tokens.peek() == (")", False):
            tokens.take()
            return frozenset(values)
        tokens.sign(",")


def _checked(requirement: Requirement) -> Requirement:
    if faults := names.qualified_name(requirement.key):
        why = "; ".join(faults)
        raise bad_request(f'unable to parse requirement: key: Invalid value: "{requirement.key}": {why}')
    if requirement.operator in ("<", ">"):
        value = next(iter(requirement.values))
        if not re.fullmatch(r"[+-]?[0-9]+", value):
            raise bad_request("unable to parse requirement: for 'Gt', 'Lt' operators, the value must be an integer")
        return requirement
    for value in requirement.values:
        if faults := names.label_value(value):
            why = "; ".join(faults)
            raise bad_request(
                f'unable to parse requirement: values[0][{requirement.key}]: Invalid value: "{value}": {why}'
            )
    return requirement


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a field selector."""

    path: str
    equal: bool
    value: str


_FIELD_TERM = re.compile(r"(?:\\.|[^\\,])+")
_FIELD_PARTS = re.compile(r"((?:\\.|[^\\=!])*?)(!=|==|=)((?:\\.|[^\\])*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)")


def parse_fields(text: str) -> Sequence[Term]:
    r"""The terms of a field selector; `\`, `,` and `=` in values are escaped by `\`. Raises StatusError (400)."""
    terms: list[Term] = []
    for piece in _FIELD_TERM.findall(text):
        parts = _FIELD_PARTS.fullmatch(piece)
        if parts is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{piece}'")
        path, operator, value = parts.groups()
        terms.append(Term(path.strip(), operator != "!=", _ESCAPE.sub(r"\1", value)))
    return terms


def _metadata(name: str) -> Callable[[Json], str]:
    return lambda obj: str(obj["metadata"].get(name, ""))


class _Meta(msgspec.Struct, gc=False):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct, gc=False):
    metadata: _Meta


_decode = msgspec.json.Decoder().decode
_decode_labels = msgspec.json.Decoder(_Labelled).decode


@dataclass(frozen=True, slots=True)
class Selection:
    """The selectors of a list, watch or deletecollection. They are applied to the stored form of objects."""

    labels: Sequence[Requirement]
    fields: Sequence[tuple[Callable[[Json], str], Term]]
    name: str
    """The only name that can match, "" if several can."""

    @property
    def route(self) -> Route | None:
        """A label by whose values all that can match is found; None if there is none."""
        for requirement in self.labels:
            if requirement.operator in ("=", "in"):
                return Route(requirement.key, requirement.values)
        return None

    def matches(self, obj: Json) -> bool:
        if self.labels:
            labels = obj["metadata"].get("labels", {})
            if not all(requirement.matches(labels) for requirement in self.labels):
                return False
        return all((read(obj) == term.value) == term.equal for read, term in self.fields)

    def keeps(self, data: bytes) -> bool:
        """Return `matches` for an encoded object. If only labels are selected, only they are decoded."""
        if self.fields:
            return self.matches(_decode(data))
        labels = _decode_labels(data).metadata.labels
        return all(requirement.matches(labels) for requirement in self.labels)


def select(resource: Resource, labels: str, fields: str) -> Selection | None:
    """Parse the selectors; None if they select everything. Raises StatusError (400), also for an unknown field."""
    requirements = parse_labels(labels) if labels else ()
    readers: list[tuple[Callable[[Json], str], Term]] = []
    name = ""
    for term in parse_fields(fields) if fields else ():
        if term.path == "metadata.name":
            name = term.value if term.equal else name
            readers.append((_metadata("name"), term))
        elif term.path == "metadata.namespace" and (resource.namespaced or not resource.custom):
            readers.append((_metadata("namespace"), term))
        elif term.path in resource.fields:
            readers.append((resource.fields[term.path], term))
        else:
            known = ", ".join(f'"{path}"' for path in ("metadata.name", "metadata.namespace", *resource.fields))
            raise bad_request(f'"{term.path}" is not a known field selector: only {known}')
    return Selection(requirements, readers, name) if requirements or readers else None


def label_selector_matches(selector: Json, labels: Mapping[str, str]) -> bool:
    """Tell whether a LabelSelector with requirements matches labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for term in selector.get("matchExpressions") or ():
        found, values = labels.get(term["key"]), term.get("values") or ()
        matches = {
            "In": found in values,
            "NotIn": found not in values,
            "Exists": found is not None,
            "DoesNotExist": found is None,
        }
        if not matches.get(term["operator"], False):
            return False
    return True
