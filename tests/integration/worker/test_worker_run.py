from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import (
    BackendUnavailable,
    InvalidField,
    LeaseLost,
)
from redis_state.models import (
    SteeringEvent,
    SteeringEventType,
    TaskContextSnapshot,
    TaskState,
    TaskStatus,
    TaskType,
    UpdateType,
)
from redis_state.testing import eventually
from redis_state.worker import TaskCancelled, TaskClient, TaskContext
from redis_state.worker.arq.job_format import serialize
from redis_state.worker.arq.settings import arq_server
from redis_state.worker.runs import run
from redis_state.worker.tasks.started import StartedRun
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import (
    SESSION,
    agent,
    arq_key,
    becomes,
    client_of,
    key_of_queue,
    open_token,
    pool,
    queue_of,
    queued,
    serving,
    statuses,
    steered_before,
    updates_of,
    watched,
)
from tests.support.samples import admin
from tests.support.servers.faults import Proxy
from tests.support.tasks.runs import steal
from tests.support.timing import LONG_S

# A finished task leaves the watch list after its lease.
SOON_S = 3.0

# How long a call waits for the queue's server.
SHORT = {"connect_timeout_s": 0.5, "call_timeout_s": 1.0}


async def forever(ctx: TaskContext) -> NoReturn:
    await ctx.progress("begun")
    await asyncio.Event().wait()
    raise AssertionError


class _Wild(BaseException):
    pass


def _raise(error: BaseException) -> Callable[[TaskContext], Any]:
    async def handler(_: TaskContext) -> None:
        raise error

    return handler


async def _in_a_group(_: TaskContext) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0, None))
        raise ValueError("inner")


async def test_a_task_is_run_once_and_nothing_is_left_behind(store: RedisStateStore) -> None:
    async def add(ctx: TaskContext) -> Any:
        await ctx.progress("adding", step=1, total=1)
        await ctx.thinking("hm")
        await ctx.tool_call("sum", ctx.input, 3)
        await ctx.result("nearly")
        return {"sum": sum(ctx.input), "attempt": ctx.attempt}

    async with pool(store, {"add": add}, lease_s=SOON_S) as client:
        task = await client.submit("add", [1, 2], session_id=SESSION, trace_id="trace")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.COMPLETE
        assert ended.result == {"sum": 3, "attempt": 1}
        kinds = [update.update_type.value for update in await updates_of(store, task)]
        assert kinds == [
            "STATUS_CHANGE", "STATUS_CHANGE", "PROGRESS", "THINKING", "TOOL_CALL", "RESULT",
            "STATUS_CHANGE",
        ]  # fmt: skip
        await eventually(lambda: _is_idle(store), "the queue and the watch list are empty")


async def _is_idle(store: RedisStateStore) -> bool:
    return not await queued(store) and not await watched(store)


