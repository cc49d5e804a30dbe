from __future__ import annotations

from redis_state.scripts import ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.logs import append
from tests.support.scripts.replies import HOUR, ask, lives, ok
from tests.support.scripts.tasks import make_task, start


async def test_a_task_that_runs_goes_and_its_worker_can_write_no_more(
    scripts: Scripts, keys: Keys
) -> None:
    task, children = task_keys(keys), keys.children("s", "t")
    await make_task(scripts, task, "PENDING")
    started = await start(scripts, keys, task)
    assert started.word is ReplyCode.OK
    await ask(scripts, "HSET", task.journal, "entry", "1")
    await ask(scripts, "ZADD", children, 1, "child")
    assert await scripts.clear_task(task, children=children, lease_ms=HOUR) == ok(1)
    assert await lives(scripts, task.task, task.tasks, task.journal, children) == [-2] * 4
    assert await ask(scripts, "HMGET", task.lease, "owner", "epoch") == [
        None,
        b"%d" % (started.facts[0] + 1),
    ]
    assert 0 < (await lives(scripts, task.lease))[0] <= HOUR
    renewed = await scripts.renew_lease(
        task.lease, owner="one", epoch=started.facts[0], duration_ms=HOUR, keep_ms=HOUR
    )
    assert renewed.word is ReplyCode.LOST
    assert (await start(scripts, keys, task)).word is ReplyCode.MISSING


async def test_a_task_that_nobody_ran_leaves_no_lease_and_clearing_again_changes_nothing(
    scripts: Scripts, keys: Keys
) -> None:
    task, children = task_keys(keys), keys.children("s", "t")
    await make_task(scripts, task, "PENDING")
    assert await scripts.clear_task(task, children=children, lease_ms=HOUR) == ok(1)
    assert await scripts.clear_task(task, children=children, lease_ms=HOUR) == ok(0)
    assert await lives(scripts, task.task, task.lease) == [-2, -2]
    assert (await append(scripts, keys.updates("s"), "u", topic="t")).word is ReplyCode.OK


async def test_a_task_that_waited_so_long_that_its_lease_went_is_known_as_an_earlier_one(
    scripts: Scripts, keys: Keys
) -> None:
    task, children = task_keys(keys), keys.children("s", "t")
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task)
    await ask(scripts, "DEL", task.lease)
    assert await scripts.clear_task(task, children=children, lease_ms=HOUR) == ok(1)
    assert 0 < (await lives(scripts, task.lease))[0] <= HOUR
    assert await scripts.clear_task(task, children=children, lease_ms=HOUR) == ok(0)
    await make_task(scripts, task, "PENDING")
    assert (await start(scripts, keys, task)).word is ReplyCode.OK
