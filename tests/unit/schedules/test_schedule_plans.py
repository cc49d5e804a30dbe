"""What a look at a schedule decides, at each moment and under each policy; and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import InvalidField
from redis_state.serialization import codec
from redis_state.worker.schedules.model import Missed, Schedule, occurrence_of
from redis_state.worker.schedules.plan import LONGEST_WAIT_MS, MOST_AT_ONCE, OccurrencePlan, plan

MINUTE_MS = 60_000
DAY_MS = 86_400_000
NOW = 1_800_000_000_000  # on a minute


def make(**options: Any) -> Schedule:
    given_: dict[str, Any] = {"schedule_id": "s", "handler": "h", "session_id": "one"}
    if not {"cron", "every"} & options.keys():
        given_["every"] = timedelta(minutes=1)
    return Schedule(**given_ | options)


def look(schedule: Schedule, *, behind: float, late_ms: int = 0, **options: Any) -> OccurrencePlan:
    """Look at a schedule that was settled so many minutes ago."""
    given_: dict[str, Any] = {"paused": False} | options
    after_ms = NOW - round(behind * MINUTE_MS)
    return plan(schedule, after_ms=after_ms, now_ms=NOW + late_ms, **given_)


def minutes(decided: OccurrencePlan) -> list[float]:
    return [(at_ms - NOW) / MINUTE_MS for at_ms in decided.occurrences]


def test_an_occurrence_in_time_is_due_and_the_next_look_is_at_the_next_one() -> None:
    decided = look(make(), behind=1, late_ms=700)
    assert minutes(decided) == [0]
    assert decided.after_ms == NOW
    assert decided.check_ms == MINUTE_MS - 700
    assert decided.skipped is None


def test_nothing_is_due_before_its_time() -> None:
    decided = look(make(), behind=0, late_ms=700)
    assert minutes(decided) == []
    assert decided.after_ms == NOW
    assert decided.check_ms == MINUTE_MS - 700


@pytest.mark.parametrize(
    ("missed", "late_ms", "due", "left_out"),
    [
        # Each minute, an hour behind; in time is what is no older than 20 s.
        ("skip", 1_000, [0], -1),
        ("skip", 30_000, [], 0),
        ("latest", 1_000, [0], -1),
        ("latest", 30_000, [0], -1),
        ("all", 1_000, [-2, -1, 0], -3),
        ("all", 30_000, [-2, -1, 0], -3),
    ],
)
def test_what_was_missed_follows_the_policy(
    missed: Missed, late_ms: int, due: list[float], left_out: int
) -> None:
    schedule = make(missed=missed, max_missed=3, grace=timedelta(seconds=20))
    decided = look(schedule, behind=60, late_ms=late_ms)
    assert minutes(decided) == due
    assert decided.skipped == (NOW + left_out * MINUTE_MS, "missed")
    assert decided.after_ms == NOW


def test_what_is_in_time_counts_also_beyond_the_most_of_missed_ones() -> None:
    schedule = make(every=timedelta(seconds=1), missed="all", max_missed=1)
    assert len(look(schedule, behind=1 / 6).occurrences) == 10


@pytest.mark.parametrize("missed", ["skip", "latest", "all"])
def test_what_is_in_time_is_never_left_out_however_many_it_is(missed: Missed) -> None:
    schedule = make(every=timedelta(seconds=1), grace=timedelta(hours=1), missed=missed)
    after_ms, done = NOW - 25 * MINUTE_MS, list[int]()
    while (decided := plan(schedule, paused=False, after_ms=after_ms, now_ms=NOW)).occurrences:
        done += decided.occurrences
        after_ms = decided.after_ms
        assert decided.skipped is None
        assert decided.check_ms == (0 if done[-1] < NOW else 1_000)
    assert done == [NOW - n * 1_000 for n in reversed(range(1_500))]


def test_many_are_done_in_parts_and_none_is_lost_or_done_twice() -> None:
    schedule = make(missed="all", max_missed=130)
    after_ms, done, sizes = NOW - 200 * MINUTE_MS, list[int](), list[int]()
    while True:
        decided = plan(schedule, paused=False, after_ms=after_ms, now_ms=NOW)
        if not decided.occurrences:
            break
        sizes.append(len(decided.occurrences))
        done += decided.occurrences
        after_ms = decided.after_ms
        assert decided.check_ms == (0 if len(done) < 130 else MINUTE_MS)
    assert sizes == [MOST_AT_ONCE, MOST_AT_ONCE, 30]
    assert done == [NOW - n * MINUTE_MS for n in reversed(range(130))]


def test_an_occurrence_is_left_out_while_the_one_before_runs() -> None:
    schedule = make(overlap="skip")
    assert minutes(look(schedule, behind=1)) == [0]
    decided = look(schedule, behind=1, running=True)
    assert minutes(decided) == []
    assert decided.skipped == (NOW, "running")
    assert decided.after_ms == NOW
    # Of several, the first would run when the next ones come.
    decided = look(make(overlap="skip", missed="all"), behind=3)
    assert minutes(decided) == [-2]
    assert decided.skipped == (NOW, "running")
    assert decided.after_ms == NOW
    assert minutes(look(make(), behind=1, running=True)) == [0]


def test_a_paused_schedule_and_one_far_off_are_looked_at_once_a_day() -> None:
    decided = look(make(), behind=60, paused=True)
    assert (decided.occurrences, decided.check_ms) == ((), LONGEST_WAIT_MS)
    assert look(make(cron="0 0 1 1 *"), behind=0).check_ms == LONGEST_WAIT_MS


def test_one_that_has_ended_is_never_looked_at_again() -> None:
    end = datetime.fromtimestamp(NOW / 1000 + 1, UTC)
    decided = look(make(end=end), behind=1)
    assert minutes(decided) == [0]
    assert decided.check_ms is None


def test_a_clock_that_is_set_back_brings_nothing_back() -> None:
    decided = look(make(), behind=-30)
    assert minutes(decided) == []
    assert decided.after_ms == NOW + 30 * MINUTE_MS
    assert decided.check_ms == 31 * MINUTE_MS


def test_a_clock_that_was_wrong_by_more_than_a_day_begins_anew() -> None:
    decided = look(make(), behind=-365 * 24 * 60)
    assert decided.after_ms == NOW
    assert decided.check_ms == MINUTE_MS


@given(
    missed=st.sampled_from(["skip", "latest", "all"]),
    overlap=st.sampled_from(["allow", "skip"]),
    steps=st.lists(st.integers(-40 * MINUTE_MS, 200 * MINUTE_MS), max_size=12),
    running=st.booleans(),
)
def test_no_occurrence_is_ever_due_twice_however_the_clock_goes(
    missed: Missed, overlap: Any, steps: list[int], *, running: bool
) -> None:
    schedule = make(missed=missed, overlap=overlap, max_missed=70)
    after_ms, now_ms, done = NOW, NOW, list[int]()
    for step in steps:
        now_ms += step
        decided = plan(schedule, paused=False, after_ms=after_ms, now_ms=now_ms, running=running)
        assert decided.after_ms >= after_ms
        assert all(at_ms <= now_ms for at_ms in decided.occurrences)
        done += decided.occurrences
        after_ms = decided.after_ms
    assert done == sorted(set(done))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("schedule_id", {"schedule_id": ""}),
        ("schedule_id", {"schedule_id": "x" * 201}),
        ("schedule_id", {"schedule_id": 7}),
        ("handler", {"handler": ""}),
        ("session_id", {"session_id": None}),
        ("session_id", {"session_id": "daily-{day}"}),
        ("session_id", {"session_id": "daily-{date"}),
        ("session_id", {"session_id": "daily-{date!r}"}),
        ("session_id", {"session_id": "daily-{date:>30}"}),
        ("session_id", {"session_id": "{}"}),
        ("session_id", {"session_id": "{date.year}"}),
        ("queue", {"queue": 1}),
        ("description", {"description": b"x"}),
        ("priority", {"priority": 1.5}),
        ("priority", {"priority": True}),
        ("missed", {"missed": "some"}),
        ("overlap", {"overlap": "queue"}),
        ("attributes", {"attributes": ["tenant"]}),
        ("attributes", {"attributes": {"a b": 1}}),
        ("limit_key", {"limit_key": ""}),
        ("limit_key", {"limit_key": 5}),
        ("limit_key", {"limit_key": "", "in_turn": True}),
        ("in_turn", {"in_turn": 1}),
        ("on_busy", {"on_busy": "reject"}),
        ("max_missed", {"max_missed": 0}),
        ("max_missed", {"max_missed": 1_001}),
        ("grace", {"grace": timedelta(seconds=1)}),
        ("grace", {"grace": timedelta(days=2)}),
        ("grace", {"grace": 60}),
        ("every", {"every": timedelta(milliseconds=999)}),
        ("every", {"every": 60}),
        ("cron", {"cron": "* * * * *", "every": timedelta(minutes=1)}),
        ("cron", {"cron": None}),
        ("cron", {"cron": "nonsense"}),
        ("timezone", {"timezone": "Europe/Atlantis"}),
        ("anchor", {"cron": "* * * * *", "anchor": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("anchor", {"anchor": datetime(2026, 1, 1)}),  # noqa: DTZ001 - that is what is refused
        ("start", {"start": "2026-01-01"}),
        ("end", {"end": datetime(2026, 1, 1)}),  # noqa: DTZ001 - as above
        # In UTC they have no year that there is.
        ("start", {"start": datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12)))}),
        ("end", {"end": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}),
        (
            "end",
            {
                "start": datetime(2026, 1, 1, tzinfo=UTC),
                "end": datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            },
        ),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_given(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidField) as refused:
        make(**options)
    assert refused.value.field == field


def test_a_moment_that_no_calendar_has_is_no_definition() -> None:
    stored = make(start=datetime.max.replace(tzinfo=UTC)).document()
    assert Schedule.read(codec.encode(stored)).start is not None
    with pytest.raises(ValueError, match="out of range"):
        Schedule.read(codec.encode(stored | {"start_ms": stored["start_ms"] + DAY_MS}))


def test_a_session_and_a_task_are_named_by_the_occurrence() -> None:
    at_ms = round(datetime(2026, 11, 24, 23, 30, tzinfo=UTC).timestamp() * 1000)
    schedule = make(session_id="{{a}}-{date}-{time}-{at}-{schedule}", timezone="Asia/Tokyo")
    assert schedule.session_of(at_ms) == "{a}-2026-11-25-0830-20261124T233000Z-s"
    assert schedule.task_of(at_ms) == "s@20261124T233000Z"
    for moment_ms in (at_ms, at_ms + 250):
        found = occurrence_of(schedule.task_of(moment_ms))
        assert found is not None
        assert round(found.timestamp() * 1000) == moment_ms
    assert occurrence_of(schedule.triggered_task("k")) is None
    assert occurrence_of(schedule.triggered_task("k@20261124T233000Z")) is None
    assert occurrence_of("20261124T233000Z") is None


def test_no_two_triggers_have_the_id_of_one_task() -> None:
    ids = ("s", "s@now:a", "s@now:a%40now:b", "s@now:a@now:b")
    keys = (
        "a",
        "b",
        "a@now:b",
        "a%40now:b",
        "b@now:a@now:b",
        "c@20261124T233000Z",
        "@",
        "%",
        "%40",
    )
    named = [make(schedule_id=each).triggered_task(key) for each in ids for key in keys]
    assert len(set(named)) == len(ids) * len(keys)
    at_ms = round(datetime(2026, 11, 24, 23, 30, tzinfo=UTC).timestamp() * 1000)
    assert not {make(schedule_id=each).task_of(at_ms) for each in (*ids, "s@now:c")} & set(named)


def test_a_definition_is_read_as_it_was_written_and_never_shows_its_input() -> None:
    schedule = make(
        schedule_id="a{b}:*?[c] \ud800",
        session_id="\ud800{{",
        input={"secret": [1, "x"]},
        cron=" 0  9 * * mon ",
        timezone="Europe/Berlin",
        start=datetime(2026, 1, 1, 1, 2, 3, 4_000, tzinfo=UTC),
        end=datetime(2027, 1, 1, tzinfo=UTC),
        queue="q",
        priority=-3,
        missed="all",
        overlap="skip",
        grace=timedelta(seconds=90),
    )
    read = Schedule.read(codec.encode(schedule.document()))
    assert read.document() == schedule.document()
    assert read.revision == schedule.revision
    assert make(input=1).revision != make(input=2).revision
    assert "secret" not in repr(schedule)


def test_what_earlier_versions_did_not_know_leaves_a_definition_and_its_revision_as_they_were() -> (
    None
):
    hourly = Schedule(schedule_id="s", handler="h", session_id="s", every=timedelta(hours=1))
    assert hourly.revision == "WR6gylQJK3XH5j-0"
    assert not {"attributes", "limit_key", "in_turn", "on_busy"} & hourly.document().keys()
    options: dict[str, Any] = {"attributes": {"tenant": "acme", "n": 1}, "on_busy": "replace"}
    for schedule in (hourly, make(**options), make(limit_key="k"), make(in_turn=True)):
        assert Schedule.read(codec.encode(schedule.document())) == schedule
    assert hash(make(**options)) == hash(make(**options))
