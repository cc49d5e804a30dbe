"""Runs on a server whose history goes back: what is lost may be lost, but nothing is mixed up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import LeaseLost, OutcomeUnknown
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.primitives.lease import Leases
from redis_state.primitives.record import Records
from redis_state.primitives.watchlist.watchlist import WatchList
from redis_state.worker import TaskContext
from redis_state.worker.tasks.changes import TaskChanges
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of
from tests.support.scripts.replies import HOUR
from tests.support.servers.changes.rollback import Rollback, rolling_back
from tests.support.tasks.crash_states import entry_in_ms, make_due, sweeper_of
from tests.support.tasks.runs import TASK, make, record_step, run_once, take

Going = Callable[[TaskContext], Awaitable[Any]]


@pytest.fixture
async def server() -> AsyncIterator[Rollback]:
    async with rolling_back() as started:
        yield started


@pytest.fixture
async def store(server: Rollback) -> AsyncIterator[RedisStateStore]:
    async with RedisStateStore(Settings(url=SecretStr(server.url))) as opened:
        yield opened


async def test_an_epoch_is_never_given_twice(server: Rollback, store: RedisStateStore) -> None:
    leases = Leases(store.base.scripts, keep_ms=HOUR)
    records = Records(store.base.scripts)
    lease, key = store.base.keys.lease("s", "t"), store.base.keys.memory("m")
    await server.mark()
    epochs: list[int] = []
    for _ in range(3):
        held = await leases.acquire(lease, duration_ms=HOUR)
        assert held is not None
        epochs.append(held.epoch)
        await server.go_back()
    assert epochs == sorted(set(epochs))
    current = await leases.acquire(lease, duration_ms=HOUR)
    assert current is not None
    assert current.epoch > epochs[-1]
    await records.save(key, {"actor": b"current"}, ttl_ms=HOUR, fence=current.fence)


async def test_a_forgotten_owner_is_refused_also_if_it_was_given_the_same_epoch(
    server: Rollback, store: RedisStateStore
) -> None:
    leases = Leases(store.base.scripts, keep_ms=HOUR)
    records = Records(store.base.scripts)
    lease, key = store.base.keys.lease("s", "t"), store.base.keys.memory("m")
    await server.mark()
    forgotten = await leases.acquire(lease, duration_ms=HOUR)
    assert forgotten is not None
    await server.go_back()
    current = await leases.acquire(lease, duration_ms=HOUR)
    assert current is not None
    # As a server's would be whose clock lags behind that of the one before.
    epoch = str(forgotten.epoch)
    await store.transport.sender.send("HSET", lease, "epoch", epoch, repeatable=True)
    update = StateUpdate(
        session_id="s", task_id="t", update_type=UpdateType.PROGRESS, content="stale"
    )
    for write in (
        records.save(key, {"actor": b"forgotten"}, ttl_ms=HOUR, fence=forgotten.fence),
        store.updates.save(update, fence=forgotten.fence),
        leases.renew(forgotten, duration_ms=HOUR),
    ):
        with pytest.raises(LeaseLost) as lost:
            await write
        assert not lost.value.released


async def test_a_forgotten_run_of_a_task_writes_nothing(
    server: Rollback, store: RedisStateStore
) -> None:
    await make(store)
    await server.mark()
    forgotten = await take(store)
    await record_step(store, forgotten, "step:a#1", "forgotten")
    await server.go_back()
    current = await take(store)
    assert current.journal == {}
    life = TaskTransitions(store)
    for write in (
        record_step(store, forgotten, "step:b#1", "stale"),
        life.finish_run(forgotten, TaskStatus.COMPLETE, result="stale"),
        TaskChanges(store).set_priority(forgotten, 9),
    ):
        with pytest.raises(LeaseLost):
            await write
    await record_step(store, current, "step:a#1", "current")
    await life.finish_run(current, TaskStatus.COMPLETE, result="current")


async def test_a_task_whose_end_the_server_forgot_while_it_was_swept_stays_on_the_watch_list(
    server: Rollback, store: RedisStateStore
) -> None:
    await make(store)
    entry = watch_entry(SESSION, TASK)
    life, watch = TaskTransitions(store), WatchList(store.base.scripts, store.base.keys)
    started = await take(store)
    await make_due(store, entry)
    (claim,) = await watch.claim_due()
    await server.mark()
    await life.finish_run(started, TaskStatus.COMPLETE)
    # A sweeper that has seen the end settles now.
    await server.go_back()
    assert await watch.settle([(claim, None)]) == 1
    assert await entry_in_ms(store, entry) is not None
    await make_due(store, entry)
    assert (await sweeper_of(store).run_once()).looked == 1
    state = await store.tasks.load(SESSION, TASK)
    assert state is not None
    assert state.status is TaskStatus.RUNNING
    assert await entry_in_ms(store, entry) is not None


async def test_a_task_whose_entry_the_server_forgot_before_it_was_written_is_watched(
    server: Rollback, store: RedisStateStore
) -> None:
    await server.mark()
    watch = WatchList(store.base.scripts, store.base.keys)

    async def write(_: int) -> None:
        await server.go_back()
        await store.save_memory_state("thing", {"there": True})

    async def write_and_fail(due_ms: int) -> None:
        await write(due_ms)
        # As when the deadline passes, and nobody knows whether the thing is written.
        raise TimeoutError

    await watch.covering(b"entry", write, delay_ms=HOUR)
    assert (await entry_in_ms(store, b"entry") or 0) > HOUR / 2
    with pytest.raises(TimeoutError):
        await watch.covering(b"other", write_and_fail, delay_ms=HOUR)
    assert (await entry_in_ms(store, b"other") or 0) > HOUR / 2


@pytest.mark.parametrize("failure", [None, OutcomeUnknown("here", "sent"), TimeoutError()])
async def test_what_became_of_a_write_is_said_though_its_entry_cannot_be_put_again(
    server: Rollback, failure: Exception | None
) -> None:
    async with RedisStateStore.from_url(server.url, call_timeout_s=0.5) as store:

        async def write(_: int) -> None:
            await server.stop()
            await server.start()
            await store.save_memory_state("thing", {"there": True})
            await server.stop()
            if failure is not None:
                raise failure

        watch = WatchList(store.base.scripts, store.base.keys)
        with pytest.raises(type(failure) if failure else OutcomeUnknown) as raised:
            await watch.covering(b"entry", write, delay_ms=HOUR)
    assert raised.value is failure or "written, then: " in str(raised.value)


async def test_a_run_that_the_server_forgot_is_stopped(
    server: Rollback, store: RedisStateStore
) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def handler(_: TaskContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await make(store)
    await server.mark()
    running = asyncio.create_task(run_once(store, handler, lease_s=0.6))
    await begun.wait()
    await server.go_back()
    state = await running
    assert stopped.is_set()
    # Of this run the server knows nothing: the task waits as it did, and is on the watch list.
    assert state.status is TaskStatus.PENDING


async def _step(ctx: TaskContext) -> Any:
    return await ctx.step("b", lambda: "b")


async def _publish(ctx: TaskContext) -> Any:
    await ctx.progress("b")


async def _open_pause(ctx: TaskContext) -> Any:
    await ctx.open_pause("b")


async def _pause(ctx: TaskContext) -> Any:
    if ctx.attempt == 1:
        await ctx.pause("b")


async def _spawn(ctx: TaskContext) -> Any:
    await ctx.spawn("b")


async def _return(_: TaskContext) -> Any:
    pass


async def _fail(ctx: TaskContext) -> Any:
    if ctx.attempt == 1:
        raise ValueError("because of a")


async def _swallow(ctx: TaskContext) -> Any:
    try:
        await ctx.step("b", lambda: "b")
    except Exception:  # noqa: BLE001 - what some handlers do
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "going", [_step, _publish, _open_pause, _pause, _spawn, _return, _fail, _swallow]
)
async def test_a_run_does_not_continue_over_a_hole_in_its_journal(
    server: Rollback, store: RedisStateStore, going: Going
) -> None:
    made: list[str] = []

    def do() -> str:
        made.append(f"a{len(made)}")
        return made[-1]

    async def handler(ctx: TaskContext) -> Any:
        first = ctx.attempt == 1
        if first:
            await server.mark()
        a = await ctx.step("a", do)
        if first:
            await server.go_back()
        await going(ctx)
        return a

    await make(store)
    begun = await run_once(store, handler)
    # The server has lost step a: nothing that this run does next is kept.
    assert (begun.status, begun.result) == (TaskStatus.PENDING, None)
    ended = await run_once(store, handler)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "a1")
    assert made == ["a0", "a1"]
    journal = (await take_journal(store)).keys()
    assert "step:a#1" in journal


async def take_journal(store: RedisStateStore) -> dict[str, Any]:
    journal = store.base.keys.journal(SESSION, TASK)
    flat = await store.transport.sender.send("HKEYS", journal, repeatable=True)
    return dict.fromkeys(name.decode() for name in flat)


async def test_a_decision_that_the_server_has_lost_is_not_acted_on(
    server: Rollback, store: RedisStateStore
) -> None:
    async def handler(ctx: TaskContext) -> Any:
        first = ctx.attempt == 1
        pause = await ctx.open_pause("which")
        if first:
            await server.mark()
            await client.approve(pause.token, "first")
        decision = await ctx.wait_for(pause)
        if first:
            await server.go_back()
        stated = await ctx.step("act", lambda: decision.value)
        return [decision.value, stated]

    async with client_of(store) as client:
        await make(store)
        assert (await run_once(store, handler)).status is TaskStatus.PENDING
        assert (await run_once(store, handler)).status is TaskStatus.PAUSED
        started = await store.tasks.load_fields(SESSION, TASK)
        assert started is not None
        (pause,) = await client.pauses(SESSION)
        assert pause.token is not None
        await client.approve(pause.token, "second")
        ended = await run_once(store, handler)
    assert (ended.status, ended.result) == (TaskStatus.COMPLETE, ["second", "second"])
