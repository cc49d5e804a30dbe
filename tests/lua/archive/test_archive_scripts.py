from __future__ import annotations

from typing import Any

import pytest

from redis_state.scripts import JOURNAL_PORTION, Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import append, rows_of
from tests.support.scripts.replies import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    fields,
    lives,
    no,
    ok,
)

DAY = 24 * HOUR


@pytest.fixture
def task(keys: Keys) -> TaskKeys:
    return task_keys(keys)


async def put(scripts: Scripts, task: TaskKeys, status: str = "COMPLETE") -> None:
    await ask(
        scripts, "HSET", task.task, "status", status, "version", "3", "write", "w", "job", "{}"
    )
    await ask(scripts, "HSET", task.journal, "step:a#1", "1")
    await ask(scripts, "ZADD", task.tasks, "1", task.task_id)
    for key in (task.task, task.journal, task.tasks):
        await ask(scripts, "PEXPIRE", key, HOUR)


async def read(scripts: Scripts, task: TaskKeys, *, least_ms: int = 0, whole: bool = True) -> Reply:
    return await scripts.read_ended(task, least_ms=least_ms, hold_ms=10 * DAY, whole=whole)


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "PAUSED"])
async def test_a_task_that_has_not_ended_is_not_read(
    scripts: Scripts, task: TaskKeys, status: str
) -> None:
    assert await read(scripts, task) == no(ReplyCode.MISSING)
    await put(scripts, task, status)
    assert await read(scripts, task, least_ms=DAY) == no(ReplyCode.DENIED, status.encode())
    assert (await lives(scripts, task.task))[0] <= HOUR


