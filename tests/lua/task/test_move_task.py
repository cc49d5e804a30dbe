from __future__ import annotations

import pytest

from redis_state.scripts import Reply, ReplyCode, Scripts, TaskKeys
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import saying, task_keys
from tests.support.scripts.logs import rows_of
from tests.support.scripts.replies import HOUR, ask, fields, lives, no, ok
from tests.support.scripts.tasks import STRANGER, epoch_of, make_task, mark_of, spawn, start


async def finish(
    scripts: Scripts, keys: Keys, task: TaskKeys, *, mark: bytes, release: bool = True
) -> Reply:
    return await scripts.move_task(
        task,
        {"status": b"COMPLETE"},
        mark=mark,
        from_states=["PENDING", "RUNNING"],
        release=release,
        write=f"finish {mark!r}",
        ttl_ms=HOUR,
        announcement=saying(keys, "finished"),
    )


async def test_a_running_task_is_finished_once_and_its_lease_is_free(
    scripts: Scripts, keys: Keys
) -> None:
    task, log = task_keys(keys), keys.updates("s")
    assert await finish(scripts, keys, task, mark=b"1  one") == no(ReplyCode.MISSING)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    mark, epoch = await mark_of(scripts, task.lease), await epoch_of(scripts, task.lease)
    assert await finish(scripts, keys, task, mark=STRANGER) == no(ReplyCode.LOST, epoch)
    for _ in range(2):
        assert await finish(scripts, keys, task, mark=mark) == ok(3, epoch)
    assert await finish(scripts, keys, task, mark=b"") == no(ReplyCode.DENIED, b"COMPLETE")
    assert (await fields(scripts, task.lease))["owner"] == b""
    assert await rows_of(scripts, log) == [(1, "started-one"), (2, "finished")]
    left = await lives(scripts, task.task, task.tasks, log.rows, log.ids)
    assert all(0 < life <= 1.5 * HOUR for life in left)


async def test_nothing_is_released_that_was_not_held(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    assert await finish(scripts, keys, task, mark=b"") == ok(2, 0)
    assert await ask(scripts, "EXISTS", task.lease) == 0


async def test_who_gives_a_lease_back_forgets_those_that_died_before(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await ask(scripts, "HSET", task.task, "crashes", 2)
    mark = await mark_of(scripts, task.lease)
    assert (await finish(scripts, keys, task, mark=mark, release=False)).word is ReplyCode.OK
    assert (await fields(scripts, task.task))["crashes"] == b"2"
    await make_task(scripts, task, "RUNNING")
    assert (await finish(scripts, keys, task, mark=b"")).word is ReplyCode.OK
    assert "crashes" not in await fields(scripts, task.task)


async def end_child(scripts: Scripts, keys: Keys, parent: TaskKeys, write: str) -> Reply:
    return await scripts.move_task(
        task_keys(keys, task="c"),
        {"status": b"COMPLETE", "finished": b"1"},
        mark=b"",
        from_states=["PENDING"],
        release=False,
        write=write,
        ttl_ms=HOUR,
        announcement=saying(keys, f"finished-{write}"),
        parent=parent,
        ended=write.encode(),
    )


async def test_a_childs_end_is_noted_once_with_its_parent_and_lives_as_long(
    scripts: Scripts, keys: Keys
) -> None:
    parent = task_keys(keys)
    await make_task(scripts, parent, "PENDING")
    await start(scripts, keys, parent)
    await spawn(scripts, keys, parent)
    await ask(scripts, "PEXPIRE", parent.task, 9 * HOUR)
    for _ in range(2):
        assert await end_child(scripts, keys, parent, "one") == ok(2, 0)
    denied = await end_child(scripts, keys, parent, "two")
    assert denied == no(ReplyCode.DENIED, b"COMPLETE")
    journal = await fields(scripts, parent.journal)
    assert sorted(journal) == ["child:c#1", "end:c", "entries"]
    assert journal["end:c"] == b"one"
    assert 8 * HOUR < (await lives(scripts, parent.journal))[0] <= 9 * HOUR


@pytest.mark.parametrize("parent_is", ["over", "gone", "a later one"])
async def test_the_end_of_a_child_is_noted_for_nobody_else(
    scripts: Scripts, keys: Keys, parent_is: str
) -> None:
    parent = task_keys(keys)
    await make_task(scripts, parent, "PENDING")
    await start(scripts, keys, parent)
    await spawn(scripts, keys, parent)
    if parent_is == "over":
        await ask(scripts, "HSET", parent.task, "finished", 1)
    else:
        await ask(scripts, "DEL", parent.task, parent.journal)
        if parent_is == "a later one":
            await make_task(scripts, parent, "PENDING")
    assert await end_child(scripts, keys, parent, "one") == ok(2, 0)
    assert "end:c" not in await fields(scripts, parent.journal)


async def test_what_the_mover_says_of_the_dead_stands(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "RUNNING")
    moved = await scripts.move_task(
        task,
        {"status": b"FAILED", "crashes": b"4"},
        mark=b"",
        from_states=["RUNNING"],
        release=True,
        write="w",
        ttl_ms=HOUR,
        announcement=saying(keys, "failed"),
    )
    assert moved.word is ReplyCode.OK
    assert (await fields(scripts, task.task))["crashes"] == b"4"
