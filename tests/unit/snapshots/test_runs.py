"""What is decided about the schedule of a claim: one step at a time, and over years with all that can go wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from unit.binding.objects import storage_class
from unit.deciding import DRIVER, disk, put
from unit.snapshots.objects import snapshot, source, state_of
from volplane.controller.actions import Create, Delete, LiveReads, Patch, Read, Settled, Wait
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, timestamp
from volplane.snapshots.objects import VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.runs import Turn, decide_schedule
from volplane.snapshots.schedule import read_schedule
from volplane.snapshots.state import SnapshotState

DAILY: Final = "0 3 * * *; keep=2"
NOW: Final = datetime(2026, 5, 10, 12, 0, tzinfo=UTC)
TODAY: Final = "2026-05-10T03:00:00Z"
READY: Final = {"readyToUse": True, "creationTime": "2026-05-10T03:00:01Z"}


def record(run: str = TODAY, number: int = 5, *, made: bool = True, text: str = DAILY, name: str = "c-5") -> str:
    shown = {"v": 1, "schedule": text, "since": "2026-01-01T00:00:00Z", "run": run, "number": number, "snapshot": name}
    return json.dumps(shown | ({"made": True} if made else {}))


def scheduled(text: str | None = DAILY, run: str | None = None, **more: str) -> Claim:
    """The claim of `source` with a schedule and the record of its runs."""
    found, _ = source()
    marks = {names.SNAPSHOT_SCHEDULE: text, names.SNAPSHOT_RUN: run, **more}
    annotations = {**(found.metadata.annotations or {}), **{k: v for k, v in marks.items() if v is not None}}
    return replace(found, metadata=replace(found.metadata, annotations=annotations))


def run_of(number: int, status: Any = READY, **more: Any) -> VolumeSnapshot:
    labels, annotations = {names.SNAPSHOT_SCHEDULE: "uid-c"}, {names.SNAPSHOT_RUN: str(number)}
    found: VolumeSnapshot = snapshot(f"c-{number}", labels=labels, annotations=annotations, status=status, **more)
    return found


def decided(*objects: Any, now: datetime = NOW, reads: LiveReads | None = None, free: bool = True, **more: Any) -> Turn:
    _, volume = source()
    state = state_of(volume, *objects, **more)
    state.cluster.now = lambda: now
    live = reads or LiveReads()
    for each in objects:
        if isinstance(each, VolumeSnapshot | Claim):
            live.put(VOLUME_SNAPSHOTS if isinstance(each, VolumeSnapshot) else CLAIMS, each.key, each)
    return decide_schedule("default/c", state, live, lambda _driver: free)


def written(turn: Turn) -> Any:
    assert isinstance(turn.action, Patch), turn
    assert turn.action.kind is CLAIMS
    return json.loads(turn.action.body["metadata"]["annotations"][names.SNAPSHOT_RUN])


# --- the steps of a run -----------------------------------------------------------------------------------------------


def test_a_new_schedule_is_followed_from_now_on_and_does_not_run_at_once() -> None:
    begun = written(decided(scheduled()))
    assert (begun["run"], begun["since"], begun["made"]) == (timestamp(NOW), timestamp(NOW), True)
    waits = decided(scheduled(run=json.dumps(begun))).action
    assert isinstance(waits, Wait)
    assert "2026-05-11T03:00:00Z" in waits.reason


def test_a_run_that_is_due_is_recorded_before_its_snapshot_is_created() -> None:
    before = record("2026-05-09T03:00:00Z", 4, name="c-4")
    reads = LiveReads()
    first = decided(scheduled(run=before), reads=reads)
    assert first.action == Read(VOLUME_SNAPSHOTS, "default/c-4", why="is the last run over?")
    reads.put(VOLUME_SNAPSHOTS, "default/c-4", None)
    turn = decided(scheduled(run=before), reads=reads)
    begun = written(turn)
    assert (begun["run"], begun["number"], "made" in begun, turn.slot) == (TODAY, 5, False, "taken")
    create = decided(scheduled(run=json.dumps(begun))).action
    assert isinstance(create, Create)
    assert create.body["metadata"]["name"] == begun["snapshot"]
    assert create.body["metadata"]["name"].startswith("c-20260510t0300-")
    assert create.body["metadata"]["labels"] == {names.SNAPSHOT_SCHEDULE: "uid-c"}
    assert create.body["spec"] == {"source": {"persistentVolumeClaimName": "c"}}
    assert "ownerReferences" not in create.body["metadata"]


def test_once_the_snapshot_exists_the_record_says_so_and_no_other_one_is_created() -> None:
    assert written(decided(scheduled(run=record(made=False)), run_of(5, {})))["made"]
    assert isinstance(decided(scheduled(run=record())).action, Wait)


def test_the_class_of_the_snapshots_can_be_chosen() -> None:
    text = f"{DAILY}; class=fast"
    create = decided(scheduled(text, record(made=False, text=text))).action
    assert isinstance(create, Create)
    assert create.body["spec"]["volumeSnapshotClassName"] == "fast"


def test_of_runs_that_were_missed_the_latest_happens_once() -> None:
    begun = written(decided(scheduled(run=record("2026-05-01T03:00:00Z", name=""))))
    assert begun["run"] == TODAY


@pytest.mark.parametrize(("deadline", "happens"), [("10h", True), ("8h", False)])
def test_a_missed_run_happens_only_within_its_deadline(deadline: str, happens: bool) -> None:
    text = f"{DAILY}; deadline={deadline}"
    turn = decided(scheduled(text, record("2026-05-09T03:00:00Z", text=text, name="")))
    assert written(turn)["run"] == TODAY
    assert ("made" in written(turn)) is not happens
    assert isinstance(turn.action, Patch)
    assert [event.reason for event in turn.action.events] == ([] if happens else ["SnapshotRunMissed"])


@pytest.mark.parametrize("error", [None, {"time": TODAY, "message": "there is no class"}])
def test_no_run_begins_while_the_last_one_is_under_way(error: Any) -> None:
    last = run_of(4, {"readyToUse": False, **({"error": error} if error else {})})
    turn = decided(scheduled(run=record("2026-05-09T03:00:00Z", 4, name="c-4")), last)
    assert isinstance(turn.action, Wait)
    assert "waits for c-4" in turn.action.reason
    assert turn.slot == ("" if error else "taken")


def test_a_run_after_one_that_failed_for_good_begins() -> None:
    failed = run_of(4, {"readyToUse": False, "error": {"time": TODAY, "message": "terminal: lost"}})
    assert written(decided(scheduled(run=record("2026-05-09T03:00:00Z", 4, name="c-4")), failed))["number"] == 5


@pytest.mark.parametrize("run", [record("2026-05-09T03:00:00Z", name=""), record(made=False)])
def test_a_run_waits_for_its_turn_on_the_driver(run: str) -> None:
    turn = decided(scheduled(run=run), free=False)
    assert isinstance(turn.action, Wait)
    assert (turn.slot, turn.driver) == ("awaited", DRIVER)


def test_a_name_that_a_stranger_has_taken_ends_the_run() -> None:
    turn = decided(scheduled(run=record(made=False)), snapshot("c-5"))
    assert written(turn)["made"]
    assert isinstance(turn.action, Patch)
    assert "of another origin" in turn.action.events[0].message


def test_a_changed_schedule_is_followed_from_now_on_and_knows_the_run_that_is_under_way() -> None:
    text = "0 11 * * *; keep=3"
    begun = written(decided(scheduled(text, record())))
    assert (begun["run"], begun["schedule"], begun["number"], begun["snapshot"]) == (timestamp(NOW), text, 5, "c-5")
    later = decided(scheduled(text, json.dumps(begun)), run_of(5, {}), now=NOW + timedelta(days=1))
    assert isinstance(later.action, Wait)
    assert "waits for c-5" in later.action.reason


def test_a_record_that_was_lost_is_made_again_from_what_there_is() -> None:
    begun = written(decided(scheduled(run="damaged"), run_of(7), run_of(3)))
    assert (begun["number"], begun["snapshot"]) == (7, "c-7")


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_a_run_that_was_recorded_by_a_wrong_clock_does_not_stop_the_schedule() -> None:
    turn = decided(scheduled(run=record("2036-01-01T03:00:00Z")))
    assert written(turn)["run"] == timestamp(NOW)
    assert isinstance(turn.action, Patch)
    assert [event.reason for event in turn.action.events] == ["SnapshotScheduleReset"]


def test_a_clock_that_is_set_back_a_little_makes_no_second_run() -> None:
    now = datetime(2026, 5, 10, 2, 58, tzinfo=UTC)
    assert isinstance(decided(scheduled(run=record()), now=now).action, Wait)


def test_our_clock_alone_makes_nothing_due_and_nothing_old() -> None:
    claim, volume = scheduled("0 3 * * *; max-age=7d", record(text="0 3 * * *; max-age=7d")), source()[1]
    state = state_of(volume, claim, run_of(5), run_of(4))
    state.cluster.now, state.cluster.server_time = lambda: NOW + timedelta(days=1000), lambda: NOW
    assert isinstance(decide_schedule("default/c", state, LiveReads(), lambda _driver: True).action, Wait)


# --- how many stay ----------------------------------------------------------------------------------------------------


def deleted(turn: Turn) -> str:
    assert isinstance(turn.action, Delete), turn
    assert turn.action.exact
    return turn.action.target.name


def test_only_ready_ones_count_and_the_oldest_goes() -> None:
    unready = run_of(5, {"readyToUse": False})
    some = [run_of(number) for number in (2, 3, 4)]
    assert deleted(decided(scheduled(run=record()), unready, *some)) == "c-2"
    assert isinstance(decided(scheduled(run=record()), unready, *some[1:]).action, Wait)


def test_the_last_ready_one_stays_whatever_its_age() -> None:
    text = "0 3 * * *; max-age=1h"
    assert isinstance(decided(scheduled(text, record(text=text)), run_of(3)).action, Wait)
    assert deleted(decided(scheduled(text, record(text=text)), run_of(3), run_of(2))) == "c-2"


def test_the_newest_is_that_of_the_last_run_whatever_the_clocks_said() -> None:
    text = "0 3 * * *; keep=1"
    future = run_of(4, {"readyToUse": True, "creationTime": "2036-01-01T00:00:00Z"})
    assert deleted(decided(scheduled(text, record(text=text)), future, run_of(5))) == "c-4"


def test_nothing_is_deleted_once_the_newest_is_not_good_any_more() -> None:
    text, reads = "0 3 * * *; keep=1", LiveReads()
    objects = (scheduled(text, record(text=text)), run_of(5), run_of(4))
    state = state_of(source()[1], *objects)
    state.cluster.now = lambda: NOW
    first = decide_schedule("default/c", state, reads, lambda _driver: True).action
    assert first == Read(VOLUME_SNAPSHOTS, "default/c-5", why="is the newest one still good?")
    for gone in (None, run_of(5, {"readyToUse": False})):
        reads.put(VOLUME_SNAPSHOTS, "default/c-5", gone)
        assert isinstance(decide_schedule("default/c", state, reads, lambda _driver: True).action, Wait)


def test_what_failed_goes_once_a_later_one_is_ready() -> None:
    failed = {"readyToUse": False, "error": {"time": TODAY, "message": "terminal: lost"}}
    assert deleted(decided(scheduled(run=record()), run_of(5), run_of(4, failed))) == "c-4"
    assert isinstance(decided(scheduled(run=record()), run_of(5, failed), run_of(4)).action, Wait)


@pytest.mark.parametrize("strange", ["", "-1", "²", "9" * 30, "x"])
def test_snapshots_of_persons_and_of_former_claims_are_left_alone(strange: str) -> None:
    forged = snapshot(
        "f", labels={names.SNAPSHOT_SCHEDULE: "uid-c"}, annotations={names.SNAPSHOT_RUN: strange}, status=READY
    )
    former = snapshot("o", labels={names.SNAPSHOT_SCHEDULE: "old"}, annotations={names.SNAPSHOT_RUN: "1"}, status=READY)
    text = "0 3 * * *; keep=1"
    turn = decided(scheduled(text, record(text=text)), run_of(5), forged, former, snapshot("mine", status=READY))
    assert isinstance(turn.action, Wait)


# --- who is served, and what is refused -------------------------------------------------------------------------------


def test_the_schedule_of_a_class_holds_for_its_claims_unless_they_say_something_else() -> None:
    of_class = storage_class("fast", annotations={names.SNAPSHOT_SCHEDULE: DAILY})

    def of(text: str | None) -> Turn:
        item = scheduled(text)
        return decided(of_class, replace(item, spec=replace(item.spec, storage_class_name="fast")))

    assert written(of(None))["schedule"] == DAILY
    assert written(of("@hourly; keep=1"))["schedule"] == "@hourly; keep=1"
    assert of("skip") == Turn(Settled())


def test_a_suspended_schedule_neither_takes_nor_deletes() -> None:
    some = [run_of(number) for number in (2, 3, 4)]
    turn = decided(scheduled(run=record("2026-05-01T03:00:00Z"), **{names.SNAPSHOT_SUSPEND: "true"}), *some)
    assert isinstance(turn.action, Wait)
    assert turn.state == "suspended"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 3 * * *", "add keep=7, or max-age=30d"),
        ("0 3 * * *; keep=0", "'keep' is '0', expected"),
        ("0 3 * * *; keep=7; keep=8", "given twice"),
        ("0 3 * * *; keep", "give KEY=VALUE"),
        ("0 3 * * *; kep=7", "did you mean 'keep'"),
        ("0 3 * * *; keep=7; time-zone=Mars", "Europe/Berlin"),
        ("0 3 * * *; max-age=soon", "'max-age' is 'soon', expected"),
        ("0 3 * * *; keep=7; class=../x", "'class' is"),
        ("every night; keep=7", "has 2 fields; give five"),
        ("", "add keep=7"),
        ("x" * 600, "500 are allowed"),
        ("\u202e; keep=1", "\\u202e"),
    ],
)
def test_what_makes_no_sense_is_refused_with_key_value_and_what_would_be_right(text: str, told: str) -> None:
    turn = decided(scheduled(text))
    assert isinstance(turn.action, Wait)
    assert turn.state == "refused"
    [event] = turn.action.events
    assert event.reason == "SnapshotScheduleRefused"
    assert event.message == turn.action.reason
    assert names.SNAPSHOT_SCHEDULE in event.message
    assert told in event.message


def test_a_suspension_that_is_unclear_and_a_driver_without_snapshots_are_refused() -> None:
    turn = decided(scheduled(**{names.SNAPSHOT_SUSPEND: "yes"}))
    assert isinstance(turn.action, Wait)
    assert 'is \'yes\'; use "true" or "false"' in turn.action.reason
    turn = decided(scheduled(), drivers=[disk()])
    assert isinstance(turn.action, Wait)
    assert f"makes no snapshots; remove {names.SNAPSHOT_SCHEDULE}" in turn.action.reason


def test_claims_of_other_drivers_and_without_a_schedule_are_left_alone() -> None:
    assert decided(scheduled(None)) == Turn(Settled())
    assert decided(scheduled(), drivers=[]) == Turn(Settled())


OUT_OF_RANGE: Final = ["0001-01-01T00:00:00Z", "9999-12-30T00:00:00Z"]


@pytest.mark.parametrize("run", ["9999-12-31T23:59:59-23:00", "x", "0001-01-01T00:00:00+14:00", "", *OUT_OF_RANGE])
def test_a_record_that_a_tenant_made_up_is_begun_anew(run: str) -> None:
    assert written(decided(scheduled(run=record(run))))["run"] == timestamp(NOW)
    if run:
        of_old = record().replace("2026-01-01T00:00:00Z", run)
        assert written(decided(scheduled(run=of_old), run_of(5, {})))["since"] == timestamp(NOW)
    assert written(decided(scheduled(run=record(name="../x")))).get("snapshot") is None


def test_a_schedule_is_late_half_a_period_after_the_run_that_failed() -> None:
    at = datetime(2026, 5, 11, 15, 0, tzinfo=UTC)
    assert decided(scheduled(run=record()), run_of(5)).late == at
    assert decided(scheduled(run=record()), now=NOW).late < NOW  # It has been followed since January.


# --- years ------------------------------------------------------------------------------------------------------------


@dataclass
class Leader:
    """A process with its own caches and its own clock."""

    state: SnapshotState
    skew: timedelta = timedelta()


@dataclass
class Years:
    """A claim with a schedule, the server, and two processes of which one leads at a time."""

    random: Random
    text: str
    clocks: bool
    now: datetime = NOW
    version: int = 10
    snapshots: dict[str, VolumeSnapshot] = field(default_factory=dict)
    names_used: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)
    lost_by_us: int = 0
    claim: Claim = field(init=False)
    leaders: list[Leader] = field(init=False)

    def __post_init__(self) -> None:
        self.claim, self.leaders = scheduled(self.text), []
        for _ in range(2):
            leader = Leader(state_of(source()[1], self.claim))
            leader.state.cluster.now = partial(self.time_of, leader)
            leader.state.cluster.server_time = lambda: self.now
            self.leaders.append(leader)

    def time_of(self, leader: Leader) -> datetime:
        return self.now + leader.skew

    def newer(self, item: Any, **changes: Any) -> Any:
        self.version += 1
        return replace(item, metadata=replace(item.metadata, resource_version=str(self.version)), **changes)

    def good(self) -> list[VolumeSnapshot]:
        return [each for each in self.snapshots.values() if each.status.ready_to_use]

    def see(self, leader: Leader) -> None:
        """Let the watches catch up."""
        put(leader.state.cluster, self.claim)
        for known in list(leader.state.snapshots.values()):
            if known.key not in self.snapshots:
                leader.state.snapshots.observe_deleted(known.key, known.uid)
        for each in self.snapshots.values():
            leader.state.snapshots.observe(each)

    def step(self, leader: Leader, reads: LiveReads) -> Any:
        """Let a process decide, and take that step unless the server refuses it."""
        action = decide_schedule("default/c", leader.state, reads, lambda _driver: True).action
        match action:
            case Read(kind=kind) if kind is CLAIMS:
                put(leader.state.cluster, self.claim)
                reads.put(CLAIMS, action.key, self.claim)
            case Read():
                reads.put(VOLUME_SNAPSHOTS, action.key, self.snapshots.get(action.key))
            case Patch() if action.target.metadata.resource_version == self.claim.metadata.resource_version:
                changed = {**(self.claim.metadata.annotations or {}), **action.body["metadata"]["annotations"]}
                self.claim = replace(self.claim, metadata=replace(self.claim.metadata, annotations=changed))
                self.claim = self.newer(self.claim)
                put(leader.state.cluster, self.claim)
            case Create():
                self.create(leader, action)
            case Delete():
                found = self.snapshots.get(action.target.key)
                if found is not None and found.metadata.resource_version == action.target.metadata.resource_version:
                    del self.snapshots[action.target.key]
                    leader.state.snapshots.observe_deleted(found.key, found.uid)
                    assert self.good() or not found.status.ready_to_use, "the last good one is deleted"
            case Patch():
                self.see(leader)
                return None
        return action

    def create(self, leader: Leader, action: Create) -> None:
        name = action.body["metadata"]["name"]
        key = f"default/{name}"
        if key not in self.snapshots:
            assert name not in self.names_used, "a name is used again"
            under_way = [each for each in self.snapshots.values() if not each.status.ready_to_use]
            assert all((each.status.error or False) for each in under_way), "two are under way"
            self.names_used.add(name)
            self.runs.append(json.loads((self.claim.metadata.annotations or {})[names.SNAPSHOT_RUN])["run"])
            made = msgspec.convert({**action.body, "spec": action.body["spec"]}, VolumeSnapshot)
            made = replace(
                made, metadata=replace(made.metadata, uid=f"uid-{name}", creation_timestamp=timestamp(self.now))
            )
            self.snapshots[key] = self.newer(made)
        leader.state.snapshots.observe(self.snapshots[key])

    def live(self) -> Iterator[float]:
        """Yield the hours until the next moment, for which everything that can go wrong does."""
        random, leading = self.random, 0
        while True:
            for key, each in list(self.snapshots.items()):
                if not each.status.ready_to_use and each.status.error is None and random.random() < 0.7:
                    failed = random.random() < 0.1
                    status = {"readyToUse": True, "creationTime": timestamp(self.now)}
                    if failed:
                        status = {"readyToUse": False, "error": {"time": timestamp(self.now), "message": "terminal: x"}}
                    self.snapshots[key] = self.newer(each, status=msgspec.convert(status, type(each.status)))
                elif random.random() < 0.005 and len(self.good()) > 1 and '"made":true' in str(self.claim.metadata):
                    del self.snapshots[key]  # By a person.
            if random.random() < 0.1:
                leading = 1 - leading
            leader = self.leaders[leading]
            if self.clocks and random.random() < 0.02:
                leader.skew = timedelta(seconds=random.choice([-1, 1]) * random.choice([30, 4000, 90_000, 10**7]))
            if random.random() < 0.8:
                self.see(leader)
            reads = LiveReads()
            for _ in range(random.choice([1, 2, 3, 12])):  # It may be stopped after any step.
                if (action := self.step(leader, reads)) is None:
                    reads = LiveReads()
                elif isinstance(action, Wait | Settled):
                    break
            yield random.choice([0.1, 1.0, 6.0, 20.0])


@pytest.mark.parametrize("clocks", [False, True])
@pytest.mark.parametrize(
    ("text", "days"), [("30 2 * * *; keep=3; time-zone=Europe/Berlin", 250), ("0 3 * * mon; max-age=20d", 750)]
)
def test_over_years_there_is_one_snapshot_for_a_run_at_most_and_the_last_good_one_is_never_lost(
    text: str, days: int, clocks: bool
) -> None:
    world = Years(Random(f"{text} {clocks}"), text, clocks)
    steps, was_good = world.live(), False
    while world.now < NOW + timedelta(days=days):
        world.now += timedelta(hours=next(steps))
        assert world.good() or not was_good
        was_good = bool(world.good())
    cron = read_schedule(text).cron  # type: ignore[union-attr]
    due, at = 0, NOW
    while (at := cron.next(at)) < world.now:
        due += 1
    assert len(world.runs) >= due * 0.6
    if not clocks:
        assert len(world.runs) == len(set(world.runs))
        assert all(timestamp(cron.latest(datetime.fromisoformat(run))) == run for run in world.runs)
        assert len(world.good()) <= 8
