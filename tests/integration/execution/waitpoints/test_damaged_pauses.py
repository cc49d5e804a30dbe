"""A damaged pause says so to whoever asks for it, hides no other, and is decided once repaired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import CorruptState
from redis_state.gateway.showing.known_pauses import read_known
from redis_state.models import TaskStatus
from redis_state.worker.tasks.views.dead_list import list_first_dead
from redis_state.worker.tasks.waitpoints.deciding import PauseDecisions, expire_pauses
from redis_state.worker.tasks.waitpoints.open_pauses import list_open_pauses, pauses_older_than
from redis_state.worker.tasks.waitpoints.pause_tokens import token_key, token_member
from tests.support.processes.pools import SESSION, becomes, client_of, open_token, pool
from tests.support.tasks.children import sweep
from tests.support.tasks.runs import TASK, make, run_once
from tests.support.tasks.waitpoints import ask

OTHER = "other"


async def send(store: RedisStateStore, *command: str | bytes | int) -> Any:
    return await store.transport.sender.send(*command, repeatable=True)


def field(name: str, value: bytes) -> Callable[[str], tuple[str | bytes | int, ...]]:
    return lambda key: ("HSET", key, name, value)


DAMAGES: dict[str, Callable[[str], tuple[str | bytes | int, ...]]] = {
    "another type": lambda key: ("SET", key, "x", "PX", 60_000),
    "no end": lambda key: ("HDEL", key, "expires"),
    "an end that is no number": field("expires", b"x"),
    "a task that is not JSON": field("task", b"x"),
    "a task that is none": field("task", b"[1]"),
    "content that is not JSON": field("payload", b"{"),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.role("any", why="it damages a key")
async def test_a_damaged_pause_hides_no_other_and_is_decided_once_it_is_repaired(
    store: RedisStateStore, damage: str
) -> None:
    async with pool(store, {"ask": ask}) as client:
        for task in (TASK, OTHER):
            await client.submit("ask", session_id=SESSION, task_id=task)
            await becomes(client, task, TaskStatus.PAUSED)
        token = await open_token(store, TASK)
        key = token_key(store, token)
        kept = await send(store, "DUMP", key)
        await send(store, *DAMAGES[damage](key))

        assert [pause.task_id for pause in await client.pauses()] == [OTHER]
        assert [pause.task_id for pause in await client.pauses(SESSION)] == [OTHER]
        for session_id in (None, SESSION):
            page = await client.list_pauses(session_id)
            assert [pause.task_id for pause in page.pauses] == [OTHER]
        assert sum(await pauses_older_than(store, [0])) >= 1
        with pytest.raises(CorruptState):
            await client.approve(token)
        if damage in ("another type", "an end that is no number"):
            with pytest.raises(CorruptState, match=f"^{key.replace('{', '.').replace('}', '.')}: "):
                await expire_pauses(store, SESSION, TASK)
        if "task" in damage or "JSON" in damage or "type" in damage:
            with pytest.raises(CorruptState) as told:
                await read_known(store, token)
            assert told.value.key == key

        await send(store, "RESTORE", key, 60_000, kept, "REPLACE")
        assert {pause.task_id for pause in await client.pauses()} == {TASK, OTHER}
        for task in (TASK, OTHER):
            await client.approve(await open_token(store, task))
            assert (await client.wait(SESSION, task, timeout_s=30)).status is TaskStatus.COMPLETE


@pytest.mark.parametrize("damage", ["another type", "no end", "an end that is no number"])
@pytest.mark.role("any", why="it damages a key")
async def test_a_task_whose_pause_is_damaged_is_a_dead_letter_at_its_deadline(
    store: RedisStateStore, damage: str
) -> None:
    await make(store)
    assert (await run_once(store, ask)).status is TaskStatus.PAUSED
    token = await open_token(store, TASK)
    key = token_key(store, token)
    kept = await send(store, "DUMP", key)
    await send(store, *DAMAGES[damage](key))
    # It may be repaired until then, by any listing of what is open.
    await list_open_pauses(store, SESSION)
    await sweep(store, TASK)
    assert await send(store, "HGET", store.base.keys.task(SESSION, TASK), "status") == b"PAUSED"

    await send(store, "ZADD", store.base.keys.tasks(SESSION), "XX", -1, token_member(key))
    await sweep(store, TASK)
    ended = await store.tasks.load(SESSION, TASK)
    assert ended is not None
    assert ended.status is TaskStatus.FAILED
    assert f"CorruptState: {key}: " in (ended.error or "")
    assert [dead.task_id for dead in await list_first_dead(store, 10)] == [TASK]
    assert not await send(store, "HGET", store.base.keys.lease(SESSION, TASK), "owner")

    # Its retry waits for the repaired pause again.
    await send(store, "RESTORE", key, 60_000, kept, "REPLACE")
    async with client_of(store) as client:
        await client.retry(SESSION, TASK)
        assert (await run_once(store, ask)).status is TaskStatus.PAUSED
        await client.approve(token, actor="anna")
    assert (await run_once(store, ask)).result == [True, None, "anna"]


def not_a_number(name: str) -> Callable[[RedisStateStore], tuple[str | bytes | int, ...]]:
    return lambda store: ("HSET", store.base.keys.task(SESSION, TASK), name, b"x")


BESIDE: dict[str, Callable[[RedisStateStore], tuple[str | bytes | int, ...]]] = {
    "the lease": lambda store: (
        *("SET", store.base.keys.lease(SESSION, TASK), "x"),
        *("PX", 60_000),
    ),
    "crashes": not_a_number("crashes"),
}


@pytest.mark.parametrize("damage", list(BESIDE))
@pytest.mark.role("any", why="it damages a key")
async def test_a_decision_stands_and_is_told_whatever_is_damaged_beside_it(
    store: RedisStateStore, damage: str
) -> None:
    await make(store)
    assert (await run_once(store, ask)).status is TaskStatus.PAUSED
    token = await open_token(store, TASK)
    await send(store, *BESIDE[damage](store))
    decisions = PauseDecisions(store)
    for _ in range(2):
        decided = await decisions.decide(
            token, approved=True, value=None, actor="ann", idempotency_key="once"
        )
        assert (decided.task_id, decided.found) == (TASK, None)
    state = await store.tasks.load(SESSION, TASK)
    assert state is not None
    assert state.status is TaskStatus.PENDING
    async with client_of(store) as client:
        # It is queued by nobody before it is repaired.
        with pytest.raises(CorruptState):
            await client.approve(token, actor="ann", idempotency_key="once")


@pytest.mark.role("any", why="it damages a key")
async def test_a_pause_is_decided_in_time_beside_a_damaged_lease(store: RedisStateStore) -> None:
    await make(store)
    assert (await run_once(store, ask)).status is TaskStatus.PAUSED
    token = await open_token(store, TASK)
    await send(store, "HSET", token_key(store, token), "expires", 1)
    await send(store, *BESIDE["the lease"](store))
    assert await expire_pauses(store, SESSION, TASK) is None
    state = await store.tasks.load(SESSION, TASK)
    assert state is not None
    assert state.status is TaskStatus.PENDING
