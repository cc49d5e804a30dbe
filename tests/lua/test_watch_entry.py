from __future__ import annotations

from redis_state.transport.keys import Keys
from redis_state.transport.scripts import Scripts
from tests.looking import HOUR, ask, clock_ms, ok


async def test_the_later_of_two_times_stands_unless_sooner_is_wanted(
    scripts: Scripts, keys: Keys
) -> None:
    watch = keys.watch(0)
    now = await clock_ms(scripts)

    async def put(delay_ms: int, *, sooner: bool = False) -> int:
        reply = await scripts.watch_entry(watch, entry=b"e", delay_ms=delay_ms, sooner=sooner)
        when = int(await ask(scripts, "ZSCORE", watch, "e"))
        assert reply == ok(when)
        return round((when - now) / HOUR)

    assert await put(2 * HOUR) == 2
    assert await put(2 * HOUR) == 2
    assert await put(HOUR) == 2
    assert await put(HOUR, sooner=True) == 1
    assert await put(3 * HOUR, sooner=True) == 3
    assert await put(4 * HOUR) == 4
    assert await ask(scripts, "ZCARD", watch) == 1
