"""The list of open pauses: what it shows, of whom, and what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("arq", reason="needs the worker extra")

from redis_state import RedisStateStore
from redis_state.models import TaskStatus, UpdateType
from redis_state.testing import eventually
from redis_state.worker import Rate, TaskClient, TaskContext
from redis_state.worker.tasks.move_parts import watch_entry
from redis_state.worker.tasks.waitpoints.open_pauses import PauseReading, ages_of_open_pauses
from tests.support.processes.pools import SESSION, becomes, pool
from tests.support.scripts.replies import clock_ms
from tests.support.tasks.crash_states import make_due, sweeper_of
from tests.support.tasks.runs import make, run_once

HOUR = timedelta(hours=1)


async def three(ctx: TaskContext) -> list[Any]:
    """Open what the task's input says, and wait for it in order."""
    pauses = [await ctx.open_pause("why", **options) for options in ctx.input]
    return [(await ctx.wait_for(pause)).value for pause in pauses]


async def listed(client: TaskClient, count: int, session: str | None = None) -> list[str]:
    found = await eventually(
        lambda: _of_so_many(client, count, session), f"{count} pauses are listed"
    )
    assert found is not None
    return found


async def _of_so_many(client: TaskClient, count: int, session: str | None) -> list[str] | None:
    found = [pause.name for pause in await client.pauses(session)]
    return found if len(found) == count else None


async def indexed(store: RedisStateStore) -> list[int]:
    """Count what the two indexes hold."""
    send, keys = store.transport.sender.send, store.base.keys
    of_all = await send("ZCARD", keys.open_pauses(), repeatable=True)
    of_session = await send("ZCOUNT", keys.tasks(SESSION), "-inf", "(0", repeatable=True)
    return [int(of_all), int(of_session)]