@pytest.mark.parametrize(
    ("handler", "stated"),
    [
        (_raise(ValueError("no luck")), "ValueError: no luck"),
        (_raise(SystemExit(3)), "SystemExit: 3"),
        (_raise(KeyboardInterrupt()), "KeyboardInterrupt: "),
        (_raise(_Wild("very")), "_Wild: very"),
        (_in_a_group, "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"),
    ],
    ids=["error", "exit", "interrupt", "base", "group"],
)
async def test_a_handler_that_raises_fails_its_task_and_not_the_worker(
    store: RedisStateStore, handler: Any, stated: str
) -> None:
    async with pool(store, {"bad": handler, "good": _answer}) as client:
        task = await client.submit("bad", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.error) == (TaskStatus.FAILED, stated)
        task = await client.submit("good", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


async def _answer(_: TaskContext) -> int:
    return 42


async def test_a_result_that_json_cannot_hold_is_kept_in_its_nearest_form(
    store: RedisStateStore,
) -> None:
    async def odd(_: TaskContext) -> Any:
        return {"set": {1}, "bytes": b"x", "nan": float("nan"), "object": object, "text": "\ud800"}

    async with pool(store, {"odd": odd}) as client:
        task = await client.submit("odd", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.COMPLETE
        result: Any = ended.result
        assert set(result) == {"set", "bytes", "nan", "object", "text"}


async def test_a_handler_that_no_worker_knows_is_named_in_the_failure(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"add": _answer, "sub": _answer}) as client:
        task = await client.submit("mul", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert (
            ended.error == "LookupError: no handler named 'mul' in this worker, which has add, sub"
        )


async def test_a_task_that_takes_too_long_fails(store: RedisStateStore) -> None:
    async with pool(store, {"forever": forever}, task_timeout_s=0.1) as client:
        task = await client.submit("forever", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert ended.error == "TimeoutError: not done after 0.1 s"


async def test_a_handlers_own_timeout_is_told_as_its_own(store: RedisStateStore) -> None:
    async with pool(store, {"slow": _raise(TimeoutError("the model is slow"))}) as client:
        task = await client.submit("slow", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.error == "TimeoutError: the model is slow"


async def test_a_handler_that_will_not_be_cancelled_is_left_behind(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    let_go = asyncio.Event()

    async def stubborn(ctx: TaskContext) -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()
        try:
            await ctx.progress("too late")
        except TaskCancelled as error:
            refused.append(str(error))

    monkeypatch.setattr(run, "_CLEAN_UP_S", 0.05)
    async with pool(store, {"stubborn": stubborn}, task_timeout_s=0.05) as client:
        task = await client.submit("stubborn", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        let_go.set()
        await eventually(lambda: refused == ["the run is over"], "its next update is refused")
        assert await statuses(store, task) == ["PENDING", "RUNNING", "FAILED"]


# Steps and pauses


async def test_a_step_is_done_once_and_its_result_is_as_json_keeps_it_in_every_run(
    store: RedisStateStore,
) -> None:
    done: list[str] = []
    seen: list[Any] = []

    def work(name: str, *, times: int) -> tuple[str, int]:
        done.append(name)
        return name, times

    async def steps(ctx: TaskContext) -> Any:
        found: list[Any] = [await ctx.step("work", work, f"{n}", times=n) for n in range(3)]
        found.append(await ctx.step("nothing", asyncio.sleep, 0))
        seen.append(found)
        await ctx.pause()
        return found

    async with pool(store, {"steps": steps}) as client:
        task = await client.submit("steps", session_id=SESSION)
        await client.approve(await open_token(store, task))
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert done == ["0", "1", "2"]
        assert seen == [[["0", 0], ["1", 1], ["2", 2], None]] * 2
        assert ended.result == seen[0]


async def test_a_step_that_raises_is_not_noted(store: RedisStateStore) -> None:
    tried: list[int] = []

    def flaky() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("once")
        return "ok"

    async def again(ctx: TaskContext) -> str:
        with suppress(ConnectionError):
            return await ctx.step("flaky", flaky)
        return await ctx.step("flaky", flaky)

    async with pool(store, {"again": again}) as client:
        task = await client.submit("again", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "ok"


async def test_pauses_one_after_another_each_have_their_token(store: RedisStateStore) -> None:
    async def thrice(ctx: TaskContext) -> list[Any]:
        return [
            (await ctx.pause("again")).value,
            (await ctx.pause("again")).value,
            (await ctx.approval("sure?", name="last")).value,
        ]

    async with pool(store, {"thrice": thrice}) as client:
        task = await client.submit("thrice", session_id=SESSION)
        tokens: list[str] = []
        for number in range(3):
            tokens.append(await open_token(store, task, after=number))
            await client.approve(tokens[-1], number)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.result == [0, 1, 2]
        assert len(set(tokens)) == 3


async def test_a_pause_reached_again_undecided_keeps_its_token(store: RedisStateStore) -> None:
    async def ask(ctx: TaskContext) -> bool:
        return (await ctx.approval("sure?")).approved

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        token = await open_token(store, task)
        state = await becomes(client, task, TaskStatus.PAUSED)
        # A host that sets the task back by itself: nothing else runs a paused task again.
        state.update_status(TaskStatus.PENDING)
        await store.save_task(state)
        await eventually(lambda: _is_off_queue(store), "the first run's job is over")
        await client.submit("ask", session_id=SESSION, task_id=task)
        await eventually(lambda: _is_paused_again(store, task), "the second run came to it")
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert reported.count("CHECKPOINT") == 1
        await client.approve(token)
        assert (await client.wait(SESSION, task, timeout_s=60)).result is True


async def _is_paused_again(store: RedisStateStore, task: str) -> bool:
    return (await statuses(store, task)).count("PAUSED") == 2


async def _is_off_queue(store: RedisStateStore) -> bool:
    return not await queued(store)


@pytest.mark.parametrize("how", ["swallowed", "in a task group"])
async def test_a_pause_ends_the_run_whatever_the_handler_does(
    store: RedisStateStore, how: str
) -> None:
    async def handler(ctx: TaskContext) -> str:
        if how == "swallowed":
            for _ in range(3):
                with suppress(BaseException):
                    await ctx.pause(name="x")
            await ctx.progress("never seen while paused")
            return "done"
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.pause(name="x"))
        return "done"

    async with pool(store, {"it": handler}) as client:
        task = await client.submit("it", session_id=SESSION)
        token = await open_token(store, task)
        await becomes(client, task, TaskStatus.PAUSED)
        await eventually(lambda: _is_off_queue(store), "the first run is over")
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert "PROGRESS" not in reported
        await client.approve(token)
        if how == "swallowed":
            # The pause decided, the loop makes the next one of that name.
            await client.approve(await open_token(store, task, after=1))
            await client.approve(await open_token(store, task, after=2))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "done"


# Cancelling


async def test_cancel_stops_a_task_at_its_next_checkpoint(store: RedisStateStore) -> None:
    cleaned: list[str] = []
    begun = asyncio.Event()

    async def loop(ctx: TaskContext) -> None:
        begun.set()
        try:
            while True:
                await ctx.checkpoint()
                await asyncio.sleep(0.001)
        except Exception:  # noqa: BLE001 - a handler that goes on after any error
            cleaned.append("wrongly")
        finally:
            cleaned.append("finally")

    async with pool(store, {"loop": loop}, lease_s=SOON_S) as client:
        task = await client.submit("loop", session_id=SESSION)
        await begun.wait()
        assert await client.cancel(SESSION, task, reason="enough")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "enough")
        # Whoever cancels has ended the task; its handler learns of it a moment later.
        await eventually(lambda: cleaned, "the handler is out of its loop")
        assert cleaned == ["finally"]
        await eventually(lambda: _is_idle(store), "the watch list is empty")


async def test_hard_cancel_reaches_a_task_that_never_looks_long_before_its_heartbeat(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_state.worker.client.client._LOOK_EVERY_S", LONG_S)
    async with pool(store, {"forever": forever}, lease_s=LONG_S) as client:
        for _ in range(5):
            task = await client.submit("forever", session_id=SESSION)
            await eventually(partial(_has_begun, store, task), "it runs")
            assert await client.cancel(SESSION, task, hard=True, reason="now")
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "now")


async def _has_begun(store: RedisStateStore, task: str) -> bool:
    return any(update.update_type.value == "PROGRESS" for update in await updates_of(store, task))


async def test_a_handler_that_swallows_a_hard_cancel_is_cancelled_all_the_same(
    store: RedisStateStore,
) -> None:
    async def swallow(ctx: TaskContext) -> str:
        with suppress(asyncio.CancelledError):
            await forever(ctx)
        return "a result that nobody wants"

    async with pool(store, {"swallow": swallow}) as client:
        task = await client.submit("swallow", session_id=SESSION)
        await eventually(lambda: _has_begun(store, task), "it runs")
        await client.cancel(SESSION, task, hard=True)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.result) == (TaskStatus.CANCELLED, None)


async def test_cancel_in_a_task_group_cancels_the_task(store: RedisStateStore) -> None:
    async def group(ctx: TaskContext) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_look(ctx))

    async with pool(store, {"group": group}, lease_s=SOON_S) as client:
        task = await client.submit("group", session_id=SESSION)
        await becomes(client, task, TaskStatus.RUNNING)
        await client.cancel(SESSION, task, reason="why not")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.error) == (TaskStatus.CANCELLED, "why not")


async def _look(ctx: TaskContext) -> None:
    while True:
        await ctx.inbox.wait(0.01)


async def test_a_queued_task_is_cancelled_at_once_and_never_runs(store: RedisStateStore) -> None:
    ran: list[str] = []

    async def note(ctx: TaskContext) -> None:
        ran.append(ctx.task.task_id)

    async with client_of(store) as client:
        one = await client.submit("note", session_id=SESSION)
        two = await client.submit("note", session_id=SESSION)
        assert await client.cancel(SESSION, one)
        assert (await client.wait(SESSION, one)).status is TaskStatus.CANCELLED
        async with serving(agent(store.settings, {"note": note})):
            await client.wait(SESSION, two, timeout_s=60)
            await eventually(lambda: _is_idle(store), "the cancelled one's job is dropped")
        assert ran == [two]


async def test_a_cancel_that_came_before_the_task_ends_it_at_its_start(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"forever": forever}) as client:
        await steered_before(store, "early", SteeringEventType.CANCEL, hard=True)
        task = await client.submit("forever", session_id=SESSION, task_id="early")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.CANCELLED
        assert not await _has_begun(store, task)


@pytest.mark.parametrize("how", ["hard", "soft"])
async def test_a_cancel_that_meets_a_pause_is_not_lost(store: RedisStateStore, how: str) -> None:
    async def pausing(ctx: TaskContext) -> None:
        event = SteeringEvent(
            session_id=SESSION,
            task_id=ctx.task.task_id,
            event_type=SteeringEventType.CANCEL,
            payload={"hard": how == "hard"},
        )
        # Written by somebody who then finds the task running, and so leaves it to the worker.
        telling = asyncio.create_task(store.save_steering(event))
        await asyncio.sleep(0)
        try:
            await ctx.pause()
        finally:
            telling.cancel()

    async with pool(store, {"pausing": pausing}, lease_s=SOON_S) as client:
        tasks = [await client.submit("pausing", session_id=SESSION) for _ in range(20)]
        for task in tasks:
            ended = await client.wait(SESSION, task, timeout_s=60)
            assert ended.status is TaskStatus.CANCELLED
        await eventually(lambda: _is_idle(store), "nothing is left")


async def test_cancelling_what_is_over_does_nothing(store: RedisStateStore) -> None:
    async with pool(store, {"answer": _answer}) as client:
        task = await client.submit("answer", session_id=SESSION)
        before = await client.wait(SESSION, task, timeout_s=60)
        assert not await client.cancel(SESSION, task)
        assert not await client.cancel(SESSION, task, hard=True)
        assert not await client.cancel(SESSION, "never was")
        assert await client.get(SESSION, task) == before
        assert await store.list_steering(SESSION) == []


# Priority


async def test_a_task_of_higher_priority_is_taken_first(store: RedisStateStore) -> None:
    order: list[str] = []

    async def note(ctx: TaskContext) -> None:
        order.append(ctx.task.task_id)

    async with client_of(store) as client:
        # Those of one millisecond are in the order of their names.
        for name, priority in (("plain", 0), ("under", -5), ("high", 2000), ("raised", 0)):
            await client.submit("note", session_id=SESSION, task_id=name, priority=priority)
        await client.steer(SESSION, "raised", SteeringEventType.PRIORITIZE, {"priority": 5000})
        state = await client.get(SESSION, "raised")
        assert state is not None
        assert state.priority == 5000
        assert [name.split("/")[1] for name in await queued(store)] == [
            "raised:0", "high:0", "plain:0", "under:0",
        ]  # fmt: skip
        async with serving(agent(store.settings, {"note": note}, max_tasks=1)):
            await client.wait(SESSION, "under", timeout_s=60)
        assert order == ["raised", "high", "plain", "under"]


async def test_a_running_tasks_new_priority_holds_for_its_next_turn(
    store: RedisStateStore,
) -> None:
    async def ask(ctx: TaskContext) -> int:
        await ctx.inbox.wait()
        await ctx.pause()
        return ctx.task.priority

    async with pool(store, {"ask": ask}) as client:
        task = await client.submit("ask", session_id=SESSION)
        await becomes(client, task, TaskStatus.RUNNING)
        await client.steer(SESSION, task, SteeringEventType.PRIORITIZE, {"priority": 7})
        await client.steer(SESSION, task, SteeringEventType.USER_MESSAGE, {"text": "go on"})
        await client.approve(await open_token(store, task))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 7


# Handing over, and being taken over


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
            await eventually(lambda: _has_begun(store, task), "it runs")
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
            await eventually(lambda: _has_begun(store, task), "it runs")
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
        await eventually(lambda: _has_begun(store, task), "it runs")
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
        await eventually(lambda: _is_off_queue(store), "its job is over")
    await client.cancel(SESSION, task)
    await _forget_watched(store)


async def _forget_watched(store: RedisStateStore) -> None:
    for shard in range(16):
        key = store.base.keys.watch(shard)
        await store.transport.sender.send("DEL", key, repeatable=True)


async def test_a_task_that_somebody_holds_is_waited_for(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await client.submit("answer", session_id=SESSION)
        life = TaskTransitions(store)
        held = await life.start(SESSION, task, owner="dead", lease_ms=300, worker="dead")
        assert isinstance(held, StartedRun)
        async with serving(agent(store.settings, {"answer": _answer})):
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
            serving(agent(through, {"answer": _answer}, max_tasks=2)),
            client_of(store) as client,
        ):
            for number in range(4):
                if number:
                    proxy.cut()
                tasks = [await client.submit("answer", session_id=SESSION) for _ in range(5)]
                for task in tasks:
                    assert (await client.wait(SESSION, task, timeout_s=60)).result == 42


# The record, the queue, the watch list


async def test_submitting_a_task_twice_runs_it_once(store: RedisStateStore) -> None:
    ran: list[int] = []

    async def note(_: TaskContext) -> None:
        ran.append(1)

    async with client_of(store) as client:
        calls = [client.submit("note", session_id=SESSION, task_id="one") for _ in range(20)]
        assert set(await asyncio.gather(*calls)) == {"one"}
        assert len(await queued(store)) == 1
        async with serving(agent(store.settings, {"note": note})):
            await client.wait(SESSION, "one", timeout_s=60)
            await client.submit("note", session_id=SESSION, task_id="one")
            await eventually(lambda: _is_idle(store), "nothing waits")
        assert ran == [1]
        assert await statuses(store, "one") == ["PENDING", "RUNNING", "COMPLETE"]


async def test_a_hosts_task_is_not_taken_for_a_workers(store: RedisStateStore) -> None:
    snapshot = TaskContextSnapshot(session_id=SESSION, task_id="host")
    state = TaskState("host", SESSION, TaskStatus.PENDING, TaskType.FOREGROUND, 0, snapshot)
    await store.save_task(state)
    async with client_of(store) as client:
        with pytest.raises(InvalidField, match="task_id"):
            await client.submit("answer", session_id=SESSION, task_id="host")
    assert await queued(store) == []
    await _forget_watched(store)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("handler", {"handler": "", "session_id": SESSION}),
        ("session_id", {"handler": "x", "session_id": None}),
        ("task_id", {"handler": "x", "session_id": SESSION, "task_id": 5}),
    ],
)
async def test_what_cannot_be_submitted_is_refused_by_name(
    store: RedisStateStore, field: str, arguments: dict[str, Any]
) -> None:
    async with client_of(store) as client:
        with pytest.raises(InvalidField) as caught:
            await client.submit(**arguments)
    assert caught.value.field == field
    assert await watched(store) == 0


