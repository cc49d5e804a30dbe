from __future__ import annotations

import asyncio

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, start


async def keep(
    scripts: Scripts, keys: Keys, number: int, data: bytes, *, mark: bytes | None = None
) -> Reply:
    mark = await mark_of(scripts, task_keys(keys).lease) if mark is None else mark
    return await scripts.keep_part(
        task_keys(keys), mark=mark, entry="step:x#1", number=number, data=data
    )


async def running(scripts: Scripts, keys: Keys) -> None:
    await make_task(scripts, task_keys(keys), "PENDING")
    assert (await start(scripts, keys, task_keys(keys))).word is ReplyCode.OK


async def test_chunks_stand_in_the_journal_and_live_as_long(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await running(scripts, keys)
    replies = await asyncio.gather(*(keep(scripts, keys, n, b"%d" % n) for n in (0, 1, 1)))
    assert replies == [ok(0), ok(1), ok(1)]
    assert await keep(scripts, keys, 0, b"later") == ok(0)
    assert await fields(scripts, task.journal) == {
        "part:0:step:x#1": b"later",
        "part:1:step:x#1": b"1",
    }
    assert 0 < (await lives(scripts, task.journal))[0] <= HOUR


async def test_a_noted_steps_chunks_are_left_alone(scripts: Scripts, keys: Keys) -> None:
    await running(scripts, keys)
    await keep(scripts, keys, 0, b"first")
    await scripts.record_step(
        task_keys(keys),
        mark=await mark_of(scripts, task_keys(keys).lease),
        entry="step:x#1",
        checkpoint=False,
        chunks=1,
        about=b"[5]",
        result=b"null",
    )
    assert await keep(scripts, keys, 0, b"other") == no(ReplyCode.STALE)
    assert (await fields(scripts, task_keys(keys).journal))["part:0:step:x#1"] == b"first"


async def test_a_stale_epoch_or_a_task_that_is_gone_keeps_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await running(scripts, keys)
    assert await keep(scripts, keys, 0, b"x", mark=STRANGER) == no(
        ReplyCode.LOST, await epoch_of(scripts, task.lease)
    )
    await ask(scripts, "DEL", task.task)
    assert await keep(scripts, keys, 0, b"x") == no(ReplyCode.MISSING)
    assert await lives(scripts, task.journal) == [-2]
