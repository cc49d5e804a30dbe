"""Cron expressions about every change of the clocks, of all zones, compared with a plain model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state.worker.schedules.triggers import read_cron, to_ms

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
# Before and after a change: longer than a day that is skipped.
AROUND_MINUTES = 26 * 60

# What the clocks show when it is due.
Shows = Callable[[datetime], bool]

SHOWN: dict[str, Shows] = {
    "* * * * *": lambda _: True,
    "*/30 * * * *": lambda wall: wall.minute % 30 == 0,
    "30 * * * *": lambda wall: wall.minute == 30,
    "*/20 0 * * *": lambda wall: wall.minute % 20 == 0 and wall.hour == 0,
    "*/20 1,2,3 * * *": lambda wall: wall.minute % 20 == 0 and wall.hour in (1, 2, 3),
    "*/15 * * * SUN": lambda wall: wall.minute % 15 == 0 and wall.isoweekday() == 7,
    "5 * * * FRI,SAT": lambda wall: wall.minute == 5 and wall.isoweekday() in (5, 6),
    "*/10 23 * * *": lambda wall: wall.minute % 10 == 0 and wall.hour == 23,
    "0 * 30 * *": lambda wall: wall.minute == 0 and wall.day == 30,
}
FIXED: dict[str, Shows] = {
    "0 0 * * *": lambda wall: (wall.hour, wall.minute) == (0, 0),
    "15,45 0 * * *": lambda wall: wall.hour == 0 and wall.minute in (15, 45),
    "30 0-3 * * *": lambda wall: wall.hour <= 3 and wall.minute == 30,
    "0 1 * * SUN": lambda wall: (wall.hour, wall.minute, wall.isoweekday()) == (1, 0, 7),
    "59 23 * * *": lambda wall: (wall.hour, wall.minute) == (23, 59),
}


def changes(year: int) -> Iterator[tuple[ZoneInfo, datetime]]:
    """Yield a zone for each change of the clocks, and the moment from which another offset holds.

    Of zones whose clocks change alike at one time by them there is one.
    """
    seen: set[tuple[datetime, timedelta]] = set()
    for name in sorted(available_timezones() - {"localtime", "Factory"}):
        zone = ZoneInfo(name)
        new = offset(zone, datetime(year, 1, 1, tzinfo=UTC))
        for day in range(366):
            before = datetime(year, 1, 1, tzinfo=UTC) + day * DAY
            old, new = new, offset(zone, before + DAY)
            if old == new:
                continue
            after = before + DAY
            while after - before > MINUTE:
                middle = before + (after - before) // (2 * MINUTE) * MINUTE
                is_new = offset(zone, middle) == new
                before, after = (before, middle) if is_new else (middle, after)
            if (after + old, new - old) not in seen:
                seen.add((after + old, new - old))
                yield zone, after


def offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def model(shows: Shows, clocks: Sequence[tuple[int, datetime]], *, fixed: bool) -> list[int]:
    """Look at the clocks once a minute: what is due is what they show.

    What is fixed is due when they show it, or a later time, for the first time.
    """
    # The latest time that they have shown.
    found, latest = list[int](), clocks[0][1]
    for at_ms, wall in clocks[1:]:
        if fixed:
            due = False
            while latest < wall:
                latest += MINUTE
                due = due or shows(latest)
        else:
            due = shows(wall)
        if due:
            found.append(at_ms)
    return found


# 2006: St. John's changes at a minute past midnight. 2011: Apia skips a day. 2018: Sao Paulo and
# Asuncion change at midnight, Pyongyang by half an hour. 2023: Cairo and Beirut at midnight.
@pytest.mark.parametrize(
    "year",
    [*(pytest.param(year, marks=pytest.mark.exhaustive) for year in (2006, 2011, 2018)), 2023],
)
def test_no_moment_is_lost_or_comes_twice_when_the_clocks_change(year: int) -> None:
    seen = list(changes(year))
    assert len(seen) > 30
    for zone, change in seen:
        times = (change + n * MINUTE for n in range(-AROUND_MINUTES, AROUND_MINUTES + 1))
        clocks = [(to_ms(each), each.astimezone(zone).replace(tzinfo=None)) for each in times]
        for expressions, fixed in ((SHOWN, False), (FIXED, True)):
            for expression, shows in expressions.items():
                expected = model(shows, clocks, fixed=fixed)
                cron, found = read_cron("cron", expression, zone), list[int]()
                for at_ms in cron.later_than(clocks[0][0]):
                    if at_ms > clocks[-1][0] or len(found) > len(expected):
                        break
                    found.append(at_ms)
                assert found == expected, (expression, zone.key, change)


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("America/Sao_Paulo", "2018-02-18T02:00"),
        ("America/Sao_Paulo", "2018-11-04T03:00"),
        ("Africa/Cairo", "2023-10-26T21:00"),
        ("Australia/Lord_Howe", "2023-04-01T15:00"),
        ("America/St_Johns", "2006-10-29T02:31"),
    ],
)
@pytest.mark.parametrize("expression", ["*/30 * * * *", "*/20 0 * * *", "15,45 0,23 * * *"])
def test_from_each_minute_of_a_change_the_next_moment_is_the_same(
    zone: str, change: str, expression: str
) -> None:
    cron = read_cron("cron", expression, ZoneInfo(zone))
    middle = to_ms(datetime.fromisoformat(change).replace(tzinfo=UTC))
    begin, end = middle - 4 * 3_600_000, middle + 4 * 3_600_000
    moments: list[int] = []
    for at_ms in cron.later_than(begin):
        moments.append(at_ms)
        if at_ms > end:
            break
    assert moments
    # Half a second in, as clocks are when a worker looks.
    for after_ms in range(begin + 500, end, 60_000):
        assert next(cron.later_than(after_ms)) == next(at for at in moments if at > after_ms)
