from __future__ import annotations

from redis_state.scripts import Reply, ReplyCode, Scripts
from redis_state.transport.keys import Keys
from tests.support.scripts.keys import task_keys
from tests.support.scripts.replies import HOUR, ask, clock_ms, clock_passes, fields, no
from tests.support.scripts.tasks import epoch_of, make_task, start

# In the order of the script's reply.
NAMES = (
    "status version order priority crashes queue parent isolate waits_for parent_order attempts "
    "due flow_key waits_box pause_token write retries parent_retry updated_at job"
)


def named(looked: Reply) -> dict[str, bytes]:
    """Name the values of a reply, and leave out what is not there."""
    values = zip(NAMES.split(), looked.facts[2], strict=True)
    return {name: value for name, value in values if value is not None}


async def test_a_task_is_seen_with_its_lease(scripts: Scripts, keys: Keys) -> None:
    task = task_keys(keys)
    assert await scripts.look_task(task) == no(ReplyCode.MISSING)
    await make_task(scripts, task, "PENDING")
    order = (await fields(scripts, task.task))["order"]
    looked = await scripts.look_task(task)
    assert looked.facts[:2] == [0, 0]
    values = {"status": b"PENDING", "version": b"1", "order": order, "priority": b"0"}
    values["updated_at"] = b"1"
    values["write"] = (await fields(scripts, task.task))["write"]
    assert named(looked) == values
    await ask(scripts, "HSET", task.task, "priority", 3, "crashes", 2, "queue", "q", "job", "{}")
    await ask(scripts, "HSET", task.task, "parent", "p", "waits_for", "c", "parent_order", 7)
    await start(scripts, keys, task)
    await ask(scripts, "HSET", task.task, "isolate", 1)
    looked = await scripts.look_task(task)
    assert looked.facts[0] == await epoch_of(scripts, task.lease)
    assert HOUR / 2 < looked.facts[1] <= HOUR
    values |= {"status": b"RUNNING", "version": b"2", "priority": b"3", "crashes": b"2"}
    values |= {"queue": b"q", "parent": b"p", "isolate": b"1", "waits_for": b"c"}
    values |= {"parent_order": b"7", "attempts": b"1", "job": b""}
    values["write"] = (await fields(scripts, task.task))["write"]
    assert named(looked) == values


async def test_a_lease_that_ran_out_or_was_given_back_has_nothing_left(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await make_task(scripts, task, "PENDING")
    await start(scripts, keys, task, lease_ms=1)
    await clock_passes(scripts, await clock_ms(scripts) + 1)
    assert (await scripts.look_task(task)).facts[1] == 0
    await start(scripts, keys, task, owner="two")
    assert (await scripts.look_task(task)).facts[1] > 0
    epoch = await epoch_of(scripts, task.lease)
    await scripts.release_lease(task.lease, owner="two", epoch=epoch)
    assert (await scripts.look_task(task)).facts[:2] == [epoch, 0]


async def test_looking_writes_nothing_and_bears_what_cannot_be_a_task(
    scripts: Scripts, keys: Keys
) -> None:
    task = task_keys(keys)
    await ask(scripts, "HSET", task.task, "status", "WEIRD", "version", "x", "crashes", "y")
    await ask(scripts, "PEXPIRE", task.task, HOUR)
    before = await fields(scripts, task.task)
    looked = await scripts.look_task(task)
    assert looked.facts[:2] == [0, 0]
    assert named(looked) == {"status": b"WEIRD", "version": b"x", "crashes": b"y"}
    assert await fields(scripts, task.task) == before
    assert await ask(scripts, "EXISTS", task.lease) == 0
