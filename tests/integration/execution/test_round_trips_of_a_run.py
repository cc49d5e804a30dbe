"""How often a caller waits for the server between what it does and what comes of it, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.scripts.loader import SCRIPTS
from redis_state.scripts.stores.tasks.journal import JournalScripts
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.testing import eventually
from redis_state.transport.connections.protocol import RespProtocol
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.views.stream import may_end
from tests.support.processes.pools import SESSION, queue_of
from tests.support.servers.sets.nodes import subscribers
from tests.support.tasks.runs import TASK, make, run_once


class Wire:
    """What this process writes and hears, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # What was written; None for what was heard.
        self.log: list[bytes | None] = []
        write: Any = RespProtocol.write
        hear: Any = RespProtocol.buffer_updated

        def written(protocol: RespProtocol, data: bytes) -> None:
            self.log.append(bytes(data))
            write(protocol, data)

        def heard(protocol: RespProtocol, nbytes: int) -> None:
            self.log.append(None)
            hear(protocol, nbytes)

        monkeypatch.setattr(RespProtocol, "write", written)
        monkeypatch.setattr(RespProtocol, "buffer_updated", heard)

    def place(self, name: str) -> int:
        """Return where a script, or a command, was first written."""
        script = SCRIPTS.get(name)
        wanted = (name if script is None else script.digest).encode()
        return next(at for at, data in enumerate(self.log) if data is not None and wanted in data)

    def trips(self, name: str) -> int:
        """Count the round trips up to the one that has a script."""
        until = self.log[: self.place(name) + 1]
        return sum(written for written, _ in groupby(data is not None for data in until))


async def approved(ctx: TaskContext) -> bool:
    """Record a step, and wait for a person."""
    await ctx.step("before", lambda: "done")
    return (await ctx.pause("may I?")).approved


async def stepping(ctx: TaskContext) -> None:
    """Record two steps."""
    for _ in range(2):
        await ctx.step("work", lambda: "done")


async def decide(client: TaskClient, task_id: str) -> None:
    (token,) = [pause.token for pause in await client.pauses(SESSION) if pause.task_id == task_id]
    assert token is not None
    await client.approve(token)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Wire]:
    return lambda: Wire(monkeypatch)


async def test_a_resumed_task_is_queued_within_four_round_trips(
    store: RedisStateStore, wire: Callable[[], Wire]
) -> None:
    async with TaskClient(store, queue=queue_of(store.settings)) as client:
        for task_id in ("first", "second"):
            await make(store, task_id)
            assert (await run_once(store, approved, task_id=task_id)).status is TaskStatus.PAUSED
        # Connections and scripts are there from then on.
        await decide(client, "first")
        (pause,) = await client.pauses(SESSION)
        assert pause.token is not None
        seen = wire()
        await client.approve(pause.token)
        assert seen.trips("queue_job") <= 4
        # Nobody waited for it, and it is done all the same.
        assert await client.pauses(SESSION) == []


async def test_a_resumed_run_reads_its_journal_with_its_start(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    real: Any = JournalScripts.read_journal

    def counted(scripts: Any, *keys: Any, **given: Any) -> Any:
        read.append(given)
        return real(scripts, *keys, **given)

    await make(store)
    assert (await run_once(store, approved)).status is TaskStatus.PAUSED
    async with TaskClient(store, queue=queue_of(store.settings)) as client:
        await decide(client, TASK)
    monkeypatch.setattr(JournalScripts, "read_journal", counted)
    ended = await run_once(store, approved)
    assert (ended.status, ended.result, read) == (TaskStatus.COMPLETE, True, [])


async def test_what_a_run_listens_to_waits_for_its_first_record_and_for_its_end(
    store: RedisStateStore, wire: Callable[[], Wire]
) -> None:
    # Connections and scripts are there from then on.
    await make(store, "first")
    await run_once(store, stepping, task_id="first")
    await make(store)
    seen = wire()
    assert (await run_once(store, stepping)).status is TaskStatus.COMPLETE
    assert seen.place("record_step") < seen.place("SSUBSCRIBE")
    assert seen.place("move_task") < seen.place("SUNSUBSCRIBE")


async def test_who_waits_for_an_end_looks_at_the_task_at_first_and_at_its_end(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real: Any = TaskStore.load

    async def counted(tasks: TaskStore, session_id: str, task_id: str) -> Any:
        looked.append(task_id)
        return await real(tasks, session_id, task_id)

    await make(store)
    async with TaskClient(store, queue=queue_of(store.settings)) as client:
        with monkeypatch.context() as counting:
            counting.setattr(TaskStore, "load", counted)
            waiting = asyncio.create_task(client.wait(SESSION, TASK, timeout_s=60))
            channel = store.updates.keys(SESSION).channel

            async def followed() -> bool:
                return (await subscribers(store.transport, channel))[0] > 0

            await eventually(followed, "the updates are followed")
            # `run_once` looks too.
            await run_once(store, stepping)
            assert (await waiting).status is TaskStatus.COMPLETE
            assert len(looked) == 3


async def test_a_wait_for_what_has_ended_is_one_round_trip(
    store: RedisStateStore, wire: Callable[[], Wire]
) -> None:
    await make(store)
    await run_once(store, stepping)
    async with TaskClient(store, queue=queue_of(store.settings)) as client:
        seen = wire()
        await client.wait(SESSION, TASK, timeout_s=60)
    assert sum(written for written, _ in groupby(data is not None for data in seen.log)) == 1


@pytest.mark.parametrize(
    ("content", "may"),
    [
        *(({"status": status.value}, status.is_terminal) for status in TaskStatus),
        # A host's own.
        ({"status": ["odd"]}, True),
        ({}, True),
    ],
)
def test_an_update_that_names_another_status_is_no_end(
    content: dict[str, Any], *, may: bool
) -> None:
    update = StateUpdate(
        session_id=SESSION, task_id=TASK, update_type=UpdateType.STATUS_CHANGE, content=content
    )
    assert may_end(update) is may
