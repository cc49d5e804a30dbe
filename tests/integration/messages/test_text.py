"""A model's text: few rows for many tokens, and a stream that a watcher can make sense of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import InvalidField, RedisStateStore
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import (
    Budget,
    RetryPolicy,
    StepPolicy,
    TaskCancelled,
    TaskClient,
    TaskContext,
    TextReader,
    TextWriter,
    guarded,
    retried,
)
from tests.support.processes.pools import SESSION, becomes, pool, updates_of
from tests.support.servers.changes.rollback import rolling_back
from tests.support.tasks.runs import TASK, begin_again, make, run_once, run_to_the_end

TOKENS = [f"token {number}, " for number in range(500)]
WHOLE = "".join(TOKENS)


async def model(tokens: list[str], *, dies_after: int | None = None) -> AsyncGenerator[str, None]:
    for number, token in enumerate(tokens):
        if number == dies_after:
            begin_again()
        yield token


async def rows_of(store: RedisStateStore, task_id: str = TASK) -> list[StateUpdate]:
    return [
        update for update in await updates_of(store, task_id) if "text_id" in str(update.content)
    ]


def shown(rows: list[StateUpdate]) -> dict[str, tuple[str, bool, bool]]:
    reader = TextReader()
    for row in rows:
        reader.feed(row)
    return {name: (text.text, text.ended, text.complete) for name, text in reader.texts.items()}


async def test_tokens_are_joined_and_none_is_lost(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> str:
        async with ctx.text("answer") as out:
            async for token in model(TOKENS):
                out.write(token)
        return out.text

    state = await run_to_the_end(store, handler)
    assert (state.status, state.result) == (TaskStatus.COMPLETE, WHOLE)
    rows = await rows_of(store)
    # All of it is written before the loop has a turn: rows as large as one may be.
    assert len(rows) < len(TOKENS) / 20
    assert [row.content["part"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row.content.get("end", False) for row in rows] == [False] * (len(rows) - 1) + [True]
    assert {row.update_type for row in rows} == {UpdateType.RESULT}
    assert not any(row.content.get("reset") for row in rows)
    assert shown(rows) == {"answer#1": (WHOLE, True, True)}


async def test_a_pause_in_the_stream_publishes_what_waits_without_a_further_token(
    store: RedisStateStore,
) -> None:
    gate = asyncio.Event()

    async def handler(ctx: TaskContext) -> None:
        async with ctx.text() as out:
            out.write("first")
            await gate.wait()
            out.write(" and last")

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)

        async def first() -> bool:
            return [row.content["text"] for row in await rows_of(store, task_id)] == ["first"]

        await eventually(first, "the first token is published")
        gate.set()
        await client.result(SESSION, task_id, timeout_s=60)
        assert shown(await rows_of(store, task_id)) == {"text#1": ("first and last", True, True)}


async def test_a_recorded_text_is_published_once_and_the_model_called_once(
    store: RedisStateStore,
) -> None:
    calls: list[int] = []

    async def handler(ctx: TaskContext) -> list[str]:
        def ask(prompt: str) -> AsyncGenerator[str, None]:
            calls.append(ctx.epoch)
            return model([prompt, " answer", f" {len(calls)}"])

        answers = [await ctx.stream_step("ask", ask, prompt) for prompt in ("a", "b")]
        if ctx.attempt < 3:
            begin_again()
        return answers

    state = await run_to_the_end(store, handler)
    assert state.result == ["a answer 1", "b answer 2"]
    assert len(calls) == 2
    assert shown(await rows_of(store)) == {
        "ask#1/ask#1": ("a answer 1", True, True),
        "ask#2/ask#1": ("b answer 2", True, True),
    }
    assert Counter(row.update_id for row in await rows_of(store)).most_common(1)[0][1] == 1


@pytest.mark.parametrize("in_step", [True, False], ids=["in a step", "in the handler"])
async def test_a_text_that_is_begun_again_replaces_what_a_watcher_has(
    store: RedisStateStore,
    in_step: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    texts = [[f"run {run} says {number}. " * 40 for number in range(9)] for run in range(3)]

    async def handler(ctx: TaskContext) -> str:
        async def write() -> str:
            run = ctx.attempt - 1
            async with ctx.text("answer") as out:
                async for token in model(texts[run], dies_after=6 if run < 2 else None):
                    out.write(token)
                    await out.flush()
            return out.text

        return str(await ctx.step("ask", write)) if in_step else await write()

    state = await run_to_the_end(store, handler)
    assert state.result == "".join(texts[2])
    rows = await rows_of(store)
    name = "ask#1/answer#1" if in_step else "answer#1"
    assert [row.content["text"] for row in rows if row.content["text"]] == [
        *texts[0][:6],
        *texts[1][:6],
        *texts[2],
    ]
    firsts = [row.content for row in rows if row.content["part"] == 1]
    assert [first.get("reset", False) for first in firsts] == [False, True, True]
    assert len({first["generation"] for first in firsts}) == 3
    assert shown(rows) == {name: ("".join(texts[2]), True, True)}
    # A watcher that comes in the middle knows that it has not all of it.
    assert shown(rows[-3:])[name][2] is False


async def test_outside_of_a_step_a_replay_passes_a_text_that_has_ended(
    store: RedisStateStore,
) -> None:
    published: list[bool] = []

    async def handler(ctx: TaskContext) -> None:
        async with ctx.text("answer") as out:
            published.append(out.published)
            out.write(f"this is run {ctx.attempt}")
        if ctx.attempt == 1:
            begin_again()
        async with ctx.text("answer") as out:
            out.write("another")

    await run_to_the_end(store, handler)
    assert published == [True, False]
    assert shown(await rows_of(store)) == {
        "answer#1": ("this is run 1", True, True),
        "answer#2": ("another", True, True),
    }


async def test_each_attempt_of_a_retried_step_is_a_generation(store: RedisStateStore) -> None:
    tries: list[str] = []

    async def handler(ctx: TaskContext) -> str:
        async def write() -> str:
            tries.append("")
            async with ctx.text("answer") as out:
                out.write(f"attempt {len(tries)}")
                if len(tries) < 3:
                    raise ConnectionError
            return out.text

        return str(await ctx.step("ask", write))

    policy = StepPolicy(retry=RetryPolicy(attempts=3, wait_initial_s=0.01))
    await make(store)
    assert (await run_once(store, handler, steps=policy)).result == "attempt 3"
    rows = await rows_of(store)
    # What was written before the failure is seen.
    assert [row.content["text"] for row in rows] == ["attempt 1", "attempt 2", "attempt 3"]
    assert [row.content.get("reset") for row in rows] == [None, True, True]
    assert shown(rows) == {"ask#1/answer#1": ("attempt 3", True, True)}


async def test_a_stream_step_is_retried_as_its_work_says(store: RedisStateStore) -> None:
    tries: list[int] = []

    async def model() -> AsyncIterator[str]:
        tries.append(len(tries))
        yield f"attempt {len(tries)}"
        if len(tries) < 3:
            raise ConnectionError

    async def handler(ctx: TaskContext) -> str:
        policy = RetryPolicy(attempts=3, wait_initial_s=0.01, wait_jitter_s=0)
        return await ctx.stream_step("answer", retried(model, policy))

    await make(store)
    assert (await run_once(store, handler)).result == "attempt 3"
    rows = await rows_of(store)
    assert [row.content["text"] for row in rows] == ["attempt 1", "attempt 2", "attempt 3"]


async def test_a_timeout_of_the_handlers_own_leaves_watchers_what_the_handler_has(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> str:
        out = ctx.text("t", join_ms=60_000)
        try:
            async with asyncio.timeout(0.05), out:
                out.write("as far as ")
                out.write("it came")
                await asyncio.sleep(60)
        except TimeoutError:
            await ctx.progress("it goes on")
        return out.text

    await make(store)
    assert (await run_once(store, handler)).result == "as far as it came"
    reader = TextReader()
    for row in await rows_of(store):
        reader.feed(row)
    assert [(text.text, text.ended) for text in reader.texts.values()] == [
        ("as far as it came", False)
    ]


async def test_a_cancel_reaches_the_producer_at_its_next_token(store: RedisStateStore) -> None:
    ended: list[str] = []

    async def endless(ctx: TaskContext) -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "on and on "
                await asyncio.sleep(0)
        finally:
            ended.append(ctx.task.task_id)

    async def handler(ctx: TaskContext) -> None:
        await ctx.stream_step("ask", endless, ctx)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)

        async def begun() -> bool:
            return bool(await rows_of(store, task_id))

        await eventually(begun, "the text is begun")
        await client.cancel(SESSION, task_id, reason="enough")
        await becomes(client, task_id, TaskStatus.CANCELLED)
        assert ended == [task_id]
        rows = await rows_of(store, task_id)
        assert not any(row.content.get("end") for row in rows)


async def test_a_model_that_is_faster_than_the_server_waits_for_it(
    store: RedisStateStore,
) -> None:
    published = list[int]()

    async def fast() -> AsyncGenerator[str, None]:
        # It never gives the loop a turn.
        for _ in range(600):
            yield "x" * 1_024
        published.append(len(await rows_of(store)))

    async def handler(ctx: TaskContext) -> int:
        return len(await ctx.stream_step("ask", fast))

    state = await run_to_the_end(store, handler)
    assert state.result == 600 * 1_024
    # All but 256 KB was there before its last token, in rows of 16 KB.
    assert published[0] >= (600 - 256) // 16


async def test_a_budget_of_updates_counts_rows_and_ends_the_text(store: RedisStateStore) -> None:
    @guarded(Budget(updates=3))
    async def handler(ctx: TaskContext) -> None:
        async with ctx.text(join_bytes=1) as out:
            for _ in range(100):
                out.write("x")
                await out.flush()

    state = await run_to_the_end(store, handler)
    assert state.error == "TaskStopped: its budget of 3 updates is used up"
    assert len(await rows_of(store)) == 3


async def test_odd_tokens_and_odd_names_come_through(store: RedisStateStore) -> None:
    tokens = ["\ud83d", "\ude00", "\N{GRINNING FACE}", "\0", "\n", "é" * 3_000, "x" * 50_000, ""]
    odd = "a:b#1/{x}\ud800"

    async def handler(ctx: TaskContext) -> None:
        async with ctx.text(odd, kind=UpdateType.THINKING) as out:
            for token in tokens:
                out.write(token)
        async with ctx.text("empty"):
            pass
        for bad in (None, b"x", 3):
            async with ctx.text("bad") as out:
                with pytest.raises(InvalidField, match="token"):
                    out.write(bad)  # type: ignore[arg-type]
        with pytest.raises(InvalidField, match="not open"):
            out.write("late")
        with pytest.raises(InvalidField, match="join_bytes"):
            ctx.text("x", join_bytes=0)

    state = await run_to_the_end(store, handler)
    assert state.status is TaskStatus.COMPLETE, state.error
    rows = await rows_of(store)
    found = shown(rows)
    # Two halves of a character are one in JSON.
    whole = "".join(["\N{GRINNING FACE}", *tokens[2:]])
    assert found["a:b##1/{x}\ud800#1"] == (whole, True, True)
    assert found["empty#1"] == ("", True, True)
    assert max(len(row.content["text"]) for row in rows) <= 16_384


async def test_two_texts_at_once_do_not_mix(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        async def write(name: str) -> None:
            async with ctx.branch(name).text("part", join_bytes=64) as out:
                for number in range(200):
                    out.write(f"{name}{number} ")
                    await asyncio.sleep(0)

        await asyncio.gather(write("a"), write("b"))

    await run_to_the_end(store, handler)
    assert shown(await rows_of(store)) == {
        f"{name}#1/part#1": ("".join(f"{name}{n} " for n in range(200)), True, True)
        for name in "ab"
    }


async def test_a_server_that_went_back_gets_the_text_again_as_a_new_generation() -> None:
    async with rolling_back() as server, RedisStateStore.from_url(server.url) as store:

        async def handler(ctx: TaskContext) -> str:
            async def write() -> str:
                async with ctx.text("answer") as out:
                    out.write(f"run {ctx.attempt}")
                    await out.flush()
                    if not marks:
                        marks.append(ctx.epoch)
                        await server.mark()
                        out.write(", lost")
                        await out.flush()
                        await server.go_back()
                    out.write(", end")
                return out.text

            return str(await ctx.step("ask", write))

        marks: list[int] = []
        state = await run_to_the_end(store, handler)
        assert state.status is TaskStatus.COMPLETE, state.error
        rows = await rows_of(store)
        assert shown(rows) == {"ask#1/answer#1": (state.result, True, True)}
        assert len({row.content["generation"] for row in rows}) == 2


async def test_a_text_costs_fewer_rows_than_one_update_for_each_token(
    store: RedisStateStore,
) -> None:
    counts: list[int] = []

    async def count() -> None:
        cursor = await store.update_cursor(SESSION)
        counts.append(int(str(cursor).partition("-")[0]))

    async def handler(ctx: TaskContext) -> None:
        await count()
        async with ctx.text("joined") as out:
            for token in TOKENS:
                out.write(token)
                await asyncio.sleep(0)
        await count()
        for token in TOKENS:
            await ctx.emit(UpdateType.RESULT, {"text": token})
        await count()

    await run_to_the_end(store, handler)
    before, joined, each = counts
    assert each - joined == len(TOKENS)
    assert (joined - before) * 10 < each - joined


async def test_a_handler_that_keeps_the_writer_after_the_end_of_its_run_cannot_write(
    store: RedisStateStore,
) -> None:
    kept: list[TextWriter] = []

    async def handler(ctx: TaskContext) -> None:
        out = ctx.text()
        await out.__aenter__()
        kept.append(out)
        out.write("x")

    await run_to_the_end(store, handler)
    with pytest.raises((TaskCancelled, InvalidField)):
        kept[0].write("y")


async def test_watchers_resume_a_text_from_a_cursor(store: RedisStateStore) -> None:
    async def handler(ctx: TaskContext) -> None:
        async with ctx.text("answer", join_bytes=100) as out:
            async for token in model(TOKENS):
                out.write(token)
                await asyncio.sleep(0)

    async with pool(store, {"h": handler}) as client:
        task_id = await client.submit("h", session_id=SESSION)

        async def watch(client: TaskClient, *, breaks: int) -> str:
            reader, cursor = TextReader(), None
            for patience in [3] * breaks + [1_000_000]:
                seen = 0
                async for entry in client.watch(SESSION, task_id, after=cursor):
                    reader.feed(entry.value)
                    cursor, seen = entry.cursor, seen + 1
                    if seen == patience:
                        break
            return reader.texts["answer#1"].text

        assert await asyncio.gather(*(watch(client, breaks=n) for n in (0, 1, 7))) == [WHOLE] * 3
