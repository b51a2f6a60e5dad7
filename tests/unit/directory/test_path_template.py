"""Paths are safe and unique whatever tenants call their things."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane import ClaimIdentity, InvalidArgument
from volplane.directory.parameters import DEFAULT_TEMPLATE, PathTemplate

UID = "0f0e0d0c-1111-4222-8333-444455556666"
values = st.one_of(
    st.text(max_size=300),
    st.sampled_from(
        [".", "..", "../..", "/", "/etc", "", "-rf", ".volplane", "a/b", "\0", "x" * 300, UID, f"pvc-{UID}"]
    ),
)
uids = st.one_of(st.uuids().map(str), values)
pieces = st.sampled_from(
    [
        "${namespace}",
        "${claim}",
        "${volume}",
        "${uid}",
        "a",
        "B9",
        "a.b",
        "_",
        "x-",
        "y" * 60,
        "${claim}${claim}",
        "${label:team}",
        "${annotation:app.kubernetes.io/name}",
    ]
)
components = st.lists(pieces, min_size=1, max_size=4).map("".join)
templates = st.lists(components, min_size=1, max_size=4).map("/".join)


keys = st.sampled_from(["team", "app.kubernetes.io/name"])
labels = st.dictionaries(keys, values)


def rendered(template: str, claim: ClaimIdentity, volume: str) -> str:
    return PathTemplate.parse(template).render(claim, volume)


claims = st.builds(ClaimIdentity, namespace=values, name=values, uid=uids, labels=labels, annotations=labels)


@given(template=templates, claim=claims, volume=values)
def test_no_path_climbs_hides_or_is_too_long(template: str, claim: ClaimIdentity, volume: str) -> None:
    parts = rendered(template, claim, volume).split("/")
    assert len(parts) == len(template.replace("app.kubernetes.io/name", "").split("/"))
    for part in parts:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}", part)
        assert part not in {".", "..", ".volplane"}


@given(template=templates, one=claims, two=claims)
def test_two_claims_never_share_a_path(template: str, one: ClaimIdentity, two: ClaimIdentity) -> None:
    paths = [rendered(template, claim, f"pvc-{claim.uid}") for claim in (one, two)]
    if one.uid != two.uid:
        assert paths[0].split("/")[-1] != paths[1].split("/")[-1]


@given(template=templates, claim=claims, one=values, two=values)
def test_two_volumes_of_one_claim_never_share_a_path(template: str, claim: ClaimIdentity, one: str, two: str) -> None:
    if one != two:
        assert rendered(template, claim, one) != rendered(template, claim, two)


@given(template=templates, claim=claims)
def test_a_path_is_always_the_same(template: str, claim: ClaimIdentity) -> None:
    assert rendered(template, claim, "v") == rendered(template, claim, "v")


def test_ordinary_names_stay_as_they_are() -> None:
    def path(template: str) -> str:
        return rendered(template, ClaimIdentity(namespace="shop", name="db.data", uid=UID), f"pvc-{UID}")

    assert path(DEFAULT_TEMPLATE) == f"shop/db.data-{UID}"
    assert path("${volume}") == f"pvc-{UID}"
    assert path("${namespace}") == f"shop-{UID}"
    assert path("${uid}/${claim}") == f"{UID}/db.data-{UID}"
    assert path("tenants/${namespace}_x/${claim}.${uid}") == f"tenants/shop_x/db.data.{UID}"


def test_labels_and_annotations_of_the_claim_can_be_part_of_a_path() -> None:
    claim = ClaimIdentity(
        namespace="shop", name="db", uid=UID, labels={"team": "blue"}, annotations={"example.com/tier": "../gold"}
    )
    template = PathTemplate.parse("${label:team}/${annotation:example.com/tier}/${label:absent}/${uid}")
    team, tier, absent, last = template.render(claim, f"pvc-{UID}").split("/")
    assert (team, absent, last) == ("blue", "none", UID)
    assert re.fullmatch(r"_\.\._gold-[0-9a-f]{12}", tier)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "empty"),
        ("/a", "empty"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("..", "start with '.'"),
        ("../${uid}", "start with '.'"),
        (".hidden/${uid}", "start with '.'"),
        ("-rf", "start with '-'"),
        ("${name}", r"no placeholder \$\{name\}"),
        ("${clam}", r"did you mean \$\{claim\}"),
        ("${}", "no placeholder"),
        ("${uid", "not allowed"),
        ("a b", "not allowed"),
        ("a\\b", "not allowed"),
        ("é", "not allowed"),
        ("/".join("abcdefghi"), "at most 8"),
    ],
)
def test_a_template_that_cannot_be_is_refused_with_the_reason(template: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PathTemplate.parse(template)


def test_an_exact_path_has_nothing_appended_and_is_as_safe() -> None:
    template = PathTemplate.parse("${namespace}/${annotation:path}", exact=True)
    claim = ClaimIdentity(namespace="team", name="data", uid="u1", annotations={"path": "../other"})
    assert template.render(replace(claim, annotations={"path": "v1.2"}), "pvc-u1") == "team/v1.2"
    namespace, _, name = template.render(claim, "pvc-u1").partition("/")
    assert namespace == "team"
    assert name.startswith("_.._other-")