async def test_ids_of_any_characters_stay_apart(store: RedisStateStore) -> None:
    ids = ["", "a:b", "a/b", "{x}", "*", "é\n", "\ud800", "x" * 10_000]

    async def name(ctx: TaskContext) -> list[str]:
        return [ctx.task.session_id, ctx.task.task_id]

    async with pool(store, {"name": name}) as client:
        for session in ids:
            task = await client.submit("name", session_id=session, task_id=session[::-1] or "e")
            ended = await client.wait(session, task, timeout_s=60)
            assert ended.result == [session, session[::-1] or "e"]


async def test_with_the_queue_away_the_task_is_written_and_watched(
    store: RedisStateStore, settings: Settings, unused_tcp_port: int
) -> None:
    away = SecretStr(f"redis://:secret@127.0.0.1:{unused_tcp_port}/0")
    other = RedisStateStore(settings.model_copy(update={"queue_url": away, **SHORT}))
    async with other, TaskClient(other, queue=queue_of(settings)) as client:
        with pytest.raises(BackendUnavailable) as caught:
            await client.submit("answer", session_id=SESSION, task_id="t")
        assert "secret" not in str(caught.value)
        assert str(unused_tcp_port) in str(caught.value)
    assert await watched(store) == 1
    async with pool(store, {"answer": _answer}) as client:
        await client.submit("answer", session_id=SESSION, task_id="t")
        assert (await client.wait(SESSION, "t", timeout_s=60)).result == 42


