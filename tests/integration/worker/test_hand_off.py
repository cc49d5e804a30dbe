"""Runs that are handed off, taken over, or left by a server that goes away."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
    LeaseLost,
)
from redis_state.models import (
    TaskStatus,
)
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskContext
from redis_state.worker.observe.stats import Polls
from redis_state.worker.queue.jobs.job import JobPayload
from redis_state.worker.queue.loop import QueueLoop
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    agent,
    arq_key,
    client_of,
    pool,
    queue_of,
    queued,
    serving,
    statuses,
    updates_of,
)
from tests.support.samples import admin
from tests.support.servers.faults import Proxy
from tests.support.tasks.handlers import (
    SOON_S,
    answer,
    forever,
    forget_watched,
    has_begun,
    is_off_queue,
)
from tests.support.tasks.runs import steal
from tests.support.timing import LONG_S


async def test_a_worker_that_stops_hands_its_tasks_over(store: RedisStateStore) -> None:
    async def steps(ctx: TaskContext) -> Any:
        await ctx.progress("begun")
        first = await ctx.step("first", lambda: ctx.worker)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return [first, ctx.worker, ctx.attempt]

    async with client_of(store) as client:
        task = await client.submit("steps", session_id=SESSION)
        # Neither its lease nor its mark on the job runs out in time: both have to be given back.
        one = agent(store.settings, {"steps": steps}, lease_s=LONG_S)
        async with serving(one):
            await eventually(lambda: has_begun(store, task), "it runs")
        for epoch in range(3):
            assert not await admin(store, "EXISTS", arq_key(store, "in-progress", task, epoch))
        state = await client.get(SESSION, task)
        assert state is not None
        assert state.status is TaskStatus.PENDING
        assert len(await queued(store)) == 1
        async with serving(agent(store.settings, {"steps": steps})):
            ended = await client.wait(SESSION, task, timeout_s=60)
        result: Any = ended.result
        assert result[2] == 2
        reported = ["PENDING", "RUNNING", "PENDING", "RUNNING", "COMPLETE"]
        assert await statuses(store, task) == reported


async def test_a_worker_that_stops_while_it_starts_a_task_hands_that_over(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = TaskTransitions.start, asyncio.Event()

    async def unanswered(self: TaskTransitions, *args: Any, **options: Any) -> Any:
        started = await start(self, *args, **options)
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return started

    monkeypatch.setattr(TaskTransitions, "start", unanswered)
    async with client_of(store) as client:
        task = await client.submit("answer", session_id=SESSION)
        # Two workers have died with it before.
        record = store.tasks.keys(SESSION, task).task
        await store.transport.sender.send("HSET", record, "crashes", 2, repeatable=True)
        async with serving(agent(store.settings, {"answer": answer}, lease_s=LONG_S)):
            await begun.wait()
        assert await statuses(store, task) == ["PENDING", "RUNNING", "PENDING"]
        assert await store.transport.commands.hget(record, "crashes") == b"2"
        assert len(await queued(store)) == 1
        async with serving(agent(store.settings, {"answer": answer}, lease_s=LONG_S)):
            assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert (view.attempts, view.crashes) == (1, 0)


async def test_a_worker_that_stops_while_it_asks_who_has_a_handler_hands_the_task_over(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def unanswered(*_: object) -> bool:
        asked.set()
        return await asyncio.Future[bool]()

    async with client_of(store) as client:
        task = await client.submit("answer", session_id=SESSION)
        with monkeypatch.context() as patch:
            patch.setattr("redis_state.worker.runs.run.is_served_elsewhere", unanswered)
            async with serving(agent(store.settings, {"other": answer}, lease_s=LONG_S)):
                await asked.wait()
        assert await statuses(store, task) == ["PENDING", "RUNNING", "PENDING"]
        async with serving(agent(store.settings, {"answer": answer}, lease_s=LONG_S)):
            assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


async def test_a_task_that_finishes_while_its_worker_stops_is_finished(
    store: RedisStateStore,
) -> None:
    async def last_words(ctx: TaskContext) -> str:
        with suppress(asyncio.CancelledError):
            await forever(ctx)
        return "done"

    async with client_of(store) as client:
        task = await client.submit("last_words", session_id=SESSION)
        async with serving(agent(store.settings, {"last_words": last_words})):
            await eventually(lambda: has_begun(store, task), "it runs")
        assert (await client.wait(SESSION, task)).result == "done"
        await client.drop_queue()


async def test_a_run_that_was_taken_over_is_cancelled_and_writes_nothing(
    store: RedisStateStore,
) -> None:
    outcome: list[str] = []
    let_go = asyncio.Event()

    async def stale(ctx: TaskContext) -> str:
        await ctx.progress("begun")
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            for call in (ctx.progress("stale"), ctx.step("stale", int), ctx.pause()):
                try:
                    await call
                except LeaseLost as error:
                    outcome.append(f"{error.epoch} {error.current}")
            raise
        return "stale"

    life = TaskTransitions(store)
    async with pool(store, {"stale": stale}, lease_s=1.5) as client:
        task = await client.submit("stale", session_id=SESSION)
        await eventually(lambda: has_begun(store, task), "it runs")
        taken = await steal(store, task)
        await eventually(lambda: len(outcome) == 3, "each of its writes is refused")
        begun, current = map(int, outcome[0].split())
        assert outcome == [f"{begun} {current}"] * 3
        assert begun < current == taken.held.epoch
        assert not any(entry.startswith(("step:", "pause:")) for entry in taken.journal)
        await life.finish_run(taken, TaskStatus.COMPLETE, result="the thief's")
        assert (await client.wait(SESSION, task)).result == "the thief's"
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert reported.count("PROGRESS") == 1
        assert "CHECKPOINT" not in reported
        await eventually(lambda: is_off_queue(store), "its job is over")
    await client.cancel(SESSION, task)
    await forget_watched(store)


async def test_what_a_run_that_was_taken_over_raises_is_not_reported_by_asyncio(
    store: RedisStateStore,
) -> None:
    stopped: list[str] = []
    reported: list[str] = []

    async def cleans_up_badly(ctx: TaskContext) -> None:
        await ctx.progress("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(ctx.worker)
            raise ValueError("a secret") from None

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with pool(store, {"stale": cleans_up_badly}, lease_s=1.5) as client:
        task = await client.submit("stale", session_id=SESSION)
        await eventually(lambda: has_begun(store, task), "it runs")
        taken = await steal(store, task)
        await eventually(lambda: stopped, "it is stopped")
        await TaskTransitions(store).finish_run(taken, TaskStatus.COMPLETE)
        await eventually(lambda: is_off_queue(store), "its job is over")
    await forget_watched(store)
    gc.collect()
    assert reported == []


async def test_a_task_that_somebody_holds_is_waited_for(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await client.submit("answer", session_id=SESSION)
        life = TaskTransitions(store)
        held = await life.start(SESSION, task, owner="dead", lease_ms=300, worker="dead")
        assert isinstance(held, StartedRun)
        async with serving(agent(store.settings, {"answer": answer})):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == 42
        assert (await statuses(store, task)).count("RUNNING") == 2


async def test_a_server_that_was_away_ends_no_task(store: RedisStateStore) -> None:
    async def cut_off(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            raise BackendUnavailable("redis://somewhere", "away")
        return ctx.attempt

    async with pool(store, {"cut_off": cut_off}, lease_s=SOON_S) as client:
        task = await client.submit("cut_off", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 2


async def test_a_worker_goes_on_after_it_lost_the_server(
    store: RedisStateStore, settings: Settings
) -> None:
    async with Proxy(settings.url.get_secret_value()) as proxy:
        through = settings.model_copy(update={"url": SecretStr(proxy.url)})
        async with (
            serving(agent(through, {"answer": answer}, max_tasks=2)),
            client_of(store) as client,
        ):
            for number in range(4):
                if number:
                    proxy.cut()
                tasks = [await client.submit("answer", session_id=SESSION) for _ in range(5)]
                for task in tasks:
                    assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


async def test_a_run_that_is_cancelled_before_its_first_turn_gives_its_job_back(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    async def run(_: object, payload: JobPayload, begin: Callable[[], None]) -> None:
        begin()
        ran.append(payload.task_id)

    queue, name = Queue(store, name=queue_of(store.settings)), queue_of(store.settings)
    loop = QueueLoop(queue, [(name, 5)], slots=5, poll_s=LONG_S, run=run, polls=Polls())
    claim, claimed = queue.claim, asyncio.Event()

    async def telling(*args: Any, **options: Any) -> Any:
        found = await claim(*args, **options)
        # Who waits for this has its turn of the loop before the run that is about to be made.
        claimed.set()
        return found

    monkeypatch.setattr(queue, "claim", telling)
    async with client_of(store) as client:
        # What the claim takes of the rate is there again.
        await client.queues.limit(name, rate=Rate(1, timedelta(days=1)))
        task = await client.submit("answer", session_id=SESSION, limit_key="k")
        polling = asyncio.create_task(loop.poll())
        await claimed.wait()
        await loop.hand_off()
        polling.cancel()
        await asyncio.wait({polling})
        backlog = await queue.backlog()
        assert (ran, backlog.claimed, len(await queued(store))) == ([], 0, 1)
        async with serving(agent(store.settings, {"answer": answer}, lease_s=LONG_S)):
            assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
    await queue.aclose()


async def test_a_poll_waits_for_the_claim_of_one_that_was_cancelled(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(_: object, payload: JobPayload, begin: Callable[[], None]) -> None:
        begin()
        await asyncio.Event().wait()

    queue, name = Queue(store, name=queue_of(store.settings)), queue_of(store.settings)
    loop = QueueLoop(queue, [(name, 5)], slots=5, poll_s=LONG_S, run=run, polls=Polls())
    claim, claiming, may_end = queue.claim, asyncio.Queue[None](), asyncio.Event()
    at_once: list[int] = []
    busy = 0

    async def slow(*args: Any, **options: Any) -> Any:
        nonlocal busy
        busy += 1
        at_once.append(busy)
        claiming.put_nowait(None)
        try:
            await may_end.wait()
            return await claim(*args, **options)
        finally:
            busy -= 1

    monkeypatch.setattr(queue, "claim", slow)
    async with client_of(store) as client:
        tasks = [await client.submit("h", n, session_id=SESSION) for n in range(8)]
        first = asyncio.create_task(loop.poll())
        await claiming.get()
        first.cancel()
        await asyncio.wait({first})
        second = asyncio.create_task(loop.poll())
        may_end.set()
        await eventually(lambda: len(loop.unfinished()) == 5, "all slots run")
        assert (len(tasks), max(at_once)) == (8, 1)
        assert (await queue.backlog()).claimed == 5
        second.cancel()
        await asyncio.wait({second})
        await loop.hand_off()
        assert (await queue.backlog()).claimed == 0
        await client.drop_queue()
    await queue.aclose()


@pytest.mark.parametrize("how", ["frozen", "cut"])
async def test_a_worker_whose_link_is_dead_stops_in_its_time(
    settings: Settings, store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("redis_state.worker.pool.serving._LEAVE_S", 0.3)
    monkeypatch.setattr("redis_state.worker.pool.serving._END_S", 0.1)
    async with Proxy(settings.url.get_secret_value()) as proxy, client_of(store) as client:
        # Each call would wait for longer than this test does.
        changes = {"url": SecretStr(proxy.url), "call_timeout_s": LONG_S}
        far = settings.model_copy(update=changes)
        task = await client.submit("forever", session_id=SESSION)
        worker = asyncio.create_task(
            agent(far, {"forever": forever}, lease_s=LONG_S).serve(handle_signals=False)
        )
        await eventually(lambda: has_begun(store, task), "it runs")
        if how == "frozen":
            proxy.silence()
            proxy.deafen()
        else:
            proxy.refuse()
            proxy.cut()
        worker.cancel()
        done, _ = await asyncio.wait({worker}, timeout=20)
        assert done
        state = await client.get(SESSION, task)
        # It is taken over when the lease has run out.
        assert state is not None
        assert state.status is TaskStatus.RUNNING
        await client.drop_queue()
