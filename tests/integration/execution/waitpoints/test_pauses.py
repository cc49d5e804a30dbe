"""Pauses as a handler and whoever decides see them: opened, waited for, decided, by many."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    InvalidTransition,
    TokenResolved,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Pause, TaskContext
from redis_state.worker.tasks.started import NotStarted, StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions
from redis_state.worker.tasks.waitpoints.pause_model import pause_token
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    open_token,
    pool,
    queue_of,
    statuses,
    updates_of,
)
from tests.support.scripts.replies import clock_ms
from tests.support.servers.faults import run_processes
from tests.support.tasks.waitpoints import NAMES, ask, question, task_of, ten, tokens_of


@pytest.mark.slow
async def test_ten_open_pauses_are_decided_in_any_order_by_several_processes(
    store: RedisStateStore, settings: Settings
) -> None:
    async with pool(store, {"ten": ten}) as client:
        task = await client.submit("ten", session_id=SESSION)
        tokens = await tokens_of(store, task, len(NAMES))
        argument = {
            "url": settings.url.get_secret_value(),
            "namespace": settings.namespace,
            "queue": queue_of(settings),
            "tokens": list(tokens.values()),
        }
        arguments = [argument | {"name": f"process {number}"} for number in range(4)]
        found = await run_processes("decide_pauses", arguments)
        model: dict[str, Any] = {}
        wins: Counter[str] = Counter()
        for one in found:
            model |= one["won"]
            wins.update(one["won"].keys())
        assert wins == Counter(dict.fromkeys(tokens.values(), 1))
        assert all(
            model[token] == reported for one in found for token, reported in one["lost"].items()
        )
        assert sum(len(one["lost"]) for one in found) == 30
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [model[tokens[name]] for name in NAMES]
        assert await client.pauses() == []


async def test_pauses_opened_in_one_turn_are_decided_last_first(store: RedisStateStore) -> None:
    async def both(ctx: TaskContext) -> list[Any]:
        found = await asyncio.gather(ctx.pause(name="a"), ctx.pause(name="b"), ctx.pause(name="c"))
        return [decision.value for decision in found]

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        tokens = await tokens_of(store, task, 3)
        for name in "cba":
            await client.approve(tokens[name], f"for {name}")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["for a", "for b", "for c"]


async def test_pauses_of_one_name_in_one_turn_are_numbered_as_written(
    store: RedisStateStore,
) -> None:
    async def both(ctx: TaskContext) -> list[Any]:
        found = await asyncio.gather(ctx.pause("x", 1), ctx.pause("x", 2), ctx.approval("sure?"))
        return [decision.value for decision in found]

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        tokens = {repr(pause.payload): pause.token for pause in await client.pauses(SESSION)}
        assert len(tokens) == 3
        for payload, token in tokens.items():
            assert token is not None
            await client.approve(token, payload)
        ended = await client.wait(SESSION, task, timeout_s=60)
        requested = repr({"question": "sure?", "details": None})
        assert ended.result == ["1", "2", requested]


@pytest.mark.parametrize("apart", ["by nothing", "by a name", "by a key", "by a branch"])
async def test_an_approval_never_reaches_the_question_of_another_asyncio_task(
    store: RedisStateStore, apart: str
) -> None:
    recorded = asyncio.Event()
    paid: list[str] = []

    async def pay(ctx: TaskContext, who: str) -> bool:
        if who == "Ann":
            # In the first run she comes after the end, in the second one first.
            await asyncio.sleep(0 if recorded.is_set() else 0.1)
            recorded.set()
        elif recorded.is_set():
            await asyncio.sleep(0.1)
        options: dict[str, Any] = {"by a name": {"name": who}, "by a key": {"key": who}}
        inner = ctx.branch(who) if apart == "by a branch" else ctx
        decision = await inner.approval(who, **options.get(apart, {}))
        if decision.approved:
            paid.append(who)
        return decision.approved

    async def both(ctx: TaskContext) -> dict[str, bool]:
        ann, bob = await asyncio.gather(pay(ctx, "Ann"), pay(ctx, "Bob"))
        return {"Ann": ann, "Bob": bob}

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        decided: set[str] = set()

        async def is_over() -> bool:
            for pause in await client.pauses(SESSION):
                who = pause.payload["question"]
                if recorded.is_set() and pause.token is not None and who not in decided:
                    decided.add(who)
                    await client.resolve(pause.token, approved=who == "Bob")
            state = await client.get(SESSION, task)
            return state is not None and state.status.is_terminal

        await eventually(is_over, "the task is over")
        ended = await client.wait(SESSION, task)
        assert "Ann" not in paid
        if apart == "by nothing":
            assert ended.error is not None
            assert ended.error.startswith("InvalidField: name: 'pause:await_approval#1' was ano")
        else:
            assert ended.result == {"Ann": False, "Bob": True}


async def test_two_asyncio_tasks_that_come_to_one_name_in_one_run_are_refused(
    store: RedisStateStore,
) -> None:
    async def part(ctx: TaskContext) -> Pause:
        return await ctx.open_pause("x")

    async def both(ctx: TaskContext) -> None:
        await asyncio.gather(part(ctx), part(ctx))

    async with pool(store, {"both": both}) as client:
        task = await client.submit("both", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error is not None
        assert ended.error.startswith("InvalidField: name: 'x' is used by two asyncio tasks")


async def test_what_a_pause_asks_may_change_in_the_handlers_own_asyncio_task(
    store: RedisStateStore,
) -> None:
    async def handler(ctx: TaskContext) -> int:
        await ctx.pause("x", {"attempt": ctx.attempt})
        return ctx.attempt

    async with pool(store, {"h": handler}) as client:
        task = await client.submit("h", session_id=SESSION)
        await client.approve(await open_token(store, task))
        assert await client.result(SESSION, task, timeout_s=60) == 2


async def test_what_is_decided_before_it_is_waited_for_does_not_end_the_run(
    store: RedisStateStore,
) -> None:
    go = asyncio.Event()

    async def busy(ctx: TaskContext) -> list[Any]:
        pause = await ctx.open_pause("review", name="review")
        await go.wait()
        decision = await ctx.wait_for(pause.token)
        again = await ctx.wait_for(pause)
        return [decision.approved, decision.value, again == decision, ctx.attempt]

    async with pool(store, {"busy": busy}) as client:
        task = await client.submit("busy", session_id=SESSION)
        token = (await tokens_of(store, task, 1))["review"]
        state = await client.reject(token, "too long", actor="ann")
        assert state is not None
        assert state.status is TaskStatus.RUNNING
        go.set()
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [False, "too long", True, 1]
        assert await statuses(store, task) == ["PENDING", "RUNNING", "COMPLETE"]
        reported = [update.content for update in await updates_of(store, task)]
        assert {"pause": "review", "approved": False, "actor": "ann"} in reported


async def test_a_pause_is_found_again_by_its_key_and_else_by_its_order(
    store: RedisStateStore,
) -> None:
    async def keyed(ctx: TaskContext) -> list[Any]:
        one = await ctx.open_pause("a", key="order-1")
        same = await ctx.open_pause("b", key="order-1")
        other = await ctx.open_pause("a", key="order-2")
        plain = [await ctx.open_pause("order-1"), await ctx.open_pause("order-1")]
        tokens = {pause.token for pause in (one, same, other, *plain)}
        return [one.token == same.token, len(tokens)]

    async with pool(store, {"keyed": keyed}) as client:
        task = await client.submit("keyed", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [True, 4]


async def test_a_paused_task_that_gets_another_priority_lives_as_long_as_before(
    store: RedisStateStore,
) -> None:
    async def life_ms() -> int:
        key = store.base.keys.task(SESSION, task)
        return int(await store.transport.sender.send("PTTL", key, repeatable=True))

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        before = await life_ms()
        await client.steer(SESSION, task, SteeringEventType.PRIORITIZE, {"priority": 3})
        assert await life_ms() > 0.99 * before
        state = await client.get(SESSION, task)
        assert state is not None
        assert state.priority == 3


async def test_a_claim_is_bound_to_its_decision(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        before = await clock_ms(store.base.scripts)
        await client.approve(token, {"b": 1, "a": 2}, actor="ann", idempotency_key="c")
        after = await clock_ms(store.base.scripts)
        await client.approve(token, {"a": 2, "b": 1}, actor="ann", idempotency_key="c")
        event = {"resume_token": token, "decision": "no"}
        calls = [
            client.reject(token, {"a": 2, "b": 1}, actor="bob", idempotency_key="c"),
            client.approve(token, {"a": 3}, actor="bob", idempotency_key="c"),
            client.steer(SESSION, task, SteeringEventType.REJECT, event, event_id="c"),
        ]
        for call in calls:
            with pytest.raises(TokenResolved) as caught:
                await call
            assert caught.value.actor == "ann"
            assert before <= caught.value.at_ms <= after
            assert caught.value.decision == {"approved": True, "value": {"a": 2, "b": 1}}
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [True, {"a": 2, "b": 1}, "ann"]


async def test_deciding_against_cancelling_and_finishing_leaves_one_end(
    store: RedisStateStore,
) -> None:
    life, pausing, entry = TaskTransitions(store), TaskPauses(store), "pause:x#1"
    decisions = PauseDecisions(store)
    found: Counter[str] = Counter()
    waiting: set[str] = set()
    async with client_of(store) as client:
        for number in range(48):
            task = await client.submit("ask", session_id=SESSION)
            run = await task_of(store, task)
            await pausing.open(run, entry, question(store))
            if waits := number % 2 == 0:
                await pausing.wait(run, entry)
                waiting.add(task)

            async def end(turns: int, run: StartedRun = run) -> None:
                # Deciding asks twice before it decides: so the end comes before, or after.
                for _ in range(turns):
                    await clock_ms(store.base.scripts)
                if run.state.task_id in waiting:
                    assert await life.cancel(run.state, None)
                else:
                    await life.finish_run(run, TaskStatus.COMPLETE)

            token = pause_token(run, entry)
            decide = decisions.decide(token, approved=True, value=1, actor="ann")
            ends = await asyncio.gather(end(number // 2 % 8), decide, return_exceptions=True)
            denied = [one for one in ends if isinstance(one, BaseException)]
            assert all(isinstance(one, InvalidTransition) for one in denied), denied
            last = (await statuses(store, task))[-1]
            assert last == ("CANCELLED" if waits else "COMPLETE")
            journal = await store.transport.sender.send(
                "HGET", store.base.keys.journal(SESSION, task), entry, repeatable=True
            )
            assert (b"decided" in journal) == (not denied)
            found[f"{last}, {'denied' if denied else 'decided'}"] += 1
            assert isinstance(
                await life.start(SESSION, task, owner="x", lease_ms=1, worker="x"), NotStarted
            )
        await client.drop_queue()
    assert len(found) == 4, found
