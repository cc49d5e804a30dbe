"""The names of queues are known for as long as their jobs may wait."""

from __future__ import annotations

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes


async def know(scripts: Scripts, keys: Keys, name: str, life_ms: int, at_ms: int | None) -> None:
    await scripts.know_queue(keys.queue_names(), queue=name.encode(), life_ms=life_ms, at_ms=at_ms)


async def test_a_name_is_known_for_as_long_as_its_jobs_may_wait(
    scripts: Scripts, keys: Keys
) -> None:
    now = await clock_ms(scripts)
    await know(scripts, keys, "q", HOUR, now + 2 * HOUR)
    # A job that is due, and one that was due before, shorten nothing.
    await know(scripts, keys, "q", HOUR, None)
    await know(scripts, keys, "q", HOUR, now - 9 * HOUR)
    until = float(await ask(scripts, "ZSCORE", keys.queue_names(), "q"))
    assert 3 * HOUR <= until - now < 3 * HOUR + 60_000
    assert 2 * HOUR < await ask(scripts, "PTTL", keys.queue_names()) <= 3 * HOUR
    await know(scripts, keys, "short", 1, None)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert await ask(scripts, "ZCARD", keys.queue_names()) == 2
    await know(scripts, keys, "other", HOUR, None)
    assert await ask(scripts, "ZRANGE", keys.queue_names(), 0, -1) == [b"other", b"q"]
