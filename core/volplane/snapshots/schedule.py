"""What the annotation `volplane.dev/snapshot-schedule` says, and the record of its runs. Pure.

    0 3 * * *; keep=7; max-age=30d; time-zone=Europe/Berlin; deadline=6h; class=daily

It stands on a claim, or on a class for all its claims; that on the claim wins. Tenants write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from volplane._messages import sanitize
from volplane.drivers.parameters import check
from volplane.kube import names
from volplane.kube.objects import Claim, StorageClass, timestamp
from volplane.schemas import Parameter, ParameterKind, ParameterSchema
from volplane.snapshots.cron import Cron, read_cron, read_zone
from volplane.snapshots.objects import VolumeSnapshot
from volplane.snapshots.source import is_name
from volplane.snapshots.state import is_terminal
from volplane.state.records import NEVER, Intent, read_intent, time_of

SKIP: Final = "skip"
"""What a claim says that has no part in the schedule of its class."""
_LONGEST: Final = 500
_STEM: Final = 230
"""Characters of the claim's name in that of its snapshots, which have 253 at most."""
_DIGITS: Final = 12
_YEARS: Final = range(1970, 9000)
"""Of a record: there are as many days before and after as are looked through for the next run."""
_OPTIONS: Final = ParameterSchema(
    parameters=(
        Parameter(
            name="keep", doc="Snapshots that are kept.", kind=ParameterKind.INTEGER, minimum=1, maximum=1_000, default=0
        ),
        Parameter(
            name="max-age", doc="Older ones go.", kind=ParameterKind.DURATION, minimum=60.0, maximum=1e9, default=0.0
        ),
        Parameter(name="time-zone", doc="In which it is due.", default="UTC"),
        Parameter(
            name="deadline", doc="Of a missed run.", kind=ParameterKind.DURATION, minimum=60.0, maximum=1e9, default=0.0
        ),
        Parameter(name="class", doc="Of the VolumeSnapshots.", default="", pattern=r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"),
    )
)


@dataclass(frozen=True, slots=True)
class Schedule:
    cron: Cron
    keep: int
    """Ready snapshots that are kept; 0 = all."""
    max_age: float
    """Seconds after which a ready one goes, if a later one is ready; 0 = never."""
    deadline: float
    """Seconds within which a missed run is made up for; 0 = until the next one is due."""
    class_name: str
    """VolumeSnapshotClass; "" = the default one."""


class RunRecord(Intent, frozen=True):
    """On a claim: its last run, written before the VolumeSnapshot is created, so that there is one for it at most."""

    schedule: str
    """The text to which the times belong."""
    since: str
    """When it was taken up: earlier runs were not missed."""
    run: str
    """Time of the last run."""
    number: int = 0
    """Of runs of this claim: later ones have higher numbers, whatever the clocks say."""
    snapshot: str = ""
    """Name of the VolumeSnapshot of that run."""
    made: bool = False
    """The VolumeSnapshot was created, or never will be."""


@lru_cache(maxsize=4096)
def _read(text: str) -> Schedule | str:
    when, *rest = (part.strip() for part in text.split(";"))
    given: dict[str, str] = {}
    for part in rest:
        key, equals, value = (each.strip() for each in part.partition("="))
        if part and (not equals or key in given):
            return f'"{part}": ' + ("it is given twice" if equals else "give KEY=VALUE") + ", as in keep=7"
        given |= {key: value} if part else {}
    options, flaws = check(_OPTIONS, given, "option")
    if not flaws and not (options["keep"] or options["max-age"]):
        flaws = ("it says neither how many are kept nor for how long; add keep=7, or max-age=30d, or both",)
    if flaws:
        return "; ".join(flaws)
    try:
        cron = read_cron(when, read_zone(options["time-zone"]))
    except ValueError as error:
        return str(error)
    return Schedule(cron, options["keep"], options["max-age"], options["deadline"], options["class"])


def read_schedule(text: str) -> Schedule | str:
    """Return the schedule, or what is wrong, with its value and what would be right."""
    if len(text) > _LONGEST:
        return f"{names.SNAPSHOT_SCHEDULE} has {len(text)} characters; {_LONGEST} are allowed"
    found = _read(text)
    if isinstance(found, Schedule):
        return found
    example = '"0 3 * * *; keep=7; time-zone=Europe/Berlin"'
    return f"{names.SNAPSHOT_SCHEDULE} is {text!a}: {sanitize(found)}; an example: {example}"


def suspended(claim: Claim, storage_class: StorageClass | None) -> bool | str:
    """Return whether runs are suspended, by the claim, else by its class; or why that is unclear."""
    said = claim.annotation(names.SNAPSHOT_SUSPEND)
    if said is None and storage_class is not None:
        said = storage_class.annotation(names.SNAPSHOT_SUSPEND)
    if said in (None, "true", "false"):
        return said == "true"
    return f'{names.SNAPSHOT_SUSPEND} is {said[:_LONGEST]!a}; use "true" or "false"'


# --- runs ---------------------------------------------------------------------------------------------------------


def record_of(claim: Claim) -> RunRecord | None:
    """Return the record of the claim's runs; None if there is none that can be read: then they begin anew."""
    record = read_intent(RunRecord, claim.annotation(names.SNAPSHOT_RUN))
    if record is None or not 0 <= record.number < 10**_DIGITS:
        return None
    times = all(each.endswith("Z") and time_of(each, NEVER).year in _YEARS for each in (record.since, record.run))
    return record if times and (not record.snapshot or is_name(record.snapshot)) else None


def number_of(snapshot: VolumeSnapshot, claim: Claim) -> int:
    """Return the number of the run for which a schedule of this very claim made it; 0: a person did."""
    if (snapshot.metadata.labels or {}).get(names.SNAPSHOT_SCHEDULE) != claim.uid:
        return 0
    text = snapshot.annotation(names.SNAPSHOT_RUN) or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else 0


def begun(claim: Claim, record: RunRecord, run: datetime) -> RunRecord:
    """Return the record of another run. The name of its VolumeSnapshot is no other's, ever: it has claim and number."""
    number = record.number + 1
    digest = sha256(f"{claim.uid}/{number}".encode()).hexdigest()[:8]
    name = f"{claim.name[:_STEM].rstrip('-.')}-{run:%Y%m%dt%H%M}-{digest}"
    return replace(record, run=timestamp(run), number=number, snapshot=name, made=False)


def is_good(snapshot: VolumeSnapshot) -> bool:
    """Return whether it counts: it can be restored, and stays."""
    return snapshot.status.ready_to_use and not snapshot.terminating


def is_under_way(snapshot: VolumeSnapshot) -> bool:
    """Return whether it may yet become ready, so that no other run begins."""
    return not (snapshot.status.ready_to_use or snapshot.terminating or is_terminal(snapshot.status.error))
