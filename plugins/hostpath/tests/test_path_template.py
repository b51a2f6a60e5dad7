"""Paths are safe and unique whatever tenants call their things."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volplane import Done, InvalidArgument
from volplane_hostpath.path_template import DEFAULT_TEMPLATE, PathTemplate

UID = "0f0e0d0c-1111-4222-8333-444455556666"
values = st.one_of(
    st.text(max_size=300),
    st.sampled_from(
        [".", "..", "../..", "/", "/etc", "", "-rf", ".volplane", "a/b", "\0", "x" * 300, UID, f"pvc-{UID}"]
    ),
)
uids = st.one_of(st.uuids().map(str), values)
pieces = st.sampled_from(
    ["${namespace}", "${claim}", "${volume}", "${uid}", "a", "B9", "a.b", "_", "x-", "y" * 60, "${claim}${claim}"]
)
components = st.lists(pieces, min_size=1, max_size=4).map("".join)
templates = st.lists(components, min_size=1, max_size=4).map("/".join)


@given(template=templates, namespace=values, claim=values, volume=values, uid=uids)
def test_no_path_climbs_hides_or_is_too_long(template: str, namespace: str, claim: str, volume: str, uid: str) -> None:
    path = PathTemplate.parse(template).render(namespace=namespace, claim=claim, volume=volume, uid=uid)
    parts = path.split("/")
    assert len(parts) == template.count("/") + 1
    for part in parts:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}", part)
        assert part not in {".", "..", ".volplane"}


@given(template=templates, one=st.tuples(values, values, uids), two=st.tuples(values, values, uids))
def test_two_claims_never_share_a_path(template: str, one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    parsed = PathTemplate.parse(template)
    paths = [
        parsed.render(namespace=namespace, claim=claim, volume=f"pvc-{uid}", uid=uid)
        for namespace, claim, uid in (one, two)
    ]
    if one[2] != two[2]:
        assert paths[0].split("/")[-1] != paths[1].split("/")[-1]


@given(template=templates, namespace=values, claim=values, uid=uids)
def test_a_path_is_always_the_same(template: str, namespace: str, claim: str, uid: str) -> None:
    paths = {
        PathTemplate.parse(template).render(namespace=namespace, claim=claim, volume="v", uid=uid) for _ in range(2)
    }
    assert len(paths) == 1


def test_ordinary_names_stay_as_they_are() -> None:
    def path(template: str) -> str:
        return PathTemplate.parse(template).render(namespace="shop", claim="db.data", volume=f"pvc-{UID}", uid=UID)

    assert path(DEFAULT_TEMPLATE) == f"shop/db.data-{UID}"
    assert path("${volume}") == f"pvc-{UID}"
    assert path("${namespace}") == f"shop-{UID}"
    assert path("${uid}/${claim}") == f"{UID}/db.data-{UID}"
    assert path("tenants/${namespace}_x/${claim}.${uid}") == f"tenants/shop_x/db.data.{UID}"


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
def test_a_template_that_cannot_be_is_refused_with_the_reason(site: Any, template: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        PathTemplate.parse(template)
    if template:
        with pytest.raises(InvalidArgument, match=message):
            site.validate(pathTemplate=template)


def test_a_good_class_is_valid(site: Any) -> None:
    assert site.validate() == Done()
    assert site.validate(pathTemplate="${namespace}/${uid}", mode=0o700, volumeType="hostPath") == Done()
