"""Steps are named alike in each run, done once, and their large results come back whole."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, InvalidTransition, LeaseLost
from redis_state.models import TaskStatus
from redis_state.primitives.blob import CHUNK_BYTES
from redis_state.worker import StepPolicy, TaskClient, TaskContext
from redis_state.worker.tasks.recorded.journal import Journals, StepRecord, part_name, read_step
from redis_state.worker.tasks.views.dead_list import list_first_dead
from tests.support.processes.pools import SESSION
from tests.support.tasks.runs import (
    TASK,
    begin_again,
    make,
    parts_left,
    record_step,
    run_once,
    run_to_the_end,
    take,
)

Work = Callable[..., Awaitable[Any]]


class Done:
    """Work that takes its time, another time in each run, and notes that it was done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.runs = 0

    async def __call__(self, name: str) -> str:
        for _ in range(random.randrange(5)):
            await asyncio.sleep(0)
        self.done.append(name)
        return f"did {name}"

    def lives(self, runs: int) -> None:
        """End a run, unless it is the last of so many."""
        self.runs += 1
        if self.runs < runs:
            begin_again()


async def test_looped_steps_of_one_name_are_found_again_by_their_number(
    store: RedisStateStore,
) -> None:
    work = Done()

    async def loop(ctx: TaskContext) -> list[str]:
        found: list[str] = []
        for number in range(12):
            found.append(await ctx.step("work", work, f"{number}"))
            if number == ctx.attempt:
                begin_again()
        return found

    ended = await run_to_the_end(store, loop)
    assert ended.result == [f"did {number}" for number in range(12)]
    assert work.done == [f"{number}" for number in range(12)]


async def test_gathered_steps_of_one_name_are_numbered_as_they_are_called(
    store: RedisStateStore,
) -> None:
    work = Done()

    async def gathered(ctx: TaskContext) -> list[str]:
        found = await asyncio.gather(*(ctx.step("work", work, f"{n}") for n in range(20)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step("work", work, f"{n}")) for n in range(20, 25)]
        found += [await asyncio.wait_for(ctx.step("work", work, f"{n}"), 10) for n in range(25, 30)]
        work.lives(3)
        return [*found, *(task.result() for task in tasks)]

    ended = await run_to_the_end(store, gathered)
    order = [*range(20), *range(25, 30), *range(20, 25)]
    assert ended.result == [f"did {number}" for number in order]
    assert sorted(work.done, key=int) == [f"{number}" for number in range(30)]


@pytest.mark.parametrize("first", ["one", "two"])
async def test_a_name_that_two_tasks_of_a_handler_use_is_refused_whoever_is_first(
    store: RedisStateStore, first: str
) -> None:
    async def part(ctx: TaskContext, name: str) -> None:
        if name != first:
            await asyncio.sleep(0.01)
        await ctx.step("work", str, name)

    async def mixed(ctx: TaskContext) -> None:
        await asyncio.gather(part(ctx, "one"), part(ctx, "two"))

    ended = await run_to_the_end(store, mixed)
    assert ended.status is TaskStatus.FAILED
    assert ended.error is not None
    assert ended.error.startswith("InvalidField: name: 'work' is used by two asyncio tasks at once")


async def test_a_callback_of_the_loop_and_a_task_cannot_share_a_name(
    store: RedisStateStore,
) -> None:
    async def share(ctx: TaskContext) -> list[int]:
        loop = asyncio.get_running_loop()
        called: asyncio.Future[Awaitable[int]] = loop.create_future()
        loop.call_soon(lambda: called.set_result(ctx.step("work", lambda: 1)))
        first = await called
        try:
            return [await ctx.step("work", lambda: 2)]
        finally:
            await first

    ended = await run_to_the_end(store, share)
    assert ended.error is not None
    assert ended.error.startswith("InvalidField: name: 'work' is used by two asyncio tasks at once")


