from __future__ import annotations

import pytest

from redis_state.scripts import Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys, token_key
from tests.support.scripts.pauses import decide, open_pause, pause
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, ok
from tests.support.scripts.tasks import make_task, start

DAY = 24 * HOUR


async def opened(scripts: Scripts, keys: Keys) -> tuple[TaskKeys, str]:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token)
    return task, token


async def left(scripts: Scripts, task: TaskKeys, token: str) -> int:
    reply = await scripts.pause_left(token, tasks=task.tasks)
    return int(reply.facts[0])


async def set_back(scripts: Scripts, task: TaskKeys, token: str) -> None:
    """Let a pause have times of a clock that was a day ahead."""
    for name in ("opened", "expires"):
        await ask(scripts, "HINCRBY", token, name, DAY)
    await ask(scripts, "PEXPIRE", token, DAY + 2 * HOUR)
    member = b"\xff" + token.rpartition(":")[2].encode()
    await ask(scripts, "ZINCRBY", task.tasks, -DAY, member)


async def test_a_pause_is_open_until_its_deadline(scripts: Scripts, keys: Keys) -> None:
    task, token = await opened(scripts, keys)
    before = await fields(scripts, token)
    assert 0 < await left(scripts, task, token) <= HOUR
    assert await fields(scripts, token) == before
    await ask(scripts, "HSET", token, "expires", 1)
    assert await left(scripts, task, token) == 0
    await ask(scripts, "DEL", token)
    assert await left(scripts, task, token) == 0
    assert not await ask(scripts, "EXISTS", token)


async def test_a_pause_is_open_for_no_longer_than_its_length_if_the_clock_is_set_back(
    scripts: Scripts, keys: Keys
) -> None:
    task, token = await opened(scripts, keys)
    await pause(scripts, keys, task, token)
    await set_back(scripts, task, token)
    assert await left(scripts, task, token) == HOUR
    now, found = await clock_ms(scripts), await fields(scripts, token)
    assert int(found["opened"]) <= now
    assert int(found["expires"]) - int(found["opened"]) == HOUR
    listed = await ask(scripts, "ZRANGE", task.tasks, 0, 0, "WITHSCORES")
    assert listed[1] == b"-" + found["expires"]
    # Its trace is kept for as long afterwards as it would have been.
    (life,) = await lives(scripts, token)
    assert HOUR < life < 3 * HOUR
    assert 0 < await left(scripts, task, token) <= HOUR
    assert (await fields(scripts, token))["expires"] == found["expires"]


@pytest.mark.parametrize("listed", [True, False])
async def test_a_pause_that_is_decided_or_not_listed_stays_so(
    scripts: Scripts, keys: Keys, *, listed: bool
) -> None:
    task, token = await opened(scripts, keys)
    await pause(scripts, keys, task, token)
    await set_back(scripts, task, token)
    if listed:
        await decide(scripts, keys, task, token)
        before = await fields(scripts, token)
        assert before["state"] == b"resolved"
        await left(scripts, task, token)
        assert await fields(scripts, token) == before
    else:
        await ask(scripts, "ZREM", task.tasks, b"\xff" + token.rpartition(":")[2].encode())
        assert await left(scripts, task, token) == HOUR
    members = await ask(scripts, "ZRANGE", task.tasks, 0, -1)
    assert members == [task.task_id.encode()]


async def test_nothing_is_left_of_no_pause(scripts: Scripts, keys: Keys) -> None:
    assert await scripts.pause_left(token_key(keys), tasks=task_keys(keys).tasks) == ok(0)