async def test_a_damaged_task_is_failed_and_told(store: RedisStateStore) -> None:
    async with client_of(store) as client:
        task = await client.submit("answer", session_id=SESSION)
        key = store.base.keys.task(SESSION, task)
        await store.transport.sender.send("HSET", key, "job", b"{", repeatable=True)
        async with serving(agent(store.settings, {"answer": _answer})):
            ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert "cannot be read" in (ended.error or "")
    await _forget_watched(store)


@pytest.mark.role("any", why="the names of its jobs are no namespace's")
async def test_a_job_that_is_not_ours_is_dropped(store: RedisStateStore) -> None:
    queue = key_of_queue(store.settings)
    jobs = {
        "garbage": b"\x80\x04.",
        "foreign": serialize({"t": 1, "f": "run_task", "a": ["x"], "k": {}, "et": 1}),
    }
    for name, job in jobs.items():
        sender = store.transport.sender
        await sender.send("SET", f"arq:job:{queue}{name}", job, "PX", 60_000, repeatable=True)
        await sender.send("ZADD", queue, 1, f"{queue}{name}", repeatable=True)
    async with pool(store, {"answer": _answer}) as client:
        task = await client.submit("answer", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == 42
        await eventually(lambda: _is_off_queue(store), "both are gone")


# Waiting


async def test_nobody_who_waits_misses_the_end(store: RedisStateStore) -> None:
    async with pool(store, {"answer": _answer}) as client:
        for _ in range(20):
            task = await client.submit("answer", session_id=SESSION)
            waits = [client.wait(SESSION, task, timeout_s=60) for _ in range(5)]
            assert {state.result for state in await asyncio.gather(*waits)} == {42}


async def test_waiting_ends_at_its_deadline_and_for_a_task_that_is_not_there(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"forever": forever}) as client:
        task = await client.submit("forever", session_id=SESSION)
        with pytest.raises(TimeoutError):
            await client.wait(SESSION, task, timeout_s=0.05)
        with pytest.raises(InvalidField):
            await client.wait(SESSION, "never was")
        await client.cancel(SESSION, task, hard=True)
        await client.wait(SESSION, task, timeout_s=60)


