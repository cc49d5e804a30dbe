"""Who reads the updates of a task learns a pause's id, and not its token."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import TokenResolved, TokenUnknown
from redis_state.models import UpdateType
from redis_state.stores.sessions.job_parts import job_of
from redis_state.transport.keys import pause_id_of
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.waitpoints.pause_model import token_of
from tests.support.processes.pools import SESSION, client_of
from tests.support.tasks.runs import TASK, make, run_once


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def test_who_reads_the_updates_learns_a_pauses_id_and_not_its_token(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def handler(ctx: TaskContext) -> list[Any]:
        first = await ctx.open_pause("one")
        shown = (first.pause_id, first.token)
        kept = await ctx.open_pause("two", reveal=False)
        stated = [(await ctx.wait_for(first)).value, (await ctx.wait_for(kept)).value]
        return [*stated, *shown, kept.pause_id, kept.token]

    await make(store)
    await run_once(store, handler)
    reported = [one.content for one in await store.list_updates(SESSION, task_id=TASK)]
    (shown,) = [content["pause_id"] for content in reported if "pause_id" in content]
    assert await client.approve(shown, "by its id") is not None
    with pytest.raises(TokenResolved):
        await client.approve(shown, "again")
    await run_once(store, handler)
    unseen = pause_id_of(token_of_pause(await store.tasks.load_fields(SESSION, TASK), "two"))
    assert unseen is not None
    with pytest.raises(TokenUnknown):
        await client.approve(unseen)
    token = token_of_pause(await store.tasks.load_fields(SESSION, TASK), "two")
    await client.approve(token, "by its token")
    result: Any = (await run_once(store, handler)).result
    assert result[:3] == ["by its id", "by its token", shown]
    for row in await store.list_updates(SESSION, task_id=TASK, limit=100):
        if row.update_type is UpdateType.CHECKPOINT:
            assert result[3] not in str(row.content)
            assert result[5] not in str(row.content)


async def test_a_call_that_names_its_session_and_task_decides_no_other_pause(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        return (await ctx.pause("one", of=["ann"])).value

    await make(store)
    await run_once(store, handler)
    (pause,) = await client.pauses(SESSION)
    other: dict[str, str]
    for name in (pause.pause_id, pause.token):
        assert name is not None
        for other in ({"session_id": "other"}, {"session_id": SESSION, "task_id": "other"}):
            with pytest.raises(TokenUnknown):
                await client.approve(name, actor="ann", **other)
            with pytest.raises(TokenUnknown):
                await client.reject(name, actor="ann", **other)
            with pytest.raises(TokenUnknown):
                await client.delegate(name, "bob", actor="ann", **other)
    assert await client.pauses(SESSION) == [pause]
    assert pause.pause_id is not None
    await client.approve(pause.pause_id, 7, session_id=SESSION, task_id=TASK, actor="ann")
    assert (await run_once(store, handler)).result == 7


def token_of_pause(record: Any, name: str) -> str:
    secret = json.loads(job_of(record.fields))["secret"]
    return token_of(SESSION, secret, f"pause:{name}#1")
