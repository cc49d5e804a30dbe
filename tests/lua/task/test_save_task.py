from __future__ import annotations

from redis_state.primitives.record import new_write_id
from redis_state.scripts import TASK_FIELDS, Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, fields, lives, no, ok
from tests.support.scripts.tasks import task_values


async def save(
    scripts: Scripts, task: TaskKeys, write: str, status: str, updated_at_us: int
) -> Reply:
    return await scripts.save_task(
        task,
        task_values(status),
        write=write,
        ttl_ms=HOUR,
        finished=status == "COMPLETE",
        updated_at_us=updated_at_us,
    )


async def test_an_older_view_does_not_bring_a_finished_task_back(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    moment = 253_402_300_799_000_000 // 100
    for _ in range(2):
        assert await save(scripts, task, "1", "RUNNING", moment) == ok(1)
    assert await save(scripts, task, "2", "RUNNING", moment - 9) == ok(2)
    for _ in range(2):
        assert await save(scripts, task, "3", "COMPLETE", moment) == ok(3)
    assert await save(scripts, task, "4", "RUNNING", moment - 1) == no(ReplyCode.STALE, 3)
    assert await save(scripts, task, "5", "RUNNING", moment) == no(ReplyCode.STALE, 3)
    assert await save(scripts, task, "6", "COMPLETE", moment - 5) == ok(4)
    assert await save(scripts, task, "7", "RUNNING", moment - 4) == ok(5)
    found = await fields(scripts, task.task)
    assert (found["status"], found["finished"]) == (b"RUNNING", b"0")
    assert int(found["updated_at"]) == moment - 4
    assert await ask(scripts, "ZRANGE", task.tasks, 0, -1) == [b"t"]


async def test_a_repetition_leaves_what_others_saved_since(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    writes = [new_write_id() for _ in range(20)]
    for number, write in enumerate(writes, 1):
        assert await save(scripts, task, write, f"state {number}", 1) == ok(number)
    # The last eight are known, also one that would be refused by now.
    for write in writes[-8:]:
        assert await save(scripts, task, write, "again", 1) == ok(20)
    found = await fields(scripts, task.task)
    assert (found["status"], found["version"]) == (b"state 20", b"20")
    assert len(found["saves"]) == 8 * 12
    assert await save(scripts, task, new_write_id(), "COMPLETE", 2) == ok(21)
    assert await save(scripts, task, writes[-1], "again", 1) == ok(21)
    assert await save(scripts, task, writes[-9], "again", 1) == no(ReplyCode.STALE, 21)


async def test_each_value_stands_under_its_name(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    values = [f"the {name}".encode() for name in TASK_FIELDS]
    saved = await scripts.save_task(
        task, values, write="w", ttl_ms=HOUR, finished=False, updated_at_us=7
    )
    assert saved == ok(1)
    found = await fields(scripts, task.task)
    assert [found[name] for name in TASK_FIELDS] == values
    assert (found["write"], found["finished"], found["updated_at"]) == (b"w", b"0", b"7")


async def test_a_task_lives_for_its_time_after_the_last_save_and_an_eighth_longer_at_most(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    longest = HOUR + HOUR // 8

    async def left() -> list[int]:
        entry = int(await ask(scripts, "ZSCORE", task.tasks, "t")) // 1000 - await clock_ms(scripts)
        return [*await lives(scripts, task.task, task.tasks), entry]

    async def save_again(name: str, status: str = "RUNNING") -> None:
        assert (await save(scripts, task, name, status, len(name))).word is ReplyCode.OK

    await save_again("new")
    assert all(longest - 60_000 < life <= longest for life in await left())
    # Long enough still: it stays as it is.
    await ask(scripts, "PEXPIRE", task.task, HOUR + 60_000)
    await save_again("soon after")
    assert (await lives(scripts, task.task))[0] <= HOUR + 60_000
    # Too short, too long, or gone: all is made as for a new one.
    now = await clock_ms(scripts)
    for spoil in (
        ("ZADD", task.tasks, (now + HOUR - 1) * 1000, "t"),
        ("ZADD", task.tasks, (now + 2 * HOUR) * 1000, "t"),
        ("ZREM", task.tasks, "t"),
        ("UNLINK", task.tasks),
        ("UNLINK", task.task),
    ):
        await ask(scripts, *spoil)
        await save_again(f"after {spoil}")
        assert all(longest - 60_000 < life <= longest for life in await left()), spoil
