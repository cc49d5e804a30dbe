"""When a schedule is due: cron expressions over changes of the clocks, intervals, bounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import InvalidField
from redis_state.worker.schedules.triggers import (
    Cron,
    Interval,
    Trigger,
    from_ms,
    read_cron,
    read_zone,
    to_ms,
)

BERLIN = ZoneInfo("Europe/Berlin")
HOUR_MS = 3_600_000


def at(text: str) -> int:
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


def moments(cron: str, zone: ZoneInfo, since: str, until: str) -> list[str]:
    trigger = Trigger(read_cron("cron", cron, zone))
    found = trigger.between(at(since), at(until))
    return [f"{from_ms(each):%m-%dT%H:%M}" for each in found]


# The clocks of Berlin skip 2:00 to 3:00 on 29 March 2026, and repeat it on 25 October.
@pytest.mark.parametrize(
    ("cron", "since", "until", "expected"),
    [
        # A day has 23 or 25 hours, and one occurrence at 9.
        ("0 9 * * *", "2026-03-28", "2026-03-30", ["03-28T08:00", "03-29T07:00"]),
        ("0 9 * * *", "2026-10-24", "2026-10-26", ["10-24T07:00", "10-25T08:00"]),
        # A fixed time that is skipped comes right behind; one that is repeated comes once.
        ("30 2 * * *", "2026-03-28", "2026-03-30", ["03-28T01:30", "03-29T01:00"]),
        ("30 2 * * *", "2026-10-24", "2026-10-26", ["10-24T00:30", "10-25T00:30"]),
        # What comes each half hour comes in both passes, and in none that is skipped.
        (
            "*/30 * * * *",
            "2026-10-24T23:45",
            "2026-10-25T02:15",
            ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30", "10-25T02:00"],
        ),
        (
            "*/30 * * * *",
            "2026-03-29T00:15",
            "2026-03-29T01:45",
            ["03-29T00:30", "03-29T01:00", "03-29T01:30"],
        ),
        # With a second, too.
        ("0 30 2 * * *", "2026-03-28", "2026-03-30", ["03-28T01:30", "03-29T01:00"]),
        ("0 30 2 * * *", "2026-10-24", "2026-10-26", ["10-24T00:30", "10-25T00:30"]),
        # A minute that begins with a star is no fixed time.
        ("*/30 2 * * *", "2026-03-29", "2026-03-30", ["03-30T00:00"]),
        ("0 0 L * *", "2026-02-01", "2026-04-01", ["02-27T23:00", "03-30T22:00"]),
        ("0 12 * * MON#1", "2026-11-01", "2026-12-31", ["11-02T11:00", "12-07T11:00"]),
    ],
)
def test_cron_follows_the_clocks_of_its_zone(
    cron: str, since: str, until: str, expected: list[str]
) -> None:
    assert moments(cron, BERLIN, since, until) == expected


def test_seconds_are_a_sixth_field_in_front() -> None:
    cron = read_cron("cron", "*/20 * * * * *", ZoneInfo("UTC"))
    assert [each % 60_000 for each in islice(cron.later_than(at("2026-01-01")), 3)] == [
        20_000,
        40_000,
        0,
    ]


CRONS = [
    "*/7 * * * *",
    "30 2 * * *",
    "0 */5 * * *",
    "15 1,2,3 * * SUN",
    "59 23 L * *",
    "10 30 2 * * *",
    "0 0 29 2 *",
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
# About changes of the clocks, of each of these zones.
PLACES = [
    at("2026-03-28T20:00"),
    at("2026-10-24T20:00"),
    at("2026-03-08T02:00"),
    at("2026-04-04T10:00"),
]


@given(
    cron=st.sampled_from(CRONS),
    zone=st.sampled_from(ZONES),
    place=st.sampled_from(PLACES),
    steps=st.lists(st.integers(0, 12 * HOUR_MS), min_size=1, max_size=6),
)
def test_the_same_moments_are_found_from_wherever_one_begins(
    cron: str, zone: str, place: int, steps: list[int]
) -> None:
    trigger = Trigger(Cron(cron, ZoneInfo(zone)))
    until = place + sum(steps)
    whole = list(trigger.between(place, until))
    assert whole == sorted(set(whole))
    pieces: list[int] = []
    for step in steps:
        pieces += trigger.between(place, place + step)
        place += step
    assert pieces == whole


@given(
    every_s=st.integers(1, 100_000),
    anchor_ms=st.integers(-(10**12), 3 * 10**12),
    after_ms=st.integers(0, 2 * 10**12),
)
def test_an_interval_counts_from_its_anchor(every_s: int, anchor_ms: int, after_ms: int) -> None:
    interval = Interval(every_s * 1000, anchor_ms)
    first, second = islice(interval.later_than(after_ms), 2)
    assert after_ms < first <= after_ms + every_s * 1000
    assert (first - anchor_ms) % (every_s * 1000) == 0
    assert second - first == every_s * 1000


@given(most=st.integers(1, 50), hours=st.integers(0, 400))
def test_the_newest_are_the_last_of_all(most: int, hours: int) -> None:
    trigger = Trigger(read_cron("cron", "*/20 1-4 * * *", BERLIN))
    after_ms = at("2026-10-20")
    until_ms = after_ms + hours * HOUR_MS
    everything = list(trigger.between(after_ms, until_ms))
    assert trigger.newest(after_ms, until_ms, most=most) == everything[-most:]


def test_the_newest_of_ten_years_cost_no_ten_years() -> None:
    asked: list[int] = []

    class Counted:
        def later_than(self, after_ms: int) -> object:
            for each in Interval(1_000, 0).later_than(after_ms):
                asked.append(each)
                yield each

    trigger = Trigger(Counted())  # type: ignore[arg-type]
    assert len(trigger.newest(0, 10 * 365 * 24 * HOUR_MS, most=100)) == 100
    assert len(asked) <= 1_000


def test_start_belongs_to_it_and_end_does_not() -> None:
    trigger = Trigger(Interval(1_000, 0), start_ms=5_000, end_ms=8_000)
    assert list(trigger.between(0)) == [5_000, 6_000, 7_000]
    assert trigger.next_after(6_000) == 7_000
    assert trigger.next_after(7_000) is None
    assert trigger.newest(0, 100_000, most=2) == [6_000, 7_000]
    assert trigger.newest(0, 4_000, most=2) == []


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "60 * * * *",
        "0 0 30 2 *",
        "0 0 31 4 *",
        "a b c d e",
        "@daily",
        "0 0 * * 8",
        5,
        None,
    ],
)
def test_an_expression_that_cannot_be_is_refused(cron: object) -> None:
    with pytest.raises(InvalidField, match="cron"):
        read_cron("cron", cron, BERLIN)


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "localtime", "Europe", "a\0b", 1],
)
def test_a_zone_that_is_none_is_refused(zone: object) -> None:
    with pytest.raises(InvalidField, match="timezone"):
        read_zone("timezone", zone)


def test_moments_end_with_the_calendar() -> None:
    last_ms = to_ms(datetime(9998, 12, 31, tzinfo=UTC))
    cron = read_cron("cron", "0 0 1 1 *", ZoneInfo("UTC"))
    assert len(list(islice(cron.later_than(last_ms), 3))) <= 1
    interval = Interval(timedelta(days=3650) // timedelta(milliseconds=1), 0)
    assert list(interval.later_than(last_ms + 10**12)) == []
