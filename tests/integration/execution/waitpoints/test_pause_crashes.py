"""A pause and its decision outlive the worker, and the queue's server."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
)
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.worker import TaskClient
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.waitpoints.pause_model import decision_of, pause_token
from redis_state.worker.tasks.waitpoints.pauses import TaskPauses
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    open_token,
    pool,
    queue_of,
    serving,
    statuses,
    updates_of,
)
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.waitpoints import NAMES, ask, question, task_of, ten, tokens_of

# How long a call waits for the queue's server.
SHORT = {"connect_timeout_s": 0.5, "call_timeout_s": 1.0}


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "undecided"])
async def test_after_a_crash_between_opening_and_waiting_the_pause_is_the_same(
    store: RedisStateStore, *, decided: bool
) -> None:
    pausing, entry = TaskPauses(store), "pause:x#1"
    async with client_of(store) as client:
        task = await client.submit("ask", session_id=SESSION)
        run = await task_of(store, task)
        await pausing.open(run, entry, question(store))
        # Its worker is gone, and so is what it would have put on the list after the step.
        index = store.base.keys.open_pauses()
        await store.transport.sender.send("DEL", index, repeatable=True)
        await store.transport.sender.send("HSET", run.held.key, "expires", 0, repeatable=True)
        if decided:
            await client.approve(pause_token(run, entry), 7, actor="ann")
        again = await task_of(store, task)
        assert again.attempts == 2
        assert pause_token(again, entry) == pause_token(run, entry)
        note = await pausing.open(again, entry, question(store))
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert reported.count("CHECKPOINT") == 1
        if decided:
            assert (note["state"], note["value"], note["actor"]) == ("decided", 7, "ann")
            found = await pausing.wait(again, entry)
            assert found is not None
            assert decision_of(entry, found) == decision_of(entry, note)
            assert await client.pauses() == []
        else:
            assert note["state"] == "open"
            assert [one.token for one in await client.pauses()] == [pause_token(run, entry)]
            assert await pausing.wait(again, entry) is None
            await client.approve(pause_token(run, entry), 7, actor="ann")
        await client.cancel(SESSION, task, hard=True)
        await client.drop_queue()


async def test_a_task_that_is_being_paused_or_resumed_is_looked_at_soon(
    store: RedisStateStore,
) -> None:
    pausing, entry = TaskPauses(store), "pause:x#1"
    watch = WatchList(store.base.scripts, store.base.keys)

    async def due_in_ms() -> int:
        looked: list[int] = []
        for shard in range(16):
            key = store.base.keys.watch(shard)
            member = watch_entry(SESSION, task)
            found = await store.transport.sender.send("ZSCORE", key, member, repeatable=True)
            looked += [] if found is None else [int(found)]
        assert len(looked) == 1
        return looked[0] - await clock_ms(store.base.scripts)

    async with client_of(store) as client:
        task = await client.submit("ask", session_id=SESSION)
        await pausing.open(run := await task_of(store, task), entry, question(store))
        for move in ("pause", "resume"):
            # As a sweeper puts it off, that thinks it is well.
            await watch.put(watch_entry(SESSION, task), delay_ms=3_600_000, sooner=True)
            if move == "pause":
                assert await pausing.wait(run, entry) is None
            else:
                await client.approve(pause_token(run, entry))
            assert await due_in_ms() <= 2_000
        await client.cancel(SESSION, task)
        await client.drop_queue()


async def test_with_the_queue_away_a_decision_is_kept_and_its_claim_queues_it_later(
    store: RedisStateStore, settings: Settings, unused_tcp_port: int
) -> None:
    away = SecretStr(f"redis://127.0.0.1:{unused_tcp_port}/0")
    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        other = RedisStateStore(settings.model_copy(update={"queue_url": away, **SHORT}))
        async with other, TaskClient(other, queue=queue_of(settings)) as cut_off:
            with pytest.raises(BackendUnavailable):
                await cut_off.approve(token, 5, actor="ann", idempotency_key="c")
        await becomes(client, task, TaskStatus.PENDING)
        await client.approve(token, 5, actor="ann again", idempotency_key="c")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [True, 5, "ann"]


async def test_a_worker_that_dies_with_pauses_open_loses_none(
    store: RedisStateStore, settings: Settings
) -> None:
    async with client_of(store) as client:
        task = await client.submit("ten", session_id=SESSION)
        async with serving(agent(settings, {"ten": ten})):
            tokens = await tokens_of(store, task, len(NAMES))
            await becomes(client, task, TaskStatus.PAUSED)
        # Nobody runs: all are decided, the one that is waited for last.
        for name in reversed(NAMES):
            await client.approve(tokens[name], name, actor="ann")
        async with serving(agent(settings, {"ten": ten})):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [[True, name, "ann"] for name in NAMES]
        assert (await statuses(store, task)).count("PAUSED") == 1
