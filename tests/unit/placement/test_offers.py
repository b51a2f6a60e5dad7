"""Which node a claim goes to."""

from __future__ import annotations

from collections import Counter

from volplane.placement.room import Offer, choose


def chosen(strategy: str, offers: list[Offer], claims: int = 1000) -> Counter[str]:
    return Counter(choose(strategy, offers, f"uid-{number}", "") for number in range(claims))


def test_claims_are_spread_by_free_space() -> None:
    offers = [Offer("a", 0, 100 << 30), Offer("b", 50, 300 << 30)]
    counted = chosen("spread", offers)
    assert 200 < counted["a"] < 300
    assert counted["b"] == 1000 - counted["a"]


def test_the_node_with_most_room_takes_them_all() -> None:
    assert chosen("most-room", [Offer("a", 0, 100), Offer("b", 9, 101), Offer("c", 0, 100)]) == {"b": 1000}


def test_without_published_space_the_node_with_fewest_volumes_is_taken() -> None:
    offers = [Offer("a", 3, None), Offer("b", 2, None), Offer("c", 2, 1 << 40)]
    for strategy in ("spread", "most-room"):
        counted = chosen(strategy, offers)
        assert set(counted) == {"b", "c"}
        assert 400 < counted["b"] < 600  # Equal ones are not always the first by name.


def test_nodes_take_turns_by_name() -> None:
    offers = [Offer(name, 0, None) for name in ("a", "b", "c")]
    taken, last = [], ""
    for number in range(5):
        last = choose("round-robin", offers, f"uid-{number}", last)
        taken.append(last)
    assert taken == ["a", "b", "c", "a", "b"]


def test_a_node_that_went_does_not_end_the_turns() -> None:
    assert choose("round-robin", [Offer("a", 0, None), Offer("d", 0, None)], "uid", "c") == "d"


def test_full_nodes_that_are_offered_for_claims_of_no_size_are_taken() -> None:
    assert choose("spread", [Offer("a", 0, 0)], "uid", "") == "a"
