"""Free volumes, reserved volumes and waiting claims."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from sortedcontainers import SortedList

from unit.binding.objects import claim, volume
from volplane.kube.objects import Volume
from volplane.state import matching as index_module
from volplane.state.matching import Demand, FreeVolumes, WaitingClaims, demand_of

INTENT = "volplane.dev/intent"
WIDE = ["ReadWriteOnce", "ReadOnlyMany"]
WIDER = [*WIDE, "ReadWriteMany"]


def offered(*volumes: Volume) -> FreeVolumes:
    free = FreeVolumes()
    for each in volumes:
        free.changed(None, each)
    return free


def best(free: FreeVolumes, **demand: Any) -> str | None:
    found = free.best(demand_of(claim(**demand)))
    return found.name if found is not None else None


def test_the_smallest_volume_that_is_large_enough_is_chosen() -> None:
    free = offered(volume("v1"), volume("v5", size="5Gi"), volume("v8", size="8Gi"))
    assert [best(free, size=size) for size in ("1Mi", "1Gi", "2Gi", "8Gi", "9Gi")] == ["v1", "v1", "v5", "v8", None]


def test_fewer_access_modes_come_before_a_smaller_size() -> None:
    free = offered(volume("narrow", size="9Gi"), volume("wide", accessModes=WIDE), volume("wider", accessModes=WIDER))
    assert best(free) == "narrow"
    assert best(free, accessModes=["ReadOnlyMany"]) == "wide"
    assert best(free, accessModes=["ReadWriteMany"]) == "wider"
    assert best(free, accessModes=["ReadWriteOncePod"]) is None


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_equal_volumes_are_chosen_by_age_then_by_name(order: tuple[int, ...]) -> None:
    """Item 21.18: the same objects lead to the same choice, in whatever order they came."""
    equal = [
        volume("old", creationTimestamp="2026-01-01T00:00:00Z"),
        volume("b-young", creationTimestamp="2026-01-02T00:00:00Z"),
        volume("a-young", creationTimestamp="2026-01-02T00:00:00Z"),
        volume("other-mode", accessModes=["ReadWriteOnce", "ReadWriteOncePod"]),
    ]
    free = offered(*(equal[number] for number in order))
    chosen = []
    while (found := free.best(demand_of(claim()))) is not None:
        chosen.append(found.name)
        free.changed(found, None)
    assert chosen == ["old", "a-young", "b-young", "other-mode"]


def test_a_volume_that_says_nothing_of_its_age_or_modes_comes_first_and_is_taken_by_who_asks_for_none() -> None:
    free = offered(volume("a", creationTimestamp="2026-01-01T00:00:00Z"), volume("b"))
    assert best(free) == "b"
    free.changed(None, volume("c", accessModes=None))
    assert best(free) == "b"
    assert best(free, accessModes=None) == "c"


def test_equally_wide_sets_of_modes_are_looked_at_in_one_order() -> None:
    """Item 21.18."""
    either = volume("rox", accessModes=["ReadWriteOnce", "ReadOnlyMany"])
    other = volume("rwx", accessModes=["ReadWriteOnce", "ReadWriteMany"])
    assert best(offered(either, other)) == best(offered(other, either)) == "rox"


@pytest.mark.parametrize(
    "change",
    [
        {"claimRef": {"namespace": "default", "name": "x"}},
        {"status": {"phase": "Released"}},
        {"status": {"phase": "Pending"}},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"annotations": {"volplane.dev/intent": "{}"}},
    ],
)
def test_what_is_taken_dying_dirty_or_not_yet_available_is_not_offered(change: dict[str, Any]) -> None:
    assert best(offered(volume(**change))) is None


def test_volumes_of_another_class_mode_or_attributes_class_are_never_looked_at() -> None:
    others = [{"storageClassName": "x"}, {"volumeMode": "Block"}, {"volumeAttributesClassName": "gold"}]
    assert best(offered(*(volume(f"v{n}", **other) for n, other in enumerate(others)))) is None


def test_labels_are_looked_at_from_the_smallest_volume_up() -> None:
    free = offered(*(volume(f"v{n}", size=f"{n}Gi", labels={"n": str(n % 3)}) for n in range(1, 9)))
    assert best(free, selector={"matchLabels": {"n": "2"}}) == "v2"
    assert best(free, selector={"matchLabels": {"n": "2"}}, size="3Gi") == "v5"


def test_finding_a_volume_does_not_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Item 20.2: 20,000 volumes, most of them too small, bound or of other classes, and one look."""
    free = offered(*(volume(f"v{n:05}", size=f"{n + 1}Mi") for n in range(10_000)))
    for n in range(5_000):
        free.changed(None, volume(f"bound{n}", reserved=f"c{n}", size="9Gi"))
        free.changed(None, volume(f"other{n}", storageClassName="x", size="9Gi"))
    looks: list[str] = []
    accepts = Demand.accepts
    monkeypatch.setattr(Demand, "accepts", lambda self, v: (looks.append(v.name), accepts(self, v))[1])
    assert best(free, size="5000Mi") == "v04999"
    assert best(free, size="1Ti") is None
    assert looks == ["v04999"]