def test_one_client_serves_two_loops(settings: Settings, request: pytest.FixtureRequest) -> None:
    store = RedisStateStore(settings)
    client = TaskClient(store, queue=queue_of(settings))

    async def once() -> Any:
        async with serving(agent(settings, {"answer": _answer})):
            task = await client.submit("answer", session_id=SESSION)
            ended = await client.wait(SESSION, task, timeout_s=60)
        await client.aclose()
        return ended.result

    with asyncio.Runner() as one, asyncio.Runner() as two:
        assert [one.run(once()), two.run(once()), one.run(once())] == [42, 42, 42]
        two.run(store.transport.aclose())
        one.run(_close(store))


async def _close(store: RedisStateStore) -> None:
    await store.aclose()


# What is shown


def test_no_repr_shows_a_password() -> None:
    url = SecretStr("redis://ann:s3cret@example.org:6379/1")
    settings = Settings(url=url, queue_url=url)
    worker = agent(settings, {})
    shown = [arq_server(settings), worker, vars(worker.arq_settings())]
    assert "s3cret" not in repr(shown)
    assert "example.org" in repr(arq_server(settings))


async def test_the_log_names_tasks_and_never_what_they_carry(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with pool(store, {"answer": _answer}) as client:
        task = await client.submit("answer", {"password": "s3cret"}, session_id=SESSION)
        await client.wait(SESSION, task, timeout_s=60)
    assert task in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_task_of_an_id_that_was_used_before_starts_with_nothing(
    store: RedisStateStore, settings: Settings
) -> None:
    async def twice(ctx: TaskContext) -> list[Any]:
        recorded = await ctx.step("work", lambda: ctx.input)
        decision = await ctx.approval("go on?")
        return [recorded, decision.actor, [event.payload["text"] for event in ctx.inbox.take()]]

    short = settings.model_copy(update={"finished_task_ttl": timedelta(milliseconds=300)})
    async with RedisStateStore(short) as own, pool(own, {"twice": twice}) as client:
        for name in ("first", "second"):
            await client.submit("twice", name, session_id=SESSION, task_id="again")
            text = {"text": f"to the {name}"}
            await client.steer(SESSION, "again", SteeringEventType.INJECT_CONTEXT, text)

            async def paused() -> bool:
                state = await client.get(SESSION, "again")
                return state is not None and state.status is TaskStatus.PAUSED

            await eventually(paused, f"the {name} waits for approval")
            checkpoints = [
                update.content["pause_id"]
                for update in await own.list_updates(SESSION, task_id="again")
                if update.update_type is UpdateType.CHECKPOINT
            ]
            await client.approve(checkpoints[-1], actor=name)
            ended = await client.wait(SESSION, "again", timeout_s=60)
            assert ended.result == [name, name, [f"to the {name}"]]

            async def gone() -> bool:
                return await client.get(SESSION, "again") is None

            await eventually(gone, "the record has expired")
