"""What a new task of a busy session meets: it waits, is refused, interrupts or replaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import (
    BackendUnavailable,
    InvalidField,
    LimitReached,
    OutcomeUnknown,
    TaskInProgress,
)
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import OnBusy, TaskClient, TaskContext
from redis_state.worker.queue.queue import Queue
from tests.support.processes.pools import (
    SESSION,
    becomes,
    client_of,
    open_token,
    pool,
    queue_of,
    updates_of,
)
from tests.support.samples import changed
from tests.support.servers.proxies.command_proxy import OOM, CommandProxy
from tests.support.tasks.crash_states import send, sweeper_of

pytestmark = pytest.mark.worker


class Work:
    """Says what has begun, in order; each run lasts until it is let go or cancelled."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.undone: list[str] = []
        self.let_go = asyncio.Event()

    async def __call__(self, ctx: TaskContext) -> str:
        self.begun.append(ctx.input)
        ctx.on_failure(self.undo, ctx.input, on_cancel=True)
        while not self.let_go.is_set():
            await ctx.checkpoint()
            await asyncio.sleep(0.01)
        return f"done {ctx.input}"

    async def ask(self, ctx: TaskContext) -> str:
        self.begun.append(ctx.input)
        ctx.on_failure(self.undo, ctx.input, on_cancel=True)
        await ctx.approval("go on?")
        return f"done {ctx.input}"

    async def undo(self, name: str) -> None:
        self.undone.append(name)
        self.begun.append(f"undo {name}")


@pytest.fixture
async def client(store: RedisStateStore) -> AsyncIterator[TaskClient]:
    async with client_of(store) as opened:
        yield opened


async def submit(client: TaskClient, name: str, policy: Any = None, **options: Any) -> str:
    handler = options.pop("handler", "work")
    chosen: dict[str, Any] = {"session_id": SESSION, "task_id": name, "in_turn": True} | options
    return await client.submit(handler, name, on_busy=policy, **chosen)


async def status(client: TaskClient, *names: str) -> list[str]:
    found = [await client.get(SESSION, name) for name in names]
    return [state.status.value if state else "none" for state in found]


async def test_a_task_in_the_way_is_named_and_nothing_is_written(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"work": work}):
        await submit(client, "a")
        await becomes(client, "a", TaskStatus.RUNNING)
        await submit(client, "b")
        with pytest.raises(TaskInProgress) as refused:
            await submit(client, "c", "reject")
        assert (refused.value.task_id, refused.value.status) == ("a", "RUNNING")
        assert await status(client, "a", "b", "c") == ["RUNNING", "PENDING", "none"]
        assert await updates_of(store, "c") == []
        assert (await client.count())[TaskStatus.PENDING] == 1
        # The same task is no other.
        assert await submit(client, "a", "reject") == "a"
        work.let_go.set()
        await client.wait(SESSION, "b", timeout_s=60)
        assert await submit(client, "c", "reject") == "c"
        await client.wait(SESSION, "c", timeout_s=60)
    assert work.begun == ["a", "b", "c"]


async def test_tasks_of_ids_that_were_there_before_are_interrupted_too(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def interrupt(work: Work) -> None:
        await submit(client, "a")
        await eventually(lambda: work.begun, "it has begun")
        await submit(client, "b", "interrupt")
        ended = await client.wait(SESSION, "a", timeout_s=60)
        assert ended.error == "interrupted by task 'b'; undone: undo#1"
        work.let_go.set()
        await client.wait(SESSION, "b", timeout_s=60)

    for _ in range(2):
        work = Work()
        async with pool(store, {"work": work}):
            await interrupt(work)
        for name in ("a", "b"):
            await store.tasks.clear(SESSION, name)


async def test_a_paused_task_and_one_of_later_are_in_the_way(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"ask": work.ask}):
        await submit(client, "a", handler="ask")
        await becomes(client, "a", TaskStatus.PAUSED)
        with pytest.raises(TaskInProgress) as refused:
            await submit(client, "b", OnBusy.REJECT)
        assert refused.value.status == "PAUSED"
        await client.cancel(SESSION, "a")
        await client.wait(SESSION, "a", timeout_s=60)
        await submit(client, "later", "reject", delay=timedelta(hours=1))
        with pytest.raises(TaskInProgress):
            await submit(client, "b", "reject")
        # Tasks of the session that do not run in turn are not in the way of each other.
        await client.submit("ask", "free", session_id=SESSION, task_id="free")
        await client.submit("ask", "other", session_id="other", on_busy="reject")


