"""What is promised on nodes."""

from __future__ import annotations

from volplane.placement.room import Promise, Usage


def test_a_claim_counts_once_from_the_write_that_assigns_it_to_its_volume() -> None:
    usage = Usage()
    on_its_way, made = Promise("d", "n", 5), Promise("d", "n", 0)
    for step in (
        lambda: usage.set(usage.held, "pvc-1", on_its_way),
        lambda: usage.set(usage.claims, "pvc-1", on_its_way),
        lambda: usage.set(usage.held, "pvc-1", None),
    ):
        step()
        assert (usage.counts["d", "n"], usage.reserved["d", "n"]) == (1, 5)
    usage.set(usage.volumes, "pvc-1", made)
    usage.set(usage.claims, "pvc-1", None)
    assert (usage.counts["d", "n"], usage.reserved["d", "n"]) == (1, 0)
    usage.set(usage.volumes, "pvc-1", None)
    assert usage.counts["d", "n"] == 0


def test_a_claim_that_moves_leaves_nothing_behind() -> None:
    usage = Usage()
    usage.set(usage.claims, "pvc-1", Promise("d", "n", 5))
    usage.set(usage.claims, "pvc-1", Promise("d", "m", 5))
    assert (usage.counts["d", "n"], usage.reserved["d", "n"]) == (0, 0)
    assert (usage.counts["d", "m"], usage.reserved["d", "m"]) == (1, 5)


def test_a_new_volume_counts_until_the_room_of_its_node_is_published_anew() -> None:
    usage = Usage()
    usage.made("pvc-1", Promise("d", "n", 5), version=7, now=0.0)
    usage.made("pvc-2", Promise("d", "n", 6), version=9, now=1.0)
    assert usage.reserved["d", "n"] == 11
    usage.published("d", "n", "room", 8)
    assert usage.reserved["d", "n"] == 6
    usage.expire(60.0)
    assert usage.reserved["d", "n"] == 6
    usage.expire(61.0)
    assert (usage.counts["d", "n"], usage.reserved["d", "n"]) == (2, 0)
    usage.set(usage.volumes, "pvc-1", None)
    assert (usage.counts["d", "n"], usage.reserved["d", "n"]) == (1, 0)


def test_growth_counts_beside_the_new_volume_until_the_room_of_its_node_is_published_anew() -> None:
    usage = Usage()
    usage.made("pvc-1", Promise("d", "n", 5), version=7, now=0.0)
    usage.made("pvc-1", Promise("d", "n", 3), version=8, now=1.0)
    assert (usage.reserved["d", "n"], usage.counts["d", "n"]) == (8, 1)
    usage.published("d", "n", "room", 9)
    assert usage.reserved["d", "n"] == 0


def test_a_new_volume_counts_until_the_room_for_every_class_is_published_anew() -> None:
    usage = Usage()
    for key in ("fast", "slow"):
        usage.published("d", "n", key, 1)
    usage.made("v", Promise("d", "n", 5), 2, 0.0)
    usage.published("d", "n", "slow", 3)
    assert usage.reserved["d", "n"] == 5
    usage.published("d", "n", "fast", 4)
    assert usage.reserved["d", "n"] == 0
    usage.made("w", Promise("d", "n", 5), 5, 0.0)
    usage.published("d", "n", "slow", 6)
    usage.published("d", "n", "fast", None)
    assert usage.reserved["d", "n"] == 0


def test_nothing_is_kept_of_nodes_that_are_gone() -> None:
    usage = Usage()
    for number in range(100):
        name, place = f"pvc-{number}", f"n{number}"
        usage.set(usage.claims, name, Promise("d", place, 5))
        usage.published("d", place, "room", 1)
        usage.made(name, Promise("d", place, 5), version=7, now=float(number))
        usage.set(usage.claims, name, None)
        usage.set(usage.volumes, name, None)
        usage.published("d", place, "room", None)
    usage.expire(200.0)
    kept = (usage.counts, usage.reserved, usage._published, usage._unpublished, usage._expiry)
    assert [len(each) for each in kept] == [0, 0, 0, 0, 0]
