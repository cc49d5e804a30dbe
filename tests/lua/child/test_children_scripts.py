"""spawn_task, join_task and wake_task: what binds a task to its children."""

from __future__ import annotations

import asyncio

import pytest

from redis_state.scripts import ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys, token_key
from tests.support.scripts.logs import rows_of, topic_of
from tests.support.scripts.pauses import open_pause, pause
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok
from tests.support.scripts.tasks import epoch_of, join, make_task, mark_of, spawn, start, wake


async def running(scripts: Scripts, keys: Keys) -> TaskKeys:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    return task


async def family(scripts: Scripts, keys: Keys) -> tuple[TaskKeys, TaskKeys]:
    task = await running(scripts, keys)
    await spawn(scripts, keys, task)
    return task, task_keys(keys, task="c")


async def end(scripts: Scripts, child: TaskKeys) -> None:
    await ask(scripts, "HSET", child.task, "status", "COMPLETE", "finished", 1)


async def index_of(scripts: Scripts, keys: Keys) -> list[bytes]:
    found: list[bytes] = await ask(scripts, "ZRANGE", keys.children("s", "t"), 0, -1)
    return found


async def test_a_child_its_note_and_its_place_are_written_once_and_together(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    for _ in range(2):
        assert await spawn(scripts, keys, task) == ok(1, 1)
    assert await spawn(scripts, keys, task, write="a later run") == no(ReplyCode.STALE, b"{}")
    child = task_keys(keys, task="c")
    assert (await fields(scripts, child.task))["parent"] == b"t"
    assert await index_of(scripts, keys) == [b"c"]
    assert (await fields(scripts, task.journal)).keys() == {"child:c#1", "entries"}
    rows = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    assert rows == ["started-one", "spawned-c", "pending-c"]
    # The parent's own row names the child.
    assert await topic_of(scripts, keys.updates("s"), "t") == [1, 2]
    assert await topic_of(scripts, keys.updates("s"), "c") == [3]
    assert all(0 < life <= HOUR for life in await lives(scripts, child.task, task.journal))
    assert HOUR < (await lives(scripts, keys.children("s", "t")))[0] <= 2 * HOUR


async def test_many_calls_of_one_entry_spawn_one_child(scripts: Scripts, keys: Keys) -> None:
    task = await running(scripts, keys)
    calls = (spawn(scripts, keys, task, write=f"w{number}") for number in range(20))
    words = [reply.word for reply in await asyncio.gather(*calls)]
    assert sorted(words) == [ReplyCode.OK] + [ReplyCode.STALE] * 19


async def test_a_child_that_is_gone_is_not_spawned_again(scripts: Scripts, keys: Keys) -> None:
    task, child = await family(scripts, keys)
    await ask(scripts, "DEL", child.task)
    assert (await spawn(scripts, keys, task, write="a later run")).word is ReplyCode.STALE
    assert await ask(scripts, "EXISTS", child.task) == 0


@pytest.mark.parametrize("status", ["PAUSED", "CANCELLED"])
async def test_only_a_running_task_under_its_lease_and_in_time_spawns(
    scripts: Scripts, keys: Keys, status: str
) -> None:
    task = await running(scripts, keys)
    now = await clock_ms(scripts)
    assert await spawn(scripts, keys, task, before=now - 1) == no(ReplyCode.EXPIRED)
    await ask(scripts, "HSET", task.task, "status", status)
    assert await spawn(scripts, keys, task) == no(ReplyCode.DENIED, status.encode())
    mark, later = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease) + 1
    await ask(scripts, "HINCRBY", task.lease, "epoch", 1)
    assert await spawn(scripts, keys, task, mark=mark) == no(ReplyCode.LOST, later)
    child = task_keys(keys, task="c")
    assert await lives(scripts, child.task, task.journal, keys.children("s", "t")) == [-2] * 3


