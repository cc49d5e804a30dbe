"""Tasks that were found ended are read many at once, and inspected if more is to be done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus
from redis_state.primitives.watchlist.watchlist import WatchClaim
from redis_state.stores.sessions.tasks import TaskStore
from redis_state.stores.task_index import TaskIndex, stamp_of
from redis_state.worker.recovery.ended_tasks import still_ended
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of, watched
from tests.support.tasks.crash_states import make_due, send, started, submitted, sweeper_of

Harm = Callable[[RedisStateStore, str], Awaitable[None]]


async def _ended(store: RedisStateStore) -> str:
    """Have a task end: its entry is marked."""
    task = await submitted(store)
    await TaskTransitions(store).finish_run(
        await started(store, task), TaskStatus.FAILED, error="no"
    )
    return task


async def test_those_that_are_listed_as_they_ended_are_read_and_not_inspected(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [await _ended(store) for _ in range(40)]
    for task in tasks:
        await make_due(store, watch_entry(SESSION, task))
    looked: list[str] = []
    look = TaskStore.look

    async def counted(self: TaskStore, session_id: str, task_id: str) -> object:
        looked.append(task_id)
        return await look(self, session_id, task_id)

    monkeypatch.setattr(TaskStore, "look", counted)
    sweeper = sweeper_of(store)
    while (await sweeper.run_once()).looked:
        pass
    assert (sweeper.totals.dropped, looked) == (40, [])
    assert not await watched(store)


async def _listed_as(store: RedisStateStore, task: str) -> str:
    """Return what the index knows of a task, as a claim has it."""
    found = await store.tasks.look(SESSION, task)
    assert found is not None
    return stamp_of(found.status, found.version, found.write, updated_us=found.updated_us)


async def _reopened(store: RedisStateStore, task: str) -> None:
    async with client_of(store) as client:
        await client.retry(SESSION, task)


async def _deleted(store: RedisStateStore, task: str) -> None:
    await send(store, "DEL", store.base.keys.task(SESSION, task))


async def _of_another_type(store: RedisStateStore, task: str) -> None:
    await _deleted(store, task)
    await send(store, "SET", store.base.keys.task(SESSION, task), "no hash", "EX", 60)


async def _of_no_status(store: RedisStateStore, task: str) -> None:
    await send(store, "HSET", store.base.keys.task(SESSION, task), "status", "no status")


async def _changed(store: RedisStateStore, task: str) -> None:
    await send(store, "HINCRBY", store.base.keys.task(SESSION, task), "version", 1)


async def _in_turn(store: RedisStateStore, task: str) -> None:
    await send(store, "HSET", store.base.keys.task(SESSION, task), "flow_key", "1:s")


async def _not_listed(store: RedisStateStore, task: str) -> None:
    index = TaskIndex(store.base.scripts, store.base.keys)
    await send(store, "DEL", index.keys(watch_entry(SESSION, task)).about)


@pytest.mark.parametrize(
    "harm",
    [_reopened, _deleted, _of_another_type, _of_no_status, _changed, _in_turn, _not_listed],
)
async def test_any_other_is_inspected_as_usual(store: RedisStateStore, harm: Harm) -> None:
    task, other = await _ended(store), await _ended(store)
    stamps = {each: await _listed_as(store, each) for each in (task, other)}
    await harm(store, task)
    if harm is _not_listed:
        stamps[task] = ""
    claims = [
        WatchClaim(watch_entry(SESSION, each), b"1", again=True, stamp=stamp)
        for each, stamp in stamps.items()
    ]
    ended, others = await still_ended(store, claims)
    assert [name for _, name, _ in ended] == [(SESSION, other)]
    assert others == claims[:1]


async def test_an_entry_that_is_not_marked_or_names_no_task_is_inspected_as_usual(
    store: RedisStateStore,
) -> None:
    entry = watch_entry(SESSION, await _ended(store))
    claims = [WatchClaim(entry, b"1", again=False), WatchClaim(b"no entry", b"1", again=True)]
    assert await still_ended(store, claims) == ([], claims)