@pytest.mark.parametrize(
    "selector",
    [
        {"matchLabels": {"id": "none"}},
        {"matchLabels": {"zone": "a", "id": "none"}},
        {"matchExpressions": [{"key": "id", "operator": "In", "values": ["none"]}]},
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["a", "b"]}]},
        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "id", "operator": "In", "values": ["none", "neither"]}]},
    ],
)
def test_no_volume_is_looked_at_that_lacks_a_label_which_the_selector_needs(
    monkeypatch: pytest.MonkeyPatch, selector: dict[str, Any]
) -> None:
    free = offered(*(volume(f"v{n}", labels={"zone": "a", "id": f"{n}"}) for n in range(2_000)))
    looks = counted(monkeypatch)
    assert best(free, selector=selector) is None
    assert looks == []


def test_reserved_volumes_are_found_by_the_claim_they_name() -> None:
    """Items 20.2 and 21.4: no search leads past a reservation."""
    free = offered(volume("a", reserved="c"), volume("b", reserved="d"), volume("z", reserved="c", accessModes=WIDER))
    assert free.reserved_for("default/c") == ["a", "z"]
    free.changed(volume("a", reserved="c"), volume("a"))
    assert free.reserved_for("default/c") == ["z"]
    free.changed(volume("z", reserved="c", accessModes=WIDER), None)
    assert free.reserved_for("default/c") == []


def test_the_index_follows_every_change() -> None:
    rng = random.Random(5)
    free, known = FreeVolumes(), {}
    for _ in range(3000):
        name = f"v{rng.randrange(40)}"
        old = known.get(name)
        new = None
        if rng.random() < 0.8:
            new = volume(
                name,
                size=f"{rng.randrange(1, 6)}Gi",
                accessModes=rng.choice([["ReadWriteOnce"], WIDE, WIDER]),
                storageClassName=rng.choice(["", "x"]),
                labels=rng.choice([None, {"a": "x"}, {"a": "y", "b": "x"}, {"b": "y"}]),
                status={"phase": rng.choice(["Pending", "Available", "Bound"])},
            )
        free.changed(old, new)
        known.pop(name, None)
        if new is not None:
            known[name] = new
        wanted = {"size": f"{rng.randrange(1, 6)}Gi", "storageClassName": rng.choice(["", "x"])}
        demand = demand_of(claim(**wanted, selector=rng.choice(SELECTORS)))
        assert _name(free.best(demand)) == _by_looking_at_all(known.values(), demand)
    assert len(free._volumes) == sum(index_module.is_free(v) for v in known.values())


