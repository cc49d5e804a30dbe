from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append, end_of, ids_hash, rows_of, topic_of
from tests.support.scripts.replies import HOUR, ask, lives, no, ok


async def test_rows_go_and_numbers_go_on(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    assert await scripts.clear_log(log) == ok(0)
    await append(scripts, log, "a", "b", topic="t")
    await append(scripts, log, "c", topic="u")
    assert await scripts.clear_log(log) == ok(3)
    assert await scripts.clear_log(log) == ok(0)
    rows, ids = await lives(scripts, log.rows, log.ids)
    assert rows == -2
    assert 0 < ids <= 1.5 * HOUR
    assert list(await ids_hash(scripts, log)) == [b""]
    reply = await scripts.read_log(
        log, after=1, after_ms=0, count=9, topic=None, most_bytes=1 << 20
    )
    assert reply.word is ReplyCode.GAP
    assert reply.facts[:2] == [b"trimmed", 3]


async def test_what_comes_after_has_a_lifetime_and_no_stale_rows(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b", topic="t")
    await scripts.clear_log(log)
    assert await append(scripts, log, "b", topic="t") == ok(1, 3)
    assert await rows_of(scripts, log) == [(3, "b")]
    assert await topic_of(scripts, log, "t") == [3]
    assert all(life > HOUR for life in await lives(scripts, log.rows, log.ids))


async def test_numbers_go_on_though_somebody_took_the_lifetime_away(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b")
    await ask(scripts, "PERSIST", log.ids)
    assert await scripts.clear_log(log) == ok(2)
    assert await append(scripts, log, "c") == ok(1, 3)
    assert (await lives(scripts, log.ids))[0] > HOUR


async def test_numbers_of_a_log_that_was_held_live_as_long_as_others(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b")
    await scripts.keep_rows(log, least_ms=HOUR, n=0, hold_ms=1000 * HOUR)
    assert await scripts.clear_log(log) == ok(2)
    assert 0 < (await lives(scripts, log.ids))[0] <= 1.5 * HOUR
    assert await append(scripts, log, "c") == ok(1, 3)


async def test_rows_without_a_head_go(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", topic="last")
    await ask(scripts, "DEL", log.ids)
    assert await scripts.clear_log(log) == ok(1)
    assert await lives(scripts, log.rows, log.ids) == [-2, -2]


async def test_a_cursor_at_the_end_stays_good_and_a_foreign_one_does_not(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.updates("s")
    await append(scripts, log, "a", "b")
    n, ms = await end_of(scripts, log)
    await scripts.clear_log(log)
    await append(scripts, log, "c")
    read = await scripts.read_log(
        log, after=n, after_ms=ms, count=9, topic=None, most_bytes=1 << 20
    )
    assert [entry[1][1] for entry in read.facts[3]] == [b"c"]
    gap = await scripts.read_log(
        log, after=n, after_ms=ms - 1, count=9, topic=None, most_bytes=1 << 20
    )
    assert gap == no(ReplyCode.GAP, b"foreign", 2, ms)
