"""What becomes of a pause that nobody decides in time, and what may be asked of one at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField, PauseTimeout, TokenResolved, TokenUnknown
from redis_state.models import TaskContextSnapshot, TaskState, TaskStatus, TaskType
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions, expire_pauses
from redis_state.worker.tasks.waitpoints.pause_model import OnTimeout, PauseRequest
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    open_token,
    pool,
    statuses,
    updates_of,
)
from tests.support.scripts.replies import clock_ms, clock_passes, outcome

SOON_MS = 50
SOON = timedelta(milliseconds=SOON_MS)


async def deadline(store: RedisStateStore, token: str, *, in_ms: int) -> int:
    """Move the deadline of a pause that is waited for, so that no run is too slow for it."""
    key = store.base.keys.session_token(token)
    assert key is not None
    moment = await clock_ms(store.base.scripts) + in_ms
    await store.transport.sender.send("HSET", key, "expires", moment, repeatable=True)
    return moment


async def expired(store: RedisStateStore, task: str) -> None:
    """Do as a sweeper does, until there is nothing left to wait for."""

    async def over() -> bool:
        left_ms = await expire_pauses(store, SESSION, task)
        assert left_ms is None or 0 < left_ms <= SOON_MS
        return left_ms is None

    await eventually(over, "its deadline has passed")


def policy(on_timeout: OnTimeout, default: Any = None) -> dict[str, Any]:
    return {"on_timeout": on_timeout} | ({"default": default} if default is not None else {})


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({}, None),
        (policy("fail"), None),
        (policy("reject"), [False, None, "timeout", True]),
        (policy("resume"), [True, None, "timeout", True]),
        (policy("resume", {"limit": 5}), [True, {"limit": 5}, "timeout", True]),
    ],
    ids=["by default", "fail", "reject", "resume", "resume with a default"],
)
async def test_what_nobody_decides_in_time_goes_by_its_policy(
    store: RedisStateStore, options: dict[str, Any], result: Any
) -> None:
    async def brief(ctx: TaskContext) -> list[Any]:
        found = await ctx.approval("sure?", name="brief", key="k", **options)
        return [found.approved, found.value, found.actor, found.timed_out]

    async with pool(store, {"brief": brief}) as client:
        task = await client.submit("brief", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        await deadline(store, token, in_ms=SOON_MS)
        await expired(store, task)
        await becomes(client, task, TaskStatus.PENDING)
        approved = options.get("on_timeout") == "resume"
        content = {"pause": "brief", "approved": approved, "actor": "timeout", "timed_out": True}
        assert (await updates_of(store, task))[-1].content == {"status": "PENDING", **content}
        for call in (client.approve(token), client.reject(token)):
            with pytest.raises(TokenResolved) as caught:
                await call
            assert (caught.value.actor, caught.value.decision["approved"]) == ("timeout", approved)
        await client.submit("brief", session_id=SESSION, task_id=task)
        ended = await client.wait(SESSION, task, timeout_s=60)
        if result is None:
            reported = (
                TaskStatus.FAILED,
                "PauseTimeout: the pause 'brief' was not resolved in time",
            )
            assert (ended.status, ended.error) == reported
        else:
            assert (ended.status, ended.result) == (TaskStatus.COMPLETE, result)


async def test_a_handler_may_go_on_after_a_timeout(store: RedisStateStore) -> None:
    async def careful(ctx: TaskContext) -> str:
        try:
            await ctx.pause(name="first")
        except PauseTimeout as late:
            return f"{late.name}: {(await ctx.pause(name='second')).value}"
        return "never"

    async with pool(store, {"careful": careful}) as client:
        task = await client.submit("careful", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        await deadline(store, token, in_ms=0)
        await expired(store, task)
        await client.submit("careful", session_id=SESSION, task_id=task)
        await client.approve(await open_token(store, task, after=1), "well")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "first: well"


async def test_an_overdue_token_is_unknown_until_somebody_finds_it(store: RedisStateStore) -> None:
    async def brief(ctx: TaskContext) -> None:
        await ctx.pause()

    async with pool(store, {"brief": brief}) as client:
        task = await client.submit("brief", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        await clock_passes(store.base.scripts, await deadline(store, token, in_ms=0))
        with pytest.raises(TokenUnknown) as caught:
            await client.approve(token)
        assert caught.value.expired
        assert await client.pauses() == []
        await becomes(client, task, TaskStatus.PAUSED)
        assert await client.cancel(SESSION, task)
        assert await expire_pauses(store, SESSION, task) is None


@pytest.mark.parametrize("trace", ["kept", "gone"])
async def test_what_is_overdue_before_it_is_waited_for_does_not_end_the_run(
    store: RedisStateStore, trace: str
) -> None:
    async def late(ctx: TaskContext) -> list[Any]:
        options = policy("resume", 3)
        pause = await ctx.open_pause("late", timeout=timedelta(milliseconds=1), **options)
        scripts = store.base.scripts
        await clock_passes(scripts, await clock_ms(scripts) + 1)
        if trace == "gone":
            key = store.base.keys.session_token(pause.token)
            assert key is not None
            await store.transport.sender.send("DEL", key, repeatable=True)
        found = [await ctx.wait_for(pause), await ctx.wait_for(pause.token)]
        assert found[0] == found[1]
        await ctx.pause("on")
        return [found[0].value, found[0].timed_out]

    async with pool(store, {"late": late}) as client:
        task = await client.submit("late", session_id=SESSION)
        await client.approve(await open_token(store, task, after=1))
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.result, ended.error) == ([3, True], None)


async def test_only_what_a_task_waits_for_is_decided_by_its_deadline(
    store: RedisStateStore,
) -> None:
    async def two(ctx: TaskContext) -> list[Any]:
        brief = await ctx.open_pause("brief", timeout=SOON, **policy("reject"))
        long = await ctx.open_pause("long")
        return [(await ctx.wait_for(one)).approved for one in (long, brief)]

    async with pool(store, {"two": two}) as client:
        task = await client.submit("two", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        scripts = store.base.scripts
        await clock_passes(scripts, await clock_ms(scripts) + SOON_MS)
        left_ms = await expire_pauses(store, SESSION, task)
        assert left_ms is not None
        assert left_ms > 3_600_000
        await client.approve(await open_token(store, task, after=1))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [True, False]
        assert (await statuses(store, task)).count("PAUSED") == 1


async def test_a_task_that_waits_for_nothing_has_no_deadline(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        assert await expire_pauses(store, SESSION, "never was") is None
        task = await client.submit("any", session_id=SESSION)
        assert await expire_pauses(store, SESSION, task) is None
        assert await client.cancel(SESSION, task)
        assert await expire_pauses(store, SESSION, task) is None
        await client.drop_queue()
    snapshot = TaskContextSnapshot(session_id=SESSION, task_id="host")
    state = TaskState("host", SESSION, TaskStatus.PAUSED, TaskType.FOREGROUND, 0, snapshot)
    await store.save_task(state)
    assert await expire_pauses(store, SESSION, "host") is None


async def test_a_pause_whose_note_and_token_are_lost_fails_its_task(
    store: RedisStateStore,
) -> None:
    async def unlucky(ctx: TaskContext) -> None:
        await ctx.pause("lost", **policy("resume"))

    async with pool(store, {"unlucky": unlucky}) as client:
        task = await client.submit("unlucky", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        keys = store.base.keys
        for key in (keys.session_token(token), keys.journal(SESSION, task)):
            assert key is not None
            await store.transport.sender.send("DEL", key, repeatable=True)
        assert await expire_pauses(store, SESSION, task) is None
        await client.submit("unlucky", session_id=SESSION, task_id=task)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error == "PauseTimeout: the pause 'lost' was not resolved in time"


async def test_sweepers_and_people_at_the_deadline_decide_once(store: RedisStateStore) -> None:
    winners: Counter[str] = Counter()
    decisions, scripts = PauseDecisions(store), store.base.scripts

    async def brief(ctx: TaskContext) -> list[Any]:
        options = policy("resume", ctx.task.task_id)
        found = await ctx.pause(**options)
        return [found.approved, found.actor]

    async with pool(store, {"brief": brief}) as client:
        for number in range(12):
            task = await client.submit("brief", session_id=SESSION)
            token = await open_token(store, task)
            await becomes(client, task, TaskStatus.PAUSED)
            late_at = await deadline(store, token, in_ms=SOON_MS)

            async def person(
                actor: str,
                *,
                approved: bool,
                token: str = token,
                at: int = late_at - (0, 2, SOON_MS)[number % 3],
            ) -> object:
                while await clock_ms(scripts) < at:
                    pass
                call = decisions.decide(token, approved=approved, value=None, actor=actor)
                return await outcome(call, TokenResolved, TokenUnknown)

            people = [person("yes", approved=True), person("no", approved=False)]
            await asyncio.gather(*people, *(expired(store, task) for _ in range(3)))
            assert (await statuses(store, task)).count("PENDING") == 2
            await client.submit("brief", session_id=SESSION, task_id=task)
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert ended.result in ([True, "yes"], [False, "no"], [True, "timeout"])
            result: Any = ended.result
            winners[result[1]] += 1
    assert winners["timeout"] > 0
    assert winners["yes"] + winners["no"] > 0


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("reason", {"reason": 5}),
        ("name", {"name": 5}),
        ("key", {"key": 5}),
        ("tags", {"tags": "text"}),
        ("tags", {"tags": [5]}),
        ("on_timeout", {"on_timeout": "explode"}),
        ("default", {"default": 5}),
        ("default", {"default": 5, "on_timeout": "reject"}),
        ("timeout", {"timeout": 5}),
        ("timeout", {"timeout": timedelta(0)}),
        ("timeout", {"timeout": timedelta(days=-1)}),
        ("timeout", {"timeout": timedelta(days=10_000)}),
    ],
)
async def test_what_a_pause_cannot_be_asked_is_refused_by_name(
    store: RedisStateStore, field: str, options: dict[str, Any]
) -> None:
    reason = options.pop("reason", "why")
    with pytest.raises(InvalidField) as caught:
        PauseRequest.read(store.settings, reason, None, options, reveal=True)  # type: ignore[arg-type]
    assert caught.value.field == field
