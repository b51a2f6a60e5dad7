"""Who hears of a change: everybody, or those whose label the object has or had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from volplane_embedded.apiserver.selectors import parse_labels, select
from volplane_embedded.apiserver.store import Store
from volplane_embedded.apiserver.subscribers import Route

NODE = "volplane.dev/node"


def put(store: Store, name: str, **labels: str) -> None:
    store.put(
        "things", name, {"metadata": {"name": name, "labels": {f"volplane.dev/{k}": v for k, v in labels.items()}}}
    )


def heard(store: Store, *values: str) -> tuple[list[str], Callable[[], None]]:
    """Names of the objects whose changes are told on this route."""
    seen: list[str] = []
    route = Route(NODE, frozenset(values))
    return seen, store.subscribe("things", lambda change: seen.append(change.key), route=route)


def test_a_route_leads_to_objects_that_have_the_label_or_had_it() -> None:
    store = Store()
    of_a, _ = heard(store, "a")
    of_either, _ = heard(store, "a", "b")
    put(store, "x", node="a")
    put(store, "x", node="b")
    put(store, "y", node="c")
    put(store, "z", kind="a")
    store.put("things", "w", {"metadata": {"name": "w"}})
    store.delete("things", "x")
    assert of_a == ["x", "x"], "made, and lost to b"
    assert of_either == ["x", "x", "x"], "each change once"


def test_who_left_hears_nothing_more_and_may_leave_again() -> None:
    store = Store()
    (gone, leave), (stays, _) = heard(store, "a", "b"), heard(store, "a")
    leave()
    leave()
    put(store, "x", node="a")
    put(store, "y", node="b")
    assert (gone, stays) == ([], ["x"])


def test_those_on_quiet_routes_are_told_what_the_log_has_dropped() -> None:
    store = Store(history=10)
    told: list[int] = []
    store.subscribe(
        "things", lambda _: pytest.fail("not its label"), route=Route(NODE, frozenset("a")), trimmed=told.append
    )
    for number in range(600):
        put(store, f"x{number}", node="b")
    assert len(told) == 2
    assert told[-1] > 500


@pytest.mark.parametrize(
    ("labels", "route"),
    [
        ("volplane.dev/node=a", Route(NODE, frozenset("a"))),
        ("app,volplane.dev/node in (a, b)", Route(NODE, frozenset("ab"))),
        ("volplane.dev/node!=a", None),
        ("volplane.dev/node notin (a)", None),
        ("volplane.dev/node", None),
    ],
)
def test_a_selector_has_a_route_if_it_asks_for_values(labels: str, route: Route | None) -> None:
    resource: Any = None  # only field selectors need it
    selection = select(resource, labels, "")
    assert selection is not None
    assert list(selection.labels) == list(parse_labels(labels))
    assert selection.route == route
