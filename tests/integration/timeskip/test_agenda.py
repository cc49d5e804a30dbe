"""What a queue has, as one moment shows it: nothing is missed while it moves between its lists."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.testing.clock import Agenda
from redis_state.worker.queue.queue import Queue
from tests.support.servers.faults import Proxy

_MOVE = """
local from = redis.call('EXISTS', KEYS[1]) == 1 and KEYS[1] or KEYS[2]
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('ZADD', from == KEYS[1] and KEYS[2] or KEYS[1], 1, 'entry')
return redis.call('PEXPIRE', from == KEYS[1] and KEYS[2] or KEYS[1], 600000)
"""


@asynccontextmanager
async def _moving(store: RedisStateStore, one: str, other: str) -> AsyncGenerator[list[int]]:
    """Move an entry between two lists without end; count the moves."""
    moves: list[int] = []
    chance = random.Random(3)

    async def move() -> None:
        while True:
            await store.transport.sender.send("EVAL", _MOVE, 2, one, other, repeatable=True)
            moves.append(1)
            # Not in step with the reads.
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)

    await store.transport.sender.send("ZADD", one, 1, "entry", repeatable=True)
    moving = asyncio.create_task(move())
    try:
        yield moves
    finally:
        moving.cancel()
        await asyncio.wait({moving})
        await store.transport.commands.unlink(one)
        await store.transport.commands.unlink(other)


@pytest.mark.role("any", why="it moves what the scripts move, by itself")
@pytest.mark.parametrize(("one", "other"), [("waits", "queue"), ("turns", "claims")])
async def test_what_moves_between_two_lists_is_seen_in_one_of_them(
    store: RedisStateStore, one: str, other: str
) -> None:
    async with Proxy(store.settings.url.get_secret_value()) as proxy:
        settings = store.settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with RedisStateStore(settings) as reading:
            queue = Queue(reading, name="q")
            agenda, keys = Agenda(reading, queue, ["q"]), queue.keys("q")
            await agenda.read()
            # So the server can serve the other client between any two calls of a read.
            proxy.dribble_calls(8)
            async with _moving(store, getattr(keys, one), getattr(keys, other)) as moves:
                for _ in range(80):
                    before = len(moves)
                    moment = await agenda.read()
                    assert any("entry" in what for what in moment.busy)
                    assert len(moves) > before
            proxy.dribble_calls(1 << 16)
