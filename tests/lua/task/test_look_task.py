from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts import (
    HOUR,
    ask,
    clock_ms,
    clock_passes,
    epoch_of,
    fields,
    make_task,
    no,
    start,
    task_keys,
)


async def test_a_task_is_seen_with_its_lease(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    assert await scripts.look_task(task) == no(ReplyCode.MISSING)
    await make_task(scripts, task, "PENDING")
    order = (await fields(scripts, task.task))["order"]
    looked = await scripts.look_task(task)
    assert looked.facts == [b"PENDING", 1, 0, 0, order, b"0", 0, b"", 0, b"", b"", b"", 0]
    await ask(scripts, "HSET", task.task, "priority", 3, "crashes", 2, "queue", "q", "job", "{}")
    await ask(scripts, "HSET", task.task, "parent", "p", "waits_for", "c", "parent_order", 7)
    await start(scripts, keys, task)
    left_ms = (looked := await scripts.look_task(task)).facts.pop(3)
    epoch = await epoch_of(scripts, task.lease)
    assert looked.facts == [b"RUNNING", 2, epoch, order, b"3", 2, b"q", 1, b"p", b"c", b"7", 1]
    await ask(scripts, "HSET", task.task, "isolate", 1)
    assert (await scripts.look_task(task)).facts[9] == b""
    assert HOUR / 2 < left_ms <= HOUR


async def test_a_lease_that_ran_out_or_was_given_back_has_nothing_left(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task, lease_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert (await scripts.look_task(task)).facts[3] == 0
    await start(scripts, keys, task, owner="two")
    assert (await scripts.look_task(task)).facts[3] > 0
    epoch = await epoch_of(scripts, task.lease)
    await scripts.release_lease(task.lease, owner="two", epoch=epoch)
    assert (await scripts.look_task(task)).facts[2:4] == [epoch, 0]


async def test_looking_writes_nothing_and_bears_what_cannot_be_a_task(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await ask(scripts, "HSET", task.task, "status", "WEIRD", "version", "x", "crashes", "y")
    await ask(scripts, "PEXPIRE", task.task, HOUR)
    before = await fields(scripts, task.task)
    assert (await scripts.look_task(task)).facts == [
        b"WEIRD",
        0,
        0,
        0,
        b"0",
        b"0",
        0,
        b"",
        0,
        b"",
        b"",
        b"",
        0,
    ]
    assert await fields(scripts, task.task) == before
    assert await ask(scripts, "EXISTS", task.lease) == 0
