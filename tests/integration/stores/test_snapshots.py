"""The snapshots of a task: its notes in order, seen from outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import CorruptState, RedisStateStore
from redis_state.testing import eventually
from redis_state.worker import FullSnapshot, StepPolicy, StepSnapshot, TaskContext
from tests.support.processes.pools import SESSION, client_of
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.runs import TASK, begin_again, parts_left, run_to_the_end


def _padded(number: int) -> dict[str, Any]:
    return {"n": number, "pad": "x" * 200 * number}


async def loop(ctx: TaskContext) -> None:
    for number in range(25):
        step = ctx.checkpoint_step if number % 10 == 0 else ctx.step
        await step("work", _padded, number)
        if number == 12 * ctx.attempt:
            begin_again()


async def test_snapshots_stand_in_the_order_of_their_notes_beyond_nine_and_across_runs(
    store: RedisStateStore,
) -> None:
    before = await clock_ms(store.base.scripts)
    await run_to_the_end(store, loop, steps=StepPolicy(inline_bytes=1000))
    after = await clock_ms(store.base.scripts)
    async with client_of(store) as client:
        found = await client.snapshots(SESSION, TASK)
        assert [one.version for one in found] == list(range(1, 26))
        assert [one.step for one in found] == [f"work#{n}" for n in range(1, 26)]
        first, second = sorted({one.epoch for one in found})
        assert [one.epoch for one in found] == [first] * 13 + [second] * 12
        assert [one.version for one in found if one.checkpoint] == [1, 11, 21]
        times = [one.at for one in found]
        assert times == sorted(times)
        assert _moment(before) <= times[0] <= times[-1] <= _moment(after)
        for number in (0, 3, 24):
            full = await client.snapshot(SESSION, TASK, number + 1)
            assert full is not None
            assert full.result == {"n": number, "pad": "x" * 200 * number}
            assert full.size > 200 * number
            assert StepSnapshot(
                full.version, full.step, full.checkpoint, full.epoch, full.at, full.size,
                full.began_at, full.attempts,
            ) == found[number]  # fmt: skip
            assert "xxx" not in repr(full)
        last = await client.last_checkpoint(SESSION, TASK)
        assert isinstance(last, FullSnapshot)
        result: Any = last.result
        assert (last.version, result["n"]) == (21, 20)
        assert await client.snapshot(SESSION, TASK, 26) is None
        assert await client.snapshot(SESSION, TASK, 0) is None


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


async def test_a_task_without_notes_or_no_task_at_all_has_no_snapshots(
    store: RedisStateStore,
) -> None:
    async def plain(ctx: TaskContext) -> None:
        await ctx.step("plain", int)

    await run_to_the_end(store, plain)
    async with client_of(store) as client:
        assert len(await client.snapshots(SESSION, TASK)) == 1
        assert await client.last_checkpoint(SESSION, TASK) is None
        assert await client.snapshots(SESSION, "another") == []
        assert await client.snapshot(SESSION, "another", 1) is None


async def test_a_damaged_note_is_told(store: RedisStateStore) -> None:
    async def plain(ctx: TaskContext) -> None:
        await ctx.checkpoint_step("plain", int)

    await run_to_the_end(store, plain)
    journal = store.base.keys.journal(SESSION, TASK)
    await store.transport.sender.send("HSET", journal, "step:plain#1", "s3cret", repeatable=True)
    async with client_of(store) as client:
        with pytest.raises(CorruptState) as caught:
            await client.snapshots(SESSION, TASK)
    assert caught.value.key == journal
    assert "s3cret" not in str(caught.value)


async def test_the_snapshots_go_with_their_task(store: RedisStateStore) -> None:
    short = store.settings.model_copy(update={"finished_task_ttl": timedelta(milliseconds=500)})

    async def plain(ctx: TaskContext) -> None:
        await ctx.step("plain", lambda: "x" * 300_000)

    async with RedisStateStore(short) as own, client_of(own) as client:
        await run_to_the_end(own, plain)
        assert await parts_left(own)

        async def gone() -> bool:
            return await client.get(SESSION, TASK) is None

        await eventually(gone, "the record has expired")
        await eventually(lambda: _is_empty(own), "so has its journal, chunks and all")
        assert await client.snapshots(SESSION, TASK) == []


async def _is_empty(store: RedisStateStore) -> bool:
    journal = store.base.keys.journal(SESSION, TASK)
    left: int = await store.transport.sender.send("EXISTS", journal, repeatable=True)
    return left == 0
