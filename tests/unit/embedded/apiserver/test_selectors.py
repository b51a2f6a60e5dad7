from __future__ import annotations

import pytest

from volplane_embedded.apiserver.errors import StatusError
from volplane_embedded.apiserver.kinds import RESOURCES
from volplane_embedded.apiserver.selectors import Selection, parse_fields, parse_labels, select

PODS = next(resource for resource in RESOURCES if resource.plural == "pods")
LABELS = {"tier": "gold", "zone": "b", "size": "5", "empty": "", "app.io/name": "x"}


def matches(selector: str) -> bool:
    return all(requirement.matches(LABELS) for requirement in parse_labels(selector))


@pytest.mark.parametrize(
    "selector",
    [
        "tier=gold",
        "tier==gold",
        "tier = gold , zone=b",
        "tier!=silver",
        "absent!=x",
        "tier in (gold, silver)",
        "tier in (gold)",
        "zone notin (a,c)",
        "absent notin (a)",
        "tier",
        "!absent",
        "! absent",
        "empty=",
        "empty in ()",
        "empty in (,x)",
        "size>4",
        "size<6",
        "app.io/name=x",
        "tier,zone,!absent",
        "",
        " ",
    ],
)
def test_a_label_selector_matches(selector: str) -> None:
    assert matches(selector)


@pytest.mark.parametrize(
    "selector",
    [
        "tier=silver",
        "tier!=gold",
        "absent",
        "!tier",
        "tier in (silver)",
        "zone notin (b)",
        "size>5",
        "tier>1",
        "absent>1",
    ],
)
def test_a_label_selector_does_not_match(selector: str) -> None:
    assert not matches(selector)


@pytest.mark.parametrize(
    "selector",
    [
        "==",
        "a=b,",
        ",a",
        "a b",
        "a in",
        "a in b",
        "a in (b",
        "a=b=c",
        "a>x",
        "-a=b",
        "a=-b-",
        "a/b/c=d",
        "a in (b))",
        "(",
        "!",
    ],
)
def test_a_label_selector_that_makes_no_sense_is_refused(selector: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_labels(selector)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("selector", "terms"),
    [
        ("a=b", [("a", True, "b")]),
        ("a==b,c!=d", [("a", True, "b"), ("c", False, "d")]),
        ("a=", [("a", True, "")]),
        (r"a=b\,c\=d\\e", [("a", True, r"b,c=d\e")]),
    ],
)
def test_field_selectors_are_read(selector: str, terms: list[tuple[str, bool, str]]) -> None:
    assert [(term.path, term.equal, term.value) for term in parse_fields(selector)] == terms


def chosen(labels: str, fields: str) -> Selection:
    found = select(PODS, labels, fields)
    assert found is not None
    return found


def test_fields_of_a_kind_select_and_unknown_ones_are_refused() -> None:
    obj = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    assert chosen("", "spec.nodeName=n1,status.phase!=Failed,metadata.namespace=n").matches(obj)
    assert not chosen("", "spec.nodeName=n2").matches(obj)
    assert not chosen("a", "spec.nodeName=n1").matches(obj)
    with pytest.raises(StatusError, match="is not a known field selector"):
        select(PODS, "", "spec.color=red")


def test_only_an_exact_name_narrows_to_one_object() -> None:
    assert chosen("", "metadata.name=p").name == "p"
    assert chosen("", "metadata.name!=p").name == ""
    assert select(PODS, "", "") is None