SELECTORS: list[dict[str, Any] | None] = [
    *(None, None, {"matchLabels": {"a": "x"}}, {"matchLabels": {"a": "y", "b": "x"}}, {"matchLabels": {"a": "other"}}),
    *(
        {"matchExpressions": [{"key": "a", **need}]}
        for need in (
            {"operator": "Exists"},
            {"operator": "DoesNotExist"},
            {"operator": "In", "values": ["y"]},
            {"operator": "In", "values": ["x", "y"]},
            {"operator": "NotIn", "values": ["x"]},
        )
    ),
    {"matchLabels": {"a": "y"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
]


def _name(found: Volume | None) -> str | None:
    return found.name if found is not None else None


def _by_looking_at_all(volumes: Any, demand: Demand) -> str | None:
    fitting = [
        (
            len(v.spec.access_modes),
            tuple(mode for mode in index_module.MODE_ORDER if mode in v.spec.access_modes),
            index_module._entry_of(v),
        )
        for v in volumes
        if index_module.is_free(v)
        and index_module.place_of(v) == demand.place
        and index_module.capacity_of(v) >= demand.request
        and demand.accepts(v)
    ]
    return min(fitting)[2][2] if fitting else None


# --- holds -------------------------------------------------------------------------------------------------------


def test_a_held_volume_is_offered_to_its_holder_only() -> None:
    free = offered(volume("v1"), volume("v2", size="2Gi"))
    free.hold("v1", "default/a")
    assert _name(free.best(demand_of(claim()), claim_key="default/b")) == "v2"
    assert _name(free.best(demand_of(claim()), claim_key="default/a")) == "v1"
    assert free.get("v1") is None
    assert free.release("default/a") == "v1"
    assert _name(free.best(demand_of(claim()), claim_key="default/b")) == "v1"


def test_a_volume_that_was_taken_is_not_let_go() -> None:
    free = offered(volume("v1"))
    free.hold("v1", "default/a")
    free.changed(volume("v1"), volume("v1", reserved="a"))
    assert free.release("default/a") is None
    assert free.release("default/a") is None


def test_a_claim_holds_one_volume_at_a_time() -> None:
    free = offered(volume("v1"), volume("v2"))
    free.hold("v1", "default/a")
    free.hold("v2", "default/a")
    assert free.get("v1") == volume("v1")
    assert free.get("v2") is None
    assert free.get("unknown") is None


def test_a_volume_is_newly_offered_when_it_becomes_free_or_fits_others() -> None:
    free = FreeVolumes()
    pending, available = volume(status={"phase": "Pending"}), volume()
    assert not free.changed(None, pending)
    assert free.changed(pending, available)
    assert not free.changed(available, volume(annotations={"note": "x"}))
    assert free.changed(available, volume(labels={"tier": "gold"}))
    assert free.changed(volume(labels={"tier": "gold"}), volume(size="2Gi"))


def test_a_volume_without_a_phase_is_coming_until_it_has_one() -> None:
    """Item 21.19."""
    free = FreeVolumes()
    new, available = volume(status={"phase": "Pending"}), volume()
    free.changed(None, new)
    assert _name(free.coming(demand_of(claim()))) == "v"
    assert free.coming(demand_of(claim(size="2Gi"))) is None
    assert free.coming(demand_of(claim(storageClassName="x"))) is None
    free.changed(new, available)
    assert free.coming(demand_of(claim())) is None


def test_of_volumes_that_are_coming_the_smallest_that_fits_is_told() -> None:
    free = FreeVolumes()
    new = {"status": {"phase": ""}}
    for name, size in (("v1", "1Gi"), ("v9", "9Gi"), ("v5", "5Gi")):
        free.changed(None, volume(name, size=size, **new))
    free.changed(None, volume("v3", size="3Gi", accessModes=["ReadOnlyMany"], **new))
    assert [_name(free.coming(demand_of(claim(size=size)))) for size in ("1Gi", "2Gi", "9Gi")] == ["v1", "v5", "v9"]
    for taken in ({"reserved": "x"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"annotations": {INTENT: "{}"}}):
        other = FreeVolumes()
        other.changed(None, volume(**new, **taken))
        assert other.coming(demand_of(claim())) is None


def test_free_volumes_of_a_place_are_told_up_to_a_number() -> None:
    free = offered(
        volume("a"), volume("b", size="2Gi"), volume("c", accessModes=WIDE), volume("x", storageClassName="x")
    )
    place = demand_of(claim()).place
    assert [each.name for each in free.candidates(place, 9)] == ["a", "b", "c"]
    assert [each.name for each in free.candidates(place, 2)] == ["a", "b"]
    assert free.candidates(place, 0) == []
    assert free.candidates(demand_of(claim(storageClassName="none")).place, 9) == []


def test_nothing_is_kept_of_volumes_that_are_gone() -> None:
    free = FreeVolumes()
    seen = [
        volume("free"),
        volume("new", status={"phase": ""}),
        volume("reserved", reserved="c"),
        volume("bound", claim=claim(), status={"phase": "Bound"}),
        volume("other", accessModes=WIDE, storageClassName="x"),
    ]
    for each in seen:
        free.changed(None, each)
    assert len(free._volumes) == 2
    for each in seen:
        assert not free.changed(each, None)
    kept = (free._candidates, free._volumes, free._reserved, free._coming, free._held)
    assert not any(kept)


def test_a_look_for_what_is_not_there_leaves_nothing() -> None:
    free, queue = FreeVolumes(), WaitingClaims()
    assert best(free) is None
    assert free.coming(demand_of(claim())) is None
    assert free.reserved_for("default/c") == []
    assert free.release("default/c") is None
    assert queue.wake_for(volume(labels={"a": "b"})) is None
    assert not any((free._candidates, free._reserved, free._coming, queue._queues))


def test_a_volume_is_newly_offered_only_where_what_it_offers_changed() -> None:
    free = FreeVolumes()
    assert free.changed(None, volume())
    assert not free.changed(volume(), volume())
    assert free.changed(volume(), volume(accessModes=WIDE))
    assert free.changed(volume(accessModes=WIDE), volume(accessModes=WIDE, storageClassName="x"))


# --- waiting claims ----------------------------------------------------------------------------------------------


def waiting(*claims: Any) -> WaitingClaims:
    queue = WaitingClaims()
    for each in claims:
        queue.add(each, demand_of(each))
    return queue


def test_a_volume_wakes_the_largest_claim_that_it_satisfies() -> None:
    queue = waiting(claim("small"), claim("fits", size="3Gi"), claim("large", size="9Gi"))
    assert queue.wake_for(volume(size="5Gi")) == "default/fits"
    assert queue.wake_for(volume("w", size="5Gi")) == "default/small"
    assert queue.wake_for(volume("x", size="5Gi")) is None


def test_of_equal_claims_the_older_is_woken_and_of_equally_old_ones_the_first_by_name() -> None:
    """Item 21.18."""
    young = [claim(name, creationTimestamp="2026-01-02T00:00:00Z") for name in ("b", "a")]
    queue = waiting(*young, claim("z", creationTimestamp="2026-01-01T00:00:00Z"))
    assert [queue.wake_for(volume(f"v{n}")) for n in range(3)] == ["default/z", "default/a", "default/b"]


def test_only_a_claim_whose_demand_is_met_is_woken() -> None:
    queue = waiting(
        claim("class", storageClassName="x"),
        claim("mode", volumeMode="Block"),
        claim("access", accessModes=["ReadWriteMany"]),
        claim("label", selector={"matchLabels": {"a": "b"}}),
        claim("size", size="2Gi"),
    )
    assert queue.wake_for(volume()) is None


def test_a_woken_claim_is_not_woken_again_before_it_took_its_offers() -> None:
    queue = waiting(claim())
    assert queue.wake_for(volume("v")) == "default/c"
    assert queue.wake_for(volume("w")) is None
    assert queue.take_offers("default/c") == {"v"}
    assert queue.take_offers("default/c") == set()
    assert queue.wake_for(volume("w")) == "default/c"


def test_a_claim_that_passed_a_volume_over_does_not_get_it_again() -> None:
    queue = waiting(claim("a"), claim("b"))
    assert queue.wake_for(volume(), passed_over="default/a") == "default/b"


def test_a_claim_that_waits_no_longer_is_forgotten() -> None:
    queue = waiting(claim("a", storageClassName="x"), claim("b"))
    queue.discard("default/b")
    queue.discard("default/b")
    assert len(queue.claims) == 1
    assert queue.wake_for(volume()) is None
    assert queue.wake_for(volume(storageClassName="x")) == "default/a"


def test_nothing_is_kept_of_claims_that_wait_no_longer() -> None:
    selecting = claim("b", selector={"matchLabels": {"a": "b"}})
    queue = waiting(claim("a"), selecting)
    assert queue.wake_for(volume()) == "default/a"
    for key in ("default/a", "default/b"):
        queue.discard(key)
    assert queue.take_offers("default/a") == {"v"}
    assert not any((queue._queues, queue.claims, queue._offers))


def test_a_claim_that_was_woken_keeps_its_offers_when_its_demand_changes_and_waits_again_after_it_took_them() -> None:
    queue = waiting(claim())
    assert queue.wake_for(volume()) == "default/c"
    larger = claim(size="5Gi")
    queue.add(larger, demand_of(larger))
    assert queue.wake_for(volume("w", size="9Gi")) is None, "it was woken and has not answered"
    assert queue.take_offers("default/c") == {"v"}
    assert queue.wake_for(volume("w", size="1Gi")) is None
    assert queue.wake_for(volume("w", size="9Gi")) == "default/c"


def test_a_claim_that_waits_already_keeps_its_place() -> None:
    queue = waiting(claim("a", creationTimestamp="2026-01-01T00:00:00Z"), claim("b"))
    again = claim("a", creationTimestamp="2026-01-09T00:00:00Z")
    queue.add(again, demand_of(again))
    assert [queue.wake_for(volume(f"v{n}")) for n in range(3)] == ["default/b", "default/a", None]


def test_a_claim_whose_selector_needs_two_labels_is_woken_by_a_volume_that_has_both() -> None:
    queue = waiting(claim("c", selector={"matchLabels": {"z": "1", "a": "2"}}))
    assert queue.wake_for(volume(labels={"z": "1"})) is None
    assert queue.wake_for(volume(labels={"a": "2"})) is None
    assert queue.wake_for(volume(labels={"z": "1", "a": "2"})) == "default/c"


def test_another_demand_of_a_claim_replaces_the_former() -> None:
    queue = waiting(claim("c", storageClassName=""), claim("c", storageClassName="x"))
    assert len(queue.claims) == 1
    assert queue.wake_for(volume()) is None
    assert queue.wake_for(volume(storageClassName="x")) == "default/c"


def test_a_new_volume_costs_the_same_however_many_claims_were_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []

    class Counting(SortedList):  # type: ignore[misc]
        def irange(self, *args: Any, **options: Any) -> Any:
            return (looks.append(rank) or rank for rank in super().irange(*args, **options))

    monkeypatch.setattr(index_module, "SortedList", Counting)
    queue = waiting(*(claim(f"c{n}") for n in range(500)))
    assert all(queue.wake_for(volume(f"v{n}")) is not None for n in range(500))
    assert queue.wake_for(volume("late")) is None
    assert len(looks) == 500


def test_a_new_volume_costs_nothing_for_claims_whose_selector_needs_another_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = counted(monkeypatch)
    queue = waiting(*(claim(f"c{n}", selector={"matchLabels": {"id": str(n)}}) for n in range(500)))
    assert queue.wake_for(volume("v", labels={"id": "400", "zone": "a"})) == "default/c400"
    assert queue.wake_for(volume("w", labels={"id": "other"})) is None
    assert looks == ["v"]


def test_a_new_volume_costs_nothing_for_claims_whose_selector_lists_other_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def listing(*values: str) -> dict[str, Any]:
        return {"matchExpressions": [{"key": "id", "operator": "In", "values": list(values)}]}

    looks = counted(monkeypatch)
    queue = waiting(*(claim(f"c{n}", selector=listing(str(n), f"{n}b")) for n in range(500)))
    assert queue.wake_for(volume("v", labels={"id": "400b"})) == "default/c400"
    assert queue.wake_for(volume("w", labels={"id": "400"})) is None
    assert queue.wake_for(volume("w", labels={"id": "other"})) is None
    assert looks == ["v"]
    free = offered(*(volume(f"v{n}", labels={"id": str(n)}) for n in range(500)))
    assert best(free, selector=listing("499", "300", "none")) == "v300"


def test_a_claim_that_lists_many_values_waits_in_one_queue() -> None:
    values = [str(number) for number in range(10_000)]
    many = {"matchExpressions": [{"key": "id", "operator": "In", "values": values}]}
    queue = waiting(claim("c", selector=many))
    assert len(queue._queues) == 1
    assert queue.wake_for(volume("v", labels={"id": "9999"})) == "default/c"


@pytest.mark.parametrize("need", [{"operator": "Exists"}, {"operator": "In", "values": ["a", "b"]}], ids=["any", "two"])
def test_a_new_volume_costs_nothing_for_claims_whose_selector_needs_another_key(
    monkeypatch: pytest.MonkeyPatch, need: dict[str, Any]
) -> None:
    looks = counted(monkeypatch)
    queue = waiting(*(claim(f"c{n}", selector={"matchExpressions": [{"key": f"k{n}", **need}]}) for n in range(500)))
    assert queue.wake_for(volume("v", labels={"k400": "a", "zone": "a"})) == "default/c400"
    assert queue.wake_for(volume("w", labels={"other": "a"})) is None
    assert looks == ["v"]


def test_the_queues_of_claims_follow_every_change() -> None:
    rng = random.Random(7)
    queue, known, woken = WaitingClaims(), {}, set()
    for _ in range(3000):
        name = f"default/c{rng.randrange(30)}"
        match rng.randrange(4):
            case 0:
                known[name] = item = any_claim(name.rpartition("/")[2], rng)
                queue.add(item, demand_of(item))
            case 1:
                queue.discard(name)
                known.pop(name, None)
            case 2:
                assert bool(queue.take_offers(name)) == (name in woken)
                woken.discard(name)
            case _:
                offer = volume(size=f"{rng.randrange(1, 5)}Gi", labels={"a": rng.choice("xyz"), "b": "x"})
                expected = largest_fitting((c for key, c in known.items() if key not in woken), offer)
                assert queue.wake_for(offer) == expected
                woken |= {expected} if expected else set()
        assert len(queue.claims) == len(known)


def any_claim(name: str, rng: random.Random) -> Any:
    selectors = [None, *({"matchLabels": {"a": value}} for value in "xy")]
    selectors += [{"matchLabels": {"a": "x", "b": "x"}}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
    selectors += [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "z"]}]}]
    modes = rng.choice([["ReadWriteOnce"], ["ReadWriteMany"]])
    return claim(name, size=f"{rng.randrange(1, 5)}Gi", selector=rng.choice(selectors), accessModes=modes)


