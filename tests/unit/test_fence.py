"""The term of leadership under which a call is made, as backends read and compare it."""

import pytest

from volplane.requests import Fence

FIRST = Fence(3, "volplane-a", "lease-1")


def test_a_fence_is_read_back_as_it_was_written() -> None:
    assert str(FIRST) == "3/volplane-a/lease-1"
    assert Fence.parse(str(FIRST)) == FIRST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3/volplane-a",
        "3/volplane-a/lease-1/more",
        "x/volplane-a/lease-1",
        "-1/volplane-a/lease-1",
        "\u0663/volplane-a/lease-1",
        "2147483648/volplane-a/lease-1",
        "9" * 5000 + "/volplane-a/lease-1",
    ],
    ids=lambda text: text[:40],
)
def test_anything_else_is_no_fence(text: str) -> None:
    assert Fence.parse(text) is None


@pytest.mark.parametrize(
    ("other", "outdated"),
    [
        (Fence(2, "volplane-b", "lease-1"), True),
        (Fence(3, "volplane-b", "lease-1"), False),
        (Fence(4, "volplane-b", "lease-1"), False),
        (Fence(2, "volplane-b", "lease-2"), False),
        (Fence(2**31 - 1, "volplane-b", "lease-1"), True),
        (Fence(2**30, "volplane-b", "lease-1"), False),
    ],
    ids=["an earlier term", "the same term", "a later term", "of another Lease", "before they began anew", "damaged"],
)
def test_only_an_earlier_term_of_the_same_lease_is_outdated(other: Fence, *, outdated: bool) -> None:
    assert FIRST.outdates(other) == outdated


def test_a_term_that_no_lease_can_have_reached_is_damaged_and_locks_nobody_out() -> None:
    assert Fence(1_000, "volplane-b", "lease-1").outdates(FIRST)
    for transitions in (2**31 - 1, 2**30, 2**40):
        assert not Fence(transitions, "volplane-b", "lease-1").outdates(FIRST)