async def test_branches_count_for_themselves_in_whatever_order_they_go_on(
    store: RedisStateStore,
) -> None:
    work = Done()

    async def part(ctx: TaskContext, name: str) -> list[str]:
        found: list[str] = []
        for number in range(4):
            for _ in range(random.randrange(5)):
                await asyncio.sleep(0)
            found.append(await ctx.step("work", work, f"{name}{number}"))
        return found

    async def branched(ctx: TaskContext) -> list[list[str]]:
        found = await asyncio.gather(*(part(ctx.branch("part"), name) for name in "abc"))
        found.append([await ctx.step("part", work, "d")])
        work.lives(4)
        return found

    for round_ in range(5):
        work.done.clear()
        work.runs = 0
        ended = await run_to_the_end(store, branched, task_id=f"round {round_}")
        named = [[f"did {name}{number}" for number in range(4)] for name in "abc"]
        assert ended.result == [*named, ["did d"]]
        assert len(work.done) == len(set(work.done)) == 13


async def test_a_step_inside_of_a_step_is_counted_by_the_outer_one(store: RedisStateStore) -> None:
    work = Done()

    async def outer(ctx: TaskContext, name: str) -> list[Any]:
        inner = await ctx.step("inner", work, name)
        if name == "b":
            work.lives(2)
        branch = ctx.branch("branch")
        return [inner, await ctx.step("inner", work, f"{name}{name}"), await branch.step("x", int)]

    async def nested(ctx: TaskContext) -> Any:
        first = await ctx.step("outer", outer, ctx, "a")
        return [first, await ctx.step("outer", outer, ctx, "b"), await ctx.step("inner", work, "c")]

    ended = await run_to_the_end(store, nested)
    assert ended.result == [["did a", "did aa", 0], ["did b", "did bb", 0], "did c"]
    assert work.done == ["a", "aa", "b", "bb", "c"]


async def test_names_that_look_like_ours_are_names(store: RedisStateStore) -> None:
    names = ["a", "a#1", "a##1", "a#1/b", "a/b", "", "\ud800", "a#1#1", "/"]

    async def odd(ctx: TaskContext) -> Any:
        outer = ctx.branch("a")
        found = [await outer.step("b", str, "in the branch")]
        for name in names * 2:
            found.append(await ctx.step(name, str, f"{name}|{len(found)}"))
        if ctx.attempt < 2:
            begin_again()
        return found

    ended = await run_to_the_end(store, odd)
    expected = [f"{name}|{n}" for n, name in enumerate(names * 2, start=1)]
    assert ended.result == ["in the branch", *expected]


async def test_a_name_that_is_no_text_is_refused(store: RedisStateStore) -> None:
    async def odd(ctx: TaskContext) -> Any:
        number: Any = 5
        return await ctx.step(number, int)

    ended = await run_to_the_end(store, odd)
    assert ended.error == "InvalidField: name: text is needed, not int"


async def test_a_thread_may_ask_for_steps_of_its_own_names(store: RedisStateStore) -> None:
    async def threads(ctx: TaskContext) -> Any:
        loop = asyncio.get_running_loop()

        def work() -> int:
            step = ctx.step("in a thread", int, "5")
            return asyncio.run_coroutine_threadsafe(step, loop).result(10)

        return await asyncio.to_thread(work)

    assert (await run_to_the_end(store, threads)).result == 5


async def test_an_effect_has_one_key_in_every_run_and_no_other_has_it(
    store: RedisStateStore,
) -> None:
    seen: list[list[str]] = []

    async def effects(ctx: TaskContext) -> None:
        inside: list[str] = []

        async def charge(key: str) -> str:
            assert key == ctx.effect_id() == ctx.effect_id("charge")
            inside.append(ctx.effect_id("refund"))
            return await asyncio.to_thread(ctx.effect_id)

        found: list[str] = []
        for _ in range(2):
            key = ctx.effect_id("charge")
            assert key == ctx.effect_id("charge")
            found.append(key)
            assert await ctx.step("charge", charge, key) == key
        found += [ctx.effect_id("refund"), ctx.branch("b").effect_id("charge")]
        seen.append(found)
        assert len(set(found + inside)) == len(found + inside)
        with pytest.raises(InvalidField):
            ctx.effect_id()
        if ctx.attempt < 3:
            begin_again()

    for task in ("one", "two"):
        assert (await run_to_the_end(store, effects, task_id=task)).status is TaskStatus.COMPLETE
    assert seen[:3] == [seen[0]] * 3
    assert seen[3:] == [seen[3]] * 3
    assert len({*seen[0], *seen[3]}) == 8
    assert all(len(key) == 22 for key in seen[0])