def largest_fitting(claims: Any, offer: Volume) -> str | None:
    demands = [(demand_of(each), each) for each in claims]
    fitting = [
        (-demand.request, each.metadata.creation_timestamp or "", each.key)
        for demand, each in demands
        if demand.request <= index_module.capacity_of(offer) and demand.accepts(offer)
    ]
    return min(fitting)[2] if fitting else None


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the volumes for which a demand was compared, once for each time."""
    looks: list[str] = []
    accepts = Demand.accepts
    monkeypatch.setattr(Demand, "accepts", lambda self, v: (looks.append(v.name), accepts(self, v))[1])
    return looks


def test_a_new_volume_wakes_the_claim_whose_expressions_it_satisfies_though_larger_ones_wait_before_it() -> None:
    def tiered(name: str, size: str, tier: str) -> Any:
        expressions = [{"key": "tier", "operator": "In", "values": [tier]}]
        return claim(name, size=size, selector={"matchExpressions": expressions})

    queue = waiting(tiered("larger", "3Gi", "bronze"), tiered("suits", "2Gi", "gold"), tiered("smaller", "1Gi", "tin"))
    assert queue.wake_for(volume(size="5Gi", labels={"tier": "gold"})) == "default/suits"


def test_a_volume_that_has_come_or_is_gone_leaves_others_that_are_about_to_come() -> None:
    new = {"phase": "Pending"}
    first, second, third = (volume(name, status=new) for name in ("first", "second", "third"))
    free = offered(first, second, third)
    free.changed(first, None)
    free.changed(second, volume("second"))
    coming = free.coming(demand_of(claim()))
    assert coming is not None
    assert coming.name == "third"
    free.changed(third, volume("third"))
    assert free.coming(demand_of(claim())) is None