async def test_a_task_is_read_whole_and_kept_only_if_little_of_its_life_is_left(
    scripts: Scripts, task: TaskKeys
) -> None:
    await put(scripts, task)
    reply = await read(scripts, task, least_ms=HOUR // 2)
    assert reply.word is ReplyCode.OK
    stamp, record, journal, left = reply.facts
    assert stamp == b"3 w"
    assert dict(zip(record[::2], record[1::2], strict=True))[b"status"] == b"COMPLETE"
    assert (journal, left) == ([b"step:a#1", b"1"], [])
    assert (await lives(scripts, task.task))[0] <= HOUR
    for _ in range(2):
        assert await read(scripts, task, least_ms=DAY, whole=False) == ok(b"3 w", [], [], [])
        left = await lives(scripts, task.task, task.journal, task.tasks)
        assert all(9 * DAY < each <= 10 * DAY for each in left)


async def test_a_long_journal_is_read_in_calls_that_each_end_by_their_bytes(
    scripts: Scripts, task: TaskKeys
) -> None:
    await put(scripts, task)
    notes = {b"part:%d:step:b#1" % n: b"%03d" % n * 100 for n in range(3 * JOURNAL_PORTION)}
    await ask(scripts, "HSET", task.journal, *(part for both in notes.items() for part in both))
    found: list[bytes] = []
    names: list[bytes] = []
    records: list[int] = []
    while names or not found:
        reply = await scripts.read_ended(
            task, least_ms=0, hold_ms=DAY, whole=True, names=names, most_bytes=10_000
        )
        stamp, record, journal, names = reply.facts
        assert stamp == b"3 w"
        records.append(len(record))
        assert sum(map(len, journal)) <= 10_000 + JOURNAL_PORTION * 350
        found += journal
    assert len(records) > 1
    assert (records[0] > 0, any(records[1:])) == (True, False)
    journal_of = dict(zip(found[::2], found[1::2], strict=True))
    assert journal_of == notes | {b"step:a#1": b"1"}


async def test_a_task_that_is_marked_expires_when_it_would_have(
    scripts: Scripts, task: TaskKeys
) -> None:
    assert await scripts.mark_archived(task, stamp="3 w") == no(ReplyCode.MISSING)
    await put(scripts, task)
    await read(scripts, task, least_ms=DAY)
    assert await scripts.mark_archived(task, stamp="2 v") == no(ReplyCode.STALE, b"3 w")
    assert (await lives(scripts, task.task))[0] > DAY
    for _ in range(2):
        assert await scripts.mark_archived(task, stamp="3 w") == ok()
        assert all(0 < left <= HOUR for left in await lives(scripts, task.task, task.journal))
    assert "archive_hold" not in await fields(scripts, task.task)
    assert await read(scripts, task) == no(ReplyCode.COUNTED, b"3 w", b"COMPLETE")
    # A retry ends it again, as another version.
    await ask(scripts, "HSET", task.task, "version", "7")
    assert (await read(scripts, task)).word is ReplyCode.OK


async def test_a_task_that_was_held_twice_expires_when_it_would_have(
    scripts: Scripts, task: TaskKeys
) -> None:
    await put(scripts, task)
    for hold_ms in (2 * DAY, 10 * DAY):
        await scripts.read_ended(task, least_ms=3 * DAY, hold_ms=hold_ms, whole=False)
    assert (await lives(scripts, task.task))[0] > 9 * DAY
    assert await scripts.mark_archived(task, stamp="3 w") == ok()
    left = await lives(scripts, task.task, task.journal, task.tasks)
    assert all(0 < each <= HOUR for each in left)


async def test_a_lifetime_that_was_changed_while_it_was_kept_stays(
    scripts: Scripts, task: TaskKeys
) -> None:
    await put(scripts, task)
    await read(scripts, task, least_ms=DAY)
    await ask(scripts, "PEXPIRE", task.task, 20 * DAY)
    assert await scripts.mark_archived(task, stamp="3 w") == ok()
    assert (await lives(scripts, task.task))[0] > 19 * DAY


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("how", ["move", "transition"])
async def test_what_ends_is_held_in_the_step_that_ends_it(
    scripts: Scripts, keys: Keys, task: TaskKeys, how: str, *, ours: bool
) -> None:
    await put(scripts, task, "PENDING")
    if not ours:
        await ask(scripts, "HDEL", task.task, "job")
    given: dict[str, Any] = {
        "mark": b"",
        "write": "end",
        "ttl_ms": HOUR,
        "hold_ms": 10 * DAY,
        "announcement": saying(keys, "ended"),
    }
    for _ in range(2):
        if how == "move":
            reply = await scripts.move_task(
                task, {"status": b"FAILED"}, from_states=["PENDING"], release=False, **given
            )
        else:
            reply = await scripts.transition_task(
                task, {}, from_phases=["PENDING"], status="FAILED", phase="FAILED", **given
            )
        assert reply.word is ReplyCode.OK
    log = keys.updates("s")
    left = await lives(scripts, task.task, task.journal, task.tasks, log.rows, log.ids)
    assert all((each > 9 * DAY) is ours for each in left)
    assert await scripts.mark_archived(task, stamp="4 end") == ok()
    assert await scripts.keep_rows(log, least_ms=0, n=1, hold_ms=10 * DAY) == ok(int(ours))
    left = await lives(scripts, task.task, task.journal, log.rows, log.ids)
    assert all(0 < each <= 1.5 * HOUR for each in left)


async def test_a_log_is_kept_and_let_go_of(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(0)
    await append(scripts, log, "a")
    before = await lives(scripts, log.rows, log.ids)
    assert await scripts.keep_rows(log, least_ms=0, n=1, hold_ms=10 * DAY) == ok(0)
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(1)
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(0)
    assert all(left > 9 * DAY for left in await lives(scripts, log.rows, log.ids))
    # A worker of a version without holds shortens it.
    for key in (log.rows, log.ids):
        await ask(scripts, "PEXPIRE", key, HOUR)
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(1)
    # Something was appended since it was archived.
    assert await scripts.keep_rows(log, least_ms=0, n=0, hold_ms=10 * DAY) == ok(0)
    assert all(left > 9 * DAY for left in await lives(scripts, log.rows, log.ids))
    assert await scripts.keep_rows(log, least_ms=0, n=1, hold_ms=10 * DAY) == ok(1)
    after = await lives(scripts, log.rows, log.ids)
    assert all(abs(was - now) < 60_000 for was, now in zip(before, after, strict=True))


async def test_a_log_whose_rows_are_gone_is_let_go_of(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a")
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(1)
    # An eviction takes one of the keys.
    await ask(scripts, "DEL", log.rows)
    assert (await lives(scripts, log.ids))[0] > 9 * DAY
    for changed in (1, 0):
        assert await scripts.keep_rows(log, least_ms=0, n=1, hold_ms=10 * DAY) == ok(changed)
        assert 0 < (await lives(scripts, log.ids))[0] <= 1.5 * HOUR


async def test_no_row_of_a_log_that_is_held_is_too_old_and_too_many_are_too_many(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, *"abcde", topic="t")
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(1)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    # Each of them finds the others too old, and the lifetime too short.
    await append(scripts, log, "f", topic="t", ttl_ms=1)
    await append(scripts, log, "g", "g", topic="t", ttl_ms=2 * HOUR)
    assert [row_id for _, row_id in await rows_of(scripts, log)] == [*"abcdefg"]
    await append(scripts, log, "h", topic="t", max_rows=4)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    await append(scripts, log, "i", topic="t", max_rows=5, ttl_ms=1)
    assert [row_id for _, row_id in await rows_of(scripts, log)] == [*"efghi"]
    assert await scripts.keep_rows(log, least_ms=DAY, n=0, hold_ms=10 * DAY) == ok(0)
    assert all(left > 9 * DAY for left in await lives(scripts, log.rows, log.ids))
    # As the appends have extended it.
    for changed in (1, 0):
        assert await scripts.keep_rows(log, least_ms=0, n=9, hold_ms=10 * DAY) == ok(changed)
        left = await lives(scripts, log.rows, log.ids)
        assert all(2 * HOUR < each <= 3 * HOUR for each in left)
    await append(scripts, log, "j", topic="t", ttl_ms=1)
    assert [row_id for _, row_id in await rows_of(scripts, log)][-1] == "j"
    assert len(await rows_of(scripts, log)) < 6


async def test_a_record_is_read_kept_and_let_go_of(scripts: Scripts, keys: Keys) -> None:
    key, index = keys.trajectory("s", "t"), keys.traces("s")

    async def hold(least_ms: int, *, whole: bool = False, member: str | None = "t") -> Reply:
        return await scripts.hold_record(
            key,
            index=index if member else None,
            member=member,
            least_ms=least_ms,
            hold_ms=10 * DAY,
            whole=whole,
        )

    async def mark(stamp: str) -> Reply:
        return await scripts.mark_record(key, index=index, member="t", stamp=stamp)

    assert await hold(0) == no(ReplyCode.MISSING)
    assert await mark("1 w") == no(ReplyCode.MISSING)
    for write in ("v", "w"):
        await scripts.put_record(
            key, {"document": b"{}"}, write=write, ttl_ms=HOUR, index=index, member="t"
        )
    reply = await hold(0, whole=True)
    stamp, at_us, held, flat = reply.facts
    assert (stamp, held) == (b"2 w", 0)
    assert int(at_us) >= int(dict(zip(flat[::2], flat[1::2], strict=True))[b"order"])
    assert all(left <= HOUR for left in await lives(scripts, key, index))
    for least_ms, place in ((DAY, "t"), (DAY, None)):
        assert (await hold(least_ms, member=place)).facts[::2] == [b"2 w", 1]
        assert all(left > 9 * DAY for left in await lives(scripts, key, index))
    assert await mark("1 v") == no(ReplyCode.STALE, b"2 w")
    for _ in range(2):
        assert await mark("2 w") == ok()
        assert all(0 < left <= HOUR for left in await lives(scripts, key, index))
    assert "archive_hold" not in await fields(scripts, key)
    assert await hold(DAY) == no(ReplyCode.COUNTED, b"2 w")
    # A save is another state, with a life of its own.
    await scripts.put_record(key, {"document": b"{}"}, write="x", ttl_ms=HOUR)
    assert (await hold(0)).facts[0] == b"3 x"


async def test_the_archive_that_was_known_first_stays_until_another_is_accepted(
    scripts: Scripts, keys: Keys
) -> None:
    async def know(given: str, *, instead: bool = False) -> bytes:
        reply = await scripts.know_archive(keys.archive_known(), id=given, instead=instead)
        (found,) = reply.facts
        return bytes(found)

    assert await know("a") == b"a"
    await ask(scripts, "PEXPIRE", keys.archive_known(), HOUR)
    assert await know("b") == b"a"
    assert (await lives(scripts, keys.archive_known()))[0] > 399 * DAY
    for _ in range(2):
        assert await know("b", instead=True) == b"b"
    assert await know("a") == b"b"
