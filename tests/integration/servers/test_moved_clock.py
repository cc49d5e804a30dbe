"""The server's own clock is moved while tasks run, sleep, are paused, wait and are put off."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskClient, TaskContext
from tests.support.processes.pools import key_of_queue, pool, queue_of
from tests.support.scripts.replies import ask, clock_ms
from tests.support.servers.changes.moved_clock import MovedClockServer, compiler
from tests.support.servers.faults import short_directory

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it has a server of its own"),
    pytest.mark.skipif(compiler() is None, reason="needs a C compiler"),
]

_HOUR, _DAY = 3_600, 86_400
_WAIT = timedelta(seconds=2)


async def sleeps(ctx: TaskContext) -> str:
    await ctx.step("before", lambda: 1)
    await ctx.sleep(_WAIT)
    return "done"


async def is_paused(ctx: TaskContext) -> Any:
    return (await ctx.approval("?", timeout=_WAIT, on_timeout="resume", default="done")).value


async def works(ctx: TaskContext) -> str:
    await ctx.step("work", asyncio.sleep, 1)
    return "done"


async def joins(ctx: TaskContext) -> Any:
    return await ctx.join(await ctx.spawn("works", limit_key="k"))


_HANDLERS = {"sleeps": sleeps, "is_paused": is_paused, "works": works, "joins": joins}


async def submit_all(client: TaskClient, round_: int) -> list[tuple[str, str]]:
    """Submit tasks of every kind, with and without keys, at once and put off."""
    tasks: list[tuple[str, str]] = []
    ways: list[dict[str, Any]] = [
        {},
        {"limit_key": "k"},
        {"in_turn": True, "limit_key": "k"},
        {"limit_key": "rated"},
        {"delay": _WAIT},
        {"delay": _WAIT, "in_turn": True, "limit_key": "k"},
    ]
    for number, way in enumerate(ways):
        for handler in list(_HANDLERS)[number % 2 :: 2]:
            session, task = f"s{number // 3}", f"{handler}-{number}-{round_}"
            await client.submit(handler, session_id=session, task_id=task, **way)
            tasks.append((session, task))
    return tasks


async def found(client: TaskClient, **filters: Any) -> list[tuple[str, str]]:
    """Page through all tasks, a few at a time."""
    tasks: list[tuple[str, str]] = []
    after: str | None = None
    while True:
        page = await client.find(limit=7, after=after, **filters)
        tasks += [(each.session_id, each.task_id) for each in page.tasks]
        after = page.cursor
        if after is None:
            return tasks


@pytest.mark.parametrize(
    "moves", [(-_HOUR,), (-_DAY, 0), (_DAY, 0), (-200,)], ids=["hour", "day", "forward", "minutes"]
)
async def test_tasks_end_soon_and_are_found_once_when_the_clock_is_moved(
    moves: tuple[int, ...],
) -> None:
    with short_directory() as directory:
        server = MovedClockServer(directory)
        await server.start()
        try:
            async with RedisStateStore.from_url(server.url, namespace="moved") as store:
                await _moved(server, store, moves)
        finally:
            await server.stop()


async def _moved(server: MovedClockServer, store: RedisStateStore, moves: tuple[int, ...]) -> None:
    scripts = store.base.scripts
    async with pool(store, _HANDLERS, lease_s=3.0, max_crashes=9) as client:
        queue = queue_of(store.settings)
        await client.queues.limit(queue, per_key=2)
        await client.queues.limit_key(queue, "rated", rate=Rate(2, timedelta(seconds=1)), running=2)
        tasks = await submit_all(client, 0)
        for round_, seconds in enumerate(moves, 1):
            await eventually(
                lambda: _some_wait(client), "some run, some are paused, some wait", timeout_s=60
            )
            before_ms = await clock_ms(scripts)
            server.move(seconds)
            await eventually(partial(_is_moved, store, before_ms), "the clock is another one")
            tasks += await submit_all(client, round_)
        for task in tasks:
            assert await client.result(*task, timeout_s=60) == "done"

        async def is_empty() -> bool:
            keys = store.base.keys.queue(queue)
            left = [await ask(scripts, "ZCARD", key) for key in (keys.claims, keys.holders)]
            waits = await ask(scripts, "ZCARD", key_of_queue(store.settings))
            return [*left, waits, await ask(scripts, "HLEN", keys.owners)] == [0, 0, 0, 0]

        await eventually(is_empty, "no permit is taken, and nothing waits", timeout_s=60)
        ended = {"ended_after": datetime(2000, 1, 1, tzinfo=UTC)}
        for filters in ({}, ended, {"status": TaskStatus.COMPLETE}):
            for newest_first in (True, False):
                listed = Counter(await found(client, newest_first=newest_first, **filters))
                assert set(listed.values()) == {1}
                assert listed.keys() >= set(tasks)


async def _some_wait(client: TaskClient) -> bool:
    counts = await client.count()
    wanted = (TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.PENDING)
    return all(counts.get(status) for status in wanted)


async def _is_moved(store: RedisStateStore, before_ms: int) -> bool:
    return abs(await clock_ms(store.base.scripts) - before_ms) > 100_000
