"""What is held for the archive is found, and erased, for as long as it is held."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")
pytest.importorskip("psycopg", reason="needs the postgres extra")

from redis_state import RedisStateStore
from redis_state.archive.copying.backfill import backfill
from redis_state.archive.protocol import Archive
from redis_state.erasure import Eraser
from redis_state.models import TaskStatus
from redis_state.stores.base import ARCHIVE_HOLD_MS
from redis_state.testing import eventually
from redis_state.transport.keys import WATCH_SHARDS
from redis_state.transport.sending.calls import CallSender
from redis_state.worker import TaskContext
from tests.support.processes.pools import SESSION, pool
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.archived.archives import archive_all, ended
from tests.support.tasks.crash_states import send

pytestmark = [
    pytest.mark.worker,
    pytest.mark.role("any", why="it reads the names of all keys"),
]


async def echo(ctx: TaskContext) -> object:
    return ctx.input


async def test_a_held_task_is_listed_as_long_as_its_record_lives_and_no_longer(
    live: RedisStateStore, archive: Archive
) -> None:
    async with pool(live, {"echo": echo}) as client:
        await client.submit("echo", 1, session_id="mine", task_id="t", attributes={"user": "ann"})
        await client.wait("mine", "t", timeout_s=60)
        await eventually(lambda: _is_listed_on(live), "the index lists it as long as it is held")
        await backfill(live)
        await archive_all(live, archive)
        await eventually(lambda: _is_let_go(live), "the index lists it as long as before")


async def test_an_archiver_that_dies_behind_the_mark_leaves_nothing_listed(
    live: RedisStateStore, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(live, {"echo": echo}) as client:
        await client.submit("echo", 1, session_id="mine", task_id="t")
        await client.wait("mine", "t", timeout_s=60)
        await eventually(lambda: _is_listed_on(live), "the index lists it as long as it is held")
    await backfill(live)
    run = CallSender.run
    marked = False

    def dying(sender: CallSender, what: Any, *more: Any, **options: Any) -> Any:
        nonlocal marked
        if marked:
            raise RuntimeError("the process is killed")
        marked = what.script.name == "mark_archived"
        return run(sender, what, *more, **options)

    monkeypatch.setattr(CallSender, "run", dying)
    with pytest.raises(RuntimeError, match="killed"):
        await archive_all(live, archive)
    monkeypatch.setattr(CallSender, "run", run)
    assert await send(live, "HEXISTS", live.tasks.keys("mine", "t").task, "archived") == 1
    await archive_all(live, archive)
    await eventually(lambda: _is_let_go(live), "the index lists it as long as before")


async def test_a_user_is_erased_whose_task_no_index_lists(
    live: RedisStateStore, archive: Archive
) -> None:
    async with pool(live, {"echo": echo}) as client:
        await client.submit("echo", 1, session_id="mine", task_id="t", attributes={"user": "ann"})
        await client.wait("mine", "t", timeout_s=60)
    for shard in range(WATCH_SHARDS):
        keys = live.base.keys.task_index(shard)
        for key in (keys.index, keys.about, keys.expiry):
            await send(live, "DEL", key)
    async with Eraser(live, archive) as eraser:
        report = await eraser.forget_user("ann")
    assert report.sessions == ["mine"]
    assert await live.tasks.load_fields("mine", "t") is None


async def _lives(store: RedisStateStore) -> tuple[int, int]:
    """Return until when the only task lives, and until when it is listed, in ms."""
    record = int(await send(store, "PEXPIRETIME", store.tasks.keys("mine", "t").task))
    for shard in range(WATCH_SHARDS):
        key = store.base.keys.task_index(shard).expiry
        for score in (await send(store, "ZRANGE", key, 0, -1, "WITHSCORES"))[1::2]:
            return record, int(float(score))
    return record, 0


async def _is_listed_on(store: RedisStateStore) -> bool:
    record, listed = await _lives(store)
    # The record was held a moment before its index was written.
    return listed >= record > await clock_ms(store.base.scripts) + ARCHIVE_HOLD_MS // 2


async def _is_let_go(store: RedisStateStore) -> bool:
    record, listed = await _lives(store)
    return max(record, listed) < await clock_ms(store.base.scripts) + ARCHIVE_HOLD_MS // 2


async def test_a_save_of_a_held_task_does_not_shorten_its_life(live: RedisStateStore) -> None:
    task = await ended(live)
    key = live.tasks.keys(SESSION, task).task
    before = int(await send(live, "PEXPIRETIME", key))
    saved = await live.tasks.load(SESSION, task)
    assert saved is not None
    assert await live.tasks.save(saved)
    assert int(await send(live, "PEXPIRETIME", key)) == before
    assert int(await send(live, "PTTL", key)) > ARCHIVE_HOLD_MS // 2


async def test_a_held_task_that_a_host_opens_again_has_a_lifetime_of_its_own(
    live: RedisStateStore,
) -> None:
    task = await ended(live)
    keys = live.tasks.keys(SESSION, task)
    saved = await live.tasks.load(SESSION, task)
    assert saved is not None
    saved.status = TaskStatus.RUNNING
    saved.updated_at += timedelta(seconds=1)
    assert await live.tasks.save(saved)
    longest_ms = live.tasks.ttl_ms("RUNNING") * 9 // 8
    assert 0 < int(await send(live, "PTTL", keys.task)) <= longest_ms
    score = float(await send(live, "ZSCORE", keys.tasks, task))
    assert score / 1000 <= await clock_ms(live.base.scripts) + longest_ms + 1


async def test_a_dropped_log_whose_rows_are_gone_is_held_no_longer(live: RedisStateStore) -> None:
    await ended(live)
    keys = live.updates.keys(SESSION)
    assert int(await send(live, "PTTL", keys.ids)) > ARCHIVE_HOLD_MS // 2
    await send(live, "DEL", keys.rows)
    await live.clear_session(SESSION)
    assert int(await send(live, "PTTL", keys.ids)) < ARCHIVE_HOLD_MS // 2
