"""The term of leadership under which a call is made, as backends read and compare it."""

import pytest

from volplane.requests import Fence

FIRST = Fence(3, "volplane-a", "lease-1")


def test_a_fence_is_read_back_as_it_was_written() -> None:
    assert str(FIRST) == "3/volplane-a/lease-1"
    assert Fence.parse(str(FIRST)) == FIRST


@pytest.mark.parametrize("text", ["", "3", "3/volplane-a", "3/volplane-a/lease-1/more", "x/volplane-a/lease-1"])
def test_anything_else_is_no_fence(text: str) -> None:
    assert Fence.parse(text) is None


@pytest.mark.parametrize(
    ("other", "outdated"),
    [
        (Fence(2, "volplane-b", "lease-1"), True),
        (Fence(3, "volplane-b", "lease-1"), False),
        (Fence(4, "volplane-b", "lease-1"), False),
        (Fence(2, "volplane-b", "lease-2"), False),
    ],
    ids=["an earlier term", "the same term", "a later term", "of another Lease"],
)
def test_only_an_earlier_term_of_the_same_lease_is_outdated(other: Fence, *, outdated: bool) -> None:
    assert FIRST.outdates(other) == outdated
