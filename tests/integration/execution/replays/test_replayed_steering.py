"""In a replay, steering is taken where it was taken first, and nothing new before that."""

from __future__ import annotations

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import InvalidTransition, TaskUnknown
from redis_state.models import SteeringEvent, SteeringEventType
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from tests.support.processes.pools import SESSION
from tests.support.tasks.replays import emitted, say, texts
from tests.support.tasks.runs import TASK, begin_again, make, run_once


async def test_steering_is_taken_in_a_replay_where_it_was_taken_first(
    store: RedisStateStore,
) -> None:
    runs: list[list[list[str]]] = []

    async def handler(ctx: TaskContext) -> None:
        taken: list[list[str]] = []
        runs.append(taken)
        for number in range(4):
            if (ctx.attempt, number) in {(1, 1), (1, 3), (2, 3)}:
                await say(store, ctx, f"{ctx.attempt}.{number}")
            taken.append(texts(ctx.inbox.take()))
            await ctx.step(f"s{number}", int)
            if (ctx.attempt, number) in {(1, 2), (2, 3)}:
                begin_again()

    await make(store)
    await run_once(store, handler)
    await say(store, None, "between")
    await run_once(store, handler)
    await run_once(store, handler)
    assert runs == [
        [[], ["1.1"], []],
        [[], ["1.1"], [], ["between", "2.3"]],
        [[], ["1.1"], [], ["between", "2.3"]],
    ]


async def test_nothing_new_is_taken_before_the_point_that_earlier_runs_have_passed(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> None:
        topic = "otters"
        for text in texts(ctx.inbox.take()):
            topic = text
        await ctx.progress(topic, part="A")
        if ctx.attempt == 1:
            begin_again()
        await ctx.progress(topic, part="B")
        for text in texts(ctx.inbox.take()):
            topic = text
        await ctx.progress(topic, part="C")

    await make(store)
    await run_once(store, handler)
    await say(store, None, "beavers")
    await run_once(store, handler)
    rows = [(row["part"], row["message"]) for row in await emitted(store)]
    assert rows == [("A", "otters"), ("B", "otters"), ("C", "beavers")]


async def test_a_wait_for_steering_is_not_waited_again(store: RedisStateStore) -> None:
    waited: list[tuple[int, list[str]]] = []

    async def handler(ctx: TaskContext) -> None:
        for _ in range(2):
            waited.append((ctx.attempt, texts(await ctx.inbox.wait(0.05))))
            await ctx.progress("waited")
        if ctx.attempt == 1:
            await say(store, ctx, "go")
        waited.append((ctx.attempt, texts(await ctx.inbox.wait())))
        if ctx.attempt == 1:
            begin_again()

    await make(store)
    for _ in range(2):
        await run_once(store, handler)
    assert waited == [(1, []), (1, []), (1, ["go"]), (2, []), (2, []), (2, ["go"])]


async def test_a_handler_that_does_not_repeat_itself_is_steered_all_the_same(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.tasks.recorded.lanes._PATIENCE_S", 0.05)

    async def handler(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            for number in range(5):
                await ctx.progress(f"{number}")
            begin_again()

        async def reported() -> list[str]:
            return texts(ctx.inbox.take())

        return (await eventually(reported, "it is steered"))[0]

    await make(store)
    await run_once(store, handler)
    await say(store, None, "stop that")
    assert (await run_once(store, handler)).result == "stop that"


async def test_steering_that_its_log_has_dropped_is_taken_again_in_a_replay(
    settings: Settings,
) -> None:
    short = settings.model_copy(update={"max_steering_events_per_session": 1})
    taken: list[list[str]] = []

    async def handler(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            await say(store, ctx, "first")
        taken.append(texts(ctx.inbox.take()))
        await ctx.step("s", int)
        if ctx.attempt == 1:
            for number in range(100):
                event = SteeringEvent(
                    session_id=SESSION,
                    task_id="another",
                    event_type=SteeringEventType.USER_MESSAGE,
                    payload={"text": f"{number}"},
                )
                await store.save_steering(event)
            begin_again()

    async with RedisStateStore(short) as store:
        await make(store)
        for _ in range(2):
            await run_once(store, handler)
    assert taken == [["first"], ["first"]]


async def test_steering_a_task_that_is_unknown_or_over_is_refused(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def handler(_: TaskContext) -> None:
        pass

    with pytest.raises(TaskUnknown):
        await client.steer(SESSION, TASK, SteeringEventType.USER_MESSAGE, {"text": "hello"})
    await make(store)
    reported = {"text": "hello"}
    kind = SteeringEventType.USER_MESSAGE
    await client.steer(SESSION, TASK, kind, reported, event_id="mine")
    await run_once(store, handler)
    with pytest.raises(InvalidTransition):
        await client.steer(SESSION, TASK, kind, reported)
    # A repeated call is the same event, also after the end.
    await client.steer(SESSION, TASK, kind, reported, event_id="mine")
    assert len(await store.list_steering(SESSION, task_id=TASK)) == 1