async def test_an_interrupt_stops_what_runs_and_goes_first(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"work": work}, max_tasks=4):
        await submit(client, "a")
        await becomes(client, "a", TaskStatus.RUNNING)
        await submit(client, "b", priority=3)
        await submit(client, "c", "interrupt")
        ended = await client.wait(SESSION, "a", timeout_s=60)
        assert ended.status is TaskStatus.CANCELLED
        assert ended.error == "interrupted by task 'c'; undone: undo#1"
        await becomes(client, "c", TaskStatus.RUNNING)
        assert await status(client, "b") == ["PENDING"]
        assert await submit(client, "c", "interrupt") == "c"
        work.let_go.set()
        await client.wait(SESSION, "b", timeout_s=60)
    assert work.begun == ["a", "undo a", "c", "b"]
    assert await status(client, "c", "b") == ["COMPLETE", "COMPLETE"]


@pytest.mark.parametrize("by", ["the worker's end", "trouble", "long trouble"])
async def test_a_task_that_is_handed_back_keeps_its_turn(
    store: RedisStateStore, client: TaskClient, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "long trouble":
        # Its claim is ended meanwhile.
        monkeypatch.setattr("redis_state.worker.queue.loop._HELD_S", 0.5)
    begun: list[str] = []
    stands = asyncio.Event()

    async def work(ctx: TaskContext) -> None:
        begun.append(ctx.input)
        if len(begun) == 1 and by.endswith("trouble"):
            raise BackendUnavailable("a server", "away")
        if len(begun) == 1:
            stands.set()
            await asyncio.Event().wait()

    async def nothing(_: TaskContext) -> None:
        pass

    # A queue knows of its keys from its first claim on.
    async with pool(store, {"nothing": nothing}):
        first = await client.submit("nothing", session_id="other", in_turn=True)
        await client.wait("other", first, timeout_s=60)
    for name in ("a", "b"):
        await client.submit("work", name, session_id=SESSION, task_id=name, in_turn=True)
    if by == "the worker's end":
        async with pool(store, {"work": work}):
            await stands.wait()
    async with pool(store, {"work": work}):
        for name in ("a", "b"):
            await client.wait(SESSION, name, timeout_s=60)
    assert begun == ["a", "a", "b"]


async def test_an_interrupt_stops_what_was_claimed_and_has_not_begun(
    store: RedisStateStore, client: TaskClient
) -> None:
    work, queue = Work(), Queue(store, name=queue_of(store.settings))
    work.let_go.set()
    try:
        await submit(client, "a")
        await submit(client, "b")
        # A worker takes it in the moment in which the next one comes.
        (claimed,) = await queue.claim(queue.name, limit=5)
        await submit(client, "c", "interrupt")
        assert await status(client, "a", "b", "c") == ["CANCELLED", "PENDING", "PENDING"]
        async with pool(store, {"work": work}):
            await queue.end(queue.name, [(claimed, None)])
            for name in ("b", "c"):
                await client.wait(SESSION, name, timeout_s=60)
    finally:
        await queue.aclose()
    assert work.begun == ["c", "b"]


async def test_an_interrupt_undoes_a_paused_task_before_the_new_one_begins(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    work.let_go.set()
    async with pool(store, {"work": work, "ask": work.ask}, max_tasks=4):
        await submit(client, "a", handler="ask")
        await becomes(client, "a", TaskStatus.PAUSED)
        await submit(client, "b", "interrupt")
        for name in ("a", "b"):
            await client.wait(SESSION, name, timeout_s=60)
    assert work.undone == ["a"]
    assert work.begun.index("undo a") < work.begun.index("b")
    assert await status(client, "a", "b") == ["CANCELLED", "COMPLETE"]


async def test_an_interrupt_undoes_a_task_that_waits_for_its_turn_before_the_new_one_begins(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"work": work, "ask": work.ask}, max_tasks=4):
        await submit(client, "a", handler="ask")
        await becomes(client, "a", TaskStatus.PAUSED)
        await submit(client, "b")
        await becomes(client, "b", TaskStatus.RUNNING)
        # It has begun, and stands in the line behind what runs.
        await client.approve(await open_token(store, "a"))
        await becomes(client, "a", TaskStatus.PENDING)
        await submit(client, "c", "interrupt")
        await client.wait(SESSION, "b", timeout_s=60)
        work.let_go.set()
        for name in ("a", "c"):
            await client.wait(SESSION, name, timeout_s=60)
    assert work.undone == ["b", "a"]
    assert work.begun.index("undo a") < work.begun.index("c")
    assert await status(client, "a", "b", "c") == ["CANCELLED", "CANCELLED", "COMPLETE"]


@pytest.mark.parametrize("again", ["retry", "fork", "rerun"])
async def test_an_interrupt_goes_before_what_was_made_from_a_task_of_a_priority(
    store: RedisStateStore, client: TaskClient, again: str
) -> None:
    work = Work()
    work.let_go.set()
    await submit(client, "a", priority=3)
    await client.cancel(SESSION, "a")
    if again == "retry":
        await client.retry(SESSION, "a")
    else:
        await getattr(client, again)(SESSION, "a", new_task_id="again")
    await submit(client, "c", "interrupt")
    waits = "a" if again == "retry" else "again"
    assert await status(client, waits, "c") == ["PENDING", "PENDING"]
    async with pool(store, {"work": work}):
        for name in (waits, "c"):
            await client.wait(SESSION, name, timeout_s=60)
    assert work.begun == ["c", "a"]


async def test_a_replacement_takes_the_place_of_what_waits_and_lets_what_runs_be(
    store: RedisStateStore, client: TaskClient
) -> None:
    work = Work()
    async with pool(store, {"work": work}, max_tasks=4):
        await submit(client, "a")
        await becomes(client, "a", TaskStatus.RUNNING)
        await submit(client, "b")
        await submit(client, "c", priority=2)
        await submit(client, "d", "replace")
        assert await status(client, "a", "b", "c", "d") == [
            *("RUNNING", "CANCELLED", "CANCELLED", "PENDING")
        ]
        gone = await client.wait(SESSION, "b", timeout_s=60)
        assert gone.error == "replaced by task 'd'"
        published = [update.content for update in await updates_of(store, "b")]
        assert published[-1] == {"status": "CANCELLED", "reason": "replaced by task 'd'"}
        work.let_go.set()
        await client.wait(SESSION, "d", timeout_s=60)
        assert [task.task_id for task in (await client.find(status="CANCELLED")).tasks] == [
            *("c", "b")
        ]
    assert work.begun == ["a", "d"]


async def test_retries_reruns_and_forks_stand_in_the_line(
    store: RedisStateStore, client: TaskClient
) -> None:
    async def fails(_: TaskContext) -> None:
        raise ValueError

    async with pool(store, {"work": fails}):
        await submit(client, "a")
        await client.wait(SESSION, "a", timeout_s=60)
    await client.retry(SESSION, "a")
    with pytest.raises(TaskInProgress) as refused:
        await submit(client, "b", "reject")
    assert refused.value.task_id == "a"
    await client.cancel(SESSION, "a")
    again = await client.rerun(SESSION, "a", new_task_id="again")
    with pytest.raises(TaskInProgress):
        await submit(client, "b", "reject")
    await client.cancel(SESSION, again)
    await client.fork(SESSION, "a", new_task_id="forked")
    with pytest.raises(TaskInProgress):
        await submit(client, "b", "reject")
    # In another session it runs in turn with that one's.
    await client.rerun(SESSION, "a", new_task_id="there", new_session_id="there")
    with pytest.raises(TaskInProgress):
        await submit(client, "b", "reject", session_id="there")
    view = await store.tasks.look("there", "there")
    assert view is not None
    assert view.key == "1:there"


async def test_ended_tasks_leave_the_line_and_a_lost_line_is_mended(
    store: RedisStateStore, client: TaskClient
) -> None:
    work, key = Work(), store.base.keys.turn(SESSION)
    commands = store.transport.commands
    async with pool(store, {"work": work}):
        await submit(client, "a")
        await submit(client, "b")
        await store.base.scripts.unlink(key)

        async def listed() -> list[bytes]:
            return sorted(await commands.zrange(key, 0, -1))

        async def mended() -> bool:
            return await listed() == [b"a", b"b"]

        await eventually(mended, "a sweeper lists them again")
        work.let_go.set()
        for name in ("a", "b"):
            await client.wait(SESSION, name, timeout_s=60)

        async def gone() -> bool:
            return not await listed()

        await eventually(gone, "a sweeper takes them off")


async def test_a_line_that_is_too_long_to_judge_is_refused(
    store: RedisStateStore, client: TaskClient
) -> None:
    await asyncio.gather(*(submit(client, f"t{number}") for number in range(1_001)))
    for policy in ("interrupt", "replace"):
        with pytest.raises(LimitReached) as full:
            await submit(client, "a", policy)
        assert full.value.limit == 1_000
    assert await submit(client, "a") == "a"


async def test_those_that_have_ended_do_not_make_a_line_too_long(
    store: RedisStateStore, client: TaskClient
) -> None:
    key = store.base.keys.turn(SESSION)
    for number in range(2_500):
        await send(store, "ZADD", key, number, f"t{number}")
    await send(store, "PEXPIRE", key, 60_000)
    await submit(client, "waits")
    with pytest.raises(TaskInProgress) as busy:
        await submit(client, "a", "reject")
    assert busy.value.task_id == "waits"
    assert await submit(client, "b", "replace") == "b"
    assert await status(client, "waits", "b") == ["CANCELLED", "PENDING"]


async def test_a_session_that_is_cleared_has_no_line(
    store: RedisStateStore, client: TaskClient
) -> None:
    await submit(client, "a")
    await store.clear_session(SESSION)
    assert await submit(client, "b", "reject") == "b"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"on_busy": "wait"}, "on_busy"),
        ({"on_busy": 1}, "on_busy"),
        ({"on_busy": "reject", "limit_key": ""}, "limit_key"),
        ({"on_busy": "interrupt", "delay": timedelta(seconds=1)}, "on_busy"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    client: TaskClient, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidField) as wrong:
        await client.submit("work", session_id=SESSION, **options)
    assert wrong.value.field == field


