from __future__ import annotations

from redis_state.scripts import LogLimits, ReplyCode, Scripts
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, lives, no, ok

LONG = 1_000 * HOUR


async def add(scripts: Scripts, log: LogKeys, *names: str) -> tuple[int, int]:
    """Append rows; return the number and the time of the last."""
    for name in names:
        limits = LogLimits(0, LONG, announce=False)
        await scripts.append_log(log, (name.encode(), b"row"), limits, topic=None)
    newest = (await ask(scripts, "XREVRANGE", log.rows, "+", "-", "COUNT", 1))[0][0]
    n, _, ms = newest.partition(b"-")
    return int(n), int(ms)


async def test_a_log_whose_last_row_is_kept_elsewhere_expires_in_time(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.events("t")
    n, ms = await add(scripts, log, "a", "b")
    for _ in range(2):
        reply = await scripts.release_rows(log, n=n, at_ms=ms, ttl_ms=HOUR)
        assert reply == ok(0)
        assert all(0 < left <= HOUR for left in await lives(scripts, log.rows, log.ids))
    # What is appended next lives as long as before.
    await add(scripts, log, "c")
    assert all(left > LONG - HOUR for left in await lives(scripts, log.rows, log.ids))
    # And is not released with the row before it.
    assert await scripts.release_rows(log, n=n, at_ms=ms, ttl_ms=HOUR) == ok(0)
    assert all(left > LONG - HOUR for left in await lives(scripts, log.rows, log.ids))


async def test_a_row_of_another_time_releases_nothing(scripts: Scripts, keys: Keys) -> None:
    log = keys.events("t")
    n, ms = await add(scripts, log, "a", "b")
    for place in ((n, ms - 1), (n + 1, ms)):
        reply = await scripts.release_rows(log, n=place[0], at_ms=place[1], ttl_ms=1)
        assert reply == no(ReplyCode.STALE)
    assert all(left > HOUR for left in await lives(scripts, log.rows, log.ids))
    assert await ask(scripts, "XLEN", log.rows) == 2


async def test_old_rows_are_dropped_and_none_behind_the_one_that_is_kept(
    scripts: Scripts, keys: Keys
) -> None:
    log = keys.events("t")
    n, ms = await add(scripts, log, *(f"{number}" for number in range(200)))
    while await _now(scripts) <= ms + 2:
        pass
    await add(scripts, log, "later")
    more = 1
    while more:
        reply = await scripts.release_rows(log, n=n, at_ms=ms, ttl_ms=1)
        assert reply.word is ReplyCode.OK
        (more,) = reply.facts
    left = [entry[1][1] for entry in await ask(scripts, "XRANGE", log.rows, "-", "+")]
    assert b"later" in left
    assert b"199" in left
    assert b"0" not in left
    # Ids of rows that are gone are known no more; a row behind is known still.
    assert await ask(scripts, "HGET", log.ids, "0") is None
    assert await ask(scripts, "HGET", log.ids, "later") == b"201"


async def _now(scripts: Scripts) -> int:
    seconds, micros = await scripts.transport.commands.time()
    return int(seconds) * 1000 + int(micros) // 1000
