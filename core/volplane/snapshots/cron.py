"""When a schedule is due: the five fields of cron, read in a time zone. Pure.

The fields are those of a CronJob: `*`, `?`, numbers, ranges, steps, lists, names of months and weekdays, `@daily` and
its like. If day of month and day of week are both given, either is enough. Where the clocks change: a time that does
not exist is the same time before the change, so it is once; a time that exists twice is the first of both, unless the
schedule is of every hour (`*`), which goes on hour by hour.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import product
from typing import Final
from zoneinfo import ZoneInfo

_DAY: Final = timedelta(days=1)
_HORIZON: Final = 8 * 366 + 2
"""Days within which every schedule is due: between two 29ths of February can be eight years."""
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _WEEKDAYS),
)
"""Name, least and greatest number, and the names of the numbers from the least on."""
_LONGEST_NUMBER: Final = 2
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ANY: Final = frozenset("*?")


@dataclass(frozen=True, slots=True)
class Cron:
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 = Sunday."""
    either: bool
    """Whether one of day of month and day of week is enough."""
    every_hour: bool
    zone: tzinfo

    def latest(self, now: datetime) -> datetime:
        """Return the last time at which it was due, not later than now; in UTC."""
        found: list[datetime] = []
        begin = now.astimezone(self.zone).date() + _DAY
        for day in self._days(begin, -1):
            before = bool(found)
            if (time := self._latest_on(day, now)) is not None:
                found.append(time)
            if before:
                break  # What the clocks have put off may be later than what the next day has.
        return max(found)

    def next(self, now: datetime) -> datetime:
        """Return the first time after now at which it is due; in UTC."""
        found: list[datetime] = []
        begin = now.astimezone(self.zone).date() - _DAY
        for day in self._days(begin, 1):
            before = bool(found)
            if (time := next((each for each in self._times(day, now) if each > now), None)) is not None:
                found.append(time)
            if before:
                break
        return min(found)

    def _days(self, day: date, step: int) -> Iterator[date]:
        """Yield the days of its months from this one on; step: 1 or -1. Tenants write schedules of few days."""
        for _ in range(_HORIZON):
            if day.month in self.months:
                yield day
                day += step * _DAY
            else:
                first = day.replace(day=1)
                day = first - _DAY if step < 0 else (first + 31 * _DAY).replace(day=1)

    def _is_day(self, day: date) -> bool:
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either else of_month and of_week

    def _latest_on(self, day: date, now: datetime) -> datetime | None:
        offset = _offset(self.zone, day) if self._is_day(day) else None
        if offset is None:
            return max((time for time in self._times(day, now) if time <= now), default=None)
        local = (now + offset).replace(tzinfo=None)
        if local.date() < day:
            return None
        hour, minute = (local.hour, local.minute) if local.date() == day else (23, 59)
        at, among = bisect_right(self.hours, hour), self.minutes
        if at and self.hours[at - 1] == hour and minute < self.minutes[0]:
            at -= 1  # It is due later in this hour.
        elif at and self.hours[at - 1] == hour:
            among = self.minutes[: bisect_right(self.minutes, minute)]
        return _utc(day, self.hours[at - 1], among[-1], offset) if at else None

    def _times(self, day: date, after: datetime) -> Iterator[datetime]:
        """Yield the times of the day, in order. after: on a day without a change, those before are left out."""
        if not self._is_day(day):
            return
        if (offset := _offset(self.zone, day)) is not None:
            local = (after + offset).replace(tzinfo=None)
            first = bisect_right(self.hours, local.hour - 1) if local.date() == day else 0
            if local.date() <= day:
                for hour, minute in product(self.hours[first:], self.minutes):
                    yield _utc(day, hour, minute, offset)
            return
        yield from _times_of_change(self, day)


@lru_cache(maxsize=256)
def _times_of_change(cron: Cron, day: date) -> list[datetime]:
    """Return the times of a day on which the clocks change, in order: with each minute it takes long."""
    times: set[datetime] = set()
    for hour, minute in product(cron.hours, cron.minutes):
        naive = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001 - the zone comes next
        times.add(naive.replace(tzinfo=cron.zone).astimezone(UTC))
        again = naive.replace(tzinfo=cron.zone, fold=1).astimezone(UTC)
        if cron.every_hour and again.astimezone(cron.zone).replace(tzinfo=None) == naive:
            times.add(again)
    return sorted(times)


def _utc(day: date, hour: int, minute: int, offset: timedelta) -> datetime:
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC) - offset


@lru_cache(maxsize=4096)
def _offset(zone: tzinfo, day: date) -> timedelta | None:
    """Return the offset of local time on this day; None if the clocks change on it."""
    begin = datetime(day.year, day.month, day.day, tzinfo=zone)
    offset = begin.utcoffset()
    return offset if offset == (begin + _DAY).utcoffset() == (begin - timedelta(minutes=1)).utcoffset() else None


def read_cron(text: str, zone: tzinfo) -> Cron:
    """Return the schedule. Raises ValueError that names the field, its value, and what would be right."""
    fields = _MACROS.get(text.lower(), text).split()
    if text.startswith("@") and text.lower() not in _MACROS:
        raise ValueError(f'"{text}" is unknown; give one of {", ".join(_MACROS)}, or five fields')
    if len(fields) != len(_FIELDS):
        named = ", ".join(name for name, *_ in _FIELDS)
        raise ValueError(f'"{text}" has {len(fields)} fields; give five: {named}, as in "0 3 * * *"')
    minutes, hours, days, months, weekdays = map(_read_field, fields, _FIELDS)
    if fields[4] in _ANY and min(days) > max(_LONGEST_MONTH[month - 1] for month in months):
        raise ValueError(f'day of month "{fields[2]}" is in none of the months "{fields[3]}"; give a day that is')
    return Cron(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either=fields[2] not in _ANY and fields[4] not in _ANY,
        every_hour=fields[1] in _ANY,
        zone=zone,
    )


def _read_field(text: str, field: tuple[str, int, int, tuple[str, ...]]) -> frozenset[int]:
    name, least, most, words = field
    found: set[int] = set()
    for part in text.split(","):
        if not (numbers := _read_part(part, least, most, words)):
            known = f", or {words[0]} to {words[-1]}" if words else ""
            span = f"numbers from {least} to {most}{known}"
            raise ValueError(f'{name} "{part}": give {span}, ranges (1-5), steps (*/5) or lists (1,3)')
        found.update(numbers)
    return frozenset(found)


def _read_part(text: str, least: int, most: int, words: tuple[str, ...]) -> range:
    """Return the numbers of a part of a list; none if it is not right."""
    span, slash, step = text.partition("/")
    begin, dash, end = span.partition("-")
    every = _number(step) if slash else 1
    low = least if span in _ANY else _number(begin, least, words)
    high = _number(end, least, words) if dash else most if slash or span in _ANY else low
    if low is None or high is None or not every or not least <= low <= high <= most:
        return range(0)
    return range(low, high + 1, every)


def _number(text: str, least: int = 0, words: tuple[str, ...] = ()) -> int | None:
    if text.lower() in words:
        return words.index(text.lower()) + least
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else None


@lru_cache(maxsize=1024)
def read_zone(name: str) -> tzinfo:
    """Return the time zone. Raises ValueError that says what would be right."""
    if name in ("UTC", "Etc/UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # A directory of zones is an OSError.
        raise ValueError('expected a time zone of the IANA database, as in "Europe/Berlin"') from None
