"""Filters and pagination of Describe calls."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from volplane_aws_ebs.testing.behaviour import Behaviour
from volplane_aws_ebs.testing.faults import EC2Error, invalid
from volplane_testing.cloud import page_of

_MAX_VALUES = 200
_MIN_RESULTS = 5


class Numbered(Protocol):
    """An item that can be listed in pages."""

    @property
    def number(self) -> int: ...


T = TypeVar("T")
N = TypeVar("N", bound=Numbered)

Read = Callable[[T], Iterable[str]]
"""The values of a field that a filter is compared with."""


def filters_from(params: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Return filter name -> values. Raises EC2Error for more than 200 values in a filter."""
    filters: dict[str, Sequence[str]] = {}
    for each in params.get("Filters", ()):
        values = each.get("Values", ())
        if len(values) > _MAX_VALUES:
            limit = f"The maximum number of filter values specified on a single call is {_MAX_VALUES}"
            raise EC2Error("FilterLimitExceeded", limit)
        filters[each["Name"]] = values
    return filters


def matching(
    items: Iterable[T],
    filters: Mapping[str, Sequence[str]],
    fields: Mapping[str, Read[T]],
    tags: Callable[[T], Mapping[str, str]],
) -> list[T]:
    """Return the items that match all filters. Raises InvalidParameterValue for an unknown filter."""
    tests = [_test(name, values, fields, tags) for name, values in filters.items()]
    return [item for item in items if all(test(item) for test in tests)]


def _test(
    name: str, values: Sequence[str], fields: Mapping[str, Read[T]], tags: Callable[[T], Mapping[str, str]]
) -> Callable[[T], bool]:
    matches = _matcher(values)
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda item: key in (carried := tags(item)) and matches(carried[key])
    if name == "tag-key":
        return lambda item: any(map(matches, tags(item)))
    if name == "tag-value":
        return lambda item: any(map(matches, tags(item).values()))
    read = fields.get(name)
    if read is None:
        raise EC2Error("InvalidParameterValue", f"The filter '{name}' is invalid")
    return lambda item: any(map(matches, read(item)))


def _matcher(values: Sequence[str]) -> Callable[[str], bool]:
    """Return what compares exactly; * and ? in the values are wildcards."""
    plain = {value for value in values if not re.search(r"[*?]", value)}
    patterns = [re.compile(fnmatch.translate(value.replace("[", "[[]"))) for value in values if value not in plain]
    return lambda text: text in plain or any(pattern.match(text) for pattern in patterns)


def page_from(
    items: list[N], params: Mapping[str, Any], *, behaviour: Behaviour, ids: str | None = None
) -> tuple[list[N], str | None]:
    """Return one page in order of creation, and the token of the next; an item that exists during the whole listing is
    in it.

    ids: name of the parameter that lists ids, with which MaxResults may not be combined.
    """
    wanted = params.get("MaxResults")
    if wanted is not None and ids is not None and params.get(ids):
        message = f"The parameter {ids} cannot be used with the parameter maxResults"
        raise EC2Error("InvalidParameterCombination", message)
    if wanted is not None and wanted < _MIN_RESULTS:
        raise invalid("maxResults", wanted, f"Expecting a value greater than {_MIN_RESULTS}.")
    unasked = behaviour.max_results if behaviour.unasked_pages and not (ids is not None and params.get(ids)) else None
    size = min(wanted, behaviour.max_results) if wanted is not None else unasked
    try:
        return page_of(items, lambda item: item.number, size=size, token=params.get("NextToken"))
    except ValueError:
        message = "The specified pagination token is not valid or is expired."
        raise EC2Error("InvalidPaginationToken", message) from None
