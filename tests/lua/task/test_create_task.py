from __future__ import annotations

from redis_state.scripts import LogLimits, Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok


async def create(
    scripts: Scripts, keys: Keys, task: TaskKeys, write: str, *, before: int | None = None
) -> Reply:
    return await scripts.create_task(
        task,
        {"status": b"PENDING"},
        steering=keys.steering("s"),
        announcement=saying(keys, f"made-{write}"),
        children=keys.children("s", "t"),
        write=write,
        ttl_ms=HOUR,
        before=before,
    )


async def test_a_task_is_created_once_and_its_creator_may_repeat_the_call(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys, "s")
    assert await create(scripts, keys, task, "one") == ok(1)
    assert await create(scripts, keys, task, "one") == ok(1)
    assert await create(scripts, keys, task, "two") == no(ReplyCode.STALE, 1)
    assert await rows_of(scripts, keys.updates("s")) == [(1, "made-one")]
    assert all(0 < life <= HOUR for life in await lives(scripts, task.task, task.tasks))


async def test_what_is_written_too_late_is_not_written_and_a_repetition_is_never_too_late(
    scripts: Scripts, keys: Keys
) -> None:
    task, now = task_keys(keys, "s"), await clock_ms(scripts)
    assert await create(scripts, keys, task, "one", before=now - 1) == no(ReplyCode.EXPIRED)
    assert await lives(scripts, task.task, task.tasks) == [-2, -2]
    assert await create(scripts, keys, task, "one", before=now + HOUR) == ok(1)
    assert await create(scripts, keys, task, "one", before=now - 1) == ok(1)
    assert await create(scripts, keys, task, "two", before=now - 1) == no(ReplyCode.STALE, 1)


async def test_what_an_earlier_task_of_the_id_noted_and_was_told_is_left_out(
    scripts: Scripts, keys: Keys
) -> None:
    task, steering = task_keys(keys, "s"), keys.steering("s")
    row = (b"e", b"[]")
    await scripts.append_log(steering, row, LogLimits(0, HOUR, announce=False), topic=task.task_id)
    await create(scripts, keys, task, "one")
    assert "inbox" not in await fields(scripts, task.task)
    await ask(scripts, "HSET", task.journal, "step:a#1", "1")
    await ask(scripts, "HSET", task.lease, "epoch", "1")
    await ask(scripts, "PEXPIRE", task.lease, HOUR)
    await ask(scripts, "ZADD", children := keys.children("s", "t"), 1, "c")
    await ask(scripts, "DEL", task.task)
    await create(scripts, keys, task, "two")
    assert await lives(scripts, children) == [-2]
    assert (await fields(scripts, task.task))["inbox"].startswith(b"1-")
    assert await lives(scripts, task.journal) == [-2]
