"""A worker's record, and the handlers that workers have had."""

from __future__ import annotations

import asyncio

from redis_state.scripts import Reply, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, ok


async def save(
    scripts: Scripts, keys: Keys, worker: str, *names: str, write: str = "w", most: int = 9
) -> Reply:
    return await scripts.save_worker(
        keys.worker(worker),
        index=keys.workers(),
        served=keys.served(),
        write=write,
        ttl_ms=HOUR,
        member=worker,
        document=b"{}",
        remember_ms=2 * HOUR,
        most=most,
        names=names,
    )


async def served(scripts: Scripts, keys: Keys) -> list[bytes]:
    found: list[bytes] = await ask(scripts, "ZRANGE", keys.served(), 0, -1)
    return found


async def test_a_worker_is_saved_with_what_it_serves(scripts: Scripts, keys: Keys) -> None:
    for _ in range(2):
        assert await save(scripts, keys, "a", "q x", "q y") == ok(1)
    assert await save(scripts, keys, "a", "q x", write="next") == ok(2)
    assert (await fields(scripts, keys.worker("a")))["document"] == b"{}"
    assert await ask(scripts, "ZRANGE", keys.workers(), 0, -1) == [b"a"]
    assert sorted(await served(scripts, keys)) == [b"q x", b"q y"]
    now = await clock_ms(scripts)
    assert now - HOUR < int(await ask(scripts, "ZSCORE", keys.served(), "q y")) <= now
    record, index, remembered = await lives(
        scripts, keys.worker("a"), keys.workers(), keys.served()
    )
    assert 0 < record <= HOUR
    assert 0 < index <= HOUR + 1
    assert HOUR < remembered <= 2 * HOUR


async def test_what_was_served_is_forgotten_in_time_and_above_a_number(
    scripts: Scripts, keys: Keys
) -> None:
    await save(scripts, keys, "a", "q old", "q x")
    await ask(scripts, "ZADD", keys.served(), await clock_ms(scripts) - 2 * HOUR - 1, "q old")
    # A worker that drains serves nothing: what it has served is remembered.
    await save(scripts, keys, "a", write="drains")
    assert await served(scripts, keys) == [b"q x"]
    await ask(scripts, "ZADD", keys.served(), await clock_ms(scripts) - HOUR, "q x")
    await save(scripts, keys, "b", "q y", "q z", most=2)
    assert await served(scripts, keys) == [b"q y", b"q z"]


async def test_workers_are_saved_at_once(scripts: Scripts, keys: Keys) -> None:
    saved = await asyncio.gather(
        *(save(scripts, keys, f"w{number}", f"q {number % 3}") for number in range(9))
    )
    assert saved == [ok(1)] * 9
    assert await ask(scripts, "ZCARD", keys.workers()) == 9
    assert len(await served(scripts, keys)) == 3
