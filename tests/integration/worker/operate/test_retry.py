"""A task that has ended is reopened with its journal: once, and for one new life."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import (
    BackendUnavailable,
    InvalidField,
    InvalidTransition,
    OutcomeUnknown,
    PauseTimeout,
    ReceiveTimeout,
    RetryRefused,
    TaskFailed,
    TaskUnknown,
)
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Budget, Handler, TaskContext, guarded
from redis_state.worker.queue.queue import Queue
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, becomes, client_of, pool, statuses, updates_of
from tests.support.samples import task as make_task
from tests.support.scripts.replies import HOUR
from tests.support.tasks.crash_states import orphaned, send, started, submitted, sweeper_of
from tests.support.tasks.work import Work


async def test_a_retry_goes_on_where_the_task_failed(store: RedisStateStore) -> None:
    work = Work()
    async with pool(store, {"h": work}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        work.bad = ""
        reopened = await client.retry(SESSION, task)
        assert reopened.error is None
        assert await client.result(SESSION, task) == ["a1", "b2", "c1"]
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert (view.retries, view.attempts, view.crashes) == (1, 2, 0)
        (found,) = (await client.find(status="COMPLETE")).tasks
        assert (found.task_id, found.retries) == (task, 1)
        assert sum((await client.count()).values()) == 1
    published = await updates_of(store, task)
    assert [one.content for one in published if "retry" in str(one.content)] == [
        {"status": "PENDING", "retry": 1, "was": "FAILED"}
    ]
    assert [one.content["message"] for one in published if one.update_type.value == "PROGRESS"] == [
        "begun"
    ]
    assert await statuses(store, task) == [
        *("PENDING", "RUNNING", "FAILED"),
        *("PENDING", "RUNNING", "COMPLETE"),
    ]


async def test_one_of_many_retries_wins_and_a_key_makes_them_one(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await submitted(store)
        await client.cancel(SESSION, task)
        outcomes = await asyncio.gather(
            *(client.retry(SESSION, task) for _ in range(8)), return_exceptions=True
        )
        refused = [each for each in outcomes if isinstance(each, InvalidTransition)]
        assert len(refused) == 7
        await client.cancel(SESSION, task)
        states = await asyncio.gather(
            *(client.retry(SESSION, task, idempotency_key="k") for _ in range(8))
        )
        assert {state.status for state in states} == {TaskStatus.PENDING}
        view = await client.inspect(SESSION, task)
        assert view is not None
        assert view.retries == 2
        await client.cancel(SESSION, task)
        assert (
            await client.retry(SESSION, task, idempotency_key="k")
        ).status is TaskStatus.CANCELLED
        assert (await client.retry(SESSION, task, idempotency_key="l")).status is TaskStatus.PENDING


async def test_what_cannot_be_reopened_is_refused(store: RedisStateStore) -> None:
    async def parent(ctx: TaskContext) -> None:
        await ctx.spawn("child")
        await ctx.pause()

    async def child(ctx: TaskContext) -> None:
        await ctx.pause()

    handlers: dict[str, Handler] = {"parent": parent, "child": child, "h": Work("")}
    async with pool(store, handlers) as client:
        with pytest.raises(TaskUnknown):
            await client.retry(SESSION, "none")
        task = await client.submit("h", session_id=SESSION)
        await client.result(SESSION, task)
        with pytest.raises(InvalidTransition):
            await client.retry(SESSION, task)
        await store.save_task(make_task("of a host", status=TaskStatus.FAILED))
        for refused in (client.retry, client.rerun, client.fork):
            with pytest.raises(RetryRefused, match="host"):
                await refused("session", "of a host")
        await store.transitions.move(SESSION, await submitted(store), "CANCELLED")
        family = await client.submit("parent", session_id=SESSION)
        await becomes(client, family, TaskStatus.PAUSED)
        (spawned,) = await client.children(SESSION, family)
        await becomes(client, spawned.task_id, TaskStatus.PAUSED)
        await client.cancel(SESSION, family)
        await becomes(client, spawned.task_id, TaskStatus.CANCELLED)
        with pytest.raises(RetryRefused, match="parent"):
            await client.retry(SESSION, spawned.task_id)
        for key in ("", "x" * 201, 7):
            with pytest.raises(InvalidField, match="idempotency_key"):
                await client.retry(SESSION, family, idempotency_key=key)  # type: ignore[arg-type]
        # With the parent its children are reopened, at the pause where they were.
        await client.retry(SESSION, family)
        for name in (family, spawned.task_id):
            await becomes(client, name, TaskStatus.PAUSED)
            for pause in await client.pauses(SESSION):
                if pause.task_id == name:
                    assert pause.token is not None
                    await client.approve(pause.token)
            await becomes(client, name, TaskStatus.COMPLETE)


async def test_a_task_of_a_protocol_is_not_reopened_but_made_again(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await submitted(store)
        await client.cancel(SESSION, task)
        key = store.tasks.keys(SESSION, task).task
        await send(store, "HSET", key, "phase", "CANCELLED:0:rejected")
        with pytest.raises(RetryRefused, match="protocol"):
            await client.retry(SESSION, task)
        again = await client.rerun(SESSION, task)
        view = await client.inspect(SESSION, again)
        assert view is not None
        assert view.rerun_of is not None
        assert view.rerun_of.task_id == task


async def test_a_cancel_of_before_does_not_cancel_again_and_a_new_one_does(
    store: RedisStateStore,
) -> None:
    async def wait(ctx: TaskContext) -> list[str]:
        texts: list[str] = []
        while "go" not in texts:
            texts += [str(event.payload.get("text")) for event in await ctx.inbox.wait()]
        return texts

    async with pool(store, {"h": wait}) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.RUNNING)
        text = {"text": "before"}
        await client.steer(SESSION, task, SteeringEventType.PAUSE, {"reason": "stop"})
        await client.cancel(SESSION, task)
        await becomes(client, task, TaskStatus.CANCELLED)
        await client.retry(SESSION, task)
        await becomes(client, task, TaskStatus.RUNNING)
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, text)
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "go"})
        assert await client.result(SESSION, task) == ["before", "go"]
        task = await client.submit("h", session_id=SESSION)
        for _ in range(3):
            await becomes(client, task, TaskStatus.RUNNING)
            assert await client.cancel(SESSION, task)
            await becomes(client, task, TaskStatus.CANCELLED)
            await client.retry(SESSION, task)


async def test_the_child_that_failed_a_task_runs_again_with_it(store: RedisStateStore) -> None:
    work = Work()

    async def parent(ctx: TaskContext) -> Any:
        before = await ctx.step("before", work.step, "a")
        branch = ctx.branch("x/join y")
        good = await branch.join(await branch.spawn("good", name="a#b/join c"))
        return [before, good, await branch.join(await branch.spawn("child", name="c#1"))]

    async def good(_: TaskContext) -> str:
        return work.step("good")

    async def child(_: TaskContext) -> str:
        return work.step("b")

    handlers: dict[str, Handler] = {"parent": parent, "child": child, "good": good}
    async with pool(store, handlers) as client:
        task = await client.submit("parent", session_id=SESSION)
        with pytest.raises(TaskFailed, match="Bad"):
            await client.result(SESSION, task)
        work.bad = ""
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task) == ["a1", "good1", "b2"]
        assert len(await client.children(SESSION, task)) == 2
        kinds = await client.count()
        assert kinds[TaskStatus.COMPLETE] == 3
        # A fork takes over the children that were joined, and spawns no others in their place.
        forked = await client.fork(SESSION, task)
        assert await client.result(SESSION, forked) == ["a1", "good1", "b2"]
        assert await client.children(SESSION, forked) == []


@pytest.mark.parametrize("unreached", ["all", "parent", "a"])
async def test_a_retry_whose_server_goes_away_says_whether_a_child_was_reopened(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch, unreached: str
) -> None:
    async def parent(ctx: TaskContext) -> None:
        for each in [await ctx.spawn("child", name=name) for name in ("a", "b")]:
            await ctx.join(each)

    async def child(ctx: TaskContext) -> None:
        await ctx.approval("go on?")

    async with pool(store, {"parent": parent, "child": child}) as client:
        task = await client.submit("parent", session_id=SESSION)

        async def both_wait() -> bool:
            children = await client.children(SESSION, task)
            paused = [each for each in children if each.status is TaskStatus.PAUSED]
            return len(paused) == 2

        await eventually(both_wait, "both children wait")
        await client.cancel(SESSION, task)
        children = [each.task_id for each in await client.children(SESSION, task)]
        for each in (task, *children):
            await becomes(client, each, TaskStatus.CANCELLED)
    a, _ = children
    away = {"all": {task, *children}, "parent": {task}, "a": {a}}[unreached]
    inspect_soon = TaskBookkeeping.inspect_soon

    async def inspected(books: TaskBookkeeping, session_id: str, task_id: str) -> None:
        if task_id in away:
            raise BackendUnavailable("server", "is away")
        await inspect_soon(books, session_id, task_id)

    monkeypatch.setattr(TaskBookkeeping, "inspect_soon", inspected)
    async with client_of(store) as client:
        with pytest.raises(BackendUnavailable) as failed:
            await client.retry(SESSION, task)
        there = [await store.tasks.load(SESSION, each) for each in children]
    reopened = [each for each in there if each and each.status is TaskStatus.PENDING]
    assert len(reopened) == {"all": 0, "parent": 2, "a": 1}[unreached]
    assert type(failed.value) is (OutcomeUnknown if reopened else BackendUnavailable)


async def test_a_pause_that_timed_out_is_opened_again(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> Any:
        first = await ctx.pause("first", timeout=timedelta(hours=1))
        return [first.value, (await ctx.pause("second", timeout=timedelta(seconds=0.2))).approved]

    async with pool(store, {"h": ask}, lease_s=0.4) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        assert pause.token is not None
        await client.approve(pause.token, "kept")
        await becomes(client, task, TaskStatus.FAILED)
        for _ in range(2):
            await client.retry(SESSION, task)
            state = await becomes(client, task, TaskStatus.FAILED)
            assert str(state.error).startswith("PauseTimeout")
    asked = [
        one.content["pause"]
        for one in await updates_of(store, task)
        if "pause_id" in str(one.content)
    ]
    assert asked == ["first", "second", "second", "second"]


@pytest.mark.parametrize("names", [("manager", "director"), ("same", "same")])
async def test_a_timeout_that_the_handler_has_handled_stands_when_a_later_one_failed_the_task(
    store: RedisStateStore, names: tuple[str, str]
) -> None:
    patience = timedelta(milliseconds=1)

    async def ask(ctx: TaskContext) -> Any:
        with pytest.raises(PauseTimeout):
            await ctx.pause("first", name=names[0], key="1", timeout=patience)
        early = await ctx.step("remind", lambda: "early")
        second = await ctx.pause("second", name=names[1], key="2", timeout=patience)
        return [early, second.value]

    async with pool(store, {"h": ask}, lease_s=0.4) as client:
        task = await client.submit("h", session_id=SESSION)
        await becomes(client, task, TaskStatus.FAILED)
        patience = timedelta(hours=1)
        await client.retry(SESSION, task)
        await becomes(client, task, TaskStatus.PAUSED)
        (pause,) = await client.pauses(SESSION)
        assert (pause.reason, pause.name) == ("second", names[1])
        await client.approve(str(pause.token), "late")
        assert await client.result(SESSION, task) == ["early", "late"]


async def test_a_message_that_did_not_come_in_time_is_waited_for_again(
    store: RedisStateStore,
) -> None:
    patience = [timedelta(milliseconds=1)]

    async def hear(ctx: TaskContext) -> Any:
        with pytest.raises(ReceiveTimeout):
            await ctx.receive("never", timeout=timedelta(milliseconds=1))
        before = await ctx.step("before", lambda: "a")
        return [before, await ctx.receive("late", timeout=patience[-1])]

    async with pool(store, {"h": hear}) as client:
        task = await client.submit("h", session_id=SESSION)
        for _ in range(2):
            state = await becomes(client, task, TaskStatus.FAILED)
            assert str(state.error).startswith("ReceiveTimeout")
            published = len(await statuses(store, task))
            await client.retry(SESSION, task)

            async def ended(before: int = published) -> bool:
                return len(await statuses(store, task)) == before + 3

            await eventually(ended, "it has run again")
        patience.append(timedelta(hours=1))
        await client.retry(SESSION, task)
        await client.signal(SESSION, task, "late", "come")
        assert await client.result(SESSION, task, timeout_s=60) == ["a", "come"]


async def test_budgets_crashes_and_lifetimes_begin_anew(store: RedisStateStore) -> None:
    work = Work("")
    handlers: dict[str, Handler] = {"h": guarded(Budget(steps=2))(work)}
    async with pool(store, handlers) as client:
        task = await client.submit("h", session_id=SESSION)
        state = await becomes(client, task, TaskStatus.FAILED)
        assert "budget" in str(state.error)
        keys = store.tasks.keys(SESSION, task)
        ended_ms = await send(store, "PTTL", keys.task)
        await client.retry(SESSION, task)
        assert await client.result(SESSION, task) == ["a1", "b1", "c1"]
        assert ended_ms < 8 * 24 * HOUR
    task = await orphaned(store)
    async with client_of(store) as client:
        await TaskTransitions(store).dead_letter(SESSION, task, died=4)
        assert [dead.task_id for dead in await client.dead()] == [task]
        await client.retry(SESSION, task)
        assert await client.dead() == []
        keys = store.tasks.keys(SESSION, task)
        for key in (keys.task, keys.lease):
            assert await send(store, "PTTL", key) > 30 * 24 * HOUR
        run = await started(store, task)
        assert not run.taken_over


async def test_the_worker_of_before_writes_nothing_into_a_reopened_task(
    store: RedisStateStore,
) -> None:
    async with client_of(store) as client:
        task = await submitted(store)
        zombie = await started(store, task)
        await TaskTransitions(store).finish_run(zombie, TaskStatus.FAILED, error="no")
        await client.retry(SESSION, task)
        keys = store.tasks.keys(SESSION, task)
        reply = await store.base.scripts.record_entry(
            keys, mark=zombie.replay.mark, entry="step:late#1", value=b"1"
        )
        assert reply.word.value == "LOST"
        assert (await started(store, task)).journal == {}


async def test_a_client_that_dies_behind_the_retry_leaves_a_task_that_is_queued(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def died(*_: Any) -> None:
        raise asyncio.CancelledError

    async with client_of(store) as client:
        task = await submitted(store)
        await client.cancel(SESSION, task)
        await sweeper_of(store).run_once()
        monkeypatch.setattr(Queue, "put", died)
        with pytest.raises(asyncio.CancelledError):
            await client.retry(SESSION, task)
        monkeypatch.undo()
    async with pool(store, {"answer": Work("")}, lease_s=0.4) as client:
        await becomes(client, task, TaskStatus.COMPLETE)