async def test_a_pause_is_listed_with_all_it_takes_to_decide_it(store: RedisStateStore) -> None:
    async def one(ctx: TaskContext) -> Any:
        decision = await ctx.pause(
            "budget",
            {"cost": 3, "odd": {1}},
            name="the budget",
            timeout=HOUR,
            on_timeout="resume",
            default={"limit": 1},
            tags=["money", "team-a"],
        )
        return decision.value

    async with pool(store, {"one": one}) as client:
        assert await client.pauses() == []
        before = await clock_ms(store.base.scripts)
        task = await client.submit("one", session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        (found,) = await client.pauses()
        assert await client.pauses(SESSION) == [found] == await client.pauses(tag="money")
        assert (found.session_id, found.task_id) == (SESSION, task)
        assert (found.name, found.reason) == ("the budget", "budget")
        assert (found.payload, found.tags) == ({"cost": 3, "odd": [1]}, ("money", "team-a"))
        assert (found.on_timeout, found.default) == ("resume", {"limit": 1})
        assert found.expires_at - found.opened_at == HOUR
        assert found.opened_at >= datetime.fromtimestamp(before / 1000, UTC)
        assert found.token is not None
        await client.approve(found.token, "well")
        assert (await client.wait(SESSION, task, timeout_s=60)).result == "well"
        assert await indexed(store) == [0, 0]


async def test_sessions_and_tags_are_kept_apart_and_the_oldest_stands_first(
    store: RedisStateStore,
) -> None:
    async with pool(store, {"three": three}) as client:
        first = [{"name": "a", "tags": ["x"]}, {"name": "b"}]
        second = [{"name": "c", "tags": ["x", "y"]}]
        one = await client.submit("three", first, session_id=SESSION)
        assert await listed(client, 2) == ["a", "b"]
        two = await client.submit("three", second, session_id="ö/{x}")
        assert await listed(client, 3) == ["a", "b", "c"]
        assert await listed(client, 1, "ö/{x}") == ["c"]
        assert await client.pauses("other") == []
        assert [pause.name for pause in await client.pauses(tag="x")] == ["a", "c"]
        assert [pause.name for pause in await client.pauses(SESSION, tag="y")] == []
        for pause in await client.pauses():
            assert pause.token is not None
            await client.approve(pause.token)
        assert await client.pauses() == []
        for session, task in ((SESSION, one), ("ö/{x}", two)):
            await client.wait(session, task, timeout_s=60)


@pytest.mark.parametrize("how", ["cancelled", "cleared"])
async def test_a_task_that_is_over_or_gone_has_no_open_pause(
    store: RedisStateStore, how: str
) -> None:
    async with pool(store, {"three": three}) as client:
        task = await client.submit("three", [{"name": "a"}, {"name": "b"}], session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        assert await indexed(store) == [2, 2]
        if how == "cancelled":
            assert await client.cancel(SESSION, task)
        else:
            await store.clear_session(SESSION)
        assert await client.pauses() == [] == await client.pauses(SESSION)
        # What was found closed is off the lists.
        assert await indexed(store) == [0, 0]


async def test_a_sleep_asks_nobody(store: RedisStateStore) -> None:
    async def sleeps(ctx: TaskContext) -> None:
        if ctx.input == "rate":
            await ctx.take("api", Rate(1, HOUR))
            await ctx.take("api", Rate(1, HOUR))
        await ctx.sleep(HOUR)

    async with pool(store, {"h": sleeps}) as client:
        tasks = [await client.submit("h", given, session_id=SESSION) for given in ("", "rate")]
        for task in tasks:
            await becomes(client, task, TaskStatus.PAUSED)
        for task in tasks:
            await make_due(store, watch_entry(SESSION, task))
        await sweeper_of(store).run_once()
        assert await client.pauses() == await client.pauses(SESSION) == []
        assert (await client.list_pauses()).pauses == []
        assert await ages_of_open_pauses(store, most=10) == []
        # Nor does a sweeper list them, and a session's index has them for its erasure.
        assert await indexed(store) == [0, 2]
        opened = [
            update.content
            for update in await store.list_updates(SESSION)
            if update.update_type is UpdateType.CHECKPOINT
        ]
        assert len(opened) == 2
        assert not any("pause_id" in content for content in opened)


async def test_a_sleep_that_no_task_outlives_is_refused_by_its_name(
    store: RedisStateStore,
) -> None:
    async def sleeps(ctx: TaskContext) -> None:
        await ctx.sleep(store.settings.active_task_ttl + HOUR)

    await make(store)
    ended = await run_once(store, sleeps)
    assert str(ended.error).startswith("InvalidField: delay: is longer than active_task_ttl")


async def test_more_pauses_than_one_look_takes_are_all_listed(store: RedisStateStore) -> None:
    options = [{"name": f"p{number:03}"} for number in range(520)]
    async with pool(store, {"three": three}) as client:
        task = await client.submit("three", options, session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        found = await client.pauses(SESSION)
        assert sorted(pause.name for pause in found) == [one["name"] for one in options]
        assert len({pause.token for pause in found}) == 520
        assert await client.cancel(SESSION, task)


async def test_a_pause_that_cannot_be_read_is_set_aside(store: RedisStateStore) -> None:
    async with pool(store, {"three": three}) as client:
        task = await client.submit("three", [{"name": "a"}, {"name": "b"}], session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        one = (await client.pauses(SESSION))[0]
        assert one.token is not None
        key = store.base.keys.session_token(one.token)
        assert key is not None
        await store.transport.sender.send("HSET", key, "payload", b"{", repeatable=True)
        assert [pause.name for pause in await client.pauses(SESSION)] == ["b"]
        aside = await store.unreadable(session_id=SESSION)
        assert [note.place for note in aside] == [f"pause pause:a#1 of task {task}"]
        await client.approve(one.token)
        assert await client.cancel(SESSION, task)


async def test_a_reader_of_a_cancelled_task_keeps_the_pause_of_its_retry(
    store: RedisStateStore,
) -> None:
    """What it has read of the cancelled task is no reason to take an open pause off."""

    class Late(PauseReading):
        async def _remove(self, closed: Mapping[str, tuple[str, str] | None]) -> None:
            assert len(closed) == 1
            await client.retry(SESSION, task)
            await becomes(client, task, TaskStatus.PAUSED)
            await super()._remove(closed)

    async with pool(store, {"three": three}) as client:
        task = await client.submit("three", [{"name": "a"}], session_id=SESSION)
        await becomes(client, task, TaskStatus.PAUSED)
        await client.cancel(SESSION, task)
        await becomes(client, task, TaskStatus.CANCELLED)
        assert [each async for each in Late(store, SESSION).read()] == []
        assert await listed(client, 1, SESSION) == ["a"]
        await client.cancel(SESSION, task)
        await becomes(client, task, TaskStatus.CANCELLED)
        assert await client.pauses(SESSION) == []
        assert (await indexed(store))[1] == 0
