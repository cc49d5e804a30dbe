"""Which jobs a worker picks: those behind what others run, those that are due, and only its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("arq")

from redis_state import RedisStateStore, Settings
from redis_state.errors import BackendUnavailable
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import AgentWorker, TaskClient, TaskContext
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from tests.support.processes.pools import (
    SESSION,
    agent,
    arq_key,
    client_of,
    key_of_queue,
    pool,
    queue_of,
    serving,
    statuses,
    steered_before,
)
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import CommandProxy

pytestmark = pytest.mark.worker

HOUR_MS = 3_600_000


@pytest.fixture
async def proxy(settings: Settings) -> AsyncIterator[CommandProxy]:
    async with CommandProxy(settings.url.get_secret_value()) as opened:
        yield opened


@pytest.fixture
async def far(settings: Settings, proxy: CommandProxy) -> AsyncIterator[RedisStateStore]:
    """Give the store through the proxy."""
    async with changed(settings, url=proxy.url) as opened:
        yield opened


async def answer(_: TaskContext) -> int:
    return 42


@pytest.mark.parametrize("in_turn", [False, True])
async def test_tasks_are_started_in_the_order_of_their_submits(
    store: RedisStateStore, *, in_turn: bool
) -> None:
    ran: list[int] = []

    async def note(ctx: TaskContext) -> None:
        ran.append(ctx.input)

    async with client_of(store) as client:
        # Several in each millisecond, whose ids say nothing about their order.
        tasks = [
            await client.submit("note", number, session_id=SESSION, in_turn=in_turn)
            for number in range(60)
        ]
        async with serving(agent(store.settings, {"note": note}, max_tasks=1)):
            for task in tasks:
                await client.wait(SESSION, task, timeout_s=60)
    assert ran == list(range(60))


async def test_of_what_two_workers_pick_at_once_each_job_is_one_workers(
    store: RedisStateStore,
) -> None:
    most, now = 0, 0

    async def hold(ctx: TaskContext) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await eventually(lambda: most == 150, "all of them run", timeout_s=60)
        await ctx.checkpoint()
        now -= 1

    async with client_of(store) as client:
        tasks = [await client.submit("hold", session_id=SESSION) for _ in range(150)]
        async with AsyncExitStack() as both:
            for name in ("one", "two"):
                worker = agent(store.settings, {"hold": hold}, max_tasks=75, name=name, lease_s=30)
                await both.enter_async_context(serving(worker))
            for task in tasks:
                state = await client.wait(SESSION, task, timeout_s=60)
                assert state.status is TaskStatus.COMPLETE
                assert (await statuses(store, task)).count("RUNNING") == 1


@asynccontextmanager
async def two_namespaces(
    first: Settings, second: Settings
) -> AsyncGenerator[tuple[RedisStateStore, RedisStateStore], None]:
    async with RedisStateStore(first) as one, RedisStateStore(second) as other:
        yield one, other


async def test_namespaces_that_name_no_queue_have_one_each(
    settings: Settings, beside: Callable[[str], Settings]
) -> None:
    async with two_namespaces(settings, beside("b")) as (one, other):
        ran: list[str] = []

        async def note(ctx: TaskContext) -> None:
            ran.append(ctx.input)

        for store, name in ((one, "one"), (other, "other")):
            async with (
                TaskClient(store) as client,
                serving(AgentWorker({"note": note}, settings=store.settings)),
                serving(AgentWorker({}, settings=(other if store is one else one).settings)),
            ):
                for _ in range(5):
                    task = await client.submit("note", name, session_id=SESSION)
                    state = await client.wait(SESSION, task, timeout_s=60)
                    assert state.status is TaskStatus.COMPLETE
        assert ran == ["one"] * 5 + ["other"] * 5
        names = [AgentWorker({}, settings=store.settings).queue_names for store in (one, other)]
        assert names == [("tasks",), ("tasks",)]


async def test_queues_of_one_name_in_two_namespaces_are_two(
    settings: Settings, beside: Callable[[str], Settings]
) -> None:
    queue = queue_of(settings)
    async with (
        two_namespaces(settings, beside("b")) as (one, other),
        TaskClient(one, queue=queue) as client,
        TaskClient(other, queue=queue) as others,
    ):
        # The same ids in both.
        for each in (client, others):
            await each.submit("answer", session_id=SESSION, task_id="t")
        worker = AgentWorker({"answer": answer}, settings=other.settings, queue=queue, poll_s=0.01)
        async with serving(worker):
            assert (await others.wait(SESSION, "t", timeout_s=60)).result == 42
            for _ in range(5):
                task = await others.submit("answer", session_id=SESSION)
                await others.wait(SESSION, task, timeout_s=60)
        send = one.transport.sender.send
        assert await send("EXISTS", arq_key(one, "job", "t"), repeatable=True) == 1

        assert await send("ZCARD", key_of_queue(settings), repeatable=True) == 1
        assert await statuses(one, "t") == ["PENDING"]
        async with serving(agent(settings, {"answer": answer})):
            assert (await client.wait(SESSION, "t", timeout_s=60)).result == 42
        assert await statuses(one, "t") == ["PENDING", "RUNNING", "COMPLETE"]


# A server in trouble before the handler has begun


async def test_trouble_before_the_handler_begins_hands_the_task_back(
    store: RedisStateStore,
    proxy: CommandProxy,
    far: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis_state.worker.runs.run.AGAIN_S", 0.05)
    # A lease that nobody waits for, and more troubles than deaths that a task may have.
    await steered_before(store, "t", SteeringEventType.USER_MESSAGE, text="hello")
    steering = store.base.keys.steering(SESSION).rows
    with proxy.answer("read_log", times=5, holding=steering):
        async with pool(far, {"answer": answer}, lease_s=600, max_crashes=1) as client:
            task = await client.submit("answer", session_id=SESSION, task_id="t")
            assert (await client.wait(SESSION, task, timeout_s=30)).result == 42
    assert await statuses(store, task) == ["PENDING", *["RUNNING", "PENDING"] * 5, *_ENDED]


async def test_a_start_that_nobody_was_told_of_is_found_again(
    store: RedisStateStore,
    proxy: CommandProxy,
    far: RedisStateStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis_state.worker.runs.run_task.AGAIN_S", 0.05)
    # The first has happened, and its repetition is refused; so is the next try.
    with proxy.cut_after("start_task"), proxy.answer("start_task", at=2, times=2) as refused:
        async with pool(far, {"answer": answer}, lease_s=600) as client:
            task = await client.submit("answer", session_id=SESSION)
            assert (await client.wait(SESSION, task, timeout_s=30)).result == 42
    assert refused.seen == 4
    assert await statuses(store, task) == ["PENDING", *_ENDED]


@pytest.mark.parametrize("happened", [False, True])
async def test_what_a_run_found_is_written_once_the_server_is_there_again(
    store: RedisStateStore, proxy: CommandProxy, far: RedisStateStore, *, happened: bool
) -> None:
    cut, options = proxy.cut_after if happened else proxy.cut_before, {"lease_s": 600, "name": "w"}
    # Its repetition is refused: what came of it is not known.
    with cut("move_task"), proxy.answer("move_task", at=2) as refused:
        async with pool(far, {"answer": answer}, interval_s=0.2, **options) as client:
            task = await client.submit("answer", session_id=SESSION)
            assert (await client.wait(SESSION, task, timeout_s=30)).result == 42

            async def counted() -> bool:
                (worker,) = await client.workers()
                return worker.counters.get("completed") == 1

            await eventually(counted, "the run counts as completed")
    assert refused.seen > 2
    assert await statuses(store, task) == ["PENDING", *_ENDED]


async def test_the_end_of_a_child_is_written_once_the_server_is_there_again(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect_soon, failed = TaskBookkeeping.inspect_soon, 0

    async def failing(self: TaskBookkeeping, session_id: str, task_id: str) -> None:
        nonlocal failed
        if "child" in done and not failed:
            failed += 1
            raise BackendUnavailable("redis://somewhere", "away")
        await inspect_soon(self, session_id, task_id)

    async def family(ctx: TaskContext) -> Any:
        if ctx.input is None:
            return await ctx.join(await ctx.spawn("family", "child"))
        done.append(ctx.input)
        return "grown"

    done: list[str] = []
    monkeypatch.setattr(TaskBookkeeping, "inspect_soon", failing)
    async with pool(store, {"family": family}, lease_s=600) as client:
        task = await client.submit("family", session_id=SESSION)
        assert (await client.wait(SESSION, task, timeout_s=30)).result == "grown"
    assert (failed, done) == (1, ["child"])


_ENDED = ["RUNNING", "COMPLETE"]
