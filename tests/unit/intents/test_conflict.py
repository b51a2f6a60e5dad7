"""Records that another process, or another installation, writes too."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from unit.binding.objects import claim, storage_class, volume
from unit.deciding import DRIVER, decide_claim, disk, empty_state, state_with
from unit.provision.test_decide import HELD
from volplane.controller.actions import EventRecord, LiveReads, Patch, Wait
from volplane.intents.record import claim_conflict, scrub_conflict
from volplane.kube import names
from volplane.kube.kinds import CLAIMS, VOLUMES
from volplane.kube.objects import Claim, Node, Volume
from volplane.state.cluster_state import ClusterState
from volplane.state.records import INTENT_VERSION, ClaimIntent, RecycleIntent, Sealer, write_intent

OURS, THEIRS = "3/us/lease-b", "0/them/lease-c"
SCRUB = RecycleIntent(v=INTENT_VERSION, claim="uid-gone", installation="ours")


def state(namespace: str = "ours") -> tuple[ClusterState, list[float]]:
    """Of a process of our term, and its clock."""
    made, now = empty_state(), [1000.0]
    made.sealer.installation = Sealer(b"k" * 32, namespace).installation
    made.fence = lambda: OURS
    made.monotonic = lambda: now[0]
    made.volumes.subscribe(made.record_conflicts.volume_changed)
    return made, now


def released(term: str, version: int, **more: object) -> Volume:
    record = write_intent(replace(SCRUB, fence=term, **more))
    return volume("v", annotations={names.INTENT: record}, resourceVersion=str(version))


def waits(made: ClusterState, intent: RecycleIntent | None) -> Wait | None:
    found = made.volumes.get("v") or volume("v")
    return scrub_conflict(found, intent, made)


@pytest.mark.parametrize(("times", "seconds"), [(0, None), (1, None), (2, 1.0), (3, 2.0), (12, 300.0)])
def test_a_scrub_that_another_process_takes_again_and_again_is_taken_back_ever_later(
    times: int, seconds: float | None
) -> None:
    made, _ = state()
    made.volumes.observe(released(THEIRS, 1))
    for number in range(times):
        made.volumes.observe(released(OURS, 2 * number + 2))
        made.volumes.observe(released(THEIRS, 2 * number + 3))
    found = waits(made, replace(SCRUB, fence=THEIRS))
    assert (found.seconds if found is not None else None) == seconds


def test_a_scrub_that_begins_anew_starts_from_the_shortest_delay() -> None:
    made, _ = state()
    for number in range(10):
        made.volumes.observe(released(OURS, 2 * number + 1))
        made.volumes.observe(released(THEIRS, 2 * number + 2))
    made.volumes.observe(volume("v", resourceVersion="100"))
    assert waits(made, replace(SCRUB, fence=THEIRS)) is None


@pytest.mark.parametrize(("namespace", "installation"), [("ours", "ours"), ("ours", ""), ("", "theirs")])
def test_a_scrub_of_this_installation_or_of_an_older_release_is_worked_on(namespace: str, installation: str) -> None:
    made, _ = state(namespace)
    assert waits(made, replace(SCRUB, fence=THEIRS, installation=installation)) is None


def test_a_scrub_of_another_installation_is_left_to_it_and_says_what_to_do() -> None:
    made, now = state()
    now[0] = 1e9
    found = waits(made, replace(SCRUB, fence=THEIRS, installation="theirs"))
    assert found is not None
    assert found.seconds is None
    assert "in namespace theirs scrubs this volume" in found.reason
    about = released(THEIRS, 1, installation="theirs")
    assert scrub_conflict(about, replace(SCRUB, installation="theirs"), made) == replace(
        found, events=(EventRecord(VOLUMES, about, "Warning", "DriverServedTwice", found.reason),)
    )


def test_a_conflict_over_a_scrub_says_that_somebody_else_writes_its_record() -> None:
    made, _ = state()
    for number in range(3):
        made.volumes.observe(released(OURS, 2 * number + 1))
        made.volumes.observe(released(THEIRS, 2 * number + 2))
    about, found = made.volumes.get("v"), waits(made, replace(SCRUB, fence=THEIRS))
    assert about is not None
    assert found is not None
    assert "record of the scrub (annotation volplane.dev/intent) is written over again" in found.reason
    assert found.events == (EventRecord(VOLUMES, about, "Warning", "IntentOverwritten", found.reason),)
    assert waits(made, replace(SCRUB, fence=OURS)) is None


# --- claims --------------------------------------------------------------------------------------------------------

WHOSE = {
    "ours": Sealer(b"k" * 32, "ours"),
    "theirs": Sealer(b"x" * 32, "theirs"),
    "lost": Sealer(b"a former key of installation ours", "ours"),
}


class World:
    """A process of installation `ours`, and claim c; who writes its record, and when."""

    def __init__(self, *objects: Any, **more: Any) -> None:
        self.state = state_with(storage_class(), *objects, **{"drivers": (disk(),), **more})
        self.state.sealer = WHOSE["ours"]
        self.now = 1000.0
        self.state.monotonic = lambda: self.now
        self.state.claims.subscribe(self.state.record_conflicts.claim_changed)
        self._version = 0

    def write(self, author: str, after: float = 0.0, **intent: Any) -> None:
        self.now += after
        self._version += 1
        sealed = WHOSE[author].seal("uid-c", ClaimIntent(**{"v": INTENT_VERSION, "driver": DRIVER, **intent}))
        annotations = {names.INTENT: sealed, names.SELECTED_NODE: "near"}
        more: Any = {"annotations": annotations, "finalizers": [HELD], "resourceVersion": str(self._version)}
        self.state.claims.observe(claim("c", storageClassName="fast", **more))

    @property
    def claim(self) -> Claim:
        found = self.state.claims.get("default/c")
        assert found is not None
        return found

    def left(self, after: float = 0.0) -> float | None:
        self.now += after
        found = claim_conflict(self.claim, DRIVER, self.state)
        return found.seconds if found is not None else None


def test_a_record_of_another_installation_is_left_alone_for_a_minute_after_its_last_change() -> None:
    world = World()
    world.write("theirs")
    assert world.left() == 60.0
    assert world.left(after=59.5) == 0.5
    world.write("theirs", generation=2)
    assert world.left() == 60.0
    assert world.left(after=60.0) is None


def test_what_took_its_place_counts_after_ten_seconds_in_which_nobody_takes_it_back() -> None:
    world = World()
    world.write("theirs")
    world.write("ours", after=60.0)
    found = claim_conflict(world.claim, DRIVER, world.state)
    assert found == Wait(
        reason="the installation in namespace theirs has time to answer that it works on the claim", seconds=10.0
    )
    assert world.left(after=9.5) == 0.5
    assert world.left(after=0.5) is None


@pytest.mark.parametrize(("tries", "seconds"), [(1, 120.0), (2, 240.0), (9, 3600.0)])
def test_an_installation_that_takes_its_record_back_is_asked_ever_more_rarely(tries: int, seconds: float) -> None:
    world = World()
    world.write("theirs")
    for _ in range(tries):
        world.write("ours", after=4000.0)
        world.write("theirs", after=0.1)
    assert world.left() == seconds


def test_a_record_that_counted_is_taken_back_at_once_and_needs_no_answer() -> None:
    world = World()
    world.write("ours")
    world.write("theirs", after=100.0)
    assert world.left() is None
    world.write("ours")
    assert world.left() is None


def test_a_record_of_the_own_installation_that_nobody_else_wrote_is_worked_on() -> None:
    world = World()
    world.write("ours")
    assert world.left() is None


def test_a_wait_for_another_installation_is_told_on_the_claim() -> None:
    world = World()
    world.write("theirs")
    found = claim_conflict(world.claim, DRIVER, world.state)
    assert found is not None
    assert f'namespace theirs works on this claim: it serves driver "{DRIVER}" too; give each' in found.reason
    assert found.events == (EventRecord(CLAIMS, world.claim, "Warning", "DriverServedTwice", found.reason),)


def test_what_another_installation_cleans_up_with_a_driver_of_its_own_is_no_conflict() -> None:
    world = World()
    world.write("theirs", driver="another.example.com")
    found = claim_conflict(world.claim, DRIVER, world.state)
    reason = "the installation in namespace theirs removes what it has begun for it with another driver"
    assert found == Wait(reason=reason, seconds=60.0)


def test_a_record_that_names_another_installation_and_no_driver_is_told_as_a_conflict() -> None:
    world = World()
    world.write("theirs", driver="")
    found = claim_conflict(world.claim, DRIVER, world.state)
    assert found is not None
    assert [event.reason for event in found.events] == ["DriverServedTwice"]


def test_who_takes_what_counted_again_and_again_is_told_as_a_conflict_whatever_driver_is_named() -> None:
    world = World()
    for _ in range(2):
        world.write("ours")
        world.write("theirs", driver="another.example.com")
    found = claim_conflict(world.claim, DRIVER, world.state)
    assert found is not None
    assert found.seconds == 1.0
    assert [event.reason for event in found.events] == ["DriverServedTwice"]


def test_a_driver_that_is_not_configured_here_is_no_conflict() -> None:
    world = World(drivers=())
    world.write("theirs")
    assert world.left() is None


def test_an_own_record_that_does_not_stay_is_told_on_the_claim() -> None:
    world = World()
    for _ in range(3):
        world.write("ours")
        world.write("ours", fence=THEIRS)
    found = claim_conflict(world.claim, DRIVER, world.state)
    assert found is not None
    assert "record of what is made for this claim (annotation volplane.dev/intent) is written over" in found.reason
    assert found.events == (EventRecord(CLAIMS, world.claim, "Warning", "IntentOverwritten", found.reason),)


def node(name: str, **labels: str) -> Node:
    return msgspec.convert({"metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}}, Node)


ZONED: Any = {"drivers": (disk(topology_keys=("zone",)),)}


def place_taken_over(world: World) -> dict[str, str] | None:
    """Where the asset is asked for by the record that takes the place of the one that stands there."""
    world.now += 60.0
    step = decide_claim("default/c", world.state, LiveReads())
    assert isinstance(step, Patch), step
    taken = WHOSE["ours"].open("uid-c", step.body["metadata"]["annotations"][names.INTENT])
    assert taken is not None
    return taken.segment


FAR = node("far", zone="far", rack="1")


@pytest.mark.parametrize(
    ("segment", "asked"),
    [
        ({"zone": "far"}, {"zone": "far"}),
        ({}, {}),
        ({"zone": "nowhere"}, {"zone": "near"}),
        ({"zone": "far", "rack": "1"}, {"zone": "near"}),
        (None, {"zone": "near"}),
    ],
)
def test_what_another_installation_began_is_asked_for_in_its_place_if_there_is_such_a_place(
    segment: dict[str, str] | None, asked: dict[str, str]
) -> None:
    """Found by the simulation: the scheduler had chosen another node meanwhile, and a second asset was made there."""
    world = World(node("near", zone="near"), FAR, **ZONED)
    world.write("theirs", segment=segment)
    assert place_taken_over(world) == asked


@pytest.mark.parametrize(
    ("segment", "asked"),
    [({"zone": "far"}, {"zone": "near"}), ({}, {"zone": "near"}), ({"zone": "next"}, {"zone": "next"})],
)
def test_a_place_is_taken_over_only_if_the_class_allows_it(segment: dict[str, str], asked: dict[str, str]) -> None:
    allowed = [{"matchLabelExpressions": [{"key": "zone", "values": ["near", "next"]}]}]
    narrow = storage_class(allowedTopologies=allowed, resourceVersion="2")
    world = World(node("near", zone="near"), node("next", zone="next"), FAR, narrow, **ZONED)
    world.write("theirs", segment=segment)
    assert place_taken_over(world) == asked


def test_where_another_driver_was_asked_says_nothing_of_this_one() -> None:
    world = World(node("near", zone="near"), FAR, **ZONED)
    world.write("theirs", segment={"zone": "far"}, driver="another.example.com")
    assert place_taken_over(world) == {"zone": "near"}


def test_a_driver_without_places_is_asked_for_none() -> None:
    world = World(node("near", zone="near"))
    world.write("theirs", segment={})
    assert place_taken_over(world) is None


def test_a_damaged_record_that_names_no_other_installation_says_no_place() -> None:
    """Tenants write such records; where an asset is, only those that can be opened tell."""
    world = World(node("near", zone="near"), FAR, **ZONED)
    world.write("lost", segment={"zone": "far"})
    assert place_taken_over(world) == {"zone": "near"}
