from __future__ import annotations

import asyncio

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys, token_key
from tests.support.scripts.pauses import open_pause, pause
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start


async def test_a_priority_is_changed_once_at_its_version_and_under_its_lease(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    assert await scripts.prioritize_task(task, priority=3, write="a") == no(ReplyCode.MISSING)
    await make_task(scripts, task, "PENDING")
    for _ in range(2):
        assert await scripts.prioritize_task(task, priority=3, write="a", expected=1) == ok(2)
    late = await scripts.prioritize_task(task, priority=4, write="b", expected=1)
    assert late == no(ReplyCode.STALE, 2, b"a")
    await start(scripts, keys, task)
    mark = await mark_of(scripts, task.lease)
    assert await scripts.prioritize_task(task, priority=5, write="c", mark=mark) == ok(4)
    stale = await scripts.prioritize_task(task, priority=6, write="d", mark=STRANGER)
    assert stale == no(ReplyCode.LOST, await epoch_of(scripts, task.lease))
    assert (await fields(scripts, task.task))["priority"] == b"5"
    await ask(scripts, "HSET", task.task, "status", "COMPLETE", "finished", 1)
    over = await scripts.prioritize_task(task, priority=7, write="e")
    assert over == no(ReplyCode.DENIED, b"COMPLETE")
    assert (await fields(scripts, task.task))["priority"] == b"5"


async def test_of_many_at_one_version_one_changes_it(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    calls = (
        scripts.prioritize_task(task, priority=number, write=f"w{number}", expected=1)
        for number in range(20)
    )
    words = [reply.word for reply in await asyncio.gather(*calls)]
    assert sorted(words) == [ReplyCode.OK] + [ReplyCode.STALE] * 19


async def test_a_paused_task_lives_as_long_as_before(scripts: Scripts, keys: Keys) -> None:
    task, token = task_keys(keys), token_key(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await open_pause(scripts, keys, task, token, ttl_ms=5 * HOUR)
    assert (await pause(scripts, keys, task, token)).word is ReplyCode.OK
    before = await lives(scripts, task.task)
    assert (await scripts.prioritize_task(task, priority=3, write="a")).word is ReplyCode.OK
    after = await lives(scripts, task.task)
    assert after[0] > 0.99 * before[0] > 5 * HOUR
