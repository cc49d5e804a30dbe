"""The index of tasks on servers whose history goes back, and on a cluster."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import TaskClient, TaskContext
from redis_state.worker.tasks.bookkeeping import TaskBookkeeping
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.transitions import TaskTransitions
from tests.support.processes.pools import SESSION, client_of, pool
from tests.support.scripts.replies import clock_ms
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.sets.clusters import running_cluster
from tests.support.tasks.crash_states import (
    close_queues,
    make_due,
    send,
    started,
    submitted,
    sweeper_of,
)


async def _counts(client: TaskClient) -> dict[str, int]:
    return {status.value: count for status, count in (await client.count()).items() if count}


async def test_a_lost_history_leaves_an_index_that_a_sweeper_makes_exact() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore(Settings(url=SecretStr(server.url))) as store,
        client_of(store) as client,
    ):
        task, other = await submitted(store), await submitted(store)
        await server.mark()
        run = await started(store, task)
        await TaskTransitions(store).finish_run(run, TaskStatus.FAILED, error="lost")
        assert await _counts(client) == {"FAILED": 1, "PENDING": 1}
        lost = await client.submit("h", session_id=SESSION)
        await server.go_back()
        assert await _counts(client) == {"PENDING": 2}
        # A write of the lost history arrives late: it is of a version that will be given again.
        entry = watch_entry(SESSION, task)
        run = await started(store, task)
        TaskBookkeeping(store).record_move(run.state, TaskStatus.CANCELLED, version=9, write="lost")
        assert await _counts(client) == {"CANCELLED": 1, "PENDING": 1}
        # A later version of the record is lower than that, and is put in its place.
        await TaskTransitions(store).finish_run(run, TaskStatus.COMPLETE, result=1)
        for _ in range(4):
            await make_due(store, entry)
            await sweeper_of(store).run_once()
        assert await _counts(client) == {"COMPLETE": 1, "PENDING": 1}
        found = (await client.find()).tasks
        assert {each.task_id for each in found} == {task, other}
        assert lost not in {each.task_id for each in found}
        await close_queues()


async def test_tasks_are_found_and_reopened_on_a_cluster() -> None:
    failing = [True]

    async def work(ctx: TaskContext) -> int:
        await ctx.set_attributes({"done": True})
        number = int(await ctx.step("number", lambda: ctx.input))
        if failing:
            raise ValueError
        return number

    async with running_cluster() as cluster:
        settings = Settings(url=SecretStr(cluster.url), namespace="spread")
        async with RedisStateStore(settings) as store, pool(store, {"h": work}) as client:
            made = {
                await client.submit(
                    "h", number, session_id=f"s{number}", attributes={"n": number % 2}
                ): number
                for number in range(20)
            }
            for task, number in made.items():
                await client.wait(f"s{number}", task)

            async def all_failed() -> bool:
                return await _counts(client) == {"FAILED": 20}

            # Another node may have the index's shard: it hears of the end a moment later.
            await eventually(all_failed, "the index has all of them")
            page = await client.find(attributes={"n": 1, "done": True}, status="FAILED", limit=7)
            rest = await client.find(
                attributes={"n": 1, "done": True}, status="FAILED", limit=7, after=page.cursor
            )
            found = [made[each.task_id] for each in (*page.tasks, *rest.tasks)]
            assert found == list(range(19, 0, -2))
            sessions = (await client.sessions(limit=50)).sessions
            assert len(sessions) == 20
            failing.clear()
            report = await client.bulk("retry", attributes={"n": 1})
            assert len(report.items) == 10
            for task, number in made.items():
                if number % 2:
                    assert await client.result(f"s{number}", task) == number
            task = next(iter(made))
            forked = await client.fork("s0", task, before="number")
            assert await client.result("s0", forked) == 0


async def test_a_start_that_the_index_missed_is_listed_also_if_the_clock_was_set_back(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client_of(store) as client:
        task = await submitted(store)
        # A run before began an hour ahead: no later epoch is less.
        ahead_ms = await clock_ms(store.base.scripts) + 3_600_000
        lease = store.tasks.keys(SESSION, task).lease
        await send(store, "HSET", lease, "epoch", ahead_ms)
        lost: list[str] = []

        def lose(_: object, __: str, task_id: str, *___: object, **____: object) -> None:
            lost.append(task_id)

        with monkeypatch.context() as patch:
            patch.setattr(TaskBookkeeping, "record_start", lose)
            run = await started(store, task)
        assert lost == [task]
        assert run.held.epoch > ahead_ms
        assert await _counts(client) == {"PENDING": 1}
        await make_due(store, watch_entry(SESSION, task))
        assert (await sweeper_of(store).run_once()).looked == 1
        assert await _counts(client) == {"RUNNING": 1}
        await close_queues()
