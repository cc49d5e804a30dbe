"""A server that is full, or refuses a command, while a handler runs: no verdict on its task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import BackendError, CommandRefused, StoreFull
from redis_state.models import SteeringEventType, TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskContext
from redis_state.worker.tasks import handed_back
from tests.support.processes.pools import SESSION, pool, statuses, steered_before
from tests.support.scripts.replies import ask
from tests.support.servers.faults import run_server, short_directory

FULL = ("CONFIG", "SET", "maxmemory", 1)
ROOM = ("CONFIG", "SET", "maxmemory", 0)
FORBIDDEN = ("ACL", "SETUSER", "default", "-pexpiretime")
NO_ROWS = ("ACL", "SETUSER", "default", "-xadd")
ROWS = ("ACL", "SETUSER", "default", "+xadd")
ALLOWED = ("ACL", "SETUSER", "default", "+pexpiretime")


class Agent:
    """A handler that the server refuses once, in its first run, and what became of it."""

    def __init__(self, *trouble: Any, ends: Any = ()) -> None:
        self.trouble = trouble
        # Before the run ends: else not even its failure could be written.
        self.ends = ends
        self.met: list[BackendError] = []
        self.runs: list[int] = []
        self.done: list[str] = []

    async def __call__(self, ctx: TaskContext) -> str:
        self.runs.append(ctx.attempt)
        ctx.on_failure(self.done.append, "undone")
        await ctx.step("first", self.done.append, "first")
        if not self.met:
            await ask(ctx.store.base.scripts, *self.trouble)
        try:
            if ctx.input == "emit":
                await ctx.progress("half")
            else:
                await ctx.step("second", self.done.append, "second")
        except BackendError as error:
            self.met.append(error)
            if self.ends:
                await ask(ctx.store.base.scripts, *self.ends)
            raise
        return "done"


@pytest.fixture
async def own() -> AsyncIterator[RedisStateStore]:
    """Give a store on a server of its own, which a test may fill."""
    with short_directory() as directory, run_server(directory) as url:
        async with RedisStateStore.from_url(url) as store:
            yield store


@pytest.mark.parametrize("call", ["step", "emit"])
async def test_a_run_that_meets_a_full_server_continues_once_there_is_room(
    call: str, own: RedisStateStore
) -> None:
    agent = Agent(*FULL, ends=ROOM)
    async with pool(own, {"work": agent}) as client:
        task = await client.submit("work", call, session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "done")
    assert [type(error) for error in agent.met] == [StoreFull]
    assert agent.runs == [1, 2]
    assert agent.done == ["first", *(["second", "second"] if call == "step" else [])]
    assert await statuses(own, task) == ["PENDING", "RUNNING", "PENDING", "RUNNING", "COMPLETE"]


@pytest.mark.parametrize(
    ("trouble", "its_end"), [(FULL, ROOM), (NO_ROWS, ROWS)], ids=["full", "forbidden"]
)
async def test_trouble_for_longer_than_the_lease_counts_as_no_crash(
    trouble: tuple[Any, ...], its_end: tuple[Any, ...], own: RedisStateStore
) -> None:
    agent = Agent(*trouble)
    async with pool(own, {"work": agent}, lease_s=1) as client:
        task = await client.submit("work", "emit", session_id=SESSION)
        keys = own.tasks.keys(SESSION, task)

        async def given_back() -> bool:
            owner: bytes | None = await own.transport.commands.hget(keys.lease, "owner")
            return owner == b""

        await eventually(given_back, "the lease is given back")
        assert await statuses(own, task) == ["PENDING", "RUNNING"]
        await ask(own.base.scripts, *its_end)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "done"
        assert await own.transport.commands.hget(keys.task, "crashes") is None
    assert agent.runs == [1, 2]


async def test_a_run_that_lacks_a_right_for_a_while_continues(own: RedisStateStore) -> None:
    agent = Agent(*FORBIDDEN, ends=ALLOWED)
    async with pool(own, {"work": agent}) as client:
        task = await client.submit("work", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert (ended.status, ended.result) == (TaskStatus.COMPLETE, "done")
    (refused,) = agent.met
    assert isinstance(refused, CommandRefused)
    assert "not permitted: PEXPIRETIME" in str(refused)
    assert agent.done == ["first", "second", "second"]


async def test_what_is_refused_every_time_is_a_dead_letter_that_can_be_retried(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_back, "MOST_REFUSALS", 2)
    monkeypatch.setattr(handed_back.HandedBack, "wait_s", 0.01)
    done: list[str] = []
    allowed: list[bool] = []

    async def work(ctx: TaskContext) -> str:
        ctx.on_failure(done.append, "undone")
        await ctx.step("first", done.append, "first")
        # Each run publishes it again, which is no progress.
        async with ctx.text() as text:
            text.write("begun")
            if not allowed:
                await ask(ctx.store.base.scripts, "NO-SUCH-COMMAND")
        return "done"

    async with pool(store, {"work": work}) as client:
        task = await client.submit("work", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert ended.status is TaskStatus.FAILED
        assert str(ended.error).startswith("given up: refused 2 times in a row: CommandRefused: ")
        assert [dead.task_id for dead in await client.dead()] == [task]
        assert done == ["first"]
        allowed.append(True)
        await client.retry(SESSION, task)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "done"
        assert await client.dead() == []
    assert done == ["first"]


async def test_a_handler_that_makes_it_its_own_error_has_failed(store: RedisStateStore) -> None:
    done: list[str] = []

    async def work(ctx: TaskContext) -> None:
        ctx.on_failure(done.append, "undone")
        await ctx.step("first", done.append, "first")
        try:
            await ask(ctx.store.base.scripts, "NO-SUCH-COMMAND")
        except CommandRefused as error:
            raise ValueError("no use") from error

    async with pool(store, {"work": work}) as client:
        task = await client.submit("work", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
    assert ended.status is TaskStatus.FAILED
    assert done == ["first", "undone"]


async def test_an_undo_that_is_refused_every_time_is_not_tried_for_ever(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_back, "MOST_REFUSALS", 2)
    monkeypatch.setattr(handed_back.HandedBack, "wait_s", 0.01)
    tries: list[str] = []

    async def undo() -> None:
        tries.append("undo")
        await ask(store.base.scripts, "NO-SUCH-COMMAND")

    async def work(ctx: TaskContext) -> None:
        ctx.on_failure(undo)
        await ctx.step("first", int)
        raise ValueError("no use")

    async with pool(store, {"work": work}) as client:
        task = await client.submit("work", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert str(ended.error).startswith("given up: refused 2 times in a row: CommandRefused: ")
        assert [dead.task_id for dead in await client.dead()] == [task]
    assert len(tries) >= 2


async def test_what_is_refused_before_the_handler_each_time_is_a_dead_letter(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_back, "MOST_REFUSALS", 2)
    monkeypatch.setattr(handed_back.HandedBack, "wait_s", 0.01)
    runs: list[int] = []

    async def work(ctx: TaskContext) -> str:
        runs.append(ctx.attempt)
        return "done"

    await steered_before(store, "early", SteeringEventType.USER_MESSAGE)
    rows = store.steering.keys(SESSION).rows
    await ask(store.base.scripts, "RENAME", rows, rows + ":kept")
    await ask(store.base.scripts, "SET", rows, "damaged")
    async with pool(store, {"work": work}) as client:
        task = await client.submit("work", session_id=SESSION, task_id="early")
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert str(ended.error).startswith("given up: refused 2 times in a row: CorruptState: ")
        assert [dead.task_id for dead in await client.dead()] == [task]
        assert runs == []
        await ask(store.base.scripts, "RENAME", rows + ":kept", rows)
        await client.retry(SESSION, task)
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "done"


async def test_a_task_whose_workers_cannot_be_read_each_time_is_a_dead_letter(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed_back, "MOST_REFUSALS", 2)
    monkeypatch.setattr(handed_back.HandedBack, "wait_s", 0.01)
    await ask(store.base.scripts, "SET", store.base.keys.served(), "damaged")

    async def other(ctx: TaskContext) -> None:
        del ctx

    async with pool(store, {"other": other}) as client:
        task = await client.submit("nobody's", session_id=SESSION)
        ended = await client.wait(SESSION, task, timeout_s=60)
        assert str(ended.error).startswith("given up: refused 2 times in a row: CommandRefused: ")
        assert [dead.task_id for dead in await client.dead()] == [task]
        await ask(store.base.scripts, "DEL", store.base.keys.served())
