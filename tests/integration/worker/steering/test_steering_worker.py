from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import (
    InvalidTransition,
    SteeringValidationError,
    TokenResolved,
    TokenUnknown,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.worker import TaskContext
from tests.support.processes.pools import (
    SESSION,
    becomes,
    open_token,
    pool,
    statuses,
    steered_before,
)


async def ask(ctx: TaskContext) -> dict[str, Any]:
    decision = await ctx.approval("May I?", {"cost": 3})
    return {"approved": decision.approved, "value": decision.value, "actor": decision.actor}


async def listen(ctx: TaskContext) -> list[str]:
    heard: list[str] = []
    while "stop" not in heard:
        heard += [str(event.payload.get("text")) for event in await ctx.inbox.wait()]
    return heard


async def test_a_person_approves_with_a_value(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        state = await client.approve(token, {"limit": 5}, actor="ann")
        assert state is not None
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == {"approved": True, "value": {"limit": 5}, "actor": "ann"}
        assert await statuses(store, task) == [
            "PENDING", "RUNNING", "PAUSED", "PENDING", "RUNNING", "COMPLETE",
        ]  # fmt: skip


@pytest.mark.parametrize("kind", [SteeringEventType.APPROVE, SteeringEventType.REJECT])
async def test_steering_with_a_token_resolves_the_pause(
    store: RedisStateStore, kind: SteeringEventType
) -> None:
    approved = kind is SteeringEventType.APPROVE
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        payload = {"resume_token": await open_token(store, task), "decision": "as you like"}
        await client.steer(SESSION, task, kind, payload, source="bob")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == {"approved": approved, "value": "as you like", "actor": "bob"}


async def test_what_resolved_a_pause_is_not_in_the_inbox_too(store: RedisStateStore) -> None:
    async def look(ctx: TaskContext) -> list[str]:
        await ctx.pause()
        return [event.event_type.value for event in ctx.inbox.take()]

    async with pool(store, {"look": look}) as client:
        task = await client.submit("look", session_id=SESSION)
        token = await open_token(store, task)
        text = {"text": "hello"}
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, text)
        await client.steer(SESSION, task, SteeringEventType.APPROVE, {"resume_token": token})
        assert (await client.wait(SESSION, task, timeout_s=60)).result == ["USER_MESSAGE"]


async def test_of_many_who_decide_one_wins_and_the_others_learn_who(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        calls = [client.approve(token, actor=f"yes-{n}") for n in range(10)]
        calls += [client.reject(token, actor=f"no-{n}") for n in range(10)]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        lost = [reply for reply in replies if isinstance(reply, TokenResolved)]
        assert len(lost) == 19
        result: Any = (await client.wait(SESSION, task, timeout_s=60)).result
        assert {error.actor for error in lost} == {result["actor"]}
        assert result["approved"] == result["actor"].startswith("yes")


async def test_the_same_claim_gets_the_same_answer_again(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        for _ in range(3):
            await client.approve(token, idempotency_key="mine", actor="ann")
        await client.wait(SESSION, task, timeout_s=60)
        assert await client.approve(token, idempotency_key="mine", actor="ann") is not None
        with pytest.raises(TokenResolved):
            await client.approve(token, idempotency_key="other")
        assert (await statuses(store, task)).count("COMPLETE") == 1


@pytest.mark.parametrize(
    "token", ["", ".", "garbage", "s.never-was", "no such session.x", "s.\ud800"]
)
async def test_a_token_that_never_was_is_unknown(store: RedisStateStore, token: str) -> None:
    async with pool(store, {"ask": ask}) as client:
        with pytest.raises(TokenUnknown):
            await client.approve(token)


async def test_a_token_of_another_task_is_unknown_to_steering(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        one = await client.submit("ask", session_id=SESSION)
        two = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, one)
        await open_token(store, two)
        with pytest.raises(TokenUnknown):
            await client.steer(SESSION, two, SteeringEventType.APPROVE, {"resume_token": token})
        await becomes(client, one, TaskStatus.PAUSED)
        for task in (one, two):
            assert await client.cancel(SESSION, task)


async def test_a_token_cannot_be_used_after_the_task_was_cancelled(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        assert await client.cancel(SESSION, task, reason="enough")
        with pytest.raises(InvalidTransition):
            await client.approve(token)
        state = await client.wait(SESSION, task)
        assert (state.status, state.error) == (TaskStatus.CANCELLED, "enough")


async def test_a_running_task_hears_what_it_is_told_in_order(store: RedisStateStore) -> None:
    async with pool(store, {"listen": listen}) as client:
        task = await client.submit("listen", session_id=SESSION)
        for text in ("one", "two", "stop"):
            payload = {"text": text}
            await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, payload)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["one", "two", "stop"]


async def test_a_task_hears_what_it_was_told_before_it_ran_and_again_after_a_pause(
    store: RedisStateStore,
) -> None:
    async def both(ctx: TaskContext) -> list[str]:
        heard = [str(event.payload["text"]) for event in ctx.inbox.take()]
        await ctx.pause(name="/".join(heard))
        return heard

    task = "told"
    async with pool(store, {"both": both}) as client:
        await steered_before(store, task, SteeringEventType.INJECT_CONTEXT, text="early")
        await client.submit("both", session_id=SESSION, task_id=task)
        await client.approve(await open_token(store, task))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == ["early"]


async def test_pause_holds_a_task_at_its_next_checkpoint_until_resume(
    store: RedisStateStore,
) -> None:
    go = asyncio.Event()
    passed: list[str] = []

    async def gated(ctx: TaskContext) -> None:
        await ctx.progress("before")
        await go.wait()
        while True:
            if ctx.inbox.take():
                break
            await asyncio.sleep(0)
        await ctx.progress("after")
        passed.append("the gate")

    async with pool(store, {"gated": gated}) as client:
        task = await client.submit("gated", session_id=SESSION)
        await client.steer(SESSION, task, SteeringEventType.PAUSE)
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "mark"})
        go.set()
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "mark"})
        assert passed == []
        await client.steer(SESSION, task, SteeringEventType.RESUME)
        await client.wait(SESSION, task, timeout_s=60)
        assert passed == ["the gate"]


async def test_a_gated_task_can_be_cancelled(store: RedisStateStore) -> None:
    async def gated(ctx: TaskContext) -> None:
        await ctx.checkpoint()

    async with pool(store, {"gated": gated}) as client:
        await steered_before(store, "held", SteeringEventType.PAUSE)
        task = await client.submit("gated", session_id=SESSION, task_id="held")
        await becomes(client, task, TaskStatus.RUNNING)
        assert await client.cancel(SESSION, task)
        assert (await client.wait(SESSION, task, timeout_s=60)).status is TaskStatus.CANCELLED


async def test_a_payload_against_the_rules_is_refused_and_not_kept(store: RedisStateStore) -> None:
    async with pool(store, {"ask": ask}) as client:
        with pytest.raises(SteeringValidationError):
            await client.steer(SESSION, "t", SteeringEventType.REDIRECT, {})
        assert await store.list_steering(SESSION) == []
