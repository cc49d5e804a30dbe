from __future__ import annotations

import pytest

from redis_state.scripts import Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import pause_list_keys, task_keys, token_key
from tests.support.scripts.pauses import open_pause
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, lives, ok
from tests.support.scripts.tasks import make_task, start


async def test_a_pause_is_in_both_indexes_until_it_is_taken_off(
    scripts: Scripts, keys: Keys
) -> None:
    listed = pause_list_keys(keys)
    for _ in range(2):
        assert await scripts.list_pause(listed, member="b", opened=7, ttl_ms=HOUR) == ok()
        assert await scripts.list_pause(listed, member="a", opened=9, ttl_ms=2 * HOUR) == ok()
    assert all(HOUR < life <= 2 * HOUR + 1 for life in await lives(scripts, *listed))
    assert await scripts.page_pauses(listed, first=0, size=9) == ok(0, b"b", 7, b"a", 9)
    assert await scripts.page_pauses(listed, first=8, size=9) == ok(0, b"a", 9)
    assert await scripts.page_pauses(listed, first=0, size=1) == ok(0, b"b", 7)
    assert await scripts.unlist_pauses(listed, members=["b", "gone"]) == ok()
    assert await scripts.page_pauses(listed, first=0, size=9) == ok(0, b"a", 9)
    await scripts.unlist_pauses(listed, members=["a"])
    assert await lives(scripts, *listed) == [-2, -2]


async def test_what_has_expired_goes_from_both(scripts: Scripts, keys: Keys) -> None:
    listed = pause_list_keys(keys)
    await scripts.list_pause(listed, member="long", opened=1, ttl_ms=HOUR)
    await scripts.list_pause(listed, member="brief", opened=2, ttl_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 2)
    await scripts.list_pause(listed, member="new", opened=3, ttl_ms=HOUR)
    assert await scripts.page_pauses(listed, first=0, size=9) == ok(0, b"long", 1, b"new", 3)


async def test_what_one_index_lacks_is_told(scripts: Scripts, keys: Keys) -> None:
    listed = pause_list_keys(keys)
    await scripts.list_pause(listed, member="a", opened=1, ttl_ms=HOUR)
    await ask(scripts, "ZADD", listed.expiries, 1 << 52, "older")
    assert await scripts.page_pauses(listed, first=0, size=9) == ok(1, b"a", 1)


async def test_a_session_keeps_a_pause_that_is_open_and_drops_what_is_not(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token)

    async def unlisted() -> int:
        reply = await scripts.unlist_pause(task.task, tasks=task.tasks, token=token)
        return int(reply.facts[0])

    assert await unlisted() == 0
    await ask(scripts, "HSET", task.task, "finished", "1")
    assert await unlisted() == 1
    assert await unlisted() == 0


@pytest.mark.parametrize("field", ["state", "order"])
async def test_a_pause_that_is_decided_or_of_an_earlier_task_goes(
    scripts: Scripts, keys: Keys, field: str
) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token)
    await ask(scripts, "HSET", token, field, "other")
    reply = await scripts.unlist_pause(task.task, tasks=task.tasks, token=token)
    assert reply == ok(1)