@pytest.mark.parametrize("policy", list(OnBusy))
async def test_odd_ids_and_values(
    store: RedisStateStore, client: TaskClient, policy: OnBusy
) -> None:
    session, names = "s}\0 \ud800é", ["", "\ud800", "a\0b", "x" * 500]
    in_the_way: list[str] = []
    for name in names:
        try:
            await client.submit("work", session_id=session, task_id=name or "-", on_busy=policy)
        except TaskInProgress as busy:
            in_the_way.append(busy.task_id)
    assert in_the_way == (["-"] * 3 if policy is OnBusy.REJECT else [])
    states = [await client.get(session, name or "-") for name in names]
    ended = [state.status.value if state else "none" for state in states]
    waits, gone = "PENDING", "CANCELLED"
    assert (
        ended
        == {
            OnBusy.ENQUEUE: [waits] * 4,
            OnBusy.INTERRUPT: [waits] * 4,
            OnBusy.REJECT: [waits, "none", "none", "none"],
            OnBusy.REPLACE: [gone, gone, gone, waits],
        }[policy]
    )
    await sweeper_of(store).run_once()
    assert queue_of(store.settings)


@pytest.mark.chaos
@pytest.mark.parametrize("first", ["runs", "is claimed"])
async def test_a_new_task_is_not_said_to_be_missing_when_the_old_one_cannot_be_cancelled(
    store: RedisStateStore, client: TaskClient, first: str
) -> None:
    queue = Queue(store, name=queue_of(store.settings))
    async with (
        AsyncExitStack() as stack,
        CommandProxy(store.settings.url.get_secret_value()) as proxy,
        changed(store.settings, url=proxy.url) as behind,
        client_of(behind) as far,
    ):
        await submit(client, "a")
        if first == "runs":
            await stack.enter_async_context(pool(store, {"work": Work()}))
            await becomes(client, "a", TaskStatus.RUNNING)
        else:
            assert len(await queue.claim(queue.name, limit=1)) == 1
        # Who learns that nothing was written submits another one.
        with proxy.answer("settle_turn", OOM), pytest.raises(OutcomeUnknown):
            await submit(far, "b", "interrupt")
        assert await status(client, "b") != ["none"]
    await queue.aclose()
