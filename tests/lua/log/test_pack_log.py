from __future__ import annotations

import asyncio
from typing import Any

from redis_state.scripts import Scripts
from redis_state.transport.key_groups import LogKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.logs import append, rows_of


async def pack(scripts: Scripts, log: LogKeys) -> int:
    return int((await scripts.pack_log(log)).facts[0])


async def test_a_short_log_takes_what_its_rows_take(scripts: Scripts, keys: Keys) -> None:
    log, send = keys.updates("s"), scripts.transport.sender.send
    await append(scripts, log, "a", "b", topic="t")

    async def about() -> tuple[Any, int, int]:
        rows = await send("XRANGE", log.rows, "-", "+", repeatable=True)
        lives: int = await send("PEXPIRETIME", log.rows, repeatable=True)
        used: int = await send("MEMORY", "USAGE", log.rows, repeatable=True)
        return rows, lives, used

    rows, lives, used = await about()
    assert await pack(scripts, log) == 1
    packed = await about()
    assert packed[:2] == (rows, lives)
    assert packed[2] * 4 < used
    assert await send("EXISTS", log.spare, repeatable=True) == 0
    # Once more it has nothing to do; and what comes next has the next number.
    assert await pack(scripts, log) == 0
    await append(scripts, log, "c", "b", topic="t")
    assert await rows_of(scripts, log) == [(1, "a"), (2, "b"), (3, "c")]


async def test_a_log_that_is_absent_or_long_is_left_alone(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    assert await pack(scripts, log) == 0
    for number in range(64):
        await append(scripts, log, f"{number} {'x' * 200}")
    assert await pack(scripts, log) == 0


async def test_rows_that_are_written_meanwhile_are_kept(scripts: Scripts, keys: Keys) -> None:
    log = keys.updates("s")
    written = [append(scripts, log, f"row-{number}") for number in range(16)]
    await asyncio.gather(*(each for one in written for each in (one, pack(scripts, log))))
    assert await rows_of(scripts, log) == [(n + 1, f"row-{n}") for n in range(16)]
