from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.errors import TaskUnknown
from redis_state.models import (
    SteeringEventType,
    TaskStatus,
    UpdateType,
)
from redis_state.testing import eventually
from redis_state.worker import TaskCancelled, TaskClient, TaskContext
from redis_state.worker.arq.settings import arq_server
from redis_state.worker.queue.queue import Queue
from redis_state.worker.runs import execution
from tests.support.processes.pools import (
    SESSION,
    agent,
    becomes,
    client_of,
    open_token,
    pool,
    queue_of,
    queued,
    serving,
    statuses,
    updates_of,
)
from tests.support.tasks.handlers import (
    SOON_S,
    answer,
    forever,
    is_idle,
    is_off_queue,
)


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


def _exits() -> None:
    sys.exit(4)


async def _exits_beside_another_step(ctx: TaskContext) -> None:
    await asyncio.gather(ctx.step("other", asyncio.sleep, 0), ctx.step("exit", _exits))


async def _yields(_: object = None) -> AsyncIterator[int]:
    yield 1


def _yields_now(_: TaskContext) -> Generator[int]:
    yield 1


async def _yields_in_a_step(ctx: TaskContext) -> Any:
    return await ctx.step("yields", _yields)


_NO_RESULT = (
    "InvalidField: result: {} is a generator, of which nothing has run: "
    "return a value, not yield it"
)


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
        await eventually(lambda: is_idle(store), "the queue and the watch list are empty")


@pytest.mark.parametrize(
    ("handler", "stated"),
    [
        (_raise(ValueError("no luck")), "ValueError: no luck"),
        (_raise(SystemExit(3)), "SystemExit: 3"),
        (_raise(KeyboardInterrupt()), "KeyboardInterrupt: "),
        (_exits_beside_another_step, "SystemExit: 4"),
        (_raise(_Wild("very")), "_Wild: very"),
        (
            _in_a_group,
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ValueError: inner",
        ),
        (_yields, _NO_RESULT.format("_yields")),
        (_yields_in_a_step, _NO_RESULT.format("_yields")),
        (_raise(_Wild("x" * 20_000)), f"_Wild: {'x' * 16_377}… (3623 more characters)"),
        (_yields_now, _NO_RESULT.format("_yields_now")),
    ],
    ids=[
        "error",
        "exit",
        "interrupt",
        "step",
        "base",
        "group",
        "yields",
        "yields in a step",
        "long",
        "yields now",
    ],
)
async def test_a_handler_that_raises_fails_its_task_and_not_the_worker(
    store: RedisStateStore, handler: Any, stated: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool(store, {"bad": handler, "good": answer}) as client:
        task = await client.submit("bad", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.error) == (TaskStatus.FAILED, stated)
        good = await client.submit("good", session_id=SESSION)
        assert (await client.wait(SESSION, good, timeout_s=60)).result == 42
    logged = [each.message for each in caplog.records if task in each.message]
    assert len(logged) == (0 if "Exit" in stated or "Interrupt" in stated else 1)


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
    async with pool(store, {"add": answer, "sub": answer}) as client:
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

    monkeypatch.setattr(execution, "CLEAN_UP_S", 0.05)
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
        await eventually(lambda: is_off_queue(store), "the first run's job is over")
        await client.submit("ask", session_id=SESSION, task_id=task)
        await eventually(lambda: _is_paused_again(store, task), "the second run came to it")
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert reported.count("CHECKPOINT") == 1
        await client.approve(token)
        assert (await client.wait(SESSION, task, timeout_s=60)).result is True


async def _is_paused_again(store: RedisStateStore, task: str) -> bool:
    return (await statuses(store, task)).count("PAUSED") == 2


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
        await eventually(lambda: is_off_queue(store), "the first run is over")
        reported = [update.update_type.value for update in await updates_of(store, task)]
        assert "PROGRESS" not in reported
        await client.approve(token)
        if how == "swallowed":
            # The pause decided, the loop makes the next one of that name.
            await client.approve(await open_token(store, task, after=1))
            await client.approve(await open_token(store, task, after=2))
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "done"


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


# Waiting


async def test_nobody_who_waits_misses_the_end(store: RedisStateStore) -> None:
    async with pool(store, {"answer": answer}) as client:
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
        with pytest.raises(TaskUnknown, match="never was"):
            await client.wait(SESSION, "never was")
        await client.cancel(SESSION, task, hard=True)
        await client.wait(SESSION, task, timeout_s=60)


def test_one_client_serves_two_loops(settings: Settings, request: pytest.FixtureRequest) -> None:
    store = RedisStateStore(settings)
    client = TaskClient(store, queue=queue_of(settings))

    async def once() -> Any:
        async with serving(agent(settings, {"answer": answer})):
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


@pytest.mark.parametrize("guarantee", ["replicated", "durable"])
async def test_a_queue_of_its_own_has_a_store_whose_writes_are_on_replicas(
    guarantee: Literal["replicated", "durable"],
) -> None:
    store_url, queue_url = (SecretStr(f"redis://example.org:{port}") for port in (1, 2))
    settings = Settings(
        url=store_url, queue_url=queue_url, guarantee=guarantee, guarantee_replicas=1
    )
    async with RedisStateStore(settings) as store, TaskClient(store):
        assert Queue(store).transport.address.options["port"] == 2
        assert arq_server(settings).port == 2


async def test_the_log_names_tasks_and_never_what_they_carry(
    store: RedisStateStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with pool(store, {"answer": answer}) as client:
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
