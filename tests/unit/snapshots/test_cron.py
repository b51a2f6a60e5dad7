"""When a schedule is due, in every kind of time zone, compared with all times of years one by one."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta, tzinfo
from random import Random

import pytest

from volplane.snapshots.cron import Cron, read_cron, read_zone

BERLIN = "Europe/Berlin"


def due(text: str, zone: str, begin: datetime, days: int) -> list[str]:
    """Local times at which it is due, with their offsets."""
    cron, found, now = read_cron(text, read_zone(zone)), [], begin
    while (now := cron.next(now)) < begin + timedelta(days=days):
        assert cron.latest(now) == now
        found.append(now.astimezone(cron.zone).strftime("%d %H:%M%z"))
    return found


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("30 2 * * *", ["28 02:30+0100", "29 03:30+0200", "30 02:30+0200"]),
        ("0 2,3 * * *", ["28 02:00+0100", "28 03:00+0100", "29 03:00+0200", "30 02:00+0200", "30 03:00+0200"]),
        ("*/30 2 29 * *", ["29 03:00+0200", "29 03:30+0200"]),
    ],
)
def test_what_is_due_in_the_hour_that_is_left_out_happens_once(text: str, times: list[str]) -> None:
    assert due(text, BERLIN, datetime(2026, 3, 27, 23, tzinfo=UTC), 3) == times


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("30 2 * * *", ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"]),
        ("0 1-3 25 * *", ["25 01:00+0200", "25 02:00+0200", "25 03:00+0100"]),
    ],
)
def test_what_is_due_in_the_hour_that_is_there_twice_happens_once(text: str, times: list[str]) -> None:
    assert due(text, BERLIN, datetime(2026, 10, 23, 22, tzinfo=UTC), 3) == times


def test_every_hour_goes_on_hour_by_hour_when_clocks_change() -> None:
    cron = read_cron("15 * * * *", read_zone(BERLIN))
    for begin in (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)):
        now = begin
        for hour in range(48):
            now = cron.next(now)
            assert now == begin + timedelta(hours=hour, minutes=15)


ZONES = ("UTC", BERLIN, "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia", "America/Havana", "Africa/Cairo")
TEXTS = ("30 2 * * *", "0 * * * *", "*/15 2 * * *", "15 0 * * fri", "5 23 * * *", "0 3 13 * fri")


def all_times(cron: Cron, zone: tzinfo, first: int, last: int) -> list[datetime]:
    found, day = set(), datetime(first, 1, 1, tzinfo=UTC)
    while day.year <= last:
        weekday = day.isoweekday() % 7
        of_month, of_week = day.day in cron.days, weekday in cron.weekdays
        if day.month in cron.months and (of_month or of_week if cron.either else of_month and of_week):
            for hour in cron.hours:
                for minute in cron.minutes:
                    for fold in (0, 1) if cron.every_hour else (0,):
                        local = day.replace(hour=hour, minute=minute, tzinfo=None)
                        time = local.replace(tzinfo=zone, fold=fold).astimezone(UTC)
                        if not fold or time.astimezone(zone).replace(tzinfo=None) == local:
                            found.add(time)
        day += timedelta(days=1)
    return sorted(found)


@pytest.mark.parametrize("zone", ZONES)
def test_the_times_before_and_after_any_moment_are_those_of_the_calendar(zone: str) -> None:
    """2011 has the day that Samoa left out, 2018 the midnight that Brazil left out."""
    random = Random(zone)
    for text in TEXTS:
        year = random.choice([2011, 2018, 2026])
        cron = read_cron(text, read_zone(zone))
        times = all_times(cron, cron.zone, year - 1, year + 1)
        for _ in range(40):
            now = datetime(year, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randrange(365 * 86_400))
            at = bisect_right(times, now)
            assert (cron.latest(now), cron.next(now)) == (times[at - 1], times[at]), (text, now)


def test_the_29th_of_february_comes_again_after_eight_years_without_one() -> None:
    cron = read_cron("0 0 29 2 *", UTC)
    assert cron.next(datetime(2096, 3, 1, tzinfo=UTC)) == datetime(2104, 2, 29, tzinfo=UTC)
    assert cron.latest(datetime(2104, 2, 28, tzinfo=UTC)) == datetime(2096, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0 3 * *", "has 4 fields; give five"),
        ("@never", "@hourly"),
        ("0 25 * * *", 'hour "25": give numbers from 0 to 23'),
        ("0 0 31 2,4 *", 'day of month "31" is in none of the months "2,4"'),
        ("5-1 * * * *", 'minute "5-1"'),
        ("*/0 * * * *", 'minute "*/0"'),
        ("1/ * * * *", 'minute "1/"'),
        ("² * * * *", 'minute "²"'),
        ("0 3 * * 8", "0 to 7, or sun to sat"),
        ("0 3 * foo *", "jan to dec"),
        ("1,,2 * * * *", 'minute ""'),
    ],
)
def test_what_is_no_schedule_is_refused_with_its_field_and_what_would_be_right(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        read_cron(text, UTC)
    assert told in str(refused.value)


@pytest.mark.parametrize("name", ["Mars/Base", "../../etc/passwd", "/etc/localtime", "Europe", "", "\0", "x" * 400])
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="Europe/Berlin"):
        read_zone(name)


def test_names_macros_and_sunday_by_both_numbers_are_understood() -> None:
    assert read_cron("@daily", UTC) == read_cron("0 0 * * ?", UTC)
    assert read_cron("0 3 * jan-mar sun", UTC) == read_cron("0 3 * 1-3 7", UTC) == read_cron("0 3 * 1,2,3 0", UTC)


def test_a_day_on_which_the_clocks_change_is_worked_out_once_for_all_claims() -> None:
    """Each change of a claim by its tenant asks several times for the next run and the last."""

    class Counted(tzinfo):
        zone, calls = read_zone(BERLIN), 0

        def utcoffset(self, time: datetime | None) -> timedelta | None:
            Counted.calls += 1
            return self.zone.utcoffset(time and time.replace(tzinfo=self.zone))

        def dst(self, time: datetime | None) -> timedelta | None:
            return self.zone.dst(time and time.replace(tzinfo=self.zone))

    zone, now = Counted(), datetime(2026, 3, 29, 12, 0, tzinfo=UTC)
    for _ in range(100):
        assert read_cron("* * * * *", zone).next(now) == now + timedelta(minutes=1)
    assert Counted.calls < 20_000
