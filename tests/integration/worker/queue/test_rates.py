"""Rates that are set while processes take from them, in place of what their code gives."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.errors import InvalidField
from redis_state.models import TaskStatus
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskClient, TaskContext
from redis_state.worker.queue import rates
from redis_state.worker.queue.queue import Queue
from redis_state.worker.queue.rates import take
from tests.processes.callers.take_rates import note
from tests.support.processes import children
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.processes.worker_processes import stop
from tests.support.scripts.replies import HOUR
from tests.support.servers.changes.rollback import rolling_back
from tests.support.servers.faults import start_process

pytestmark = pytest.mark.worker


async def test_a_rate_that_was_set_holds_for_handlers_until_it_is_taken_away(
    store: RedisStateStore,
) -> None:
    async def call(ctx: TaskContext) -> str:
        await ctx.take("my model", Rate(100, timedelta(seconds=1)), cost=3)
        return "taken"

    async with pool(store, {"call": call}) as client:
        slow = Rate(1, timedelta(days=1))
        await client.rates.set("my model", slow)
        await client.rates.set("other", Rate(5, timedelta(minutes=1)))
        assert dict(await client.rates.list()) == {
            "my model": slow,
            "other": Rate(5, timedelta(minutes=1)),
        }
        first, second = [await client.submit("call", session_id=SESSION) for _ in range(2)]
        await becomes(client, first, TaskStatus.COMPLETE)
        await becomes(client, second, TaskStatus.PAUSED)
        await client.rates.set("my model", None)
        await client.rates.set("other", None)
        assert not await client.rates.list()
        third = await client.submit("call", session_id=SESSION)
        assert await client.result(SESSION, third, timeout_s=60) == "taken"
        await client.cancel(SESSION, second)


async def test_rates_that_are_used_say_how_much_is_taken_and_how_long_the_next_one_waits(
    store: RedisStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, hourly = Queue(store), Rate(10, timedelta(hours=1))
    async with TaskClient(store) as client:
        assert await client.rates.in_use() == []
        await client.rates.set("set", Rate(4, timedelta(hours=1)))
        assert await client.rates.in_use() == []
        for name, cost in (("code", 3), ("code", 4), ("set", 10), ("full", 10), ("full", 5)):
            await take(queue, name, hourly, cost)
        code, full, by_set = await client.rates.in_use()
        assert (code.name, code.rate, code.taken, code.wait_s) == ("code", hourly, 7, 0)
        # It was taken by the rate that was set, all of it.
        assert (by_set.name, by_set.rate.limit, by_set.taken) == ("set", 4, 4)
        # Who waits has a place of its own: one comes in each 6 minutes.
        assert (full.name, full.taken) == ("full", 15)
        assert 30 * 60 < full.wait_s <= 36 * 60
        # Those that are used up for longest.
        monkeypatch.setattr(rates, "_MOST_USED", 2)
        assert [each.name for each in await client.rates.in_use()] == ["full", "set"]


async def test_a_name_that_is_taken_by_two_rates_is_listed_as_it_was_taken_last(
    store: RedisStateStore,
) -> None:
    hour = timedelta(hours=1)
    queue, old, new = Queue(store), Rate(10, hour), Rate(4, hour)
    async with TaskClient(store) as client:
        for rate in (old, new, new, old):
            await take(queue, "two", rate, 1)
        (use,) = await client.rates.in_use()
        # What is taken by one is taken of the other too.
        assert (use.name, use.rate, use.taken, use.wait_s) == ("two", old, 4, 0)


async def test_a_place_that_comes_later_than_a_task_is_kept_for_is_waited_for_in_parts(
    store: RedisStateStore,
) -> None:
    async def call(ctx: TaskContext) -> str:
        await ctx.take("my model", Rate(1, timedelta(days=1)))
        return "taken"

    settings = store.settings.model_copy(update={"active_task_ttl": timedelta(hours=6)})
    async with RedisStateStore(settings) as short, pool(short, {"call": call}) as client:
        first = await client.submit("call", session_id=SESSION)
        await becomes(client, first, TaskStatus.COMPLETE)
        second = await client.submit("call", session_id=SESSION)
        await becomes(client, second, TaskStatus.PAUSED)
        await client.cancel(SESSION, second)


async def test_what_is_no_rate_is_refused_by_name(store: RedisStateStore) -> None:
    wrong: Any = "60/m"
    async with TaskClient(store) as client:
        for name, rate, field in (("model", wrong, "rate"), ("", None, "name"), (5, None, "name")):
            given: Any = name
            with pytest.raises(InvalidField) as refused:
                await client.rates.set(given, rate)
            assert refused.value.field == field


@pytest.mark.slow
async def test_a_rate_is_changed_while_processes_take_and_one_is_killed(
    store: RedisStateStore, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.touch()

    def taken() -> list[str]:
        return notes.read_text(encoding="utf-8").splitlines()

    def all_have(what: str, names: list[str], since: str = "") -> bool:
        lines = taken()
        start = lines.index(since) if since else 0
        return {f"{name} {what}" for name in names} <= set(lines[start:])

    argument = {
        "url": store.settings.url.get_secret_value(),
        "namespace": store.settings.namespace,
        "notes": str(notes),
        "long_ms": HOUR,
    }
    names = ["one", "two", "three"]
    async with TaskClient(store) as client, AsyncExitStack() as stack:
        processes = [await start_process("take_rates", argument | {"name": n}) for n in names]
        for process in processes:
            stack.push_async_callback(children.end, process)
        await eventually(lambda: all_have("took", names), "all take", timeout_s=60)
        await client.rates.set("model", Rate(1, timedelta(days=7)))
        note(str(notes), "set")
        await eventually(lambda: all_have("waits", names), "all wait", timeout_s=60)
        assert await stop(processes[0], signal.SIGKILL) == -signal.SIGKILL
        note(str(notes), "taken away")
        await client.rates.set("model", None)
        left = names[1:]
        await eventually(
            lambda: all_have("took", left, since="taken away"), "they take again", timeout_s=60
        )
    lines = taken()
    meanwhile = lines[lines.index("set") : lines.index("taken away")]
    # One takes what the rate has, and each may have written late what it took before.
    assert sum(line.endswith("took") for line in meanwhile) <= 1 + len(names)


@pytest.mark.role("any", why="restores a server of its own")
async def test_after_a_restored_backup_the_rates_of_its_time_hold() -> None:
    async with (
        rolling_back() as server,
        RedisStateStore.from_url(server.url) as store,
        TaskClient(store) as client,
    ):
        queue, day = Queue(store), timedelta(days=1)
        before, code = Rate(2, day), Rate(3, day)
        await client.rates.set("model", before)
        await server.mark()
        await client.rates.set("model", Rate(1, day))
        await client.rates.set("later", before)
        assert [(await take(queue, "model", code, 1))[0] > 0 for _ in range(2)] == [False, True]
        await server.go_back()
        assert await client.rates.list() == {"model": before}
        # What was taken since the backup is forgotten, too.
        assert [(await take(queue, "model", code, 1))[0] > 0 for _ in range(3)] == [
            False,
            False,
            True,
        ]
