from __future__ import annotations

import asyncio

import pytest

from redis_state.errors import CorruptState
from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.a2a.rows import a2a_keys, create, drop, indexed, write
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok


async def test_a_deleted_task_says_so_for_a_while(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await write(scripts, task, rule="1", write="w2")
    assert await drop(scripts, task) == ok(3)
    found = await fields(scripts, task.task)
    assert "body" not in found
    assert found["phase"] == b"g"
    assert await rows_of(scripts, task.events) == [(3, "d")]
    assert await indexed(scripts, keys) == [0, 0, 0]
    assert all(life <= 1.5 * HOUR for life in await lives(scripts, task.task, task.events.rows))


async def test_it_is_deleted_once(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    assert await drop(scripts, task) == no(ReplyCode.MISSING)
    await write(scripts, task)
    replies = await asyncio.gather(*(drop(scripts, task) for _ in range(20)))
    assert sorted(reply.word for reply in replies) == [ReplyCode.MISSING] * 19 + [ReplyCode.OK]


async def test_without_a_tombstone_nothing_is_left(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, messages=[b"h"], parts=[b"a"])
    await scripts.put_a2a_config(task, name="n", config=b"", most=0, ttl_ms=0)
    assert await drop(scripts, task, tombstone_ms=0) == ok(1)
    own = (task.task, task.events.rows, task.events.ids, task.lease)
    left = await lives(scripts, *own, task.configs, task.history, task.artifacts)
    assert set(left) == {-2}
    assert await indexed(scripts, keys) == [0, 0, 0]
    assert (await write(scripts, task)).facts[0] == 1


async def test_only_what_has_ended_before_a_moment_goes(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await create(scripts, task)
    far = 1 << 52
    assert await drop(scripts, task, before_us=far, tombstone_ms=0) == no(ReplyCode.STALE)
    end = {"rule": "open", "write": "e", "state": "3", "phase": "e", "row": b"e", "owner": ""}
    await write(scripts, task, **end, place=b"= ended -")
    ended_us = int((await fields(scripts, task.task))["updated"])
    assert await drop(scripts, task, before_us=ended_us, tombstone_ms=0) == no(ReplyCode.STALE)
    calls = [drop(scripts, task, before_us=ended_us + 1, tombstone_ms=0) for _ in range(20)]
    replies = await asyncio.gather(*calls)
    assert sorted(reply.word for reply in replies) == [ReplyCode.MISSING] * 19 + [ReplyCode.OK]


async def test_what_is_left_of_one_that_expired_goes_too(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await ask(scripts, "DEL", task.task)
    assert await drop(scripts, task, before_us=1, tombstone_ms=0) == no(ReplyCode.MISSING)
    assert set(await lives(scripts, task.events.rows, task.events.ids)) == {-2}
    assert await indexed(scripts, keys) == [0, 0, 0]


async def test_nobody_writes_a_deleted_task_anew(scripts: Scripts, keys: Keys) -> None:
    task = a2a_keys(keys)
    await write(scripts, task)
    await drop(scripts, task)
    for rule in ("0", "1", "2", "open", "any"):
        assert await write(scripts, task, rule=rule, write="x") == no(ReplyCode.DENIED, b"-")


@pytest.mark.parametrize("part", ["ids", "rows"])
async def test_a_task_whose_log_is_of_another_type_stays_whole(
    scripts: Scripts, keys: Keys, part: str
) -> None:
    task = a2a_keys(keys)
    await write(scripts, task, messages=[b"h"], parts=[b"a"])
    key = getattr(task.events, part)
    await ask(scripts, "DEL", key)
    await ask(scripts, "SET", key, "other", "PX", HOUR)
    with pytest.raises(CorruptState):
        await drop(scripts, task)
    assert (await fields(scripts, task.task))["body"] == b"body"
    assert await indexed(scripts, keys) == [4, 1, 1]
    assert min(await lives(scripts, task.task, task.history, task.artifacts)) > 0
