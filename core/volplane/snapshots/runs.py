"""The next step for the schedule of a claim. Pure.

1. A record on the claim says since when the schedule is followed. 2. When a run is due it is written there, by a
conditional patch: of two leaders one wins. 3. Its VolumeSnapshot is created, under a name that no other run has.
4. The record says so: whoever deletes that VolumeSnapshot gets no other one. A run that is due while the last one is
under way, or while no process works, waits: the latest of them happens, once.

Deleted is what is too much: only ready ones count, by the numbers of their runs, as clocks may be wrong; and the last
ready one stays, whatever its age. A VolumeSnapshot lives by itself: it stays when the schedule or the claim goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from volplane.controller.actions import (
    Action,
    Create,
    Delete,
    EventRecord,
    LiveReads,
    Patch,
    Read,
    Settled,
    Wait,
    warning,
)
from volplane.drivers.driver import DriverView
from volplane.intents.ownership import driver_of
from volplane.intents.record import write_record
from volplane.kube import names
from volplane.kube.kinds import CLAIMS
from volplane.kube.objects import Claim, timestamp
from volplane.snapshots.objects import VOLUME_SNAPSHOTS, VolumeSnapshot
from volplane.snapshots.schedule import (
    SKIP,
    RunRecord,
    Schedule,
    begun,
    is_good,
    is_under_way,
    number_of,
    read_schedule,
    record_of,
    suspended,
)
from volplane.snapshots.state import SnapshotState, is_terminal
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import class_of_claim
from volplane.state.records import INTENT_VERSION, NEVER, time_of

_CLOCK_SET_BACK: Final = timedelta(minutes=10)
"""By which a clock may be set back without another run at a time that was."""
_LOOKED_AT_AGAIN: Final = 86_400.0
"""Seconds after which the clocks are asked again at the latest."""
_SOONEST: Final = 0.5
_TURN_AWAITED: Final = 60.0

Free = Callable[[str], bool]
"""driver -> whether another run may begin on it."""


class Turn(NamedTuple):
    """What is done now, and what a controller keeps of it."""

    action: Action
    state: Literal["", "followed", "suspended", "refused"] = ""
    """"" = there is no schedule that is ours to follow."""
    driver: str = ""
    slot: Literal["", "taken", "awaited"] = ""
    """Whether a run of it is under way on its driver, or waits until fewer are."""
    late: datetime = NEVER
    """From when on its last good snapshot is too old."""


class _Followed(NamedTuple):
    """A schedule that is followed, and what there is of it."""

    claim: Claim
    schedule: Schedule
    driver: DriverView
    now: datetime
    record: RunRecord
    made: Sequence[VolumeSnapshot]
    """By schedules of this claim, the newest first, by the numbers of their runs."""
    state: SnapshotState

    @property
    def run(self) -> datetime:
        return time_of(self.record.run, NEVER)

    @property
    def good(self) -> list[VolumeSnapshot]:
        return [each for each in self.made if is_good(each)]

    @property
    def last(self) -> VolumeSnapshot | None:
        """The VolumeSnapshot of the last run."""
        return next((each for each in self.made if each.name == self.record.snapshot), None)


def decide_schedule(key: str, state: SnapshotState, reads: LiveReads, free: Free) -> Turn:
    cluster = state.cluster
    claim = cluster.claims.get(key)
    text = cluster.schedule_of(claim) if claim is not None and not claim.terminating else None
    if claim is None or text is None or text == SKIP:
        return Turn(Settled())
    driver = _driver(claim, cluster)
    if not isinstance(driver, DriverView):
        return Turn(driver)
    schedule, stopped = read_schedule(text), suspended(claim, cluster.classes.get(class_of_claim(claim) or ""))
    flaw = next((each for each in (schedule, stopped) if isinstance(each, str)), "")
    if not driver.supports("create_snapshot"):
        flaw = f'driver "{driver.name}" makes no snapshots; remove {names.SNAPSHOT_SCHEDULE}'
    if flaw or not isinstance(schedule, Schedule):
        event = warning(CLAIMS, claim, "SnapshotScheduleRefused", flaw)
        return Turn(Wait(reason=flaw, events=(event,)), "refused", driver.name)
    if stopped:
        why = f"{names.SNAPSHOT_SUSPEND} suspends it: nothing is taken or deleted"
        return Turn(Wait(reason=why), "suspended", driver.name)
    if cluster.volume_of(claim) is None:
        return Turn(Wait(reason="the claim is not bound"), "followed", driver.name)
    made = [each for each in state.snapshots.by_index("claim", key) if number_of(each, claim)]
    made.sort(key=lambda each: number_of(each, claim), reverse=True)
    now, record = cluster.surely_now(), record_of(claim)
    if record is None or record.schedule != text:
        before = record or RunRecord(
            v=INTENT_VERSION,
            schedule="",
            since="",
            run="",
            number=number_of(made[0], claim) if made else 0,
            snapshot=made[0].name if made else "",
        )
        anew = replace(before, schedule=text, since=timestamp(now), run=timestamp(now), made=True)
        return Turn(_write(claim, anew, why="follow the schedule from now on"), "followed", driver.name)
    return _follow(_Followed(claim, schedule, driver, now, record, made, state), reads, free)


def at_work_on(key: str, state: SnapshotState) -> str:
    """Return the driver on which the last run of the claim's schedule is under way; "" if there is none.

    As cheap as it can be: it is asked of all claims at once.
    """
    claim = state.cluster.claims.get(key)
    record = record_of(claim) if claim is not None else None
    last = state.snapshots.get(f"{claim.namespace}/{record.snapshot}") if claim is not None and record else None
    if claim is None or last is None or not number_of(last, claim) or not _is_at_work(last):
        return ""
    driver = _driver(claim, state.cluster)
    return driver.name if isinstance(driver, DriverView) else ""


def _driver(claim: Claim, cluster: ClusterState) -> DriverView | Action:
    """Return the driver of the claim's volume, or of its class; else what is done: it may be another controller's."""
    volume = cluster.volume_of(claim)
    if volume is None:
        of_class = cluster.classes.get(class_of_claim(claim) or "")
        return (cluster.drivers.get(of_class.provisioner) if of_class is not None else None) or Settled()
    maker = volume.annotation(names.PROVISIONED_BY) or ""
    if cluster.drivers.on_nodes(maker):
        why = f"driver {maker} is served by the processes of the nodes, which make no snapshots"
        return Wait(reason=why, events=(warning(CLAIMS, claim, "SnapshotScheduleRefused", why),))
    lookup = driver_of(volume, cluster)
    if lookup.driver is not None:
        return lookup.driver
    return lookup.next or (Wait(reason=lookup.reason) if lookup.reason else Settled())


def _follow(it: _Followed, reads: LiveReads, free: Free) -> Turn:
    last, late = it.last, _late(it)
    taken: Literal["", "taken"] = "taken" if last is not None and _is_at_work(last) else ""
    turn = Turn(Settled(), "followed", it.driver.name, taken, late)
    if it.run > it.now + _CLOCK_SET_BACK and it.schedule.cron.next(it.now) < it.run:
        text = f"the last run is recorded for {it.record.run}, and it is {timestamp(it.now)}: a clock was wrong"
        event = warning(CLAIMS, it.claim, "SnapshotScheduleReset", text)
        since = min(time_of(it.record.since, it.now), it.now)
        reset = replace(it.record, run=timestamp(it.now), since=timestamp(since), made=True)
        return turn._replace(action=_write(it.claim, reset, event, why=text))
    if not it.record.made:
        return _make(it, turn, last, reads, free)
    if (due := it.schedule.cron.latest(it.now)) > it.run:
        return _due(it, turn, due, reads, free)
    if (expired := _expired(it)) is not None:
        return turn._replace(action=_delete(it, *expired, reads))
    following = it.schedule.cron.next(it.now)
    seconds = min((following - it.now).total_seconds(), _until_too_old(it), _LOOKED_AT_AGAIN)
    shown = f"; the last good one is {it.good[0].name}" if it.good else "; there is no good one yet"
    return turn._replace(
        action=Wait(reason=f"the next is taken at {timestamp(following)}{shown}", seconds=max(seconds, _SOONEST))
    )


# --- a run --------------------------------------------------------------------------------------------------------


def _due(it: _Followed, turn: Turn, due: datetime, reads: LiveReads, free: Free) -> Turn:
    """Return the write that begins a run: of several that were missed, the latest."""
    if (missed := _missed(it, due)) is not None:
        # Not made is as good as made: nothing more comes of it.
        return turn._replace(action=_write(it.claim, replace(it.record, run=timestamp(due)), missed, why="missed"))
    key, before = f"{it.claim.namespace}/{it.record.snapshot}", None
    if it.record.snapshot:
        # Another leader may have made it: the cache may not have it yet.
        if (first := _read(reads, key, why="is the last run over?")) is not None:
            return turn._replace(action=first)
        before = reads.get(VOLUME_SNAPSHOTS, key)
    if isinstance(before, VolumeSnapshot) and number_of(before, it.claim) and is_under_way(before):
        why = before.status.error.message if before.status.error is not None else "it is not ready yet"
        return turn._replace(action=Wait(reason=f"the run of {timestamp(due)} waits for {before.name}: {why}"))
    if not free(it.driver.name):
        return turn._replace(action=_crowded(it, due), slot="awaited")
    why = f"the run of {timestamp(due)} begins"
    return turn._replace(action=_write(it.claim, begun(it.claim, it.record, due), why=why), slot="taken")


def _make(it: _Followed, turn: Turn, last: VolumeSnapshot | None, reads: LiveReads, free: Free) -> Turn:
    """Return what creates the VolumeSnapshot of the run that has begun, or ends the run."""
    name, done = it.record.snapshot, replace(it.record, made=True)
    if last is not None:
        return turn._replace(action=_write(it.claim, done, why=f"{name} is made"))
    if (taken := it.state.snapshots.get(f"{it.claim.namespace}/{name}")) is not None:
        text = f"the run of {it.record.run} was missed: VolumeSnapshot {taken.name} is there, of another origin"
        event = warning(CLAIMS, it.claim, "SnapshotRunMissed", text)
        return turn._replace(action=_write(it.claim, done, event, why="its name is taken"))
    if (missed_event := _missed(it, it.run)) is not None:
        return turn._replace(action=_write(it.claim, done, missed_event, why="missed"))
    if not free(it.driver.name):
        return turn._replace(action=_crowded(it, it.run), slot="awaited")
    if not reads.has(CLAIMS, it.claim.key):
        # The run may be over long since: what is created now would be another leader's, and of another moment.
        return turn._replace(action=Read(CLAIMS, it.claim.key, why="is it still the last run?"), slot="taken")
    text = f"VolumeSnapshot {name} is taken for the run of {it.record.run}"
    metadata = {
        "name": name,
        "namespace": it.claim.namespace,
        "labels": {names.SNAPSHOT_SCHEDULE: it.claim.uid},
        "annotations": {names.SNAPSHOT_RUN: str(it.record.number)},
    }
    spec: dict[str, object] = {"source": {"persistentVolumeClaimName": it.claim.name}}
    if it.schedule.class_name:
        spec["volumeSnapshotClassName"] = it.schedule.class_name
    create = Create(
        kind=VOLUME_SNAPSHOTS,
        body=VOLUME_SNAPSHOTS.body(metadata=metadata, spec=spec),
        why=text,
        events=(EventRecord(CLAIMS, it.claim, "Normal", "SnapshotScheduled", text),),
        failure_event=warning(CLAIMS, it.claim, "SnapshotRunFailed", f"VolumeSnapshot {name} cannot be created"),
    )
    return turn._replace(action=create, slot="taken")


def _missed(it: _Followed, run: datetime) -> EventRecord | None:
    """Return the event of a run whose deadline is over, or None."""
    if not it.schedule.deadline or it.now <= run + timedelta(seconds=it.schedule.deadline):
        return None
    text = f"the run of {timestamp(run)} was missed: it could not begin within {it.schedule.deadline:.15g} s"
    return warning(CLAIMS, it.claim, "SnapshotRunMissed", text)


def _crowded(it: _Followed, run: datetime) -> Wait:
    why = f"the run of {timestamp(run)} waits: as many others are under way on driver {it.driver.name} as may be"
    return Wait(reason=why, seconds=_TURN_AWAITED)


def _is_at_work(snapshot: VolumeSnapshot) -> bool:
    """Return whether the driver has to do with it: one with an error waits for a person, or for its back-off."""
    return is_under_way(snapshot) and snapshot.status.error is None


def _read(reads: LiveReads, key: str, why: str) -> Read | Wait | None:
    """Return what comes before a VolumeSnapshot is known as it is now; None if this pass has read it."""
    if not reads.serves(VOLUME_SNAPSHOTS):
        return Wait(reason="the API server does not serve VolumeSnapshots now", seconds=_TURN_AWAITED)
    return None if reads.has(VOLUME_SNAPSHOTS, key) else Read(VOLUME_SNAPSHOTS, key, why=why)


def _write(claim: Claim, record: RunRecord, *events: EventRecord, why: str) -> Patch:
    return write_record(CLAIMS, claim, record, why=why, annotation=names.SNAPSHOT_RUN, events=events)


# --- how many stay --------------------------------------------------------------------------------------------------


def _moment(snapshot: VolumeSnapshot) -> datetime:
    made = time_of(snapshot.metadata.creation_timestamp, NEVER)
    return time_of(snapshot.status.creation_time, made)


def _expired(it: _Followed) -> tuple[VolumeSnapshot, str] | None:
    """Return the oldest snapshot that is too much, and why it is. The newest good one never is."""
    found = list(_too_many(it))
    return found[-1] if found else None


def _too_many(it: _Followed) -> Iterator[tuple[VolumeSnapshot, str]]:
    good, schedule = it.good, it.schedule
    for before, each in enumerate(good[1:], start=1):
        if schedule.keep and before >= schedule.keep:
            yield each, f"{before} later ones are ready"
        elif schedule.max_age and it.now - _moment(each) > timedelta(seconds=schedule.max_age):
            yield each, f"it is of {timestamp(_moment(each))}, and later ones are ready"
    newest = number_of(good[0], it.claim) if good else 0
    for each in it.made:
        if number_of(each, it.claim) < newest and is_terminal(each.status.error) and not each.terminating:
            yield each, "it has failed, and a later one is ready"


def _until_too_old(it: _Followed) -> float:
    """Return the seconds until another one is too old."""
    if not it.schedule.max_age:
        return _LOOKED_AT_AGAIN
    ages = [(it.now - _moment(each)).total_seconds() for each in it.good[1:]]
    return min((it.schedule.max_age - age for age in ages), default=_LOOKED_AT_AGAIN) + _SOONEST


def _delete(it: _Followed, snapshot: VolumeSnapshot, why: str, reads: LiveReads) -> Action:
    newest = it.good[0]
    if (first := _read(reads, newest.key, why="is the newest one still good?")) is not None:
        return first
    live = reads.get(VOLUME_SNAPSHOTS, newest.key)
    if not isinstance(live, VolumeSnapshot) or live.uid != newest.uid or not is_good(live):
        return Wait(reason=f"{newest.name} is not good any more", seconds=_TURN_AWAITED)
    text = f"VolumeSnapshot {snapshot.name} is deleted: {why}"
    event = EventRecord(CLAIMS, it.claim, "Normal", "SnapshotExpired", text)
    return Delete(kind=VOLUME_SNAPSHOTS, target=snapshot, why=text, events=(event,))


def _late(it: _Followed) -> datetime:
    """Return when the last good one is too old: half a period after the run that should have had another one."""
    begin = time_of(it.record.since, it.now)
    if it.good:
        begin = max(begin, min(_moment(it.good[0]), it.now))  # The clock of a storage may be ahead.
    following = it.schedule.cron.next(begin)
    return following + (it.schedule.cron.next(following) - following) / 2
