"""Schedules and processes that die: at each round trip, and at any moment, with others beside."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore, Settings
from redis_state.models import StateUpdate, TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.transport.cluster.slots import slot_of
from tests.support.processes.pools import SESSION, client_of
from tests.support.processes.worker_processes import stop, worker_process
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import run_processes, sender_to
from tests.support.servers.monitor import monitored
from tests.support.servers.sets.clusters import running_cluster
from tests.support.sizes import sizes
from tests.support.tasks.schedules import hourly, look_now, running, settled_before

pytestmark = pytest.mark.slow

_PLACES = {
    "in-turn": {"claim_due", "save_schedule", "index_task", "create_turn_task", "queue_job"},
    "look": {"claim_due", "HGETALL", "save_schedule", "index_task", "create_task", "queue_job"},
    "trigger": {"HGETALL", "save_schedule", "index_task", "create_task", "queue_job"},
    "skip": {"claim_due", "save_schedule", "create_task", "queue_job"},
    "latest": {"claim_due", "save_schedule", "create_task", "queue_job"},
    "on-busy": {"claim_due", "save_schedule", "create_turn_task", "queue_job"},
}


# A death after one round trip leaves what a death before the next one does.
@pytest.mark.parametrize("edges", sizes(["before"], ["before", "after"]))
@pytest.mark.parametrize("phase", _PLACES)
async def test_a_death_at_any_round_trip_loses_no_occurrence_and_doubles_none(
    settings: Settings, phase: str, edges: list[str]
) -> None:
    argument: dict[str, Any] = {
        "url": settings.url.get_secret_value(),
        "namespace": settings.namespace,
        "phases": [phase],
    }
    dying = [argument | {"edge": edge} for edge in edges]
    for results in await run_processes("die_scheduling", dying, timeout_s=110):
        assert _PLACES[phase] <= {each["trip"] for each in results}
        assert not [each for each in results if each["problems"]]


def made_of(updates: list[StateUpdate]) -> Counter[str]:
    return Counter(
        update.task_id
        for update in updates
        if update.update_type is UpdateType.STATUS_CHANGE and update.content["status"] == "PENDING"
    )


async def test_a_pool_whose_processes_are_killed_submits_each_occurrence_once(
    store: RedisStateStore, settings: Settings
) -> None:
    kills, occurrences, names = 8, 12, iter(range(10_000))
    async with client_of(store) as client, AsyncExitStack() as stack:

        async def begin() -> Any:
            name, lease_s = f"w{next(names)}", 1.0
            process = worker_process(settings, name, program="pool_worker", lease_s=lease_s)
            return await stack.enter_async_context(process)

        running = [await begin() for _ in range(3)]
        await client.schedules.save(hourly(every=timedelta(seconds=1), missed="all"))

        async def fired() -> int:
            return (await client.schedules.get("s")).fired

        for kill in range(1, kills + 1):
            at_least = kill * occurrences // kills

            async def goes_on(at_least: int = at_least) -> bool:
                return await fired() >= at_least

            await eventually(goes_on, "occurrences are submitted", timeout_s=60)
            victim = running.pop(random.randrange(len(running)))
            assert await stop(victim, signal.SIGKILL) == -signal.SIGKILL
            running.append(await begin())
        await client.schedules.pause("s")

        async def all_over() -> bool:
            tasks = await store.list_tasks(SESSION)
            return len(tasks) == await fired() and all(t.status.is_terminal for t in tasks)

        await eventually(all_over, "all tasks are over", timeout_s=100)
        tasks = await store.list_tasks(SESSION)
        assert {task.status for task in tasks} == {TaskStatus.COMPLETE}
        last = (await client.schedules.get("s")).last
        assert last is not None
        assert last.at is not None
        # Without a gap from the first to the last, each made once.
        names_of = [
            hourly().task_of(round(last.at.timestamp() * 1000) - 1000 * n)
            for n in range(len(tasks))
        ]
        assert sorted(task.task_id for task in tasks) == sorted(names_of)
        assert made_of(await store.list_updates(SESSION)) == Counter(names_of)


async def test_a_server_that_forgets_a_look_gets_it_again() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore(Settings(url=SecretStr(server.url))) as store,
        client_of(store) as client,
        running(store) as runner,
    ):
        await client.schedules.save(hourly(missed="all"))
        await settled_before(store, hours=3)
        await server.mark()
        before: list[str] = []
        for _ in range(2):
            await runner.run_once()
            before = sorted(task.task_id for task in await store.list_tasks(SESSION))
            assert len(before) == 3
            await server.go_back()
            # Tasks and schedule are forgotten together.
            assert await store.list_tasks(SESSION) == []
            assert (await client.schedules.get("s")).fired == 0
        await look_now(store)
        await asyncio.gather(runner.run_once(), runner.run_once())
        assert sorted(task.task_id for task in await store.list_tasks(SESSION)) == before
        assert (await client.schedules.get("s")).fired == 3


async def test_on_a_cluster_schedules_and_their_tasks_are_in_slots_of_their_own() -> None:
    async with (
        running_cluster() as cluster,
        RedisStateStore(Settings(url=SecretStr(cluster.url), namespace="spread")) as store,
        client_of(store) as client,
        running(store) as runner,
    ):
        for n in range(6):
            schedule = hourly(f"s{n}", session_id=f"{{schedule}}-{n}", missed="all")
            await client.schedules.save(schedule)
            await settled_before(store, f"s{n}", hours=2)
        assert await runner.run_once() == 6
        for n in range(6):
            triggered = await client.schedules.trigger(f"s{n}", idempotency_key="k")
            assert triggered.session_id == f"s{n}-{n}"
            tasks = await store.list_tasks(triggered.session_id)
            assert len(tasks) == 3
        # A node takes over the slot of the schedules while they fire.
        slot = slot_of(store.base.keys.schedules())
        source = await cluster.owner(slot)
        target = next(port for port in cluster.ports if port != source)
        for n in range(6):
            await settled_before(store, f"s{n}", hours=3)
        await cluster.begin_move(slot, target)
        looking = asyncio.create_task(runner.run_once())
        await cluster.move_keys(slot, source, target)
        await cluster.end_move(slot, target)
        assert await looking == 6
        for n in range(6):
            assert len(await store.list_tasks(f"s{n}-{n}")) == 4
        await client.schedules.delete("s0")
        assert len(await client.schedules.list()) == 5


async def test_thousands_that_are_not_due_cost_one_call_a_look(own_url: str) -> None:
    async with (
        sender_to(own_url) as admin,
        RedisStateStore(Settings(url=SecretStr(own_url))) as store,
        client_of(store) as client,
        running(store) as runner,
    ):
        await asyncio.gather(*(client.schedules.save(hourly(f"s{n}")) for n in range(2_000)))
        while await runner.run_once():
            pass
        await admin.send("PING", repeatable=True)
        async with monitored(own_url.removeprefix("unix://"), admin) as requests:
            assert await runner.run_once() == 0
        # The last one is the monitor's own.
        assert [request.name for request in requests[:-1]] == ["EVALSHA"]
        # What is due, in each band.
        commands = [b"TIME", b"GET", *([b"ZRANGEBYSCORE"] * 3)]
        assert [called[0] for called in requests[0].called] == commands
        await settled_before(store, "s7")
        async with monitored(own_url.removeprefix("unix://"), admin) as requests:
            assert await runner.run_once() == 1
        assert len(requests) < 12
