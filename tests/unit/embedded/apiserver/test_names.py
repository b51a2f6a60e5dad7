from __future__ import annotations

from collections.abc import Callable

import pytest

from volplane_embedded.apiserver import names


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (
            names.subdomain,
            ["a", "a.b", "a-b.c0", "0", "a" * 253],
            ["", "A", "a_b", "-a", "a.", "a..b", "a" * 254, "a\n"],
        ),
        (names.dns_label, ["a", "a-b", "0", "a" * 63], ["", "a.b", "A", "-a", "a-", "a" * 64]),
        (
            names.qualified_name,
            ["a", "A", "a_b.c", "a/b", "volplane.dev/Node", "a" * 63],
            ["", "/a", "a/", "a/b/c", "A.b_/c", "-", "a b", "a" * 64, "a/" + "b" * 64],
        ),
        (names.label_value, ["", "a", "A_b.c-0", "x" * 63], ["-a", "a ", "a/b", "x" * 64]),
        (names.config_key, ["a", "A.b-c_d", ".a"], ["", "a/b", ".", "..", "..a", "x" * 254, "a b"]),
    ],
)
def test_names_follow_the_rules_of_the_server(rule: Callable[[str], str], right: list[str], wrong: list[str]) -> None:
    assert [name for name in right if rule(name)] == []
    assert [name for name in wrong if not rule(name)] == []