async def test_a_task_waits_for_a_child_and_goes_on_once_when_that_is_over(
    scripts: Scripts, keys: Keys
) -> None:
    task, child = await family(scripts, keys)
    for _ in range(2):
        assert await join(scripts, keys, task, child) == ok(3)
    found = await fields(scripts, task.task)
    assert (found["status"], found["waits_for"]) == (b"PAUSED", b"c")
    assert (await fields(scripts, task.lease))["owner"] == b""
    assert await wake(scripts, keys, task, child) == no(ReplyCode.HELD)
    await end(scripts, child)
    calls = (wake(scripts, keys, task, child, write=f"w{number}") for number in range(20))
    words = [reply.word for reply in await asyncio.gather(*calls)]
    assert sorted(words) == [ReplyCode.DENIED] * 19 + [ReplyCode.OK]
    assert (await fields(scripts, task.task))["status"] == b"PENDING"
    rows = [row_id for _, row_id in await rows_of(scripts, keys.updates("s"))]
    assert rows == ["started-one", "spawned-c", "pending-c", "joined-c", "woken-c"]
    # The repetition of the join is one still.
    assert await join(scripts, keys, task, child) == ok(4)
    assert (await fields(scripts, task.task))["status"] == b"PENDING"


async def test_a_repeated_wake_is_recognised(scripts: Scripts, keys: Keys) -> None:
    task, child = await family(scripts, keys)
    await join(scripts, keys, task, child)
    await end(scripts, child)
    for _ in range(2):
        assert await wake(scripts, keys, task, child) == ok(4)


async def test_a_child_that_is_over_or_gone_is_not_waited_for(scripts: Scripts, keys: Keys) -> None:
    task, child = await family(scripts, keys)
    assert await join(scripts, keys, task, task_keys(keys, task="none")) == no(ReplyCode.MISSING)
    await end(scripts, child)
    assert await join(scripts, keys, task, child) == no(ReplyCode.AGAIN)
    assert (await fields(scripts, task.task))["status"] == b"RUNNING"


async def test_a_run_that_was_taken_over_or_paused_waits_for_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    task, child = await family(scripts, keys)
    await join(scripts, keys, task, child)
    assert await join(scripts, keys, task, child, write="2") == no(ReplyCode.DENIED, b"PAUSED")
    mark, later = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease) + 1
    await ask(scripts, "HINCRBY", task.lease, "epoch", 1)
    lost = await join(scripts, keys, task, child, mark=mark, write="3")
    assert lost == no(ReplyCode.LOST, later)


async def test_a_child_that_is_gone_wakes_whoever_waits_for_it(
    scripts: Scripts, keys: Keys
) -> None:
    task, child = await family(scripts, keys)
    assert await wake(scripts, keys, task_keys(keys, task="none"), child) == no(ReplyCode.MISSING)
    assert await wake(scripts, keys, task, child) == no(ReplyCode.DENIED, b"RUNNING")
    await join(scripts, keys, task, child)
    other = task_keys(keys, task="another")
    assert await wake(scripts, keys, task, other) == no(ReplyCode.DENIED, b"PAUSED")
    await ask(scripts, "DEL", child.task)
    assert (await wake(scripts, keys, task, child)).word is ReplyCode.OK


async def test_a_task_that_waits_lives_on_with_its_child(scripts: Scripts, keys: Keys) -> None:
    task, child = await family(scripts, keys)
    await join(scripts, keys, task, child)
    kept = (task.task, task.tasks, task.journal)
    assert await wake(scripts, keys, task, child, ttl_ms=9 * HOUR) == no(ReplyCode.HELD)
    assert all(8.9 * HOUR < life <= 9 * HOUR for life in await lives(scripts, *kept))
    assert 0 < (await lives(scripts, task.lease))[0] <= 300_000


async def test_the_pause_before_is_not_what_a_joining_task_waits_for(
    scripts: Scripts, keys: Keys
) -> None:
    task, child = await family(scripts, keys)
    token = token_key(keys)
    await open_pause(scripts, keys, task, token)
    await pause(scripts, keys, task, token)
    await ask(scripts, "HSET", task.task, "status", "RUNNING")
    assert (await join(scripts, keys, task, child)).word is ReplyCode.OK
    assert (await fields(scripts, task.task))["pause_token"] == b""


async def test_a_parent_that_was_restored_without_a_lifetime_keeps_its_journal(
    scripts: Scripts, keys: Keys
) -> None:
    task = await running(scripts, keys)
    await ask(scripts, "PERSIST", task.task)
    assert await spawn(scripts, keys, task) == ok(1, 1)
    assert (await fields(scripts, task.journal)).keys() == {"child:c#1", "entries"}
    for key in (task.task, task.journal):
        await ask(scripts, "PEXPIRE", key, HOUR)
