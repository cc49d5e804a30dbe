"""A pause's token: who may use it, and where it is not kept or shown."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    InvalidTransition,
    TokenUnknown,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Pause, TaskContext
from redis_state.worker.tasks.transitions import TaskTransitions
from redis_state.worker.tasks.waitpoints.pause_model import PauseRequest, pause_token
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    open_token,
    pool,
)
from tests.support.servers.sets.nodes import ask_beside, keys_like
from tests.support.tasks.waitpoints import ask, task_of


async def test_a_token_that_this_task_has_not_opened_is_not_waited_for(
    store: RedisStateStore,
) -> None:
    async def wrong(ctx: TaskContext) -> list[str]:
        refused: list[str] = []
        for pause in ("s.never", "", str(ctx.input), Pause("x", str(ctx.input))):
            try:
                await ctx.wait_for(pause)
            except TokenUnknown as error:
                refused.append(str(error))
        return refused

    async with pool(store, {"wrong": wrong, "ask": ask}) as client:
        token = await open_token(store, await client.submit("ask", session_id=SESSION))
        task = await client.submit("wrong", token, session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == ["no such token"] * 4
        await client.approve(token)


async def everything(store: RedisStateStore) -> bytes:
    """Read every key and value, on every server."""
    sender = store.transport.sender
    readers = {
        b"string": ("GET",),
        b"hash": ("HGETALL",),
        b"list": ("LRANGE", 0, -1),
        b"zset": ("ZRANGE", 0, -1),
        b"stream": ("XRANGE", "-", "+"),
        b"set": ("SMEMBERS",),
    }
    found: list[bytes] = []
    for key in await keys_like(store.transport, "*"):
        kind: bytes = await ask_beside(store.transport, "TYPE", key)
        if kind == b"none":
            continue
        command, *rest = readers[kind]
        value = await sender.send(command, key, *rest, repeatable=True)
        found.append(repr([key, value]).encode())
    return b"\n".join(found)


@pytest.mark.parametrize("reveal", [True, False])
async def test_no_text_of_a_token_is_on_the_server(store: RedisStateStore, *, reveal: bool) -> None:
    tokens: list[str] = []

    async def quiet(ctx: TaskContext) -> Any:
        pause = await ctx.open_pause("review", reveal=reveal)
        tokens.append(pause.token)
        return (await ctx.wait_for(pause)).value

    async with pool(store, {"quiet": quiet}) as client:
        task = await client.submit("quiet", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        secret = tokens[0].rpartition(".")[2]
        assert len(secret) == 32
        kept = await everything(store)
        assert b"quiet" in kept
        assert secret.encode() not in kept
        assert [one.token for one in await client.pauses()] == [tokens[0] if reveal else None]
        await client.approve(tokens[0], "yes")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "yes"
        assert secret.encode() not in await everything(store)
        assert set(tokens) == {tokens[0]}


async def test_tokens_of_two_tasks_of_one_id_differ(
    store: RedisStateStore, settings: Settings
) -> None:
    short = settings.model_copy(update={"finished_task_ttl": timedelta(milliseconds=200)})
    async with RedisStateStore(short) as own, pool(own, {"ask": ask}) as client:
        found: list[str] = []
        for number in range(2):
            await client.submit("ask", session_id=SESSION, task_id="again")
            await becomes(client, "again", TaskStatus.PAUSED)
            (one,) = await client.pauses(SESSION)
            assert one.token is not None
            found.append(one.token)
            if number == 0:
                await client.cancel(SESSION, "again")

                async def gone() -> bool:
                    return await client.get(SESSION, "again") is None

                await eventually(gone, "the record has expired")
        assert found[0] != found[1]
        with pytest.raises(TokenUnknown):
            await client.approve(found[0])
        await becomes(client, "again", TaskStatus.PAUSED)
        await client.approve(found[1])
        assert (await client.wait(SESSION, "again", timeout_s=60)).status is TaskStatus.COMPLETE


async def test_a_steering_event_that_decides_is_kept_without_the_token(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        payload = {"resume_token": token, "decision": "yes"}
        reported = await client.steer(
            SESSION, task, SteeringEventType.APPROVE, payload, source="ann"
        )
        assert reported.payload == payload
        (kept,) = await store.list_steering(SESSION)
        assert kept.event_id == reported.event_id
        assert kept.payload == {"resume_token": token.rpartition(":")[2], "decision": "yes"}
        assert (await client.wait(SESSION, task, timeout_s=60)).result == [True, "yes", "ann"]


async def test_no_repr_shows_a_token_or_a_secret(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        run = await task_of(store, await client.submit("ask", session_id=SESSION))
        requested = PauseRequest.read(store.settings, "why", "s3cret", {}, reveal=True)
        await TaskPauses(store).open(run, "pause:why#1", requested)
        token = pause_token(run, "pause:why#1")
        shown = repr([run, requested, Pause("why", token), await client.pauses()])
        for hidden in (token, run.secret, "s3cret"):
            assert hidden not in shown
        await client.drop_queue()
        with suppress(InvalidTransition):
            await TaskTransitions(store).finish_run(run, TaskStatus.COMPLETE)