@pytest.mark.parametrize("size", [1_000_000, 20_000_000])
async def test_a_large_result_comes_back_whole_in_every_run(
    store: RedisStateStore, size: int
) -> None:
    text = "".join(random.choices("abcdeé", k=1000)) * (size // 1000)
    done: list[int] = []
    matched: list[bool] = []

    def work() -> list[str]:
        done.append(1)
        return [text]

    async def large(ctx: TaskContext) -> None:
        matched.append(await ctx.step("large", work) == [text])
        matched.append(await ctx.step("small", len, text) == len(text))
        if ctx.attempt < 3:
            begin_again()

    ended = await run_to_the_end(store, large)
    assert (ended.status, ended.error) == (TaskStatus.COMPLETE, None)
    assert matched == [True] * 6
    assert done == [1]
    expected = -(-len(f'["{text}"]'.encode()) // CHUNK_BYTES)
    assert len(await parts_left(store)) == expected
    await _ends_with_its_task(store)


async def _ends_with_its_task(store: RedisStateStore) -> None:
    """Nothing of a result is left once its task is gone, nor lives longer than it."""
    send = store.transport.sender.send
    keys = store.tasks.keys(SESSION, TASK)
    ends = [await send("PEXPIRETIME", key, repeatable=True) for key in (keys.journal, keys.task)]
    # Redis 7.0 reads the clock for each command of a script.
    assert 0 < ends[0] <= ends[1] + 1
    lasting_ms = store.settings.finished_task_ttl.total_seconds() * 1000
    assert await send("PTTL", keys.task, repeatable=True) <= lasting_ms
    await store.tasks.clear(SESSION, TASK)
    assert await send("EXISTS", keys.journal, repeatable=True) == 0


async def test_a_result_just_within_the_limit_stands_in_its_note(store: RedisStateStore) -> None:
    async def two(ctx: TaskContext) -> Any:
        return [
            await ctx.step("within", lambda: "x" * 98),
            await ctx.step("over", lambda: "x" * 99),
        ]

    await run_to_the_end(store, two, steps=StepPolicy(inline_bytes=100))
    assert await parts_left(store) == [part_name("step:over#1", 0)]


@pytest.mark.parametrize(
    ("damage", "stated"),
    [
        (("HDEL", 1), "a chunk of 'step:large#1' is gone"),
        (("HSET", 1, b"short"), "but"),
        (("HSET", 1, b"?" * CHUNK_BYTES), "the digest of 'step:large#1' differs"),
    ],
    ids=["gone", "short", "changed"],
)
async def test_a_damaged_result_is_told_and_the_work_is_not_done_again(
    store: RedisStateStore, damage: tuple[Any, ...], stated: str
) -> None:
    done: list[int] = []

    def work() -> str:
        done.append(1)
        return "x" * (3 * CHUNK_BYTES)

    async def large(ctx: TaskContext) -> None:
        await ctx.step("large", work)
        begin_again()

    await make(store)
    assert (await run_once(store, large)).status is TaskStatus.PENDING
    command, number, *data = damage
    journal = store.base.keys.journal(SESSION, TASK)
    name = part_name("step:large#1", number)
    await store.transport.sender.send(command, journal, name, *data, repeatable=True)
    ended = await run_once(store, large)
    assert ended.status is TaskStatus.FAILED
    assert ended.error is not None
    assert ended.error.startswith(f"CorruptState: {journal}: ")
    assert stated in ended.error
    assert done == [1]


async def test_a_crash_between_chunks_and_note_leaves_nothing_for_long(
    store: RedisStateStore,
) -> None:
    journals = Journals(store.base)
    keys = store.tasks.keys(SESSION, TASK)
    await make(store)
    crashed = await take(store)
    for number in range(5):
        await store.base.scripts.keep_part(
            keys, mark=crashed.replay.mark, entry="step:x#1", number=number, data=b"orphan"
        )
    second = await take(store)
    assert second.journal == {}
    result = "y" * (2 * CHUNK_BYTES)
    row, found = await journals.record_step(keys, "step:x#1", result, run=second.replay)
    assert found == result
    assert len(await parts_left(store)) == read_step(store.base.payloads, row).chunks == 3
    third = await take(store)
    assert await journals.result(keys, "step:x#1", third.journal["step:x#1"]) == result
    # What comes late finds it noted, and changes nothing.
    again = await journals.record_step(keys, "step:x#1", "z" * CHUNK_BYTES * 9, run=third.replay)
    assert again == (row, result)
    with pytest.raises(LeaseLost):
        await journals.record_step(keys, "step:late#1", result, run=second.replay)
    assert len(await parts_left(store)) == 3


@pytest.mark.parametrize("is_read", ["by another worker", "by none"])
async def test_a_note_that_cannot_be_read_is_left_to_others_instead_of_doing_it_again(
    is_read: str, store: RedisStateStore
) -> None:
    await make(store)
    journal = store.base.keys.journal(SESSION, TASK)
    send = store.transport.sender.send
    done: list[str] = []
    note = b'[1,1,1,1,false,[4,0,"",null,0,0,1],1234]'
    await send("HSET", journal, "step:x#1", b"[2" + note[2:], repeatable=True)

    async def handler(ctx: TaskContext) -> Any:
        return await ctx.step("x", done.append, "x")

    for _ in range(1 if is_read == "by another worker" else 9):
        state = await run_once(store, handler)
        assert state.status is TaskStatus.PENDING
    if is_read == "by none":
        ended = await run_once(store, handler)
        assert ended.status is TaskStatus.FAILED
        assert ended.error is not None
        assert ended.error.startswith("the task cannot be read: DecodeError: the entry 'step:x#1'")
        assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
        # Reopened by an earlier version, which leaves the field, it fails otherwise.
        task = store.base.keys.task(SESSION, TASK)
        await send("HINCRBY", task, "retries", b"1", repeatable=True)
        assert await list_first_dead(store, 10) == []
    # It is as it was written: a version that reads it continues.
    await send("HSET", journal, "step:x#1", note, repeatable=True)
    if is_read == "by none":
        async with TaskClient(store) as client:
            await client.retry(SESSION, TASK)
    ended = await run_once(store, handler)
    assert (ended.status, ended.result, done) == (TaskStatus.COMPLETE, 1234, [])


async def test_a_task_that_has_gone_takes_no_more_notes(store: RedisStateStore) -> None:
    await make(store)
    started = await take(store)
    await store.tasks.clear(SESSION, TASK)
    with pytest.raises(LeaseLost):
        await record_step(store, started, "step:x#1", 1)
    assert await parts_left(store) == []


async def test_a_task_that_has_expired_takes_no_more_notes(store: RedisStateStore) -> None:
    await make(store)
    started = await take(store)
    task = store.base.keys.task(SESSION, TASK)
    await store.transport.sender.send("DEL", task, repeatable=True)
    for size in (1, CHUNK_BYTES * 2):
        with pytest.raises(InvalidTransition) as caught:
            await record_step(store, started, "step:x#1", "x" * size)
        assert caught.value.current == "missing"
    assert await parts_left(store) == []


async def test_a_note_that_is_under_way_arrives_though_its_run_is_cancelled(
    store: RedisStateStore,
) -> None:
    await make(store)
    started = await take(store)
    noting = asyncio.create_task(record_step(store, started, "step:x#1", "done"))
    await asyncio.sleep(0)
    noting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await noting
    journal = (await take(store)).journal
    assert journal["step:x#1"].result == "done"


def test_a_note_shows_no_result_and_terms_must_make_sense() -> None:
    note = StepRecord(1, 1, 1, checkpoint=False, size=8, chunks=0, sha256="", result="s3cret")
    assert "s3cret" not in repr(note)
    with pytest.raises(InvalidField):
        StepPolicy(inline_bytes=-1)
    wrong: Any = "shout"
    with pytest.raises(InvalidField):
        StepPolicy(on_changed=wrong)
